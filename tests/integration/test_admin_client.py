"""Make every call of the administration client, and see what it returns and changes.

`tests/interop/test_admin_client_on_java.py` runs the same tests against Java's servers of 4.9 and 5.3;
`line` says which servers a test has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.client_faces import BlockingFace, Received
from tests.integration.fixtures import prompt_face as face
from tests.waits import WAIT_S, eventually

import cometmq
from cometmq import ConsumeFromWhere, Message, MessageQueue, SendResult
from cometmq.admin.access.records import AclEntry
from cometmq.admin.brokers.reports import RocksdbCheck
from cometmq.admin.groups.offsets import END
from cometmq.admin.messages.reading import MAX_BODY_BYTES
from cometmq.admin.messages.room import TrackKind
from cometmq.admin.name_servers import UnitTopics
from cometmq.client.tracing.codec import TraceType
from cometmq.errors import (
    IllegalArgumentError,
    RemoteError,
    RemotingError,
    RouteNotFoundError,
    ServersFailedError,
)
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.reports.finding import Severity
from cometmq.model.sysflag import COMPRESSED
from cometmq.model.topic import TopicConfig
from cometmq.testing.cluster import Cluster

__all__ = ["face"]

FIRST = ConsumeFromWhere.FIRST_OFFSET
TIMEOUT_MS = int(WAIT_S * 1000)
NOBODY = "127.0.0.1:1"

pytestmark = [
    pytest.mark.cluster(
        properties={"traceTopicEnable": "true", "autoCreateSubscriptionGroup": "true"}
    )
]


@pytest.fixture
def line() -> str:
    """Return which servers the tests run against: ours, or Java's of 4.9 or 5.3."""
    return "ours"


@pytest.fixture
def admin(namesrv: str) -> Iterator[cometmq.AdminClient]:
    with cometmq.AdminClient(namesrv, timeout_ms=TIMEOUT_MS) as admin:
        yield admin


@pytest.fixture
def broker(admin: cometmq.AdminClient) -> str:
    """Return the address of the only broker."""
    [at] = admin.brokers.addresses()
    return at.address


def make(admin: cometmq.AdminClient, face: BlockingFace, topic: str, queues: int = 2) -> None:
    """Make a topic, and wait until clients find it."""
    admin.topics.create(topic, read_queues=queues, write_queues=queues)
    [at] = admin.brokers.addresses()
    face.until_routed(topic, at.broker_name)


def send(face: BlockingFace, topic: str, count: int = 4) -> list[SendResult]:
    """Send messages, and wait until they can be read."""
    producer = face.producer(topic)
    queues = producer.queues(topic)
    sent = []
    for number in range(count):
        body = Message(topic, b"%d" % number, tags="t", keys=[f"k{number}", "all"])
        sent.append(producer.send(body, queue=queues[number % len(queues)]))
    for result in sent:
        face.until_readable(result)
    return sent


def consume(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str, count: int, **options: Any
) -> Received:
    """Have the group `topic` consume `count` messages and commit them; it stays online."""
    received = Received()
    face.consumer(topic, topic, received.handle, consume_from=FIRST, **options)
    received.wait_for(count)
    if options.get("message_model") is None:
        [at] = admin.brokers.addresses()
        face.until_routed(f"%RETRY%{topic}", at.broker_name)
        eventually(
            lambda: sum(q.committed_offset or 0 for q in admin.offsets.of_topic(topic, topic)),
            lambda total: total >= count,
        )
    return received


# Topics


def test_a_topic_is_made_shown_and_changed(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str
) -> None:
    assert admin.topics.create(name, read_queues=3, write_queues=2) == [broker]
    [at] = admin.brokers.addresses()
    face.until_routed(name, at.broker_name)
    config = admin.topics.config(name)[broker]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 6)
    before = admin.topics.update(name, permission=4)
    assert before[broker].perm == 6
    after = admin.topics.configs()[broker][name]
    # Only the permission changed.
    assert (after.read_queue_nums, after.write_queue_nums, after.perm) == (3, 2, 4)
    eventually(lambda: admin.topics.route(name).queue_datas[0].perm == 4)
    [cluster] = admin.brokers.clusters()
    assert admin.topics.clusters(name) == [cluster]
    assert name in admin.topics.names()
    assert name in admin.topics.names(cluster=cluster)


