"""Rebuild the consume queues and index files of a store from its commit log, in parallel.

    [rebuild]
    store = "/data/rocketmq/store"
    target = "/data/rocketmq/store-rebuilt"
    install = false

The rebuild reads the files of the log in parallel, then builds the queues in parallel, then the
index files. It compares what it has built with the store's files. With `install = true` it puts the
built files into the store and keeps the former ones. The broker must be stopped. `work` describes
the target directory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np

from cometmq.errors import ConfigError, StoreCorruptError
from cometmq.pipelines.configuration import Settings
from cometmq.pipelines.context import Context
from cometmq.pipelines.rebuild.compare import (
    DIFFERENT,
    LEFT_OUT,
    BuiltIndexFile,
    BuiltQueue,
    compare_index_file,
    compare_queue,
    index_left_out,
)
from cometmq.pipelines.rebuild.index import IndexPlan, build_index_file, plan_index
from cometmq.pipelines.rebuild.install import check_installable, install
from cometmq.pipelines.rebuild.queues import (
    build_queues,
    carry_over,
    queue_directories,
)
from cometmq.pipelines.rebuild.report import LogFileScan, Report
from cometmq.pipelines.rebuild.scan import Part, QueueKey, read_part, scan_part
from cometmq.pipelines.rebuild.work import (
    BUILT,
    QUEUES,
    State,
    Work,
    store_config,
    work_on,
)
from cometmq.pipelines.report import now
from cometmq.store.offline.store import open_offline
from cometmq.store.reading.units import UNIT_DTYPE, is_message

__all__ = ["Config", "Report", "run"]

# Each task of Spark costs some milliseconds, and a queue or index file less than that.
_MOST_TASKS: Final = 1000
# Several tasks per core, so that a queue of many messages does not hold up many others.
_TASKS_PER_CORE: Final = 4


class Config(Settings, frozen=True):
    """store: the directory of storePathRootDir; the driver and all workers see it at this path.

    target: the directory in which the files are built, empty or left by a killed run; if left out,
        STORE-rebuilt beside the store.
    commit_log: the directory of storePathCommitLog, if it is not in the store.
    broker_conf: the broker's configuration file; needed for messageDelayLevel, and for sizes that are
        not the defaults and that no file in the store shows.
    install: put the built directories into the store, and the former ones into target/replaced.
    """

    store: str
    target: str | None = None
    commit_log: str | None = None
    broker_conf: str | None = None
    install: bool = False


def run(config: Config, context: Context) -> Report:
    """Rebuild the store.

    Raise StoreUnusableError, StoreLockedError when a broker runs on the store, StoreCorruptError
    for a log that no broker starts on, and ConfigError.
    """
    target = Path(os.path.abspath(config.target or f"{config.store.rstrip('/')}-rebuilt"))  # noqa: PTH100 - links stay links
    settings = store_config(config.store, config.commit_log, config.broker_conf)
    own = [settings.commit_log_path, *(settings.store_path_root_dir / name for name in BUILT)]
    if any(target.is_relative_to(directory) for directory in own):
        raise ConfigError(
            f"target={target} lies among the store's own files: name another directory"
        )
    with open_offline(settings) as store:
        work = work_on(store, target)
        state = State(work)
        state.load()
        if config.install:
            check_installable(work)
        report = _report(_Rebuild(work, context), state)
        shutil.rmtree(target / "parts", ignore_errors=True)
    if config.install and report.replaced is None:
        with context.progress.step("put into the store") as step:
            report.replaced = str(install(work, state))
            step.outcome = f"what was there is in {report.replaced}"
        report.ended = now()
        report.holds, report.summary = _verdict(report)
        _keep(report, state)
    return report


def _report(rebuild: _Rebuild, state: State) -> Report:
    """Build the missing files, and compare all of them with the present store.

    Once an installation has begun, return the earlier report: the store already has the built
    files.
    """
    if "report" not in state.values:
        report = rebuild.run()
    else:
        report = msgspec.convert(state.values["report"], Report)
        if "installing" in state.values or report.replaced is not None:
            return report
        rebuild.compare_again(report)
    _keep(report, state)
    return report


def _keep(report: Report, state: State) -> None:
    state.values["report"] = msgspec.to_builtins(report)
    state.save()


def _verdict(report: Report) -> tuple[bool, str]:
    outcomes = [queue.outcome for queue in report.queues] + [file.outcome for file in report.index]
    others = sum(outcome in (DIFFERENT, LEFT_OUT) for outcome in outcomes)
    messages = sum(file.record_count for file in report.log_files)
    text = (
        f"{len(report.queues):,} queues and {len(report.index):,} index files rebuilt from "
        f"{messages:,} records in {len(report.log_files):,} files of the log"
    )
    if report.replaced is not None:
        return True, f"{text}, and put into the store; what was there is in {report.replaced}"
    if not others:
        return True, f"{text}; none contradicts the store"
    return False, (
        f"{text}; {others:,} are other than the store's: install = true puts the rebuilt ones there"
    )


class _Rebuild:
    def __init__(self, work: Work, context: Context) -> None:
        self._work = work
        self._spark = context.spark
        self._progress = context.progress
        self._monotonic = context.clock.monotonic

    def run(self) -> Report:
        work = self._work
        started, begun_s = now(), self._monotonic()
        shutil.rmtree(work.target / "building", ignore_errors=True)
        parts = self._scan()
        self._build_queues(parts)
        kept, left_out = self._carry_over()
        names = self._build_index(parts).names
        queues, index = self._compare(names, kept)
        report = Report(
            pipeline="rebuild",
            started=started,
            holds=True,
            summary="",
            store=str(work.config.store_path_root_dir),
            target=str(work.target),
            log_end=parts[-1].end,
            seconds=self._monotonic() - begun_s,
            log_files=[
                LogFileScan(p.base, p.end, p.record_count, p.key_count, p.seconds) for p in parts
            ],
            queues=_sorted([*queues, *left_out]),
            index=index,
        )
        report.holds, report.summary = _verdict(report)
        shutil.rmtree(work.target / "building", ignore_errors=True)
        return report

    def compare_again(self, report: Report) -> None:
        """Compare the files that an earlier run built; the store's queues may have changed
        since.
        """
        names = tuple(file.name for file in report.index if file.outcome != LEFT_OUT)
        kept, left_out = self._carry_over()
        queues, report.index = self._compare(names, kept)
        report.queues = _sorted([*queues, *left_out])
        report.holds, report.summary = _verdict(report)
        report.ended = now()

    def _scan(self) -> list[Part]:
        work = self._work
        with self._progress.step("read the log") as step, step.spark_jobs(self._spark):
            missing = [at for at in range(len(work.bases)) if not work.part(at).is_dir()]
            self._map(missing, lambda at: scan_part(work, at))
            parts = _up_to_the_end(
                work, [Part.load(work.part(at)) for at in range(len(work.bases))]
            )
            records = sum(part.record_count for part in parts)
            step.outcome = f"{records:,} records in {len(parts):,} files"
        return parts

    def _build_queues(self, parts: Sequence[Part]) -> None:
        work = self._work
        with self._progress.step("build the queues") as step, step.spark_jobs(self._spark):
            built = {key for key, _ in queue_directories(work.target / QUEUES)}
            at_most = sum(part.queue_count for part in parts)
            if at_most:
                tasks = min(at_most, _TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism)
                # RDDs, because a frame's functions over Arrow would also need pandas.
                numbers = self._spark.sparkContext.parallelize(range(len(parts)), len(parts))
                rows = numbers.flatMap(lambda at: _rows_of(work, at, built))
                ordered = rows.repartitionAndSortWithinPartitions(tasks, _by_queue)
                ordered.mapPartitions(lambda chunks: build_queues(work, chunks)).count()
            step.outcome = f"{len(queue_directories(work.target / QUEUES)):,} queues"

    def _carry_over(self) -> tuple[set[QueueKey], list[BuiltQueue]]:
        """Return the queues of which the log has no message: those taken over as they are, and
        those left out because they claim messages in the log.
        """
        work = self._work
        built = {
            key
            for key, directory in queue_directories(work.target / QUEUES)
            if not _is_expired(work, directory)
        }
        kept, left_out = set(), []
        for key, directory in queue_directories(work.store_directory(QUEUES)):
            if key in built:
                continue
            if _is_expired(work, directory):
                kept.add(key)
            elif not work.deleted.get(key[0]):
                note = "its units claim messages that the log does not have there"
                left_out.append(BuiltQueue(*key, LEFT_OUT, 0, 0, 0, 0, 0, note))
        if kept:
            keys = sorted(kept)
            self._map(range(len(keys)), lambda at: carry_over(work, keys[at]))
        return kept, left_out

    def _build_index(self, parts: Sequence[Part]) -> IndexPlan:
        work = self._work
        if not work.config.message_index_enable:
            return IndexPlan(None, ())
        with self._progress.step("build the index") as step, step.spark_jobs(self._spark):
            plan = plan_index(work, parts)
            self._map(range(len(plan.names)), lambda at: build_index_file(work, plan, at))
            step.outcome = f"{plan.key_count:,} keys in {len(plan.names):,} files"
        return plan

    def _compare(
        self, names: Sequence[str], kept: set[QueueKey]
    ) -> tuple[list[BuiltQueue], list[BuiltIndexFile]]:
        work = self._work
        keys = [key for key, _ in queue_directories(work.target / QUEUES)]
        with self._progress.step("compare with the store") as step, step.spark_jobs(self._spark):
            queues = self._map(
                range(len(keys)),
                lambda at: compare_queue(work, keys[at], kept=keys[at] in kept),
            )
            index = self._map(
                range(len(names)),
                lambda at: compare_index_file(work, names[at]),
            )
            if names:
                index += index_left_out(work, names)
            step.outcome = f"{len(queues):,} queues, {len(index):,} index files"
        return queues, index

    # -- Spark --

    def _map(self, numbers: Sequence[int], work: Callable[[int], Any]) -> list[Any]:
        """Return the results of `work` for each number, computed in Spark's tasks."""
        context = self._spark.sparkContext
        tasks = min(len(numbers), _MOST_TASKS)
        found = context.parallelize(numbers, tasks).map(work).collect() if tasks else []
        return list(found)


