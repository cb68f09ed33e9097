"""Define routes: which brokers hold which queues of a topic.

Java: TopicRouteData, TopicPublishInfo.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cometmq.model.java.ranges import Int32, Int64
from cometmq.model.queue import MessageQueue
from cometmq.model.sysflag import PERM_READ, PERM_WRITE

MASTER_ID: Final = 0


class QueueData(msgspec.Struct, rename="camel"):
    """Counts the queues of one topic on one broker name."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class BrokerData(msgspec.Struct, rename="camel"):
    """Holds the addresses of one broker name by broker id (0 = master), each `host:port`."""

    broker_name: str
    cluster: str = ""
    broker_addrs: dict[Int64, str] = {}
    enable_acting_master: bool = False
    zone_name: str | None = None

    def master(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)

    def any_address(self) -> str | None:
        """Return the master's address, else that of the lowest id, else None."""
        return self.broker_addrs[min(self.broker_addrs)] if self.broker_addrs else None


class LostBroker(msgspec.Struct, rename="camel"):
    """A broker, the last one of its name, that a name server lost without an unregistration. Its
    contents are not known until it comes back. The time is in ms since the epoch.
    """

    cluster: str
    broker_name: str
    address: str
    lost_millis: int


class TopicRouteData(msgspec.Struct, rename="camel"):
    """Says where a topic is. `lost_brokers`, which Java does not know, is only sent if a request
    asks for it.
    """

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None
    lost_brokers: list[LostBroker] | msgspec.UnsetType = msgspec.UNSET

    def broker(self, broker_name: str) -> BrokerData | None:
        return next((b for b in self.broker_datas if b.broker_name == broker_name), None)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues a producer may send to: writable, with a master, by broker name.

        An ordered topic's configuration (`brokerA:4;brokerB:4`) overrides the queue data.
        """
        if self.order_topic_conf:
            return [
                MessageQueue(topic, name, queue_id)
                for name, count in order_conf(self.order_topic_conf)
                for queue_id in range(count)
            ]
        queues = []
        brokers = {data.broker_name: data for data in reversed(self.broker_datas)}
        for data in sorted(self.queue_datas, key=lambda d: d.broker_name):
            broker = brokers.get(data.broker_name)
            if data.perm & PERM_WRITE and broker is not None and MASTER_ID in broker.broker_addrs:
                queues += [
                    MessageQueue(topic, data.broker_name, i) for i in range(data.write_queue_nums)
                ]
        return queues

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues a consumer may read, sorted."""
        return sorted(
            MessageQueue(topic, data.broker_name, i)
            for data in self.queue_datas
            if data.perm & PERM_READ
            for i in range(data.read_queue_nums)
        )


class ClusterInfo(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


def order_conf(text: str) -> list[tuple[str, int]]:
    """Return the broker names and queue counts in an ordered topic's configuration.

    Parts that are not of the form `broker:count` are left out.
    """
    pairs = []
    for part in text.split(";"):
        name, _, count = part.partition(":")
        if name and count.isdecimal() and len(count) < 10:
            pairs.append((name, int(count)))
    return pairs
