"""Send stored messages again and look at what the broker is sent."""

from __future__ import annotations

import pytest
from tests.unit.admin.fake_cluster import FakeCluster, answer, route

from cometmq.admin.messages.room import Messages
from cometmq.errors import IllegalArgumentError
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.sysflag import COMPRESSED, COMPRESSION_ZSTD, TRANSACTION_COMMIT
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import SendMessageRequestHeaderV2
from cometmq.protocol.messages.properties import decode_properties

OWN = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "u", "colour": "red"}


async def resent(message: MessageExt) -> tuple[SendMessageRequestHeaderV2, bytes]:
    """Resend a message; return the header and body that the broker gets."""
    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route({"broker-a": 1}),
            RequestCode.SEND_MESSAGE_V2: lambda *_: answer(msgId="o", queueId=0, queueOffset=7),
        }
    )
    sent = await Messages(cluster.servers).resend(message)
    assert (sent.queue.queue_id, sent.queue_offset) == (0, 7)
    command = cluster.requests[-1]
    return command.header(SendMessageRequestHeaderV2), bytes(command.body)


def stored(**options: object) -> MessageExt:
    return MessageExt("t", b"body", broker_name="broker-a", **options)  # type: ignore[arg-type]  # of MessageExt


@pytest.mark.parametrize("topic", ["rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_nothing_is_sent_to_topics_in_which_brokers_keep_what_waits(topic: str) -> None:
    # A timer of Java's stops at a record that does not say when it is due.
    cluster = FakeCluster({})
    waiting = MessageExt(topic, b"body", broker_name="broker-a")
    with pytest.raises(IllegalArgumentError, match="the broker's own"):
        await Messages(cluster.servers).resend(waiting)
    with pytest.raises(IllegalArgumentError, match="the broker's own"):
        await Messages(cluster.servers).send(Message(topic, b"body"))


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(
            {
                p.TRANSACTION_PREPARED: "true",
                p.PRODUCER_GROUP: "g",
                p.TRANSACTION_ID: "u",
                p.TRANSACTION_CHECK_TIMES: "2",
                p.TRANSACTION_PREPARED_QUEUE_OFFSET: "5",
                p.REAL_TOPIC: "t",
                p.REAL_QUEUE_ID: "0",
            },
            id="committed transaction",
        ),
        pytest.param({p.DELAY_TIME_LEVEL: "3", p.TIMER_DELIVER_MS: "9" * 13}, id="delayed"),
        pytest.param({p.TIMER_OUT_MS: "1", p.TIMER_ROLL_TIMES: "2"}, id="timed"),
        pytest.param({p.POP_CK: "0 1 2", p.RECONSUME_TIME: "3"}, id="popped"),
    ],
)
async def test_a_message_sent_again_is_no_half_message_and_waits_for_nothing(
    properties: dict[str, str],
) -> None:
    flags = TRANSACTION_COMMIT if p.TRANSACTION_PREPARED in properties else 0
    header, body = await resent(stored(properties=OWN | properties, sys_flag=flags))
    assert decode_properties(header.properties or "") == OWN
    assert (header.sys_flag, body) == (0, b"body")


async def test_a_retried_message_that_is_sent_again_names_its_topic_as_before() -> None:
    origin = {p.RETRY_TOPIC: "t", p.ORIGIN_MESSAGE_ID: "o"}
    header, _ = await resent(stored(properties=OWN | origin))
    assert decode_properties(header.properties or "") == OWN | origin


async def test_a_body_that_cannot_be_decompressed_is_sent_again_as_compressed() -> None:
    flags = COMPRESSED | COMPRESSION_ZSTD
    header, _ = await resent(stored(sys_flag=flags | TRANSACTION_COMMIT))
    assert header.sys_flag == flags
    # The reader has decompressed this body, and has cleared only the bit that says so.
    header, _ = await resent(stored(sys_flag=COMPRESSION_ZSTD))
    assert header.sys_flag == 0