def test_attributes_are_set_or_the_version_is_named(
    admin: cometmq.AdminClient, name: str, broker: str, line: str
) -> None:
    if line == "4.9":
        with pytest.raises(RemoteError, match=r"attributes.*speaks RocketMQ 4\.9\.\d.*upgrade it"):
            admin.topics.create(name, attributes={"message.type": "FIFO"})
        return
    admin.topics.create(name, attributes={"message.type": "FIFO"})
    assert admin.topics.config(name, broker=broker)[broker].attributes == {"message.type": "FIFO"}
    admin.topics.update(name, remove_attributes=["message.type"], broker=broker)
    assert admin.topics.config(name, broker=broker)[broker].attributes == {}


def test_many_topics_are_made_at_once_or_the_version_is_named(
    admin: cometmq.AdminClient, name: str, broker: str, line: str
) -> None:
    configs = [TopicConfig(topic_name=f"{name}-{n}", read_queue_nums=1) for n in range(2)]
    if line == "4.9":
        with pytest.raises(
            RemoteError, match=r"speaks RocketMQ 4\.9\.\d and does not know .* \(18\)"
        ):
            admin.topics.create_many(configs)
        return
    assert admin.topics.create_many(configs) == [broker]
    assert {f"{name}-0", f"{name}-1"} <= admin.topics.configs(broker=broker)[broker].keys()


def test_a_topic_is_deleted(admin: cometmq.AdminClient, face: BlockingFace, name: str) -> None:
    make(admin, face, name)
    admin.topics.delete(name)
    eventually(lambda: name not in admin.topics.names())
    with pytest.raises(RouteNotFoundError, match=r"check the topic's name \(topics\.names\(\)"):
        admin.topics.delete(name)
    admin.topics.delete(name, missing_ok=True)


def test_system_topics_are_told_by_broker(admin: cometmq.AdminClient, broker: str) -> None:
    assert "TBW102" in admin.topics.system_topics()[broker]


