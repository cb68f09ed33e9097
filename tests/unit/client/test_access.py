"""Clients with credentials: what they share, and what they say when a server refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.client.fakes import FakeInstance
from tests.unit.client.test_heartbeat import BEAT, Member, with_slave

import cometmq
import cometmq.aio
from cometmq import Credentials, Tls
from cometmq.errors import (
    AccessDeniedError,
    ClientStateError,
    ConfigError,
    IllegalArgumentError,
    Stored,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import response
from cometmq.remoting.credentials import refused

# The clients connect to a port where nobody listens.
pytestmark = pytest.mark.real_time

NOBODY = "127.0.0.1:1"
ONE = Credentials("one", "secret-of-one")
OTHER = Credentials("one", "another-secret")


async def test_clients_that_share_an_instance_get_in_alike() -> None:
    first = cometmq.aio.Producer("a", namesrv=NOBODY, instance_name="i", credentials=ONE, tls=True)
    alike = cometmq.aio.Producer(
        "b", namesrv=NOBODY, instance_name="i", credentials=Credentials("one", "secret-of-one"),
        tls=Tls(),
    )  # fmt: skip
    async with first, alike:
        assert first.check_started() is alike.check_started()
        for options in (
            {"credentials": OTHER, "tls": True},
            {"credentials": ONE, "tls": Tls(verify=False)},
            {"credentials": ONE},
            {},
        ):
            other = cometmq.aio.Producer("c", namesrv=NOBODY, instance_name="i", **options)
            with pytest.raises(
                ClientStateError, match=r"other credentials .* another instance_name"
            ) as error:
                await other.start()
            assert "secret" not in str(error.value)
            await other.close()


async def test_traced_clients_need_not_get_in_alike() -> None:
    options = {"namesrv": NOBODY, "enable_trace": True}
    clients = [
        cometmq.aio.Producer("a", **options, credentials=credentials)  # type: ignore[arg-type]  # the wrong type is the test
        for credentials in (ONE, OTHER, None, None)
    ]
    for client in clients:
        await client.start()
    traces = [instance for client in clients if (instance := client._trace_instance)]
    assert [instance.access.credentials for instance in traces] == [ONE, OTHER, None, None]
    assert len({instance.client_id for instance in traces}) == 3
    assert not any("secret" in instance.client_id for instance in traces)
    for client in clients:
        await client.close()


async def test_a_start_that_fails_for_a_file_may_be_tried_again(tmp_path: Path) -> None:
    producer = cometmq.aio.Producer("a", namesrv=NOBODY, tls=Tls(ca_file=str(tmp_path / "none")))
    for _ in range(2):
        with pytest.raises(ConfigError, match="ca_file of Tls is"):
            await producer.start()
    await producer.close()


@pytest.mark.parametrize("face", [cometmq, cometmq.aio])
def test_credentials_of_the_wrong_kind_are_refused_before_a_start(face: object) -> None:
    producer = face.Producer  # type: ignore[attr-defined]  # `face` is a module of the two
    with pytest.raises(IllegalArgumentError, match="credentials is a tuple; pass Credentials"):
        producer("a", namesrv=NOBODY, credentials=("one", "secret-of-one"))
    with pytest.raises(IllegalArgumentError, match="tls is 1; pass True or Tls"):
        producer("a", namesrv=NOBODY, tls=1)


async def test_whoever_joins_learns_that_a_broker_does_not_let_it_in(fake: FakeInstance) -> None:
    fake.instance.add_consumer(Member())
    fake.remoting.answers[BEAT] = lambda *_: response(16, "check signature failed.")
    await with_slave(fake)
    with pytest.raises(AccessDeniedError, match="check secret_key"):
        await fake.instance.heartbeats.join()
    # The secret was put right at the brokers.
    fake.remoting.answers[BEAT] = lambda *_: response(ResponseCode.SUCCESS)
    await fake.instance.heartbeats.join()


async def test_whoever_joins_does_not_mind_brokers_that_do_not_answer(fake: FakeInstance) -> None:
    fake.instance.add_consumer(Member())
    fake.remoting.down.add("slave:1")
    fake.remoting.answers[BEAT] = lambda *_: response(1, "another trouble")
    await with_slave(fake)
    await fake.instance.heartbeats.join()


def test_what_is_denied_is_not_sent_again_in_bulk() -> None:
    for code in (1, 16):
        error = refused(response(code, "Check signature failed"), "a:1", "a message")
        assert not error.retriable
        assert not error.refresh_route
        assert error.stored is Stored.NO
    assert refused(response(1, "a full disk"), "a:1", "a message").retriable
