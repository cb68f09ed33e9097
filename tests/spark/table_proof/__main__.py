"""Prove tables: the same messages at each snapshot, by every reader, through kills, compaction and retention.

    python -m tests.spark.table_proof --messages 5000000 --kills 50

`make table-proof MESSAGES=5000000 KILLS=50` also installs the tools. Java's client and ours send the messages to
two brokers, while the table service archives them on a small cluster of Spark. Meanwhile the proof kills drivers,
their Java, executors, Python workers and brokers. Then all readers read twenty snapshots: once after the kills, and
once after everything was compacted and the older snapshots have expired. Each snapshot must hold the beginning of
each queue of the log: as many messages, with the same sums of offsets and checksums. The newest must hold the whole
log, with the same bodies and keys. The proof prints a table for each of the two moments, and exits with 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.spark import trino
from tests.spark.killing import CONFIG, BrokerProcess
from tests.spark.processes import inline_table, kill
from tests.spark.standalone import ROOT, StandaloneCluster
from tests.spark.table_proof.comparing import Comparison, say
from tests.spark.table_proof.engines import Reader, Snapshot, readers, snapshots_of
from tests.spark.table_proof.load import LATER, TOPICS, Loads
from tests.spark.table_proof.log import Log, read_log, read_small_log
from tests.spark.test_table_service import Service, command, service
from tests.waits import JVM_WAIT_S, eventually

from cometmq.pipelines import publish
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.progress import Progress
from cometmq.runtime.clock import SystemClock
from cometmq.testing.cluster import Cluster

SNAPSHOTS: Final = 20
# How many of ten kills each kind has.
SHARES: Final = {"driver": 2, "java": 2, "executor": 3, "worker": 1, "broker": 2}
_BROKERS: Final = ("broker-a", "broker-b")
_PATTERN: Final = "orders-.*"
# Tasks hold bodies of 1 MiB in memory.
_SPARK: Final = {**CONFIG, "spark.driver.memory": "1g", "spark.executor.memory": "900m"}
_HOUR_MS: Final = 3_600_000
_FRESHNESS: Final = "4s"
_BROKER_CONF: Final = (
    "mappedFileSizeCommitLog=268435456\nmappedFileSizeConsumeQueue=2000000\n"
    "maxHashSlotNum=500000\nmaxIndexNum=2000000\nautoCreateTopicEnable=false\n"
)


def kinds_of(rng: random.Random, count: int) -> list[str]:
    """Return the kinds of `count` kills, shuffled within each ten."""
    kinds: list[str] = []
    while len(kinds) < count:
        ten = [kind for kind, share in SHARES.items() for _ in range(share)]
        rng.shuffle(ten)
        kinds += ten
    return kinds[:count]


class Killer:
    def __init__(
        self,
        one: Service,
        cluster: StandaloneCluster,
        brokers: Sequence[BrokerProcess],
        loads: Loads,
        rng: random.Random,
    ) -> None:
        self._service = one
        self._cluster = cluster
        self._brokers = brokers
        self._loads = loads
        self._rng = rng

    def run(self, count: int) -> Counter[str]:
        """Kill `count` processes, each some time after another commit, and send a chunk after each."""
        done: Counter[str] = Counter()
        for kind in kinds_of(self._rng, count):
            before = self._service.commits()
            self._service.wait_for(
                lambda before=before: self._service.commits() > before, f"a commit before {kind}"
            )
            time.sleep(self._rng.uniform(0, 2))
            self._service.wait_for(lambda kind=kind: self._kill(kind), f"a {kind}")
            done[kind] += 1
            self._loads.allow()
            say(f"{done.total()} of {count} kills ({kind}), {self._service.archived():,} archived")
        return done

    def _kill(self, kind: str) -> bool:
        if kind in ("driver", "java"):
            return self._service.kill(kind)
        if kind == "executor":
            return self._one_of(self._cluster.victims("CoarseGrainedExecutorBackend"))
        if kind == "worker":
            return self._one_of(self._cluster.forked("pyspark.daemon"))
        broker = self._rng.choice(self._brokers)
        with self._loads.calm:
            broker.kill()
            time.sleep(self._rng.uniform(0, 1))  # a while without one
            broker.start()
        return True

    def _one_of(self, pids: list[int]) -> bool:
        return bool(pids) and kill(self._rng.choice(pids))


def make_topics(namesrv: str) -> None:
    for topic in TOPICS:
        words = ("-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
        command("admin", "updateTopic", "-n", namesrv, *words)


def archive_all(one: Service, log: Log) -> None:
    """Wait until the service has archived the log. Fail if it makes no progress."""
    while (archived := one.archived()) < log.rows:
        one.wait_for(lambda archived=archived: one.archived() > archived, f"more than {archived:,}")


def whole_log(namesrv: str, loads: Loads) -> Log:
    """Return the log, once it has all delayed and committed messages. Raise RuntimeError if it lacks a message."""

    def is_late() -> bool:
        log = read_small_log(namesrv, LATER)
        return any(list(log.faults_of(sent.of_topic_later())) for sent in loads.sent)

    eventually(lambda: not is_late(), note="delayed messages and transactions", wait_s=JVM_WAIT_S)
    log = read_log(namesrv, TOPICS)
    if faults := [fault for sent in loads.sent for fault in log.faults_of(sent)]:
        raise RuntimeError(f"the brokers' log is not what was acknowledged: {faults}")
    return log


@contextmanager
def brokers_of(directory: Path, namesrv: str) -> Iterator[list[BrokerProcess]]:
    with ExitStack() as stack:
        found = []
        for name in _BROKERS:
            broker = BrokerProcess(directory, namesrv, name, more=_BROKER_CONF)
            stack.callback(broker.close)
            found.append(broker)
        yield found


def compact(directory: Path, namesrv: str, archive: Path) -> None:
    """Archive the remaining messages, prove all of them, and compact the files. Raise RuntimeError if this fails."""
    file = directory / "compact.toml"
    file.write_text(
        f'[cluster]\nnamesrv = "{namesrv}"\n'
        f'[spark]\nmaster = "local[2]"\nconfig = {inline_table(_SPARK)}\n'
        f'[archive]\ntopic_pattern = {json.dumps(_PATTERN)}\npath = "{archive}"\n'
        'publish = ["iceberg", "delta"]\ncompact_files = 2\nverify = "all"\n'
    )
    words = ["pipeline", "archive", "-c", str(file), "--reports", str(directory / "reports")]
    done = subprocess.run(
        [sys.executable, "-m", "cometmq", *words], check=False, capture_output=True, text=True, cwd=ROOT
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"the archive's proof does not hold: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        )


class _At(SystemClock):
    """Always shows the same time."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


