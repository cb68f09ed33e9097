"""Test clients of both faces beside servers that stop, restart, or are set up in another way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.integration.client_faces import Received, open_face
from tests.integration.fixtures import OwnCluster
from tests.integration.test_client_scenarios import create_topic
from tests.integration.test_lite_pull import assigned, numbers, poll_bodies
from tests.integration.test_lite_pull import fill as fill_queue
from tests.integration.test_orderly import ORDERLY, Watch, fill
from tests.integration.test_retry import FailsFirst
from tests.integration.test_sql_consumers import make_topic
from tests.waits import WAIT_S, eventually

from cometmq import ConsumeFromWhere, Message, MessageQueue, SendStatus
from cometmq.errors import CometMQError, ConfigError, RemoteError
from cometmq.protocol.codes import ResponseCode
from cometmq.testing.cluster import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET
SOON_S = 25.0


def test_an_unknown_topic_is_told_when_it_may_not_be_created(own_cluster: OwnCluster) -> None:
    properties = {"autoCreateTopicEnable": "false"}
    with own_cluster(properties=properties) as (_, face):
        producer = face.producer("g")
        with pytest.raises(CometMQError, match="autoCreateTopicEnable") as failed:
            producer.send(Message("nobody-made-this", b"x"))
        assert failed.value.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("properties", [{"autoCreateTopicEnabel": "false"}, {"aclEnable": "true"}])
def test_a_cluster_takes_no_property_that_it_would_not_obey(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(properties))), Cluster(properties=properties):
        pass


@pytest.mark.faces("virtual", "blocking", seeds=3)
def test_sending_and_consuming_resume_after_restarts(own_cluster: OwnCluster) -> None:
    with own_cluster() as (cluster, face):
        received = Received()
        producer = face.producer("restarts")
        producer.send(Message("restarts", b"before"))
        face.consumer("restarts", "restarts", received.handle, consume_from=FIRST)
        received.wait_for(1)
        cluster.call("stop_broker")
        with pytest.raises(CometMQError):
            producer.send(Message("restarts", b"lost"))
        cluster.call("start_broker")
        # This is sooner than the next periodic refresh, which comes every 30 s. A send while nobody
        # listens raises.
        eventually(lambda: sends(producer, b"after-broker"), wait_s=SOON_S)
        wait_for_body(received, b"after-broker", SOON_S)
        cluster.call("stop_name_server")
        assert sends(producer, b"without-name-server")
        cluster.call("start_name_server")
        assert sends(producer, b"after-name-server")
        wait_for_body(received, b"after-name-server", SOON_S)
        # The new name server knows the topic again, so a new client finds it.
        late = face.producer("late")
        eventually(lambda: sends(late, b"late"), wait_s=SOON_S)
        wait_for_body(received, b"late", SOON_S)


@pytest.mark.faces("virtual", "asyncio", seeds=3)
def test_a_second_broker_takes_over(own_cluster: OwnCluster) -> None:
    with own_cluster(brokers=2) as (cluster, face):
        create_topic(face, "failover", ("broker-a", "broker-b"))
        producer = face.producer("failover")
        received = Received()
        face.consumer("failover", "failover", received.handle, consume_from=FIRST)
        used = Counter(producer.send(Message("failover", b"x")).queue.broker_name for _ in range(8))
        assert used == {"broker-a": 4, "broker-b": 4}
        cluster.call("stop_broker", 0)
        used = Counter(producer.send(Message("failover", b"x")).queue.broker_name for _ in range(8))
        assert used == {"broker-b": 8}
        cluster.call("start_broker", 0)

        def both() -> bool:
            used = [producer.send(Message("failover", b"x")).queue.broker_name for _ in range(8)]
            return set(used) == {"broker-a", "broker-b"}

        eventually(both, wait_s=SOON_S, pause_s=0.5)
        producer.send(Message("failover", b"back"), queue=MessageQueue("failover", "broker-a", 1))
        wait_for_body(received, b"back", SOON_S)


def test_a_dead_name_server_is_passed_over(own_cluster: OwnCluster) -> None:
    with own_cluster(name_servers=2) as (cluster, face):
        cluster.call("stop_name_server", 0)
        assert sends(face.producer("passed"), b"x")


def test_polling_resumes_after_a_restart(own_cluster: OwnCluster) -> None:
    with own_cluster() as (cluster, face):
        fill_queue(face, "again", 3)
        consumer = assigned(face, "again", 0)
        assert poll_bodies(consumer, 3) == numbers(3)
        cluster.call("restart_broker", 0)
        fill_queue(face, "again", 3)
        assert poll_bodies(consumer, 3) == numbers(3)


@pytest.mark.faces("virtual", seeds=3)
def test_a_restarted_broker_does_not_mix_its_members(own_cluster: OwnCluster) -> None:
    with own_cluster() as (cluster, face):
        topic = "restarted"
        counts = fill(face, topic, 300)
        watch = Watch(0.001)
        for _ in range(3):
            face.consumer(topic, topic, watch.handle, **ORDERLY)
        eventually(lambda: sum(map(len, watch.history.values())) > 300)
        cluster.call("restart_broker", 0)
        eventually(lambda: watch.done(counts), wait_s=2 * WAIT_S)
        assert watch.overlaps == []
        assert watch.gaps() == []


def test_a_broker_without_the_setting_refuses_at_the_start() -> None:
    name = "no-setting"
    with Cluster() as cluster, open_face("blocking", cluster.namesrv) as face:
        make_topic(cluster.namesrv, face, name)
        consumer = face.new_consumer(name, face.listener(Received().handle))
        consumer.subscribe(name, sql="a = 1")
        with pytest.raises(RemoteError, match="enablePropertyFilter=true") as caught:
            consumer.start()
        assert caught.value.code == 1


@pytest.mark.faces("virtual", seeds=3)
def test_a_restart_between_retries_loses_none(own_cluster: OwnCluster) -> None:
    name = "retries"
    with own_cluster() as (cluster, face):
        received = FailsFirst(1)
        producer = face.producer(name)
        for number in range(20):
            producer.send(Message(name, b"%d" % number))
        consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
        received.wait_for(20)
        # The message that failed is at the broker now, or must still be handed to it.
        consumer.close()
        cluster.call("restart_broker", 0)
        face.consumer(name, name, received.handle, consume_from=FIRST)

        def retried() -> set[bytes]:
            return {m.body for m in list(received.messages) if m.reconsume_times}

        eventually(lambda: len(retried()) == 20)
        assert len(set(received.bodies)) == 20


def sends(producer: Any, body: bytes) -> bool:
    try:
        return bool(producer.send(Message("restarts", body)).status is SendStatus.SEND_OK)
    except CometMQError:
        return False


def wait_for_body(received: Received, body: bytes, wait_s: float) -> None:
    eventually(lambda: body in received.bodies, wait_s=wait_s)


def test_the_vip_channel_is_two_ports_below(own_cluster: OwnCluster) -> None:
    properties = {"vipChannelEnable": "true"}
    with own_cluster(properties=properties) as (_, face):
        producer = face.producer("vip", vip_channel_enabled=True)
        eventually(lambda: sends(producer, b"important"))


def test_a_message_that_the_disk_has_changed_is_not_delivered(own_cluster: OwnCluster) -> None:
    with own_cluster() as (cluster, face):
        create_topic(face, "rot")
        producer = face.producer("rot")
        queue = MessageQueue("rot", "broker-a", 0)
        for body in (b"first-body", b"second-body", b"third-body"):
            producer.send(Message("rot", body), queue=queue)
        log_files = cluster.directory / "broker-a" / "commitlog"
        with (log_files / f"{0:020d}").open("r+b") as log:
            log.seek(log.read().index(b"second-body"))
            log.write(b"S")
        received = Received()
        # With one listener at a time the first message is noted first.
        face.consumer("rot", "rot", received.handle, consume_from=FIRST, concurrency=1)
        received.wait_for(3)
        assert received.bodies == [b"made", b"first-body", b"third-body"]
