"""Retries of sends: after which failures, where to, how often, and the caller's error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.fakes import NAMESRV, FakeInstance, refuse, route, send_ok
from tests.waits import WAIT_S, until

from cometmq.client.hooks import CommunicationMode
from cometmq.client.producing.answers import Attempt
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import (
    ClientStateError,
    CometMQError,
    ConnectError,
    ConnectionLostError,
    IllegalArgumentError,
    ProtocolError,
    RemoteError,
    RequestTimeoutError,
    RouteNotFoundError,
    Stored,
)
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.messages.recall_handle import RecallHandle

SEND = RequestCode.SEND_MESSAGE_V2
# What Java's producer tries at another broker (DefaultMQProducer.retryResponseCodes).
RETRIED_CODES = (
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.GO_AWAY,
)


async def send(fake: FakeInstance, retry_times: int = 2, timeout_s: float = WAIT_S) -> SendResult:
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    outgoing = await encoder.encode(Message("t", b"x"))
    return await Sender(fake.instance, SendLimits(retry_times)).send(outgoing, timeout_s)


async def test_the_answer_becomes_a_result(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = send_ok
    result = await send(fake)
    assert result.status is SendStatus.SEND_OK
    assert (result.offset_msg_id, result.queue_offset) == ("7F000001", 7)
    assert result.queue.broker_name == "a"
    assert (result.region_id, result.trace_on) == ("DefaultRegion", True)


@pytest.mark.parametrize(
    ("code", "status"),
    [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")],
)
async def test_a_stored_message_is_no_error(fake: FakeInstance, code: int, status: str) -> None:
    def stored(address: str, command: RemotingCommand) -> RemotingCommand:
        answer = send_ok(address, command)
        answer.code = code
        answer.ext |= {"MSG_REGION": "r", "TRACE_ON": "false"}
        return answer

    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = stored
    result = await send(fake)
    assert result.status.name == status
    assert (result.region_id, result.trace_on) == ("r", False)
    assert len(fake.remoting.called(SEND)) == 1


@pytest.mark.parametrize("code", RETRIED_CODES)
async def test_some_refusals_are_tried_at_another_broker(fake: FakeInstance, code: int) -> None:
    def first_refuses(address: str, command: RemotingCommand) -> RemotingCommand:
        if len(fake.remoting.called(SEND)) == 1:
            return response(code, "not here")
        return send_ok(address, command)

    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = first_refuses
    await send(fake)
    assert len(set(fake.remoting.called(SEND))) == 2


@pytest.mark.parametrize("code", [13, 29, 26, 3])
async def test_other_refusals_are_final(fake: FakeInstance, code: int) -> None:
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = refuse(code)
    with pytest.raises(RemoteError, match="refused by the test") as error:
        await send(fake)
    assert error.value.code == code
    assert len(fake.remoting.called(SEND)) == 1


@pytest.mark.parametrize("mode", [CommunicationMode.SYNC, CommunicationMode.ASYNC])
async def test_sends_go_on_at_the_queues_that_a_shrunk_topic_still_has(
    fake: FakeInstance, mode: CommunicationMode
) -> None:
    def shrunk(address: str, command: RemotingCommand) -> RemotingCommand:
        if int(command.ext["e"]) > 0:
            fake.remoting.routes["t"] = route("a", queues=1)
            return response(ResponseCode.INVALID_PARAMETER, "request queueId[2] is illegal")
        return send_ok(address, command)

    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = shrunk
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    sender = Sender(fake.instance, SendLimits(0, retry_times_async=0))

    async def one() -> SendResult:
        outgoing = await encoder.encode(Message("t", b"x"))
        return await sender.send(outgoing, WAIT_S, mode)

    results = await asyncio.gather(*(one() for _ in range(16)))
    assert {result.queue.queue_id for result in results} == {0}
    assert len(fake.remoting.called(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2


async def test_the_route_is_renewed_after_a_send_to_a_chosen_queue_that_is_gone(
    fake: FakeInstance,
) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = refuse(ResponseCode.INVALID_PARAMETER)
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    sender = Sender(fake.instance, SendLimits())
    deadline = asyncio.get_running_loop().time() + WAIT_S
    await sender.route("t", deadline)
    fake.remoting.routes["t"] = route("a", queues=1)
    outgoing = await encoder.encode(Message("t", b"x"))
    with pytest.raises(RemoteError):
        await sender.send_fixed(outgoing, MessageQueue("t", "a", 3), deadline)

    def queue_count() -> int:
        renewed = fake.instance.routes.publish_route("t")
        return 0 if renewed is None else len(renewed.queues)

    await until(lambda: queue_count() == 1)


async def test_a_dead_broker_is_left_and_its_route_renewed(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = send_ok
    fake.remoting.down.add("a:1")
    for _ in range(8):
        assert (await send(fake)).queue.broker_name == "b"
    assert len(fake.remoting.called(RequestCode.GET_ROUTEINFO_BY_TOPIC)) > 1


async def test_a_refusal_is_no_reason_to_try_a_broker_that_heartbeats_miss(
    fake: FakeInstance,
) -> None:
    fake.instance.add_producer("g")
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = lambda address, command: (
        response(ResponseCode.SYSTEM_BUSY, "not now")
        if len(fake.remoting.called(SEND)) == 1
        else send_ok(address, command)
    )
    await fake.instance.routes.refresh("t")
    fake.remoting.down.add("b:1")
    await fake.instance.heartbeats.beat_all()
    await send(fake)
    assert fake.remoting.called(SEND) == ["a:1", "a:1"]


@pytest.mark.parametrize(
    ("codes", "stored"),
    [
        ((ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE), Stored.UNKNOWN),
        ((ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR), Stored.UNKNOWN),
        ((ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY), Stored.NO),
    ],
)
async def test_a_refusal_after_an_attempt_in_doubt_leaves_the_doubt(
    fake: FakeInstance, codes: tuple[int, int], stored: Stored
) -> None:
    def refuses(address: str, command: RemotingCommand) -> RemotingCommand:
        return response(codes[len(fake.remoting.called(SEND)) - 1], "refused by the test")

    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = refuses
    with pytest.raises(RemoteError) as error:
        await send(fake, retry_times=1)
    assert error.value.code == codes[1]
    assert error.value.stored is stored


async def test_a_message_that_is_stored_is_not_taken_for_lost_when_the_route_goes(
    fake: FakeInstance,
) -> None:
    def stored(address: str, command: RemotingCommand) -> RemotingCommand:
        # Meanwhile an operator takes the permission to write from the topic.
        fake.remoting.routes["t"] = route("a", "b", perm=4)
        fake.instance.routes.refresh_soon("t")
        answer = send_ok(address, command)
        answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        return answer

    async def call(*args: Any) -> RemotingCommand:
        answer = await answered(*args)
        await asyncio.sleep(0.01)
        return answer

    answered = fake.remoting.call
    fake.remoting.call = call  # type: ignore[assignment,method-assign]  # the test holds the answer up
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = stored
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    outgoing = await encoder.encode(Message("t", b"x"))
    limits = SendLimits(2, retry_another_broker_when_not_store_ok=True)
    result = await Sender(fake.instance, limits).send(outgoing, WAIT_S)
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT


async def test_an_error_of_another_kind_after_an_attempt_in_doubt_leaves_the_doubt(
    fake: FakeInstance,
) -> None:
    def closes(address: str, command: RemotingCommand) -> RemotingCommand:
        if len(fake.remoting.called(SEND)) == 1:
            raise ConnectionLostError("lost by the test", address=address)
        raise ClientStateError("the remoting client is closed")

    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = closes
    with pytest.raises(ClientStateError) as error:
        await send(fake)
    assert error.value.stored is Stored.UNKNOWN


async def test_a_send_that_was_begun_is_in_doubt_although_its_topic_has_lost_the_route(
    fake: FakeInstance,
) -> None:
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    outgoing = await encoder.encode(Message("t", b"x"))
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[RemotingCommand] = loop.create_future()
    begun = Attempt(MessageQueue("t", "a", 0), "a:1", loop.time(), WAIT_S, answer)
    answer.set_exception(ConnectionLostError("lost by the test", address="a:1"))
    with pytest.raises(RouteNotFoundError) as error:
        await Sender(fake.instance, SendLimits(retry_times_async=1)).send(
            outgoing, WAIT_S, CommunicationMode.ASYNC, begun
        )
    assert error.value.stored is Stored.UNKNOWN


async def test_the_doubt_of_one_send_is_not_that_of_another_with_the_same_error(
    fake: FakeInstance,
) -> None:
    shared = ConnectError("no connection to a:1", address="a:1")
    first = [ConnectionLostError("lost by the test", address="a:1")]

    def fails(address: str, command: RemotingCommand) -> RemotingCommand:
        # Calls that wait for the same connection all get the error of the one attempt to connect.
        raise first.pop() if first else shared

    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = fails
    sender = Sender(fake.instance, SendLimits(retry_times_async=1))
    await sender.route("t", asyncio.get_running_loop().time() + WAIT_S)
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    stored = []
    for _ in range(2):
        outgoing = await encoder.encode(Message("t", b"x"))
        deadline = asyncio.get_running_loop().time() + WAIT_S
        with pytest.raises(ConnectError) as error:
            await sender.send_fixed(
                outgoing, MessageQueue("t", "a", 0), deadline, CommunicationMode.ASYNC
            )
        stored.append(error.value.stored)
    assert stored == [Stored.UNKNOWN, Stored.NO]


async def test_a_send_that_reached_no_broker_in_time_is_certain_that_nothing_is_stored(
    fake: FakeInstance,
) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.down.add("a:1")
    with pytest.raises(CometMQError) as error:
        await send(fake, retry_times=50, timeout_s=0.15)
    assert error.value.stored is Stored.NO
    fake.remoting.delay_s = 1.0
    sender, soon = Sender(fake.instance, SendLimits()), asyncio.get_running_loop().time() + 0.01
    with pytest.raises(RequestTimeoutError, match="route of topic other") as late:
        await sender.next_queue("other", soon)
    assert late.value.stored is Stored.NO


async def test_the_attempts_are_counted_and_named(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.down |= {"a:1", "b:1"}
    with pytest.raises(
        ConnectError, match=rf"failed 3 times within {WAIT_S * 1000:.0f} ms, at [ab], [ab], [ab]"
    ):
        await send(fake)
    called = fake.remoting.called(SEND)
    assert len(called) == 3
    assert called[0] != called[1] != called[2]
    with pytest.raises(ConnectError, match="failed 1 times"):
        await send(fake, retry_times=0)


async def test_every_attempt_sends_the_same_id(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = refuse(1)
    with pytest.raises(RemoteError):
        await send(fake)
    assert len({c.ext["i"] for c in fake.remoting.sent(SEND)}) == 1


async def test_the_timeout_bounds_all_attempts(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = refuse(1)
    async with asyncio.timeout(WAIT_S):  # the attempts would take a quarter of an hour
        with pytest.raises((RemoteError, RequestTimeoutError)):
            await send(fake, retry_times=1000, timeout_s=0.25)
    assert len(fake.remoting.called(SEND)) <= 4


async def test_a_silent_name_server_does_not_hold_the_send_longer(fake: FakeInstance) -> None:
    fake.remoting.delay_s = 60
    with pytest.raises(RequestTimeoutError, match="route of topic t"):
        await send(fake, timeout_s=0.05)


async def test_without_name_server_the_cause_is_told(fake: FakeInstance) -> None:
    fake.remoting.down.add(NAMESRV)
    with pytest.raises(ConnectError, match=NAMESRV):
        await send(fake)


async def test_a_broker_without_master_is_passed_over(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.routes["t"].order_topic_conf = "a:1;gone:1"
    fake.remoting.answers[SEND] = send_ok
    assert [(await send(fake)).queue.broker_name for _ in range(4)] == ["a"] * 4


async def test_a_route_without_any_master_is_told(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.routes["t"].order_topic_conf = "gone:1"
    with pytest.raises(RouteNotFoundError, match="no master of broker gone"):
        await send(fake)


@pytest.mark.parametrize("ext", [{}, {"msgId": "A", "queueId": "x", "queueOffset": "1"}])
async def test_a_malformed_answer_is_a_protocol_error(fake: FakeInstance, ext: Any) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = lambda *_: response(0, ext=ext)
    with pytest.raises(ProtocolError, match="answer to a send"):
        await send(fake)


HANDLE = RecallHandle("t", "b", 1_700_000_003_001, "U1").encode()


def recalled(_address: str, command: RemotingCommand) -> RemotingCommand:
    ext = command.ext
    assert (ext["topic"], ext["recallHandle"], ext["producerGroup"]) == ("t", HANDLE, "g")
    return response(0, ext={"msgId": "U1"})


async def test_a_recall_goes_to_the_broker_that_has_the_message(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[RequestCode.RECALL_MESSAGE] = recalled
    sender = Sender(fake.instance, SendLimits())
    assert await sender.recall("g", "t", HANDLE, WAIT_S) == "U1"
    assert fake.remoting.called(RequestCode.RECALL_MESSAGE) == ["b:1"]


@pytest.mark.parametrize(
    ("handle", "topic", "reason"),
    [("nonsense", "t", "recall handle is invalid"), (HANDLE, "other", "of topic t, not of other")],
)
async def test_a_recall_without_its_handle_is_not_sent(
    fake: FakeInstance, handle: str, topic: str, reason: str
) -> None:
    with pytest.raises(IllegalArgumentError, match=reason):
        await Sender(fake.instance, SendLimits()).recall("g", topic, handle, WAIT_S)
    assert fake.remoting.calls == []


async def test_a_recall_from_a_broker_that_nobody_knows(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    with pytest.raises(RouteNotFoundError, match="no master of broker b"):
        await Sender(fake.instance, SendLimits()).recall("g", "t", HANDLE, WAIT_S)


async def test_a_refused_recall_is_not_repeated(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[RequestCode.RECALL_MESSAGE] = refuse(604)
    with pytest.raises(RemoteError, match="ILLEGAL_OPERATION") as error:
        await Sender(fake.instance, SendLimits()).recall("g", "t", HANDLE, WAIT_S)
    assert error.value.code == 604
    assert len(fake.remoting.called(RequestCode.RECALL_MESSAGE)) == 1


async def test_the_recall_handle_of_an_answer_is_kept(fake: FakeInstance) -> None:
    def timed(address: str, command: RemotingCommand) -> RemotingCommand:
        answer = send_ok(address, command)
        answer.ext["recallHandle"] = HANDLE
        return answer

    fake.remoting.routes["t"] = route("a")
    fake.remoting.answers[SEND] = timed
    assert (await send(fake)).recall_handle == HANDLE
    fake.remoting.answers[SEND] = send_ok
    assert (await send(fake)).recall_handle is None
