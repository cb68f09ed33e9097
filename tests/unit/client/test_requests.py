"""Replies: what a consumer makes of a request, and what the requesting client gets."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, cast

import pytest
from tests.unit.client.fakes import FakeInstance, route, send_ok
from tests.waits import WAIT_S, until

from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.requesting import request
from cometmq.client.producing.requests import Replies, create_reply_message
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import IllegalArgumentError, RequestTimeoutError
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import SendResult
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.frame import Frame
from cometmq.protocol.headers import ReplyMessageRequestHeader
from cometmq.protocol.messages.properties import decode_properties
from cometmq.remoting.dispatch import Handlers
from cometmq.testing import virtual

ASKED = {"CLUSTER": "c", "CORRELATION_ID": "id-1", "REPLY_TO_CLIENT": "1.2.3.4@5", "TTL": "3000"}


def test_a_reply_carries_what_javas_carries() -> None:
    reply = create_reply_message(MessageExt("t", b"?", properties={**ASKED, "mine": "x"}), b"!")
    assert (reply.topic, reply.body) == ("c_REPLY_TOPIC", b"!")
    assert reply.properties == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "id-1",
        "REPLY_TO_CLIENT": "1.2.3.4@5",
        "TTL": "3000",
    }


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_what_is_no_request_is_not_replied_to(missing: str) -> None:
    asked = {name: value for name, value in ASKED.items() if name != missing}
    with pytest.raises(IllegalArgumentError, match=missing):
        create_reply_message(MessageExt("t", b"?", properties=asked), b"!")


async def test_a_reply_has_a_request_code_of_its_own(fake: FakeInstance) -> None:
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    reply = create_reply_message(MessageExt("t", b"?", properties=ASKED), b"!")
    assert (await encoder.encode(reply)).code == RequestCode.SEND_REPLY_MESSAGE_V2
    assert (await encoder.encode(Message("t", b"x"))).code == RequestCode.SEND_MESSAGE_V2


def push(
    fake: FakeInstance, correlation_id: str, body: bytes = b"!", sys_flag: int = 0
) -> RemotingCommand:
    header = ReplyMessageRequestHeader(
        producer_group="g",
        topic="c_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=sys_flag,
        born_timestamp=11,
        flag=7,
        properties=f"CORRELATION_ID\x01{correlation_id}\x02UNIQ_KEY\x01U1\x02",
        born_host="1.1.1.1:1",
        store_host="2.2.2.2:2",
        store_timestamp=22,
    )
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    call = Request(code=code, header=header, frame=Frame(0, b"", body))

    class Peer:
        peer = "b:1"

    handlers = Handlers()
    fake.instance.replies.register(handlers)
    handler, connection = handlers.get(code), cast("Any", Peer())
    assert handler is not None
    return cast("RemotingCommand", handler(connection, call))


async def ask(fake: FakeInstance, timeout_s: float = WAIT_S) -> MessageExt:
    fake.remoting.routes |= {"t": route("a"), "c_REPLY_TOPIC": route("a", "b")}
    fake.remoting.answers[RequestCode.SEND_MESSAGE_V2] = send_ok
    fake.instance.add_producer("g")
    encoder = MessageEncoder("g", fake.instance.unique_ids)
    sender = Sender(fake.instance, SendLimits())
    await sender.route("t", fake_deadline(timeout_s))

    async def send(asking: Message, within_s: float) -> SendResult:
        return await sender.send(await encoder.encode(asking), within_s)

    return await request(fake.instance, Message("t", b"?"), "t", timeout_s, send)


def fake_deadline(timeout_s: float) -> float:
    return asyncio.get_running_loop().time() + timeout_s


def sent_properties(fake: FakeInstance) -> dict[str, str]:
    (command,) = fake.remoting.sent(RequestCode.SEND_MESSAGE_V2)
    return decode_properties(command.ext["i"])


async def test_the_reply_to_a_request_is_found_by_its_id(fake: FakeInstance) -> None:
    asking = fake.instance.tasks.spawn(ask(fake), "ask")
    await until(lambda: fake.remoting.sent(RequestCode.SEND_MESSAGE_V2))
    properties = sent_properties(fake)
    assert properties["REPLY_TO_CLIENT"] == fake.instance.client_id
    assert properties["TTL"] == f"{WAIT_S * 1000:.0f}"
    # All brokers of the cluster know the client before the request is sent.
    assert {"a:1", "b:1"} <= set(fake.remoting.called(RequestCode.HEART_BEAT))
    assert push(fake, "of another").code == ResponseCode.SUCCESS
    assert not asking.done()
    assert push(fake, properties["CORRELATION_ID"]).code == ResponseCode.SUCCESS
    reply = await asking
    assert (reply.body, reply.flag, reply.msg_id, reply.queue_id) == (b"!", 7, "U1", 1)
    assert (reply.born_host, reply.store_host) == ("1.1.1.1:1", "2.2.2.2:2")
    assert (reply.born_timestamp_ms, reply.store_timestamp_ms) == (11, 22)
    assert int(reply.properties["ARRIVE_TIME"]) > 1_600_000_000_000


async def test_a_compressed_reply_is_decompressed(fake: FakeInstance) -> None:
    asking = fake.instance.tasks.spawn(ask(fake), "ask")
    await until(lambda: fake.remoting.sent(RequestCode.SEND_MESSAGE_V2))
    push(fake, sent_properties(fake)["CORRELATION_ID"], zlib.compress(b"long" * 100), 0x301)
    assert (await asking).body == b"long" * 100


def test_a_reply_that_does_not_come_is_told() -> None:
    async def main() -> None:
        fake = FakeInstance()
        with pytest.raises(RequestTimeoutError, match=r"was sent to t@a:\d, but no reply came"):
            await ask(fake, 0.1)
        await fake.close()

    # No time passes before the request is sent.
    virtual.run(main())


async def test_a_broker_that_is_away_holds_up_no_request(fake: FakeInstance) -> None:
    fake.remoting.down.add("b:1")
    asking = fake.instance.tasks.spawn(ask(fake), "ask")
    await until(lambda: fake.remoting.sent(RequestCode.SEND_MESSAGE_V2))
    push(fake, sent_properties(fake)["CORRELATION_ID"])
    assert (await asking).body == b"!"


async def test_a_broker_that_does_not_answer_heartbeats_holds_up_no_request(
    fake: FakeInstance,
) -> None:
    def b_is_silent(address: str, _command: RemotingCommand) -> RemotingCommand:
        if address == "b:1":
            raise RequestTimeoutError("b:1 did not answer", address=address)
        return response(ResponseCode.SUCCESS)

    fake.remoting.answers[RequestCode.HEART_BEAT] = b_is_silent
    asking = fake.instance.tasks.spawn(ask(fake), "ask")
    await until(lambda: fake.remoting.sent(RequestCode.SEND_MESSAGE_V2))
    push(fake, sent_properties(fake)["CORRELATION_ID"])
    assert (await asking).body == b"!"


def test_ids_are_not_repeated() -> None:
    async def ids() -> set[str]:
        replies = Replies()
        return {replies.expect()[0] for _ in range(100)}

    assert len(asyncio.run(ids())) == 100