def expire(archive: Path) -> tuple[int, int]:
    """Expire the older half of the snapshots, but keep twenty. Return how many there were, and how many are left.

    The clock shows the moment at which their hour is over.
    """
    before = snapshots_of(archive)
    kept_from = max(0, min(len(before) // 2, len(before) - SNAPSHOTS))
    # The hour of a snapshot begins when the next one replaces it.
    clock = _At(before[kept_from].written_ms + 1 + _HOUR_MS)
    settings = publish.Config(path=str(archive), table_history_hours=1)
    report = publish.run(settings, Context(None, ClusterConfig(), Progress(), clock))
    if not report.holds:
        raise RuntimeError(f"the end of old snapshots failed: {report.summary}")
    return len(before), len(snapshots_of(archive))


def spread(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return twenty of the snapshots, from the oldest to the newest."""
    last = len(snapshots) - 1
    count = min(SNAPSHOTS, len(snapshots))
    return [snapshots[round(at * last / max(1, count - 1))] for at in range(count)]


def compare(title: str, log: Log, archive: Path, chosen: Sequence[Reader]) -> list[str]:
    snapshots = spread(snapshots_of(archive))
    comparison = Comparison(title, log, snapshots)
    comparison.read(archive, chosen)
    comparison.show()
    few = f"{title}: only {len(snapshots)} snapshots, give more messages or kills"
    return comparison.faults + [few] * (len(snapshots) < SNAPSHOTS)


def prove(
    directory: Path, messages: int, kills: int, seed: int, chosen: Sequence[Reader]
) -> list[str]:
    """Return the differences."""
    rng = random.Random(seed)
    with (
        StandaloneCluster(directory) as cluster,
        Cluster(brokers=0) as name_server,
        brokers_of(directory, name_server.namesrv) as brokers,
    ):
        namesrv = name_server.namesrv
        make_topics(namesrv)
        keys = {
            "topic_pattern": _PATTERN,
            "freshness": _FRESHNESS,
            "max_restarts": 10 * kills,
            # So there are twenty snapshots even after the older half has expired.
            "max_messages": -(-messages // (2 * SNAPSHOTS)),
        }
        with service(directory, namesrv, master=cluster.url, config=_SPARK, **keys) as one:
            with Loads(namesrv, messages, kills + 1, seed) as loads:
                done = Killer(one, cluster, brokers, loads, rng).run(kills)
                loads.finish()
                log = whole_log(namesrv, loads)
            say(f"the log has {log.rows:,} messages, {loads.count:,} were acknowledged")
            archive_all(one, log)
            if one.stop() != 0:
                raise RuntimeError(f"the service failed: {one.text[-4000:]}")
        faults = compare("After the kills", log, one.path, chosen)
        say("everything is compacted and proved")
        compact(directory, namesrv, one.path)
        there, left = expire(one.path)
        faults += compare("After compaction and retention", log, one.path, chosen)
    sys.stdout.write(
        f"{log.rows:,} messages ({log.bodies.bytes:,} bytes of bodies), {done.total()} kills {dict(done)}, "
        f"seed {seed}; {there} snapshots, of which {there - left} expired.\n"
    )
    return faults


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="tests.spark.table_proof", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--directory", help="where the temporary directory is made")
    parser.add_argument("--without-trino", action="store_true")
    options = parser.parse_args()
    if options.messages < 1 or options.kills < 1:
        parser.error(
            f"--messages is {options.messages} and --kills is {options.kills}, give 1 or more"
        )
    if not options.without_trino and not trino.is_there():
        parser.error("no Trino: python -m tests.spark.trino gets it, or give --without-trino")
    chosen = readers(with_trino=not options.without_trino)
    # Either signal ends the processes and removes the files, also where a shell ignores SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="table-proof-", dir=options.directory) as name:
        faults = prove(Path(name), options.messages, options.kills, options.seed, chosen)
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    sys.stdout.write(f"{'Not equal.' if faults else 'All equal.'}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
