from __future__ import annotations

from cometmq.model.queue import MessageQueue
from cometmq.model.route import BrokerData, QueueData, TopicRouteData
from cometmq.model.topic import DataVersion, TopicConfig

ROUTE = TopicRouteData(
    broker_datas=[
        BrokerData("b", "c", {0: "b0:1", 1: "b1:1"}),
        BrokerData("a", "c", {0: "a0:1"}),
        BrokerData("headless", "c", {2: "h2:1", 1: "h1:1"}),
    ],
    queue_datas=[
        QueueData("b", read_queue_nums=2, write_queue_nums=1, perm=6),
        QueueData("a", read_queue_nums=1, write_queue_nums=2, perm=6),
        QueueData("headless", read_queue_nums=1, write_queue_nums=1, perm=6),
        QueueData("unknown", read_queue_nums=1, write_queue_nums=1, perm=2),
    ],
)


def test_a_producer_sends_to_writable_queues_with_a_master() -> None:
    assert ROUTE.publish_queues("t") == [
        MessageQueue("t", "a", 0),
        MessageQueue("t", "a", 1),
        MessageQueue("t", "b", 0),
    ]


def test_a_consumer_reads_readable_queues_of_any_broker() -> None:
    assert ROUTE.subscribe_queues("t") == [
        MessageQueue("t", "a", 0),
        MessageQueue("t", "b", 0),
        MessageQueue("t", "b", 1),
        MessageQueue("t", "headless", 0),
    ]


def test_permissions_close_queues() -> None:
    for perm, writable, readable in [(0, 0, 0), (1, 0, 0), (2, 1, 0), (4, 0, 1), (6, 1, 1)]:
        route = TopicRouteData([BrokerData("a", "c", {0: "h:1"})], [QueueData("a", 1, 1, perm)])
        assert len(route.publish_queues("t")) == writable
        assert len(route.subscribe_queues("t")) == readable


def test_order_configuration_overrides_the_queues_to_send_to() -> None:
    route = TopicRouteData(ROUTE.broker_datas, ROUTE.queue_datas, order_topic_conf="b:2;a:1;x;y:z")
    assert route.publish_queues("t") == [
        MessageQueue("t", "b", 0),
        MessageQueue("t", "b", 1),
        MessageQueue("t", "a", 0),
    ]


def test_addresses_of_a_broker() -> None:
    headless = ROUTE.broker("headless")
    assert headless is not None
    assert headless.master() is None
    assert headless.any_address() == "h1:1"
    assert ROUTE.broker_datas[0].master() == "b0:1"
    assert BrokerData("x").any_address() is None
    assert ROUTE.broker("none") is None


def test_queues_are_ordered_by_topic_broker_and_number() -> None:
    queues = [MessageQueue("t", "b", 1), MessageQueue("t", "a", 10), MessageQueue("t", "a", 9)]
    assert [str(queue) for queue in sorted(queues)] == ["t@a:9", "t@a:10", "t@b:1"]


def test_a_changed_table_has_another_version() -> None:
    version = DataVersion(1, 2, 3)
    version.next(now_ms=50)
    assert version == DataVersion(2, 2, 50)


def test_permissions_of_a_topic() -> None:
    assert TopicConfig("t").readable
    assert TopicConfig("t").writable
    assert not TopicConfig("t", perm=4).writable
    assert not TopicConfig("t", perm=2).readable