def test_statistics_of_a_topic_name_its_queues(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    before_ms = int(time.time() * 1000) - 60_000
    sent = send(face, name)
    stats = admin.topics.stats(name)
    assert [(q.queue, q.min_offset, q.max_offset) for q in stats.queues] == [
        (MessageQueue(name, sent[0].queue.broker_name, queue_id), 0, 2) for queue_id in (0, 1)
    ]
    assert all(before_ms < q.last_stored_ms for q in stats.queues)
    assert stats.put_per_s >= 0


def test_the_order_configuration_follows_an_ordered_topic(
    admin: cometmq.AdminClient, name: str
) -> None:
    assert admin.topics.order_config(name) is None
    admin.topics.create(name, write_queues=3, order=True)
    [at] = admin.brokers.addresses()
    assert admin.topics.order_config(name) == f"{at.broker_name}:3"
    admin.topics.set_order_config(name, "a:1;b:2")
    assert admin.topics.order_config(name) == "a:1;b:2"
    admin.topics.delete_order_config(name)
    assert admin.topics.order_config(name) is None


# Groups


def test_a_group_is_made_shown_changed_and_deleted(
    admin: cometmq.AdminClient, name: str, broker: str
) -> None:
    assert admin.groups.create(name, retry_max_times=3, retry_queue_nums=2) == [broker]
    assert admin.groups.update(name, retry_max_times=5)[broker].retry_max_times == 3
    config = admin.groups.config(name)[broker]
    assert (config.retry_max_times, config.retry_queue_nums) == (5, 2)
    assert name in admin.groups.names()
    admin.groups.need(name)
    assert admin.groups.configs(broker=broker)[broker][name] == config
    assert admin.groups.delete(name, clean_offsets=True) == [broker]
    with pytest.raises(RemoteError, match=r"no broker that was asked has the group.*groups\.names"):
        admin.groups.delete(name)
    with pytest.raises(RemoteError, match=r"no broker that was asked has the group.*groups\.names"):
        admin.groups.need(name)
    admin.groups.delete(name, missing_ok=True)


def test_many_groups_are_made_at_once_or_the_version_is_named(
    admin: cometmq.AdminClient, name: str, line: str
) -> None:
    configs = [SubscriptionGroupConfig(group_name=f"{name}-{n}") for n in range(2)]
    if line == "4.9":
        with pytest.raises(
            RemoteError, match=r"speaks RocketMQ 4\.9\.\d and does not know .* \(225\)"
        ):
            admin.groups.create_many(configs)
        return
    admin.groups.create_many(configs)
    assert {f"{name}-0", f"{name}-1"} <= set(admin.groups.names())


def test_a_group_that_is_online_is_told_from_all_sides(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, line: str, broker: str
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    consume(admin, face, name, len(sent))
    members = admin.groups.connections(name)
    assert (members.consume_type, members.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert admin.groups.connections(name, broker=broker) == members
    [client] = members.clients
    assert client.version == "5.3.3"
    assert name in [data.topic for data in members.subscriptions]
    assert name in admin.groups.of_topic(name)
    progress = admin.groups.progress(name, name)
    assert (progress.lag, progress.in_flight) == (0, 0)
    assert [(at.broker_offset, at.consumer_offset) for at in progress.queues] == [(2, 2)] * 2
    assert name in {at.queue.topic for at in admin.groups.progress(name).queues}
    [cluster] = admin.brokers.clusters()
    assert admin.groups.progress(name, name, cluster=cluster).queues == progress.queues
    with pytest.raises(RouteNotFoundError, match=f"no broker of cluster 'x' has topic {name}"):
        admin.offsets.of_topic(name, name, cluster="x")
    info = admin.groups.running_info(name, client.client_id, stacks=True)
    assert {queue.queue_id for queue in info.queues if queue.topic == name} == {0, 1}
    assert "Thread" in (info.stacks or "")
    offsets = admin.groups.member_offsets(name, name)
    assert {queue.queue_id: at for queue, at in offsets[client.client_id].items()} == {0: 2, 1: 2}
    if line == "4.9":
        for call in (admin.groups.topics, lambda group: admin.groups.subscription(group, name)):
            with pytest.raises(RemoteError, match=r"speaks RocketMQ 4\.9\.\d and does not know"):
                call(name)
        return
    assert name in admin.groups.topics(name)
    subscription = admin.groups.subscription(name, name)
    assert subscription is not None
    assert subscription.sub_string == "*"


def test_producers_are_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str
) -> None:
    make(admin, face, name)
    send(face, name)  # its producer stays open
    clients = eventually(lambda: admin.producers.connections(name, name), passing=(RemoteError,))
    assert [client.version for client in clients] == ["5.3.3"]
    with pytest.raises(RemoteError, match="producer group nobody is not online"):
        admin.producers.connections("nobody", name)
    [producer] = admin.producers.of_brokers()[broker][name]
    assert (producer.client_id, producer.address) == (clients[0].client_id, clients[0].address)
    assert (producer.version, producer.language) == ("5.3.3", clients[0].language)
    assert abs(producer.last_seen_ms - time.time() * 1000) < WAIT_S * 1000


def test_times_tell_up_to_when_a_group_has_consumed(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    before_ms = int(time.time() * 1000) - 60_000
    sent = send(face, name)
    admin.groups.create(name)
    first, second = sorted({result.queue for result in sent})
    admin.offsets.commit(name, first, 2)
    consumed, waiting = admin.groups.times(name, name)
    assert (consumed.queue, waiting.queue) == (first, second)
    assert before_ms < consumed.first_ms <= consumed.last_ms == consumed.consumed_ms
    assert consumed.delay_ms == 0
    assert waiting.consumed_ms == waiting.first_ms <= waiting.last_ms
    assert waiting.delay_ms >= 0


def test_a_group_may_read_a_topic_or_not(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str, line: str
) -> None:
    make(admin, face, name)
    admin.groups.create(name)
    if line == "4.9":
        with pytest.raises(RemoteError, match=r"speaks RocketMQ 4\.9\.\d and does not know .*353"):
            admin.groups.may_read(name, name)
        return
    assert admin.groups.may_read(name, name) == {broker: True}
    assert admin.groups.set_may_read(name, name, False) == {broker: False}
    assert admin.groups.may_read(name, name) == {broker: False}
    assert admin.groups.set_may_read(name, name, True) == {broker: True}


# Offsets


def test_offsets_are_committed_cloned_and_reset(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    other = f"{name}-2"
    queues = sorted({result.queue for result in sent})
    admin.groups.create(name)
    with pytest.raises(RemoteError, match="no broker that was asked has the group"):
        admin.offsets.store_reset(f"{name}-9", name, END)
    admin.groups.create(other)
    for queue in queues:
        admin.offsets.commit(name, queue, 1)
    assert [at.committed_offset for at in admin.offsets.of_topic(name, name)] == [1, 1]
    assert [at.lag for at in admin.offsets.of_topic(name, name)] == [1, 1]
    with pytest.raises(RemoteError, match=f"group {name}-9 has no offset in topic {name}"):
        admin.offsets.to_clone(f"{name}-9", name)
    assert [at.queue for at in admin.offsets.to_clone(name, name)] == queues
    assert admin.offsets.clone(name, other, name) == dict.fromkeys(queues, 1)
    assert admin.offsets.reset_to_time(other, name, 0) == dict.fromkeys(queues, 0)
    assert admin.offsets.skip(other, name) == dict.fromkeys(queues, 2)
    assert admin.offsets.store_reset(name, name, END) == dict.fromkeys(queues, 2)
    # Nothing moves ahead without force, and what would stays where it is.
    admin.offsets.commit(name, queues[0], 1)
    assert admin.offsets.store_reset(name, name, END, force=False) == {queues[1]: 2}
    admin.offsets.reset_queue(name, queues[1], 1)
    assert admin.offsets.at_time(queues[0], 0) == 0
    assert admin.offsets.at_time(queues[0], END) == 2


def test_offsets_of_whole_brokers_are_told_compared_and_cloned(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str
) -> None:
    make(admin, face, name)
    before_ms = int(time.time() * 1000) - 60_000
    first, second = sorted({result.queue for result in send(face, name)})
    other = f"{name}-2"
    for group in (name, other):
        admin.groups.create(group)
    admin.offsets.commit(name, first, 2)
    admin.offsets.commit(name, second, 1)
    admin.offsets.commit(other, first, 1)
    assert admin.offsets.earliest_ms(first) > before_ms

    def stored(group: str) -> list[tuple[str, int, int]]:
        everything = admin.offsets.of_brokers()[broker]
        return [(at.topic, at.queue_id, at.offset) for at in everything if at.group == group]

    assert stored(name) == [(name, 0, 2), (name, 1, 1)]
    assert admin.offsets.lowest(name, name) == {first: 1, second: 1}
    with pytest.raises(RemoteError, match="no broker that was asked has the group"):
        admin.offsets.clone_at_brokers(name, f"{name}-9", name)
    assert admin.offsets.clone_at_brokers(name, other, name) == [broker]
    assert stored(other) == stored(name)


def test_offsets_are_stored_after_a_reset_that_nobody_pulled(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    queues = sorted({result.queue for result in send(face, name)})
    source, target = f"{name}-from", f"{name}-to"
    for group in (source, target):
        admin.groups.create(group)
    for queue in queues:
        admin.offsets.commit(source, queue, 1)

    def stored() -> list[int | None]:
        return [at.committed_offset for at in admin.offsets.of_topic(name, target)]

    admin.offsets.reset_to_time(target, name, 0)
    admin.offsets.commit(target, queues[0], 2)
    assert stored() == [2, 0]
    assert admin.offsets.store_reset(target, name, END) == dict.fromkeys(queues, 2)
    assert stored() == [2, 2]
    assert admin.offsets.clone(source, target, name) == dict.fromkeys(queues, 1)
    assert stored() == [1, 1]


def test_a_group_that_is_online_consumes_again_after_a_reset(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    received = consume(admin, face, name, len(sent))
    admin.offsets.reset_to_time(name, name, 0)
    eventually(lambda: all(received.bodies.count(b"%d" % n) >= 2 for n in range(len(sent))))


# Messages


def test_messages_are_found_in_every_way(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    last = sent[-1]
    found = admin.messages.by_id(last.offset_msg_id, name)
    assert (found.body, found.broker_name) == (b"3", last.queue.broker_name)
    [same] = eventually(lambda: admin.messages.by_unique_id(name, last.msg_id))
    for msg_id in (last.offset_msg_id, last.msg_id):
        assert [m.body for m in admin.messages.find(msg_id, name)] == [found.body]
    assert admin.messages.find("no-such-id", name) == []
    assert same.offset_msg_id == last.offset_msg_id
    bodies = eventually(
        lambda: [m.body for m in admin.messages.by_key(name, "all")], lambda got: len(got) == 4
    )
    assert sorted(bodies) == [b"0", b"1", b"2", b"3"]
    assert [m.body for m in admin.messages.by_key(name, "k2")] == [b"2"]
    assert admin.messages.by_key(name, "no-such-key") == []
    at = admin.messages.by_offset(last.queue, last.queue_offset)
    assert at is not None
    assert at.msg_id == last.msg_id
    assert admin.messages.by_offset(last.queue, 99) is None
    assert sorted(m.body for m in admin.messages.stored(name)) == sorted(bodies)


def test_bodies_of_few_bytes_are_decompressed_only_as_far_as_there_is_room() -> None:
    """A key with 64 messages of 60 KB each took 4 GiB of whoever looked for it, the console's, too."""
    body = bytes(15 << 20)
    fitting = MAX_BODY_BYTES // len(body)
    with Cluster() as cluster:
        with cometmq.Producer(
            "zeros", namesrv=cluster.namesrv, max_message_size_bytes=16 << 20
        ) as producer:
            for _ in range(fitting + 1):
                producer.send(Message("zeros", body, keys="zeros"))
        with cometmq.AdminClient(cluster.namesrv) as admin:
            found = eventually(
                lambda: admin.messages.by_key("zeros", "zeros"),
                lambda got: len(got) == fitting + 1,
                passing=(RouteNotFoundError,),
            )
            whole = [each for each in found if not each.sys_flag & COMPRESSED]
            assert len(whole) == fitting
            assert all(each.body == body for each in whole)
            (stored,) = [each for each in found if each.sys_flag & COMPRESSED]
            assert len(stored.body) < 1 << 20


def test_queues_are_read_from_an_offset_and_by_tags(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name, queues=1)
    send(face, name)
    producer = face.producer(name)
    # "Aa" and "BB" have the same hash code, by which brokers select.
    for tag in ("Aa", "BB"):
        face.until_readable(producer.send(Message(name, tag.encode(), tags=tag)))
    [queue] = producer.queues(name)

    def bodies(**options: Any) -> list[bytes]:
        return [message.body for message in admin.messages.stored_in(queue, **options)]

    assert bodies() == [b"0", b"1", b"2", b"3", b"Aa", b"BB"]
    assert bodies(begin_offset=3) == [b"3", b"Aa", b"BB"]
    assert bodies(begin_offset=3, tags="t || BB") == [b"3", b"BB"]
    assert [message.body for message in admin.messages.stored(name, tags="Aa")] == [b"Aa"]
    stored_ms = admin.messages.by_offset(queue, 5)
    assert stored_ms is not None
    assert bodies(begin_ms=stored_ms.store_timestamp_ms + 60_000) == []
    found = admin.messages.units(queue, 4, count=5, group=name)
    assert (found.min_offset, found.max_offset) == (0, 6)
    assert [unit.tags_code for unit in found.units] == [2112, 2112]
    assert all(unit.physic_size > 0 for unit in found.units)
    assert found.subscription is None
    assert found.filter == f"{name}@{name} is not online!"
    nothing = admin.messages.units(queue, 99)
    assert (nothing.min_offset, nothing.max_offset, nothing.units) == (0, 6, ())


def test_tracks_tell_who_consumed_a_message(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    message = admin.messages.by_id(sent[0].offset_msg_id, name)

    def kind() -> TrackKind | None:
        tracks = {track.group: track.kind for track in admin.messages.tracks(message)}
        return tracks.get(name)

    assert kind() is None
    consume(admin, face, name, len(sent))
    assert kind() is TrackKind.CONSUMED
    [client] = admin.groups.connections(name).clients
    result = admin.messages.consume_directly(name, client.client_id, message.offset_msg_id, name)
    assert result.result == "CR_SUCCESS"
    face.close()
    eventually(lambda: kind() is TrackKind.NOT_ONLINE)


def test_a_message_is_sent_again(admin: cometmq.AdminClient, face: BlockingFace, name: str) -> None:
    make(admin, face, name, queues=1)
    [sent] = send(face, name, 1)
    message = admin.messages.by_id(sent.offset_msg_id, name)
    again = admin.messages.resend(message)
    assert (again.queue, again.queue_offset, again.msg_id) == (sent.queue, 1, sent.msg_id)
    face.until_readable(again)
    copy = admin.messages.by_offset(again.queue, 1)
    assert copy is not None
    assert (copy.body, copy.keys, copy.tags) == (b"0", ("k0", "all"), "t")


def test_a_trace_shows_who_sent_a_message(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    traces = f"{name}-traces"
    make(admin, face, traces, queues=1)
    producer = face.producer(name, enable_trace=True, trace_topic=traces)
    sent = producer.send(Message(name, b"x"))
    [event] = eventually(lambda: admin.messages.trace(sent.msg_id, trace_topic=traces))
    assert (event.kind, event.group, event.topic, event.success) == (
        TraceType.PUB,
        name,
        name,
        True,
    )
    batch = producer.send_batch([Message(name, b"%d" % number) for number in range(3)])
    ids = batch.msg_id.split(",")
    [event] = eventually(lambda: admin.messages.trace(ids[1], trace_topic=traces))
    assert (event.kind, event.msg_id) == (TraceType.PUB, ids[1])
    # Each message has the id that its sender was told.
    found = [admin.messages.by_unique_id(name, one)[0] for one in ids]
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert [(m.msg_id, m.batch_msg_id) for m in found] == [(one, None) for one in ids]


# Brokers and name servers


def test_brokers_tell_their_state_and_configuration(
    admin: cometmq.AdminClient, broker: str, line: str
) -> None:
    [at] = admin.brokers.addresses()
    [cluster] = admin.brokers.clusters()
    assert (at.cluster, at.broker_id, at.address) == (cluster, 0, broker)
    assert admin.brokers.missing() == admin.brokers.missing(cluster=cluster) == {}
    assert "msgPutTotalTodayNow" in admin.brokers.runtime_info(slaves=True)[broker]
    config = admin.brokers.config(broker=at.broker_name)[broker]
    assert config["brokerName"] == at.broker_name
    kept = config["fileReservedTime"]
    assert admin.brokers.update_config({"fileReservedTime": "71"}) == [broker]
    assert admin.brokers.config(cluster=cluster)[broker]["fileReservedTime"] == "71"
    admin.brokers.update_config({"fileReservedTime": kept}, broker=broker)
    refusals = admin.brokers.refusals()[broker]
    assert bool(refusals) == (line == "ours")
    assert broker in admin.brokers.next_deletions()


def test_brokers_report_what_they_count(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str, line: str
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    [cluster] = admin.brokers.clusters()
    for counter, key in (("TOPIC_PUT_NUMS", name), ("BROKER_PUT_NUMS", cluster)):
        found = admin.brokers.statistics(counter, key)[broker]
        assert found is not None
        assert min(found.minute.total, found.hour.total, found.day.total) >= 0
    assert admin.brokers.statistics("TOPIC_PUT_NUMS", f"{name}-9") == {broker: None}
    if line == "ours":
        with pytest.raises(RemoteError, match="this broker keeps TOPIC_PUT_NUMS"):
            admin.brokers.statistics("TOPIC_PUT_NUM", name)
    admin.groups.create(name)
    first = sent[0].queue
    admin.offsets.commit(name, first, 1)
    progress = admin.brokers.progress()[broker]
    [group] = [each for each in progress.groups if each.group == name]
    assert [(at.queue, at.lag) for at in group.queues if at.queue == first] == [(first, 1)]
    assert (progress.lag or 0) >= (group.lag or 0) >= 1
    assert (progress.in_flight or 0) >= 0
    assert name not in [
        it.group for it in admin.brokers.progress(ordered_only=True)[broker].groups if it.queues
    ]


def test_brokers_tell_how_far_delays_and_slaves_are(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str, line: str
) -> None:
    make(admin, face, name)
    face.producer(name).send(Message(name, b"later", delay_level=1))
    assert eventually(lambda: admin.brokers.delay_offsets()[broker].get(1, 0) > 0)
    if line == "4.9":
        for call in (
            admin.brokers.timer_progress,
            admin.brokers.replication,
            admin.brokers.check_rocksdb_queues,
        ):
            with pytest.raises(RemoteError, match=r"speaks RocketMQ 4\.9\.\d and does not know"):
                call()
        return
    assert admin.brokers.timer_progress()[broker].queue_offset >= 0
    replication = admin.brokers.replication(slaves=True)[broker]
    assert (replication.is_master, replication.slaves) == (True, ())
    assert replication.from_master is None
    assert replication.max_offset > 0
    status, _ = admin.brokers.check_rocksdb_queues(name)[broker]
    assert status in (RocksdbCheck.OK, RocksdbCheck.IN_PROGRESS)


def test_what_only_java_has_is_done_or_refused_with_a_reason(
    admin: cometmq.AdminClient, name: str, broker: str, line: str
) -> None:
    calls: dict[int, Callable[[], Any]] = {
        2001: lambda: admin.brokers.set_cold_data_threshold(name, 1000),
        2002: lambda: admin.brokers.remove_cold_data_threshold(name),
        2003: admin.brokers.cold_data_thresholds,
        2004: lambda: admin.brokers.set_read_ahead(True),
        355: admin.brokers.export_rocksdb_config,
        200056: admin.brokers.export_pop_records,
        1007: admin.brokers.epochs,
    }
    if line != "5":
        for code, call in calls.items():
            reason = r".*: .*\w" if line == "ours" else ""
            with pytest.raises(
                RemoteError, match=rf"does not know the request .*\({code}\).*{reason}"
            ):
                call()
        return
    admin.topics.create(name)
    calls[2001]()
    assert admin.brokers.cold_data_thresholds()[broker]["configTable"] == {name: 1000}
    calls[2002]()
    assert admin.brokers.cold_data_thresholds()[broker]["configTable"] == {}
    for code in (2004, 355, 200056):
        assert calls[code]() == [broker]
    with pytest.raises(RemoteError, match="controllerMode"):
        calls[1007]()


def test_a_group_is_made_to_pop(
    admin: cometmq.AdminClient, name: str, broker: str, line: str
) -> None:
    admin.topics.create(name)
    # Java's brokers do not know the question, so they have popped what nobody knows.
    assert admin.groups.popped(name) == ([] if line == "ours" else None)
    if line == "4.9":
        with pytest.raises(RemoteError, match=r"does not know the request .*\(401\)"):
            admin.groups.set_request_mode(name, name, "POP")
        return
    assert admin.groups.set_request_mode(name, name, "POP", pop_share_queues=1) == [broker]


def test_a_masters_flush_offset_is_reset_without_effect(
    admin: cometmq.AdminClient, broker: str, line: str
) -> None:
    if line == "4.9":
        with pytest.raises(RemoteError, match=r"does not know the request .*\(908\)"):
            admin.brokers.reset_master_flush_offset(0, broker=broker)
        return
    assert admin.brokers.reset_master_flush_offset(0, broker=broker) == [broker]


def test_brokers_clean_up(admin: cometmq.AdminClient, broker: str) -> None:
    assert admin.brokers.delete_expired_files() == [broker]
    assert admin.brokers.clean_expired_queues() == [broker]
    assert admin.brokers.clean_unused_topics() == [broker]


def test_the_permission_to_write_is_wiped_and_added(
    admin: cometmq.AdminClient, face: BlockingFace, namesrv: str, name: str
) -> None:
    make(admin, face, name)
    [at] = admin.brokers.addresses()
    assert admin.brokers.wipe_write_permission(at.broker_name)[namesrv] > 0
    assert admin.brokers.add_write_permission(at.broker_name)[namesrv] > 0
    eventually(lambda: admin.topics.route(name).queue_datas[0].perm == 6)
    with pytest.raises(RouteNotFoundError, match=f"know no broker 'x'; they know {at.broker_name}"):
        admin.brokers.wipe_write_permission("x")


def test_servers_that_are_well_are_told_with_their_names(
    admin: cometmq.AdminClient, namesrv: str, broker: str
) -> None:
    found = {finding.check: finding for finding in admin.health.findings()}
    name = admin.brokers.addresses(slaves=False)[0].broker_name
    assert found[f"name server {namesrv}"].severity is Severity.OK
    assert broker in found[f"broker {name}"].value
    assert f"broker {name}: consumers" not in found


def test_name_servers_keep_entries_and_settings(
    admin: cometmq.AdminClient, namesrv: str, name: str
) -> None:
    [at] = admin.brokers.addresses()
    assert admin.name_servers.addresses() == [namesrv]
    assert admin.name_servers.entries(name) == {}
    assert admin.name_servers.put_entry(name, "k", "v") == [namesrv]
    assert admin.name_servers.entry(name, "k") == "v"
    assert admin.name_servers.entries(name) == {"k": "v"}
    assert admin.name_servers.entries_by_server(name) == {namesrv: {"k": "v"}}
    assert admin.name_servers.delete_entry(name, "k") == [namesrv]
    assert admin.name_servers.entry(name, "k") is None
    assert at.broker_name in admin.name_servers.system_topics()
    unit_flag = 1
    admin.topics.create(name, system_flag=unit_flag)
    assert eventually(lambda: name in admin.name_servers.unit_topics(UnitTopics.UNIT))
    for kind in (UnitTopics.UNIT_SUB, UnitTopics.UNIT_SUB_NOT_UNIT):
        assert name not in admin.name_servers.unit_topics(kind)
    assert admin.name_servers.config()[namesrv]["orderMessageEnable"] == "false"
    assert admin.name_servers.update_config({"orderMessageEnable": "true"}) == [namesrv]
    assert admin.name_servers.config()[namesrv]["orderMessageEnable"] == "true"
    admin.name_servers.update_config({"orderMessageEnable": "false"})


# Access control, which tests/interop/test_access_on_java.py proves at brokers that have it


def test_access_is_refused_with_what_to_do_instead(admin: cometmq.AdminClient, broker: str) -> None:
    entry = AclEntry("Topic:*", ("Pub",))
    calls: dict[int, Callable[[], Any]] = {
        50: lambda: admin.access.put_account("the-account", "the-secret"),
        51: lambda: admin.access.delete_account("the-account"),
        52: admin.access.account_files,
        53: lambda: admin.access.set_white_addresses(["10.0.0.1"]),
        3001: lambda: admin.access.create_user("somebody", "the-secret"),
        3002: lambda: admin.access.update_user("somebody", state="disable"),
        3004: lambda: admin.access.delete_user("somebody"),
        3005: lambda: admin.access.copy_users(broker, broker),
        3006: lambda: admin.access.create_acl("User:somebody", [entry]),
        3007: lambda: admin.access.update_acl("User:somebody", [entry]),
        3008: lambda: admin.access.delete_acl("User:somebody"),
        3009: lambda: admin.access.acl("User:somebody"),
        3010: lambda: admin.access.copy_acls(broker, broker),
    }
    for code, call in calls.items():
        with pytest.raises(
            RemoteError, match=rf"request .*\({code}\).*(aclEnable|authenticationEnabled)=true"
        ) as refusal:
            call()
        assert "the-secret" not in str(refusal.value)


def test_access_that_cannot_be_meant_is_named(admin: cometmq.AdminClient) -> None:
    entry = AclEntry("Topic:*", ("Pub",))
    calls: dict[str, Callable[[], Any]] = {
        r"secret_key is too short for ACL 1\.0; give 7": lambda: admin.access.put_account(
            "the-account", "short"
        ),
        r"'PUBSUB' is no permission; give one of DENY": lambda: admin.access.put_account(
            "the-account", "the-secret", topic_permissions={"t": "PUBSUB"}
        ),
        r"'a,b' is no name of a topic or group": lambda: admin.access.put_account(
            "the-account", "the-secret", group_permissions={"a,b": "SUB"}
        ),
        r"a user's password is missing": lambda: admin.access.create_user("somebody", " "),
        r"kind is 'Root'; give one of Super, Normal": lambda: admin.access.create_user(
            "somebody", "the-secret", kind="Root"
        ),
        r"nothing is changed; give": lambda: admin.access.update_user("somebody"),
        r"'somebody' is no subject; give one such as User:": lambda: admin.access.acl("somebody"),
        r"'orders' is no resource; give one such as Topic:": lambda: admin.access.create_acl(
            "User:somebody", [replace(entry, resource="orders")]
        ),
        r"action is 'Any'; give one of Pub, Sub": lambda: admin.access.create_acl(
            "User:somebody", [replace(entry, actions=("Any",))]
        ),
        r"has no action; give some of Pub": lambda: admin.access.create_acl(
            "User:somebody", [replace(entry, actions=())]
        ),
        r"nothing is said of 'User:somebody'": lambda: admin.access.update_acl("User:somebody", []),
    }
    for fault, call in calls.items():
        with pytest.raises(IllegalArgumentError, match=fault) as refusal:
            call()
        assert "short'" not in str(refusal.value)


# What cannot be


def test_unknown_names_are_told_with_a_remedy(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    for call in (
        admin.topics.route,
        admin.topics.stats,
        admin.topics.config,
        admin.groups.of_topic,
    ):
        with pytest.raises(
            RouteNotFoundError, match=f"no route of topic {name}; check the topic's"
        ):
            call(name)
    with pytest.raises(RemoteError, match=r"group .* is not online: no member .* start one"):
        admin.groups.connections(name)
    with pytest.raises(RemoteError, match="no broker that was asked has the group"):
        admin.groups.progress(name)
    with pytest.raises(RouteNotFoundError, match="know no cluster 'x'; they know"):
        admin.topics.create(name, cluster="x")
    with pytest.raises(IllegalArgumentError, match="characters outside"):
        admin.topics.create("no topic")
    with pytest.raises(IllegalArgumentError, match="permission is 9; give the sum of 4"):
        admin.topics.create(name, permission=9)
    with pytest.raises(IllegalArgumentError, match=r"a group has no retry_max_time; did you mean"):
        admin.groups.create(name, retry_max_time=3)  # type: ignore[call-arg]  # what is tested
    with pytest.raises(IllegalArgumentError, match=r"timestamp_ms is 'now'; give ms"):
        admin.offsets.reset_to_time(name, name, "now")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(IllegalArgumentError, match="is not hex text"):
        admin.messages.by_id("nonsense")


def test_servers_that_are_away_are_named_with_a_remedy(
    admin: cometmq.AdminClient, namesrv: str
) -> None:
    with pytest.raises(RemotingError, match=f"{NOBODY}.*check that the server runs there"):
        admin.brokers.config(broker=NOBODY)
    with (
        cometmq.AdminClient(NOBODY) as lost,
        pytest.raises(RemotingError, match=f"{NOBODY}.*check that the server runs there"),
    ):
        lost.topics.names()
    with (
        cometmq.AdminClient([]) as lost,
        pytest.raises(
            IllegalArgumentError, match="asks a name server, and the client was given none"
        ),
    ):
        lost.topics.names()
    with cometmq.AdminClient([NOBODY, namesrv], timeout_ms=TIMEOUT_MS) as half:
        assert half.topics.names() == admin.topics.names()
        with pytest.raises(ServersFailedError, match="failed at 1 of 2 servers") as failure:
            half.name_servers.put_entry("half", "k", "v")
        assert (set(failure.value.errors), set(failure.value.results)) == ({NOBODY}, {namesrv})
    admin.name_servers.delete_entry("half", "k")
