"""A stream while name servers and brokers are away, and retention that is faster: as Spark drives it,
without its JVM (see `tests.spark.micro_batches`).
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.changing_cluster import ChangingCluster
from tests.spark.killing import BrokerProcess
from tests.spark.micro_batches import MicroBatches, Place
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import Message, Producer
from cometmq.errors import DataLossError, RemotingError, RouteNotFoundError
from cometmq.model.queue import MessageQueue
from cometmq.runtime.clock import SystemClock
from cometmq.spark.live import queues as live_queues
from cometmq.spark.live.admission import within_bytes
from cometmq.spark.live.options import offsets_of
from cometmq.spark.live.source import RocketMQSource
from cometmq.testing.cluster import Cluster

TOPIC = "orders"
AWAY = (RemotingError, RouteNotFoundError)


def quiet_query() -> MicroBatches:
    """One in which nothing fails of itself."""
    return MicroBatches(random.Random(0), lambda: None, failures=0)


def query_of(options: dict[str, str]) -> MicroBatches:
    """A query that has begun, at the earliest messages."""
    query = quiet_query()
    query.start(options)
    query.trigger()
    return query


def options_of(cluster: Cluster, **more: str) -> dict[str, str]:
    return {
        "namesrv": cluster.namesrv,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "timeoutMs": "60000",
        **more,
    }


def fill(cluster: Cluster, count: int, broker: str = "broker-a", size: int = 100) -> list[Place]:
    places = []
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(count):
            queue = MessageQueue(TOPIC, broker, at % 4)
            result = producer.send(Message(TOPIC, random.randbytes(size)), queue=queue)
            places.append((*queue, result.queue_offset))
    return places


def read(query: MicroBatches) -> list[Place]:
    return sorted(place for places in query.output.values() for place in places)


def when_it_waits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have `act` done as soon as the planner pauses for the first time."""
    acts, sleep = [act], SystemClock.sleep

    def pause(seconds: float) -> None:
        if acts:
            acts.pop()()
        sleep(seconds)

    monkeypatch.setattr(SystemClock, "sleep", staticmethod(pause))


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_queues, "LOOK_EVERY_S", 0.0)


@pytest.mark.usefixtures("looks_always")
def test_without_a_name_server_batches_are_planned_and_tasks_wait_for_it() -> None:
    with Cluster() as cluster:
        sent = fill(cluster, 10)
        query = query_of(options_of(cluster))
        cluster.call("stop_name_server")
        running = Thread(target=query.trigger)
        running.start()
        try:
            eventually(
                lambda: len(query.offset_log) == 2, note="a batch is planned", wait_s=JVM_WAIT_S
            )
        finally:
            cluster.call("start_name_server")
            cluster.call("restart_broker")  # which registers at once
            running.join()
        query.stop()
    assert read(query) == sorted(sent)


@pytest.mark.parametrize("look_every_s", [0.0, 1e9])
def test_while_one_broker_is_away_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch, look_every_s: float
) -> None:
    """Whether the route still names it, or not any more."""
    monkeypatch.setattr(live_queues, "LOOK_EVERY_S", look_every_s)
    with ChangingCluster(brokers=2) as cluster:
        for index in range(2):
            cluster.call("set_queues", index, TOPIC, 4)
        sent = fill(cluster, 10) + fill(cluster, 6, "broker-b")
        query = query_of(options_of(cluster))
        more = fill(cluster, 4, "broker-b")
        cluster.call("stop_broker", 1)
        assert query.trigger()
        assert read(query) == sorted(place for place in sent if place[1] == "broker-a")
        cluster.call("start_broker", 1)
        query.drain(options_of(cluster))
    assert read(query) == sorted(sent + more)


