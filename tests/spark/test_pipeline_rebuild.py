"""The pipeline `rebuild` on stores that brokers have left: ours and Java's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.interop.conftest import need
from tests.interop.peers import Java53Broker
from tests.waits import SEND_WAIT_MS

from cometmq import LocalTransactionState, Message, MessageExt, Producer, TransactionProducer
from cometmq.errors import ConfigError, StoreLockedError
from cometmq.pipelines import rebuild
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.page import write_page
from cometmq.pipelines.progress import Progress
from cometmq.pipelines.rebuild.work import BUILT
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.store import MessageStore
from cometmq.testing.cluster import Cluster

LOG_FILE_BYTES = 64 * 1024
# Several files of each kind.
FILES = {
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "20",
    "maxIndexNum": "80",
    "mappedFileSizeConsumeQueueExt": "40000",
}
COUNT = 400
STEPS = ("read the log", "build the queues", "build the index", "compare with the store")


class EverySecond:
    """Commits one transaction and rolls the next one back."""

    def execute(self, message: Message, arg: Any, /) -> LocalTransactionState:
        return (LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK)[arg % 2]

    def check(self, message: MessageExt, /) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def send_all_kinds(namesrv: str) -> None:
    with Producer("filler", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(COUNT):
            producer.send(
                Message(
                    ("orders", "payments")[at % 3 == 0],
                    b"body %d " % at * (at % 7 * 20 + 1),
                    tags=("paid", "標籤", None)[at % 3],
                    keys=[f"O-{at}", f"C-{at % 10}"][: at % 4],
                    properties={"color": "röt"} if at % 5 == 0 else {},
                    delay_level=1 if at % 40 == 0 else 0,
                )
            )
        producer.send_batch([Message("batched", b"%d" % at, tags="b") for at in range(50)])
        producer.send(Message("large", bytes(30_000), keys=["large"]))
    with TransactionProducer(
        "payer", EverySecond(), namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS
    ) as payer:
        for at in range(6):
            payer.send_in_transaction(Message("transacted", b"%d" % at, keys=[f"T-{at}"]), at)


@pytest.fixture(params=["comet", "comet-ext", pytest.param("java", marks=pytest.mark.interop)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The store of a broker that is stopped."""
    if request.param == "java":
        need("java", "mvn")
        store = tmp_path / "store"
        with (
            Cluster(brokers=0) as cluster,
            # The index of a newer one has the tags, too, which a rebuilt one has not.
            Java53Broker(
                cluster.namesrv, store=store, commit_log_file_bytes=LOG_FILE_BYTES, conf=FILES
            ) as broker,
        ):
            send_all_kinds(cluster.namesrv)
            broker.stop()
        return store
    more = {"enableConsumeQueueExt": "true"} if request.param == "comet-ext" else {}
    properties = {"mappedFileSizeCommitLog": str(LOG_FILE_BYTES), **FILES, **more}
    with Cluster(directory=tmp_path, properties=properties) as cluster:
        send(cluster.namesrv, "forgotten", 10)
        send_all_kinds(cluster.namesrv)
        config = cluster.brokers[0].store.config
    stopped = MessageStore(config, clock=SYSTEM_CLOCK, store_host=bytes(8))
    stopped.open()
    assert stopped.delete_topic("forgotten")
    stopped.close()
    return tmp_path / "broker-a"


def contents(root: Path) -> dict[str, bytes]:
    """Queues and index, without files that were only made for what was to come."""
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for name in BUILT
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }
    return {name: data for name, data in files.items() if any(data)}


class CutError(Exception):
    """The process ends here."""


class CutProgress(Progress):
    """Ends the run when a step begins or has ended."""

    def __init__(self, *, begin: str = "", end: str = "") -> None:
        self._begin, self._end = begin, end
        self.steps: list[str] = []

    def begin(self, step: str) -> None:
        self.steps.append(step)
        if step == self._begin:
            raise CutError

    def end(self, step: str, outcome: str) -> None:
        assert outcome
        if step == self._end:
            raise CutError


def run(spark: Any, progress: Progress | None = None, **config: Any) -> rebuild.Report:
    context = Context(spark, ClusterConfig(), progress or Progress())
    given: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value for name, value in config.items()
    }
    return rebuild.run(rebuild.Config(**given), context)


def test_queues_and_index_equal_those_of_the_broker(
    spark: Any, store: Path, tmp_path: Path
) -> None:
    target = tmp_path / "rebuilt"
    before = contents(store)
    for name in ("orders/0", "orders/1", "SCHEDULE_TOPIC_XXXX/0"):
        assert len([path for path in before if path.startswith(f"consumequeue/{name}/")]) >= 1
    assert len([path for path in before if path.startswith("index/")]) > 5
    assert len(list((store / "commitlog").iterdir())) > 3

    report = run(spark, store=store, target=target)
    assert report.holds, report
    assert contents(target) == before
    assert {queue.outcome for queue in report.queues} == {"equal"}
    assert {file.outcome for file in report.index} == {"equal"}
    by_topic: dict[str, int] = {}
    for queue in report.queues:
        by_topic[queue.topic] = by_topic.get(queue.topic, 0) + queue.message_count
    # Delayed ones may be waiting yet.
    assert by_topic["orders"] + by_topic["payments"] >= COUNT - COUNT // 40
    assert (by_topic["batched"], by_topic["large"], by_topic["transacted"]) == (50, 1, 3)
    assert "forgotten" not in by_topic
    assert sorted(path.name for path in target.iterdir()) == sorted(
        [*{name.partition("/")[0] for name in before}, "rebuild.json"]
    )
    # And once it is done it is done: a second run compares only.
    again = CutProgress()
    second = run(spark, again, store=store, target=target)
    assert again.steps == ["compare with the store"]
    assert second == msgspec.structs.replace(report, ended=second.ended)
    write_page(report, tmp_path / "rebuild.html")
    assert (tmp_path / "rebuild.html").read_text().count("<svg") == 2


