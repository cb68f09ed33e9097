"""Define the bodies in which a broker describes its topics, groups and clients to operators.

Java: `remoting.protocol.body` and `remoting.protocol.admin`. Maps by message queue have the JSON of
queues as keys, see `queue_table`.
"""

from __future__ import annotations

import msgspec

from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.cluster import Body, MessageQueueBean
from cometmq.protocol.header import Int32, Int64


class TopicOffset(Body):
    """A value of code 202: one queue of a topic. The time is that of its newest message in ms, 0 if
    it has none.
    """

    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class OffsetWrapper(Body):
    """A value of code 208: how far a group is in one queue. It has consumed up to
    `consumer_offset`, and has been handed messages up to `pull_offset`. The time is that of the
    last message it consumed in ms, 0 if there is none.

    Java has no other fields, and writes a `consumer_offset` of 0 where the group has none. Our
    brokers say by `has_offset` whether it has one, and give the offset of the first message that
    waits for it: `waiting_offset` skips messages that have left the log, and is -1 where it is
    unknown.
    """

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0
    pull_offset: Int64 = 0
    has_offset: bool | None = None
    waiting_offset: Int64 | None = None


class BrokerStatsItem(Body):
    """A value of code 315. `avgpt` is the average of one time that something was counted."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """The answer of code 315: how much a counter grew in the last minute, hour and day."""

    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)


class QueueTimeSpan(Body):
    """A value of code 303: when the first, the last and the last consumed message of a queue were
    stored, in ms, -1 if there is none. `delay_time` is the age of the next one to consume in ms, 0
    if all are consumed.
    """

    message_queue: MessageQueueBean
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


class QueryConsumeTimeSpanBody(Body):
    """The answer of code 303."""

    consume_time_span_set: list[QueueTimeSpan] = msgspec.field(default_factory=list)


class ClientConnection(Body):
    """One client of a group. `language` must be a name of Java's LanguageCode, because Java accepts
    no other.
    """

    client_addr: str
    client_id: str
    language: str
    version: Int32


class ProducerConnection(Body):
    """The answer of code 204."""

    connection_set: list[ClientConnection] = msgspec.field(default_factory=list)


class ConsumerConnection(Body):
    """The answer of code 203."""

    consume_from_where: str
    consume_type: str
    message_model: str
    connection_set: list[ClientConnection] = msgspec.field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)


class QuerySubscriptionResponseBody(Body):
    """The answer of code 345. It has no subscription if the group does not subscribe to the
    topic.
    """

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