def _sorted(queues: Iterable[BuiltQueue]) -> list[BuiltQueue]:
    return sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))


def _rows_of(
    work: Work, number: int, built: set[QueueKey]
) -> Iterator[tuple[tuple[str, int, int], bytes]]:
    """Yield a part's rows of queues that are not built yet, by topic, queue and offset in the
    log.
    """
    for batch in read_part(work, number):
        columns = (batch.column(name).to_pylist() for name in batch.schema.names)
        for topic, queue_id, first, rows in zip(*columns, strict=True):
            if (topic, queue_id) not in built:
                yield (topic, queue_id, first), rows


def _by_queue(key: tuple[str, int, int]) -> int:
    """Return a hash that is the same in every process, unlike Python's own hash of a text."""
    return crc32(f"{key[0]} {key[1]}".encode())


def _up_to_the_end(work: Work, parts: list[Part]) -> list[Part]:
    """Return the parts up to the end of the log. Raise StoreCorruptError for damage in front of
    messages.
    """
    for at, part in enumerate(parts):
        if part.end == part.base + work.log_file_bytes:
            continue
        if part.follows or any(later.record_count for later in parts[at + 1 :]):
            raise StoreCorruptError(
                f"the commit log is damaged at {part.end} ({part.reason or 'zeros'}) and good "
                "messages follow: restore the file from a copy, or give up what is damaged with "
                f"cometmq store repair --write {work.config.store_path_root_dir}"
            )
        return parts[: at + 1]
    return parts


def _is_expired(work: Work, directory: Path) -> bool:
    """Return whether no unit of a queue refers to a message in the log."""
    for path in sorted(directory.iterdir(), reverse=True):
        units = np.fromfile(path, UNIT_DTYPE)
        units = units[is_message(units)]
        if len(units):
            return int(units["physical_offset"][-1]) < work.min_offset
    return True