@pytest.mark.usefixtures("looks_always")
@pytest.mark.parametrize("available_now", [False, True])
def test_a_query_waits_for_the_only_broker_also_when_it_is_started_again(
    monkeypatch: pytest.MonkeyPatch, available_now: bool
) -> None:
    with Cluster() as cluster:
        sent = fill(cluster, 10)
        query = query_of(options_of(cluster))
        cluster.call("stop_broker")
        when_it_waits(monkeypatch, lambda: cluster.call("start_broker"))
        query.start(options_of(cluster), available_now=available_now)
        assert query.trigger()
        query.stop()
    assert read(query) == sorted(sent)


@pytest.mark.usefixtures("looks_always")
def test_when_patience_is_over_the_failure_is_told() -> None:
    with Cluster() as cluster:
        fill(cluster, 10)
        query = query_of(options_of(cluster, timeoutMs="300"))
        cluster.call("stop_broker")
        with pytest.raises(AWAY):
            query.trigger()
        query.stop()


def test_a_killed_broker_in_the_middle_of_reading_costs_no_row(tmp_path: Path) -> None:
    with Cluster(brokers=0) as cluster:
        broker = BrokerProcess(tmp_path, cluster.namesrv)
        try:
            # Some chunks for each queue.
            sent = fill(cluster, 600, size=32_000)
            query = quiet_query()
            query.start(options_of(cluster))
            query.trigger()

            def restart() -> None:
                broker.kill()
                broker.start()

            query.between_chunks = restart
            query.trigger()
            query.stop()
        finally:
            broker.close()
    assert read(query) == sorted(sent)


def test_a_batch_of_named_offsets_waits_for_the_route_of_a_killed_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(brokers=0) as cluster:
        broker = BrokerProcess(tmp_path, cluster.namesrv)
        try:
            sent = fill(cluster, 8)
            named = {
                "namesrv": cluster.namesrv,
                "assign": json.dumps({TOPIC: {"broker-a": [*range(4)]}}),
                "startingOffsets": json.dumps({TOPIC: {"broker-a": dict.fromkeys(range(4), 0)}}),
                "endingOffsets": json.dumps({TOPIC: {"broker-a": dict.fromkeys(range(4), 2)}}),
            }

            def places(**more: str) -> list[Place]:
                source = RocketMQSource({**named, **more})
                reader = source.reader(source.schema())
                batches = [batch for part in reader.partitions() for batch in reader.read(part)]
                rows = [row for batch in batches for row in batch.to_pylist()]
                return [(r["topic"], r["broker"], r["queue_id"], r["queue_offset"]) for r in rows]

            broker.kill()
            with pytest.raises(AWAY):
                places(timeoutMs="0")
            when_it_waits(monkeypatch, broker.start)
            assert sorted(places(timeoutMs="60000")) == sorted(sent)
        finally:
            broker.close()


def test_the_first_batch_only_says_where_the_query_began_but_once_takes_all() -> None:
    with Cluster() as cluster:
        fill(cluster, 8)
        source = RocketMQSource(options_of(cluster))
        for limit, count in ((None, 0), (ReadAllAvailable(), 8)):
            reader = source.streamReader(source.schema())
            start = reader.initialOffset()
            end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
            reader.stop()
            assert sum(offsets_of(end).values()) == count


# Queues that are shorter than they were


@pytest.fixture
def shorter(tmp_path: Path) -> Iterator[tuple[Cluster, Callable[[], None]]]:
    """A cluster whose broker is exchanged for one that lacks the last messages, and back: as when a
    slave stands in for its master.
    """
    stores = tmp_path / "stores"
    with Cluster(directory=stores) as cluster:
        fill(cluster, 8)

        def exchange() -> None:
            cluster.call("stop_broker")
            (stores / "broker-a").rename(stores / "aside")
            (stores / "other").rename(stores / "broker-a")
            (stores / "aside").rename(stores / "other")
            cluster.call("start_broker")

        cluster.call("stop_broker")
        shutil.copytree(stores / "broker-a", stores / "other")
        cluster.call("start_broker")
        yield cluster, exchange


