"""Hold the two faces of the administration client together, and each call to its contract test."""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cometmq
import cometmq.aio
from cometmq.admin.client import AdminOptions
from cometmq.errors import ClientStateError, ConnectError, IllegalArgumentError, ServersFailedError
from cometmq.protocol.codes import CURRENT_VERSION, MQVersion, version_name, version_text
from cometmq.runtime.sockets.network import P, TcpNetwork

ROOT = Path(__file__).parents[3]
CONTRACTS = [
    ROOT / "tests" / "integration" / name
    for name in (
        "test_admin_client.py",
        "test_message_pages.py",
        "test_messages_admin.py",
        "test_waiting_admin.py",
        "test_explain_groups.py",
        "test_explain_brokers.py",
    )
] + [ROOT / "tests" / "interop" / "test_access_on_java.py"]
ROOMS = (
    "access",
    "brokers",
    "explain",
    "groups",
    "health",
    "messages",
    "name_servers",
    "offsets",
    "producers",
    "topics",
)
NOBODY = "127.0.0.1:1"


def calls(room: object) -> Iterator[str]:
    for name, member in inspect.getmembers(type(room)):
        if not name.startswith("_") and callable(member):
            yield name


@pytest.mark.parametrize("room", ROOMS)
def test_both_faces_have_the_same_calls_and_parameters(room: str) -> None:
    blocking = getattr(cometmq.AdminClient(NOBODY), room)
    asynchronous = getattr(cometmq.aio.AdminClient(NOBODY), room)
    assert sorted(calls(blocking)) == sorted(calls(asynchronous))
    for name in calls(blocking):
        ours, theirs = getattr(blocking, name), getattr(asynchronous, name)
        assert inspect.signature(ours) == inspect.signature(theirs), name
        assert inspect.getdoc(ours) == inspect.getdoc(theirs), name
        assert not inspect.iscoroutinefunction(ours), name


def test_every_room_is_known_to_these_tests() -> None:
    client = cometmq.AdminClient(NOBODY)
    assert sorted(name for name in vars(client) if not name.startswith("_")) == sorted(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_every_call_has_a_contract_test(room: str) -> None:
    tested = "".join(path.read_text() for path in CONTRACTS)
    names = calls(getattr(cometmq.AdminClient(NOBODY), room))
    missing = [name for name in names if not re.search(rf"admin\.{room}\.{name}\b", tested)]
    assert missing == []


def test_options_are_those_of_the_record() -> None:
    expected = inspect.signature(AdminOptions).parameters
    for face in (cometmq.AdminClient, cometmq.aio.AdminClient):
        parameters = inspect.signature(face).parameters
        assert list(parameters) == list(expected)
        assert {name: p.default for name, p in parameters.items()} == {
            name: p.default for name, p in expected.items()
        }


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"namesrv": "nowhere"}, "'nowhere' is no name-server address of the form host:port"),
        ({"namesrv": NOBODY, "timeout_ms": 0}, "timeout_ms is 0"),
        ({"namesrv": NOBODY, "timeout": 3}, "has no option 'timeout'.*did you mean timeout_ms"),
        ({"namesrv": NOBODY, "credentials": "secret"}, "credentials is a str"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], reason: str) -> None:
    for face in (cometmq.AdminClient, cometmq.aio.AdminClient):
        with pytest.raises(IllegalArgumentError, match=reason):
            face(**options)


def test_a_client_that_does_not_run_says_so() -> None:
    client = cometmq.AdminClient(NOBODY)
    with pytest.raises(ClientStateError, match="AdminClient is not started; call start"):
        client.topics.names()
    client.start()
    client.close()
    with pytest.raises(ClientStateError, match="AdminClient is closed"):
        client.topics.names()


class DeafNetwork(TcpNetwork):
    """Makes no connection, and never says so."""

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> P:
        raise AssertionError(await asyncio.Event().wait())


async def test_the_timeout_bounds_connecting_too() -> None:
    surroundings: dict[str, Any] = {"network": DeafNetwork()}
    client = cometmq.aio.AdminClient(NOBODY, timeout_ms=50, **surroundings)
    async with client:
        with pytest.raises(ConnectError, match=r"within the 0\.05 s of the call"):
            await client.topics.names()


def test_results_and_errors_of_several_servers_are_told_apart() -> None:
    error = ServersFailedError(
        "x",
        results={"a": 1},
        errors={"b": ClientStateError("y", code=3), "c": ClientStateError("z")},
    )
    assert (error.results["a"], str(error.errors["b"]), error.code) == (1, "y", None)
    assert not error.retriable


@pytest.mark.parametrize(
    ("version", "text", "name"),
    [
        (MQVersion.V4_9_4, "4.9.4", "V4_9_4"),
        (409, "4.9.8", "V4_9_8"),
        (213, "4.0.0", "V4_0_0"),
        (212, "4.0.0-SNAPSHOT", "V4_0_0_SNAPSHOT"),
        (211, "version 211", "211"),
        (MQVersion.V5_0_0, "5.0.0", "V5_0_0"),
        (412, "5.0.0-SNAPSHOT", "V5_0_0_SNAPSHOT"),
        (CURRENT_VERSION, "5.3.3", "V5_3_3"),
        (1411, "9.9.9", "V9_9_9"),
        (1412, "version 1412", "1412"),
        (1500, "version 1500", "1500"),
        (-1, "version -1", "-1"),
    ],
)
def test_versions_are_shown_as_their_releases(version: int, text: str, name: str) -> None:
    assert (version_text(version), version_name(version)) == (text, name)