def test_a_run_that_ends_anywhere_is_gone_on_with(spark: Any, tmp_path: Path) -> None:
    with small_cluster(tmp_path) as cluster:
        send(cluster.namesrv, "orders", 150)
    store, target = tmp_path / "broker-a", tmp_path / "rebuilt"
    for step in STEPS:
        with pytest.raises(CutError):
            run(spark, CutProgress(end=step), store=store, target=target)
    shutil.rmtree(next((target / "parts").iterdir()))
    shutil.rmtree(target / "consumequeue" / "orders" / "0")
    next((target / "index").iterdir()).unlink()
    (target / "building" / "left").mkdir(parents=True)
    assert run(spark, store=store, target=target).holds
    assert contents(target) == contents(store)
    assert sorted(path.name for path in target.iterdir()) == [
        "consumequeue",
        "index",
        "rebuild.json",
    ]


@contextmanager
def small_cluster(directory: Path) -> Iterator[Cluster]:
    properties = {"mappedFileSizeCommitLog": str(LOG_FILE_BYTES), **FILES}
    with Cluster(directory=directory, properties=properties) as cluster:
        yield cluster


def send(namesrv: str, topic: str, count: int, size: int = 1000) -> None:
    with Producer("filler", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(count):
            producer.send(Message(topic, b"%d" % at + bytes(size), keys=[f"k{at}"]))


def test_what_was_lost_is_put_back_and_what_was_there_is_kept(spark: Any, tmp_path: Path) -> None:
    store, target = tmp_path / "broker-a", tmp_path / "broker-a-rebuilt"
    with small_cluster(tmp_path) as cluster:
        send(cluster.namesrv, "idle", 3)
        send(cluster.namesrv, "orders", 200)
        with pytest.raises(StoreLockedError, match="in use by"):
            run(spark, store=store)
        cluster.call("stop_broker", 0)
        # Retention has taken what `idle` had; its queues say where it goes on.
        sorted((store / "commitlog").iterdir())[0].unlink()
        whole = contents(store)
        shutil.rmtree(store / "consumequeue" / "orders" / "1")
        damaged = sorted((store / "consumequeue" / "orders" / "0").iterdir())[-2]
        damaged.write_bytes(damaged.read_bytes()[:-20] + bytes(20))
        hurt = contents(store)

        report = run(spark, store=store)
        assert not report.holds
        outcomes = {f"{queue.topic}/{queue.queue_id}": queue.outcome for queue in report.queues}
        assert (outcomes["orders/0"], outcomes["orders/1"]) == ("different", "new")
        assert {outcome for name, outcome in outcomes.items() if "idle" in name} == {"kept"}
        assert {file.outcome for file in report.index} == {"equal"}
        assert contents(store) == hurt

        # A second run without an installation shows the store as it is now, not as the first found it.
        damaged.write_bytes(whole[str(damaged.relative_to(store))])
        report = run(spark, store=store)
        outcomes = {f"{queue.topic}/{queue.queue_id}": queue.outcome for queue in report.queues}
        assert (outcomes["orders/0"], outcomes["orders/1"]) == ("equal", "new")
        assert report.holds
        damaged.write_bytes(hurt[str(damaged.relative_to(store))])
        report = run(spark, store=store)
        assert not report.holds
        assert contents(store) == hurt

        for cut in ({"begin": "put into the store"}, {"end": "put into the store"}):
            with pytest.raises(CutError):
                run(spark, CutProgress(**cut), store=store, install=True)
        report = run(spark, store=store, install=True)
        assert report.holds
        assert report.replaced == str(target / "replaced")
        assert contents(target / "replaced") == hurt
        now = contents(store)
        for name in now:
            if "/orders/" in name and name in whole and name.split("/")[-1] != "0" * 20:
                assert now[name] == whole[name]
        assert {name for name in now if "idle" in name} == {n for n in whole if "idle" in n}

        index = sorted(path.name for path in (store / "index").iterdir())
        cluster.call("start_broker", 0)
        assert sorted(path.name for path in (store / "index").iterdir()) == index
        maximum = [cluster.brokers[0].store.max_offset("idle", each) for each in range(4)]
        assert sum(maximum) == 3
        minimum = [cluster.brokers[0].store.min_offset("orders", each) for each in range(4)]
        ends = [cluster.brokers[0].store.max_offset("orders", each) for each in range(4)]
        assert sum(ends) == 200
        for queue_id in range(4):
            for offset in range(minimum[queue_id], ends[queue_id]):
                got = cluster.brokers[0].store.get("orders", queue_id, offset, 1)
                assert got.slices, (queue_id, offset)
        send(cluster.namesrv, "orders", 1)
    with pytest.raises(ConfigError, match="remove it, or name another directory"):
        run(spark, store=store)


def test_what_cannot_be_done_is_said_before_anything_is_done(spark: Any, tmp_path: Path) -> None:
    with small_cluster(tmp_path) as cluster:
        send(cluster.namesrv, "orders", 5)
    store = tmp_path / "broker-a"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(ConfigError, match="has files that no rebuild made"):
        run(spark, store=store, target=tmp_path / "full")
    with pytest.raises(ConfigError, match="among the store's own files"):
        run(spark, store=store, target=store / "consumequeue" / "new")
    with pytest.raises(ConfigError, match=r"broker\.conf cannot be read"):
        run(spark, store=store, broker_conf=tmp_path / "broker.conf")