def test_a_broker_that_lacks_the_last_messages_is_waited_for(
    shorter: tuple[Cluster, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, exchange = shorter
    fill(cluster, 40)
    query = query_of(options_of(cluster))
    assert query.trigger()
    exchange()
    when_it_waits(monkeypatch, exchange)
    assert not query.trigger()
    more = fill(cluster, 4)
    assert query.trigger()
    query.stop()
    places = read(query)
    assert len(places) == len(set(places)) == 52
    assert set(more) <= set(places)


def test_a_queue_that_stays_shorter_is_data_loss(
    shorter: tuple[Cluster, Callable[[], None]], tmp_path: Path
) -> None:
    cluster, exchange = shorter
    fill(cluster, 40)
    query = query_of(options_of(cluster, timeoutMs="300"))
    assert query.trigger()
    exchange()
    with pytest.raises(DataLossError, match=r"offsets 2 to 11 of orders@broker-a:\d \(beyond the"):
        query.trigger()
    query.stop()


# Retention


def test_retention_that_overtakes_a_task_is_noted_once(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    properties = {"mappedFileSizeCommitLog": str(1024 * 1024)}
    with Cluster(directory=stores, properties=properties) as cluster:
        sent = fill(cluster, 1200, size=32_000)

        def expire() -> None:
            cluster.call("stop_broker")
            files = sorted((stores / "broker-a" / "commitlog").iterdir())
            for file in files[: len(files) // 2]:
                file.unlink()
            cluster.call("start_broker")

        query = quiet_query()
        options = options_of(cluster, failOnDataLoss="false", gapLog=str(tmp_path / "gaps"))
        query.start(options)
        query.trigger()
        query.between_chunks = expire
        query.trigger()
        query.stop()
    gaps = [
        (*(gap[name] for name in ("topic", "broker", "queue_id")), offset)
        for path in (tmp_path / "gaps").glob("*.json")
        for gap in map(json.loads, path.read_text().splitlines())
        for offset in range(gap["start"], gap["end"])
    ]
    assert gaps
    assert sorted(gaps + read(query)) == sorted(sent)


# Batches of so many bytes


def sizes(*of: int) -> Callable[[MessageQueue, int], int]:
    return lambda queue, ahead: of[ahead]


def taken(limit_bytes: int, of: list[int]) -> list[int]:
    queue = MessageQueue("t", "b", 0)
    counts = within_bytes({queue: len(of)}, limit_bytes, sizes(*of))
    return of[: counts[queue]]


def test_equal_messages_fill_a_batch_up_to_its_bytes() -> None:
    assert 95_000 <= sum(taken(100_000, [1000] * 5000)) <= 100_000
    assert taken(100_000, [1000] * 50) == [1000] * 50


def test_a_batch_has_one_message_at_least() -> None:
    assert taken(10, [1000] * 5) == [1000]


@pytest.mark.parametrize("growing", [True, False])
def test_messages_that_grow_or_shrink_stay_near_the_limit(growing: bool) -> None:
    of = [100 + at for at in range(5000)]
    assert 1000 <= sum(taken(100_000, of if growing else of[::-1])) <= 110_000


def test_small_messages_in_front_of_large_ones_admit_no_flood() -> None:
    """As an estimate from the first messages alone would."""
    assert sum(taken(100_000, [100] * 16 + [100_000] * 1000)) <= 200_000


def test_batches_of_a_stream_stay_near_their_bytes() -> None:
    with Cluster() as cluster:
        fill(cluster, 40)
        fill(cluster, 40, size=20_000)
        options = options_of(cluster, maxBytesPerTrigger="100000")
        query = query_of(options)
        while query.trigger():
            pass
        query.stop()
    large = [sum(place[3] >= 10 for place in places) for places in query.output.values()]
    assert max(large) <= 6
    assert sum(map(len, query.output.values())) == 80
