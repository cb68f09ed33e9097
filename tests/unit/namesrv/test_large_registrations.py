"""Registrations of thousands of topics, in order with the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.namesrv.route_table_fixtures import wrapper
from tests.unit.namesrv.test_takeovers import HERE, Peer, Site
from tests.waits import until

from cometmq.model.topic import TopicConfig
from cometmq.protocol import headers
from cometmq.protocol.bodies.cluster import RegisterBrokerBody
from cometmq.protocol.bodies.registration import body_crc, encode_register_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import encode_command, request

COUNT = 3_000


def frame(
    version: int,
    *,
    count: int = COUNT,
    changed: dict[str, int] | None = None,
    name: str = "broker-a",
    damage: tuple[bytes, bytes] = (b"", b""),
    compressed: bool = False,
) -> bytes:
    """Return a registration; `changed` gives topics another number of queues."""
    topics = {f"topic-{n:05d}": TopicConfig(f"topic-{n:05d}") for n in range(count)}
    for topic, queues in (changed or {}).items():
        topics[topic] = TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
    body = encode_register_body(
        RegisterBrokerBody([], wrapper(topics, counter=version)), compressed=compressed
    )
    return register(body.replace(*damage), name=name, compressed=compressed)


def register(body: bytes, *, name: str = "broker-a", compressed: bool = False) -> bytes:
    header = headers.RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=HERE,
        cluster_name="C",
        ha_server_addr="",
        broker_id=0,
        compressed=compressed,
        body_crc32=body_crc(body),
    )
    return encode_command(request(RequestCode.REGISTER_BROKER, header, body))


def farewell() -> bytes:
    header = headers.UnRegisterBrokerRequestHeader(
        broker_name="broker-a", broker_addr=HERE, cluster_name="C", broker_id=0
    )
    return encode_command(request(RequestCode.UNREGISTER_BROKER, header))


def queues(site: Site, topic: str) -> int:
    route = site.table.route(topic)
    return 0 if route is None else route.queue_datas[0].read_queue_nums


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
async def broker(site: Site) -> Peer:
    """Return a broker that has registered all its topics."""
    peer = site.peer("10.1.0.1")
    peer.line.feed(frame(1))
    await until(lambda: site.table.topic_count == COUNT)
    return peer


async def test_topics_that_differ_or_are_new_are_taken_in(site: Site, broker: Peer) -> None:
    broker.line.feed(frame(2, count=COUNT + 1, changed={"topic-00007": 3, "topic-02999": 4}))
    await until(lambda: queues(site, "topic-00007") == 3)
    assert queues(site, "topic-02999") == 4
    assert queues(site, "topic-00008") == 16
    assert site.table.topic_count == COUNT + 1


async def test_a_registration_that_changes_nothing_renews_the_version(
    site: Site, broker: Peer
) -> None:
    changes = site.table.changes
    broker.line.feed(frame(5))
    await until(lambda: site.table.live()[0].data_version.counter == 5)
    assert site.table.changes == changes  # nothing was done for the topics


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_broker_with_50_000_topics_registers(site: Site, compressed: bool) -> None:
    """Java's brokers send all their topics at once."""
    peer = site.peer("10.1.0.1")
    peer.line.feed(frame(1, count=50_000, compressed=compressed))
    await until(lambda: site.table.topic_count == 50_000)
    new = {f"topic-{n:05d}": 3 for n in range(50_000)}
    peer.line.feed(frame(2, changed=new, compressed=compressed))
    await until(lambda: site.table.live()[0].data_version.counter == 2)
    assert {queues(site, topic) for topic in new} == {3}


async def test_static_topics_come_with_their_broker_and_go_with_it(site: Site) -> None:
    peer = site.peer("10.1.0.1")
    body = RegisterBrokerBody([], wrapper({f"topic-{n:05d}": TopicConfig() for n in range(COUNT)}))
    body.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {
        f"topic-{n:05d}": {"bname": "broker-a", "currIdMap": {"0": n}, "totalQueues": 1}
        for n in range(COUNT)
    }
    peer.line.feed(register(encode_register_body(body).replace(b'{"0":', b"{0:")))
    await until(lambda: site.table.topic_count == COUNT)
    route = site.table.route("topic-02999")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {
        "broker-a": {"bname": "broker-a", "currIdMap": {"0": 2999}, "totalQueues": 1}
    }
    site.table.link_closed(peer.line.connection)
    assert site.table.topic_count == 0
    assert site.table.route("topic-02999") is None


async def test_a_compressed_registration_is_compared_with_the_table(
    site: Site, broker: Peer
) -> None:
    broker.line.feed(frame(2, changed={"topic-00007": 3}, compressed=True))
    await until(lambda: queues(site, "topic-00007") == 3)
    assert site.table.topic_count == COUNT


async def test_a_small_registration_does_not_overtake_the_large_one_before_it(
    site: Site, broker: Peer
) -> None:
    small = frame(3, count=0, changed={"topic-00007": 5})
    broker.line.feed(frame(2, changed={"topic-00007": 3}) + small)
    await until(lambda: site.table.live()[0].data_version.counter == 3)
    assert queues(site, "topic-00007") == 5


async def test_a_farewell_does_not_overtake_the_registration_before_it(
    site: Site, broker: Peer
) -> None:
    broker.line.feed(frame(2) + farewell())
    await until(lambda: site.table.topic_count == 0)
    await asyncio.sleep(0)
    assert site.table.live() == []


async def test_a_broker_under_another_name_has_all_its_topics(site: Site, broker: Peer) -> None:
    broker.line.feed(frame(2, name="broker-b"))
    await until(lambda: site.table.live()[0].broker_name == "broker-b")
    assert site.table.topic_count == COUNT
    assert queues(site, "topic-02998") == 16


async def test_a_damaged_registration_is_refused_and_changes_nothing(
    site: Site, broker: Peer
) -> None:
    changes, written = site.table.changes, len(broker.line.transport.writes)
    broker.line.feed(frame(2, damage=(b'"topicName":"topic-02998"', b'"topicName":null x')))
    await until(lambda: len(broker.line.transport.writes) > written)
    assert broker.line.received()[-1].code != 0
    assert site.table.changes == changes
    assert site.table.live()[0].data_version.counter == 1
