"""Define the JSON bodies around pops: acknowledgements of many messages (Java: BatchAckMessageRequestBody), and what
a group has in flight, for which Java has no request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator

import msgspec

from cometmq.errors import ProtocolError
from cometmq.protocol.bodies.cluster import Body
from cometmq.protocol.header import Int32, Int64
from cometmq.protocol.pop.handle import NORMAL


class BatchAck(Body, omit_defaults=True):
    """Acknowledges messages that one pop took of one queue: bit i of `bits` stands for the offset
    `start_offset` + i. The topic is the one that was asked for; `retry` is the mark of the real one.

    Java reads the long names, too. It fails for a text that is missing, so none is left out.
    """

    consumer_group: str = msgspec.field(name="c", default="")
    topic: str = msgspec.field(name="t", default="")
    retry: str = msgspec.field(name="r", default="")
    start_offset: Int64 = msgspec.field(name="so", default=0)
    queue_id: Int32 = msgspec.field(name="q", default=0)
    revive_queue_id: Int32 = msgspec.field(name="rq", default=0)
    pop_time: Int64 = msgspec.field(name="pt", default=0)
    invisible_time: Int64 = msgspec.field(name="it", default=0)
    bits: str = msgspec.field(name="b", default="")
    long_consumer_group: str = msgspec.field(name="consumerGroup", default="")
    long_topic: str = msgspec.field(name="topic", default="")
    long_retry: str = msgspec.field(name="retry", default="")
    long_start_offset: Int64 = msgspec.field(name="startOffset", default=0)
    long_queue_id: Int32 = msgspec.field(name="queueId", default=0)
    long_revive_queue_id: Int32 = msgspec.field(name="reviveQueueId", default=0)
    long_pop_time: Int64 = msgspec.field(name="popTime", default=0)
    long_invisible_time: Int64 = msgspec.field(name="invisibleTime", default=0)
    long_bits: str = msgspec.field(name="bitSet", default="")

    def __post_init__(self) -> None:
        self.retry = self.retry or NORMAL
        for name in (
            "consumer_group", "topic", "retry", "start_offset", "queue_id", "revive_queue_id", "pop_time",
            "invisible_time", "bits",
        ):  # fmt: skip
            value = getattr(self, f"long_{name}")
            if value:
                setattr(self, name, value)
                setattr(self, f"long_{name}", type(value)())

    def offsets(self) -> Iterator[int]:
        """Yield the offsets that are acknowledged, in order. Raise ProtocolError for a text that is no Base64."""
        number = int.from_bytes(_bytes_of(self.bits), "little")
        while number:
            lowest = number & -number
            yield self.start_offset + lowest.bit_length() - 1
            number ^= lowest

    def count(self) -> int:
        """Return how many messages are acknowledged. Raise ProtocolError."""
        return int.from_bytes(_bytes_of(self.bits), "little").bit_count()


def encode_bits(start_offset: int, offsets: Iterable[int]) -> str:
    """Return the `bits` of these offsets."""
    number = 0
    for offset in offsets:
        number |= 1 << (offset - start_offset)
    return base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


def _bytes_of(bits: str) -> bytes:
    try:
        return base64.b64decode(bits, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"the bits of acknowledged messages are no Base64: {error}") from error


class BatchAckMessageRequestBody(Body):
    """Code 200151."""

    broker_name: str | None = None
    acks: list[BatchAck] = msgspec.field(default_factory=list)


class PopTopic(Body):
    """Says what a group has in flight of a topic, its retry topics included. Times are in ms since the epoch, 0
    where nothing is in flight.

    `mode` is the operators' choice, PULL or POP. `again_count` counts what of it was delivered
    before. `retry_count` counts what waits in the retry topics to be popped, and `revived_count`
    what was delivered again since the broker's start. `next_visible_ms` is no later than the time
    at which the first message becomes visible, so one in the past is how late the broker is.
    """

    topic: str
    mode: str = "PULL"
    in_flight: Int64 = 0
    again_count: Int64 = 0
    oldest_popped_ms: Int64 = 0
    next_visible_ms: Int64 = 0
    revived_count: Int64 = 0
    retry_count: Int64 = 0


class PoppedMessage(Body):
    """Says what became of one message in a group: one of HIDDEN, ACKNOWLEDGED, DONE and UNPOPPED.

    An ACKNOWLEDGED message lies behind messages that are not done, a DONE one before the committed
    offset. A hidden one has `popped_ms` and `until_ms`, and `client_id` or `address` of the client
    that got it, empty if the broker does not know any more. `before` counts the messages of the
    queue that are popped earlier than an unpopped one. `delivered` counts the deliveries in order;
    it is -1 in a group that does not pop in order.
    """

    state: str
    popped_ms: Int64 = 0
    until_ms: Int64 = 0
    client_id: str = ""
    address: str = ""
    delivered: Int32 = -1
    before: Int64 = 0
    first_offset: Int64 = 0


class PopProgress(Body):
    """The answer to code 30005; `now_ms` is the broker's time. It has `topics`, or the `message` that was asked for,
    which is null if the group has never popped its topic.
    """

    now_ms: Int64 = 0
    topics: list[PopTopic] = msgspec.field(default_factory=list)
    message: PoppedMessage | None = None
