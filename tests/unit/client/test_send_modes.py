"""Differences between synchronous, asynchronous and one-way sends, and the rules of choosing
brokers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.fakes import FakeInstance, refuse, route, send_ok
from tests.unit.client.test_sending import RETRIED_CODES
from tests.waits import WAIT_S

from cometmq.client.cluster.latency_faults import LatencyFaults, LatencyTables
from cometmq.client.hooks import CommunicationMode
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.sending import Sender, SendLimits, vip_address
from cometmq.errors import ConnectError, RemoteError, TooManyRequestsError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2
SYNC, ASYNC = CommunicationMode.SYNC, CommunicationMode.ASYNC


def sender(fake: FakeInstance, faults: LatencyFaults | None = None, **limits: Any) -> Sender:
    return Sender(fake.instance, SendLimits(**limits), faults=faults)


async def send(
    fake: FakeInstance,
    mode: CommunicationMode = SYNC,
    faults: LatencyFaults | None = None,
    timeout_s: float = WAIT_S,
    **limits: Any,
) -> SendResult:
    outgoing = await MessageEncoder("g", fake.instance.unique_ids).encode(Message("t", b"x"))
    return await sender(fake, faults, **limits).send(outgoing, timeout_s, mode)


async def send_fixed(fake: FakeInstance, mode: CommunicationMode, **limits: Any) -> SendResult:
    outgoing = await MessageEncoder("g", fake.instance.unique_ids).encode(Message("t", b"x"))
    to = sender(fake, **limits)
    deadline = asyncio.get_running_loop().time() + WAIT_S
    await to.route("t", deadline)
    return await to.send_fixed(outgoing, MessageQueue("t", "a", 1), deadline, mode)


@pytest.fixture
def two(fake: FakeInstance) -> FakeInstance:
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = send_ok
    return fake


# Asynchronous sends


async def test_an_asynchronous_send_goes_on_to_another_broker(two: FakeInstance) -> None:
    two.remoting.down.add("a:1")
    for _ in range(4):
        assert (await send(two, ASYNC)).queue.broker_name == "b"


async def test_the_attempts_of_each_mode_are_counted_apart(two: FakeInstance) -> None:
    two.remoting.down |= {"a:1", "b:1"}
    with pytest.raises(ConnectError, match="failed 1 times"):
        await send(two, SYNC, retry_times=0, retry_times_async=4)
    with pytest.raises(ConnectError, match="failed 5 times"):
        await send(two, ASYNC, retry_times=0, retry_times_async=4)


@pytest.mark.parametrize("code", RETRIED_CODES)
async def test_an_answer_is_final_for_an_asynchronous_send(two: FakeInstance, code: int) -> None:
    two.remoting.answers[SEND] = refuse(code)
    with pytest.raises(RemoteError):
        await send(two, ASYNC)
    assert len(two.remoting.called(SEND)) == 1


async def test_a_limit_of_ours_is_final_for_an_asynchronous_send(two: FakeInstance) -> None:
    def too_many(_address: str, _command: RemotingCommand) -> RemotingCommand:
        raise TooManyRequestsError("65535 calls wait")

    two.remoting.answers[SEND] = too_many
    with pytest.raises(TooManyRequestsError):
        await send(two, ASYNC)
    assert len(two.remoting.called(SEND)) == 1


# To one queue


async def test_a_send_to_a_queue_has_one_attempt(two: FakeInstance) -> None:
    two.remoting.down.add("a:1")
    with pytest.raises(ConnectError):
        await send_fixed(two, SYNC)
    assert two.remoting.called(SEND) == ["a:1"]


async def test_an_asynchronous_send_to_a_queue_is_repeated_there(two: FakeInstance) -> None:
    two.remoting.down.add("a:1")
    with pytest.raises(ConnectError):
        await send_fixed(two, ASYNC, retry_times_async=2)
    assert two.remoting.called(SEND) == ["a:1"] * 3
    assert {c.ext["e"] for c in two.remoting.sent(SEND)} == {"1"}


# What was stored, but not as it was wished


async def stored_with(fake: FakeInstance, codes: dict[str, int], **limits: Any) -> SendResult:
    def stored(address: str, command: RemotingCommand) -> RemotingCommand:
        answer = send_ok(address, command)
        answer.code = codes[address]
        return answer

    fake.remoting.answers[SEND] = stored
    results = [await send(fake, **limits) for _ in range(4)]
    assert len({result.status for result in results}) == 1
    return results[0]


async def test_another_broker_may_be_asked_to_store_it_well(two: FakeInstance) -> None:
    codes = {"a:1": 10, "b:1": 0}
    result = await stored_with(two, codes, retry_another_broker_when_not_store_ok=True)
    assert (result.status, result.queue.broker_name) == (SendStatus.SEND_OK, "b")


async def test_the_last_status_counts_when_none_stores_it_well(two: FakeInstance) -> None:
    codes = {"a:1": 11, "b:1": 11}
    result = await stored_with(two, codes, retry_another_broker_when_not_store_ok=True)
    assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert len(two.remoting.called(SEND)) == 12


async def test_what_is_stored_is_no_failure_even_if_the_next_broker_fails(
    two: FakeInstance,
) -> None:
    def stored(address: str, command: RemotingCommand) -> RemotingCommand:
        if len(two.remoting.called(SEND)) > 1:
            raise ConnectError("gone")
        answer = send_ok(address, command)
        answer.code = 10
        return answer

    two.remoting.answers[SEND] = stored
    result = await send(two, retry_another_broker_when_not_store_ok=True)
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT


async def test_an_asynchronous_send_takes_any_status(two: FakeInstance) -> None:
    codes = {"a:1": 10, "b:1": 10}
    await stored_with(two, codes, mode=ASYNC, retry_another_broker_when_not_store_ok=True)
    assert len(two.remoting.called(SEND)) == 4


# Latency faults


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
async def test_a_broker_that_failed_is_not_asked_again_at_once(
    two: FakeInstance, mode: CommunicationMode
) -> None:
    faults = LatencyFaults(LatencyTables(), asyncio.get_running_loop().time)
    two.remoting.down.add("a:1")
    for _ in range(20):
        await send(two, mode, faults)
    assert two.remoting.called(SEND).count("a:1") <= 1
    assert not faults.available("a")
    two.remoting.down.clear()
    assert {(await send(two, mode, faults)).queue.broker_name for _ in range(8)} == {"b"}


async def test_a_broker_that_refuses_is_left_alone_too(two: FakeInstance) -> None:
    def a_refuses(address: str, command: RemotingCommand) -> RemotingCommand:
        return refuse(2)(address, command) if address == "a:1" else send_ok(address, command)

    faults = LatencyFaults(LatencyTables(), asyncio.get_running_loop().time)
    two.remoting.answers[SEND] = a_refuses
    for _ in range(20):
        await send(two, SYNC, faults)
    assert two.remoting.called(SEND).count("a:1") <= 1
    assert not faults.reachable("a")


async def test_without_latency_faults_brokers_take_turns(two: FakeInstance) -> None:
    two.remoting.down.add("a:1")
    for _ in range(24):
        await send(two)
    assert two.remoting.called(SEND).count("a:1") > 1


# Keys


async def test_the_queues_for_keys_stay_while_a_broker_is_away(two: FakeInstance) -> None:
    to = sender(two)
    deadline = asyncio.get_running_loop().time() + WAIT_S
    before = await to.keyed_queues("t", deadline)
    two.remoting.routes["t"] = route("b")
    await two.instance.routes.refresh("t")
    assert (await to.route("t", deadline)).queues == [q for q in before if q.broker_name == "b"]
    assert await to.keyed_queues("t", deadline) == before


async def test_for_a_topic_made_on_demand_the_default_queues_are_taken(fake: FakeInstance) -> None:
    fake.remoting.routes["TBW102"] = route("a", queues=8, perm=7)
    deadline = asyncio.get_running_loop().time() + WAIT_S
    assert len(await sender(fake).keyed_queues("new", deadline)) == 4


# The second port


def test_the_vip_channel_is_two_ports_below() -> None:
    assert vip_address("127.0.0.1:10911") == "127.0.0.1:10909"
    assert vip_address("[::1]:10911") == "[::1]:10909"


async def test_the_vip_channel_is_used_only_when_asked_for(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.routes["t"].broker_datas[0].broker_addrs = {0: "a:10911"}
    fake.remoting.answers[SEND] = send_ok
    await send(fake)
    await send(fake, vip_channel=True)
    assert fake.remoting.called(SEND) == ["a:10911", "a:10909"]
