"""State that a Python worker keeps from task to task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.spark import workers
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.workers import KEPT_S, KeptReaders
from cometmq.testing.cluster import Cluster


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def readers(clock: Clock) -> Iterator[KeptReaders]:
    readers = KeptReaders(clock)
    yield readers
    readers.close()


def options(cluster: Cluster, **others: str) -> LiveOptions:
    return LiveOptions({"namesrv": cluster.namesrv, "subscribe": "any", **others}, streaming=False)


def lent(readers: KeptReaders, options: LiveOptions) -> BlockingRangeReader:
    with readers.lent(options) as reader:
        reader.topics()
        return reader


def test_a_task_gets_the_reader_of_the_one_before(readers: KeptReaders, cluster: Cluster) -> None:
    # Spark unpickles the options again for each task.
    first = lent(readers, options(cluster))
    assert lent(readers, options(cluster)) is first
    assert first.topics() is not None, "it still runs"


def test_a_reader_that_would_be_another_one_is_made_anew(
    readers: KeptReaders, cluster: Cluster, clock: Clock, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("old-secret")
    access = {"accessKey": "jobs", "secretKeyFile": str(key)}
    seen = [lent(readers, options(cluster))]
    seen.append(lent(readers, options(cluster, group="others")))
    seen.append(lent(readers, options(cluster, **access)))
    key.write_text("new-secret")
    seen.append(lent(readers, options(cluster, **access)))
    assert lent(readers, options(cluster, **access)) is seen[-1]
    clock.now_s += KEPT_S
    seen.append(lent(readers, options(cluster, **access)))
    assert len({id(reader) for reader in seen}) == len(seen)
    for closed in seen[:-1]:
        with pytest.raises(Exception, match="closed"):
            closed.topics()


def test_a_reader_of_a_task_that_failed_is_not_kept(readers: KeptReaders, cluster: Cluster) -> None:
    first = lent(readers, options(cluster))
    with pytest.raises(ZeroDivisionError), readers.lent(options(cluster)):
        raise ZeroDivisionError
    assert lent(readers, options(cluster)) is not first


def test_two_reads_at_a_time_have_a_reader_each(readers: KeptReaders, cluster: Cluster) -> None:
    with readers.lent(options(cluster)) as outer, readers.lent(options(cluster)) as inner:
        assert outer is not inner
        assert outer.topics() == inner.topics()


def test_a_reader_finds_a_broker_that_was_away_between_two_tasks(
    readers: KeptReaders, cluster: Cluster
) -> None:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        producer.send(Message("orders", b"one"))
    with readers.lent(options(cluster)) as reader:
        before = reader.offsets(reader.queues("orders"))
    cluster.call("restart_broker", 0)
    with readers.lent(options(cluster)) as again:
        assert again is reader
        assert again.offsets(before) == before


def test_outside_of_tasks_nothing_is_kept(cluster: Cluster) -> None:
    with workers.lent_reader(options(cluster)) as reader:
        pass
    with pytest.raises(Exception, match="closed"):
        reader.topics()
