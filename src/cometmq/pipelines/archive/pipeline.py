"""Archive topics to Parquet by topic and hour, and prove the files against the log.

    report = archive.run(archive.Config(topics=["orders"], path="/data/archive"), context)

The mode `once` archives what is in the log now. The mode `stream` goes on until a signal stops the
process (SIGINT, SIGTERM). A further run continues where the last one ended. docs/pipelines.md
describes the files.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.errors import ConfigError, RemotingError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.batches import Batches, Waiting, Written
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.compaction import Compacted, Compaction
from cometmq.pipelines.archive.decoded.decoding import Decoding
from cometmq.pipelines.archive.decoded.lines import DecodedLine
from cometmq.pipelines.archive.decoded.work import SparkWork
from cometmq.pipelines.archive.layout import Hour, read, session_for
from cometmq.pipelines.archive.proving.proof import Proof, Proved
from cometmq.pipelines.archive.report import Report, report_of
from cometmq.pipelines.archive.settings import Config
from cometmq.pipelines.archive.source import LiveSource, Source, StoreSource
from cometmq.pipelines.archive.tables.publisher import Publisher, TableLine
from cometmq.pipelines.context import Context
from cometmq.pipelines.hadoop_files import location
from cometmq.pipelines.locations import is_uri
from cometmq.pipelines.progress import Step
from cometmq.pipelines.report import now
from cometmq.pipelines.stopping import signals_set

__all__ = ["Config", "Report", "read", "run"]

log = get_logger(__name__)

_MIB: Final = 1 << 20
_DECODED: Final = ("rows", "undecodable")


class Standing(NamedTuple):
    """The state of a stream after a round: the archive, and the ends of the log.

    ends: the end of each queue on a broker that answered the last look, which began at `looked_ms`. The sums
    are those of this run; `proved` has the problems of its last proof.
    """

    archive: Archive
    ends: Mapping[MessageQueue, int]
    looked_ms: int
    tables: list[TableLine]
    decoded: list[DecodedLine]
    written: Written
    compacted: Compacted
    proved: Proved


def _to_nobody(_standing: Standing) -> None:
    """Take the state of a stream, and do nothing with it."""


def run(
    config: Config,
    context: Context,
    stopped: threading.Event | None = None,
    *,
    observe: Callable[[Standing], None] = _to_nobody,
    prove_at_end: bool = True,
) -> Report:
    """Archive, compact and prove. `stopped` ends a stream, as signals do in the main thread.

    A stream calls `observe` when it begins, and after each batch, look and proof. It ends with a proof. If
    `prove_at_end` is False, the next run begins with that proof.

    Raise ConfigError for a configuration that does not fit, and DataLossError for messages that are
    gone.
    """
    spark = session_for(context.spark)
    path = location(spark, config.path)
    with (
        closing(_log(config, context, spark)) as source,
        _gap_logs(config, spark) as gap_logs,
        Archive(path, gap_logs) as archive,
        Decoding(
            SparkWork(
                spark,
                compact_files=config.compact_files,
                target_bytes=config.target_file_mb * _MIB,
            ),
            archive,
            context.decode,
            config,
            max_messages=config.max_messages,
            clock=context.clock,
        ) as decoding,
    ):
        made = _Run(config, context, spark, archive, source, decoding, observe)
        return made.run(stopped or threading.Event(), prove_at_end=prove_at_end)


class _Run:
    def __init__(
        self,
        config: Config,
        context: Context,
        spark: Any,
        archive: Archive,
        source: Source,
        decoding: Decoding,
        observe: Callable[[Standing], None],
    ) -> None:
        self._config = config
        self._context = context
        self._observe = observe
        # The reason for which the last look at the log failed, so that each reason is logged once.
        self._refused = ""
        self._progress = context.progress
        self._monotonic = context.clock.monotonic
        self._spark = spark
        self._archive = archive
        self._batches = Batches(
            spark,
            archive,
            source,
            max_messages=config.max_messages,
            note_loss=not config.fail_on_data_loss,
            target_bytes=config.target_file_mb * _MIB,
            min_tasks=config.min_partitions,
        )
        self._compaction = Compaction(
            spark,
            archive,
            from_files=config.compact_files,
            target_bytes=config.target_file_mb * _MIB,
        )
        self._proof = Proof(spark, archive, source)
        self._source = source
        self._decoding = decoding
        self._publisher = Publisher(archive, config, context.clock)
        archive.after_commit = self._publisher.publish
        self._started = now()
        self._written = Written()
        self._compacted = Compacted()
        self._proved = Proved()

    def run(self, stopped: threading.Event, *, prove_at_end: bool) -> Report:
        # Publish the commits of earlier runs, before a compaction takes their files out of data.
        self._publisher.publish()
        self._choose_schema()
        if self._config.mode == "once":
            self._once()
        else:
            with signals_set(stopped):
                self._stream(stopped)
                if prove_at_end:
                    self._compact_and_prove(all_of_them=False)
        return self._report()

    # Inside

    def _report(self) -> Report:
        return report_of(
            self._archive,
            self._started,
            self._config.mode,
            self._written,
            self._compacted,
            self._proved,
            [*self._publisher.lines, *self._decoding.published],
            self._decoding.lines(),
        )

    def _choose_schema(self) -> None:
        """Give new files the configured columns, as soon as the whole archive is proved."""
        compact = self._config.columns == "compact"
        if self._archive.choose_schema(compact=compact):
            return
        self._compact_and_prove(all_of_them=self._config.mode == "once")
        if not self._archive.choose_schema(compact=compact):
            log.warning(
                "the files get the columns that they had so far: not all of the archive is proved",
                columns=self._config.columns,
            )

    def _once(self) -> None:
        with self._progress.step("archive") as step:
            waiting = self._batches.waiting(all_of_them=True)
            target = {queue: one.end for queue, one in waiting.items()}
            total = sum(one.end - one.low for one in waiting.values())
            while waiting:
                if total <= self._config.max_messages:
                    with step.spark_jobs(self._spark):
                        self._written = self._batches.write(waiting)
                    break
                step.advance(self._written.messages, total)
                self._written = self._written.plus(self._batches.write(waiting))
                waiting = self._batches.waiting(target, all_of_them=True)
            step.outcome = _said(self._written)
        self._decode()
        self._compact_and_prove(all_of_them=True)

    def _decode(self, stopped: threading.Event | None = None) -> None:
        """Decode all that waits; with `stopped`, of a stream, a batch of each topic until it is set."""
        if not self._decoding.is_on:
            return
        if stopped is not None and not self._decoding.waits(also_failing=True):
            self._decoding.catch_up()
            return
        with self._progress.step("decode") as step:
            done = 0
            for count in self._decoding.batches(all_of_them=stopped is None):
                done += count
                step.advance(done)
                if stopped is not None:
                    self._show()
                    if stopped.is_set():
                        break
            lines = self._decoding.lines()
            rows, bad = (sum(getattr(one, name) for one in lines) for name in _DECODED)
            step.outcome = f"{rows:,} rows, {bad:,} undecodable"

    def _stream(self, stopped: threading.Event) -> None:
        config = self._config
        # A run that was killed, or stopped without a proof, leaves messages without a proof.
        is_proved = all(one.proved_to == one.to for one in self._archive.state.queues)
        proof_after_s = self._monotonic() + (config.proof_interval_s if is_proved else 0.0)
        self._show()
        with self._progress.step("archive") as step:
            while not stopped.is_set():
                begun_s = self._monotonic()
                self._next_batch(step, stopped)
                if not stopped.is_set():
                    self._decode(stopped)
                self._show()
                is_due = self._monotonic() >= proof_after_s
                if is_due and not self._refused and not stopped.is_set():
                    self._compact_and_prove(all_of_them=False)
                    self._batches.commit_again()
                    self._show()
                    self._context.publish(self._report())
                    proof_after_s = self._monotonic() + config.proof_interval_s
                # A backlog is decoded without a pause.
                if not self._decoding.waits(also_failing=False):
                    stopped.wait(max(0.0, begun_s + config.interval_s - self._monotonic()))
            if not self._refused:
                self._batches.commit_again()
            step.outcome = _said(self._written)

    def _next_batch(self, step: Step, stopped: threading.Event) -> None:
        """Archive the present contents of the log, in as many batches as that takes."""
        waiting = self._look()
        while waiting and not stopped.is_set():
            self._written = self._written.plus(self._batches.write(waiting))
            step.advance(self._written.messages)
            self._show()
            waiting = self._look({queue: one.end for queue, one in waiting.items()})
        self._show()

    def _look(
        self, target: Mapping[MessageQueue, int] | None = None
    ) -> Mapping[MessageQueue, Waiting]:
        """Return the messages that wait in the log, none while no server of a known cluster answers.

        For an archive that has no queue yet, raise the error, because the configuration may be wrong.
        """
        try:
            waiting = self._batches.waiting(target, all_of_them=False)
        except (RemotingError, RouteNotFoundError) as error:
            if not self._archive.state.queues:
                raise
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning(
                    "no server answers, so nothing is archived until one does", reason=self._refused
                )
            return {}
        self._refused = ""
        return waiting

    def _show(self) -> None:
        """Show the state of this stream to its observer."""
        batches = self._batches
        self._observe(
            Standing(
                self._archive,
                batches.ends,
                batches.looked_ms,
                [*self._publisher.lines, *self._decoding.published],
                self._decoding.lines(),
                self._written,
                self._compacted,
                self._proved,
            )
        )

    def _compact_and_prove(self, *, all_of_them: bool) -> None:
        """Prove, and then compact, so that compaction finds the figures of its files in the new
        proof.
        """
        everything = self._config.verify == "all"
        self._prove(all_of_them=all_of_them, everything=everything)
        if suspects := self._compact():
            self._prove(all_of_them=all_of_them, suspects=suspects)
        self._source.safe({one.queue: one.to for one in self._archive.layout.load_safe()})
        self._publisher.expire()
        self._tend_decoded()

    def _tend_decoded(self) -> None:
        """Compact the decoded tables and expire their snapshots."""
        if self._decoding.is_on:
            with self._progress.step("compact decoded tables") as step:
                for done, _ in enumerate(self._decoding.compact(), 1):
                    step.advance(done)
            with self._progress.step("expire decoded snapshots") as step:
                for done, _ in enumerate(self._decoding.expire(), 1):
                    step.advance(done)

    def _prove(
        self, *, all_of_them: bool, everything: bool = False, suspects: Iterable[Hour] = ()
    ) -> None:
        with self._progress.step("prove") as step, step.spark_jobs(self._spark):
            proved = self._proof.run(
                everything=everything, all_of_them=all_of_them, suspects=suspects
            )
            of_tables = self._decoding.problems(everything=everything)
            proved = proved._replace(problems=(*proved.problems, *of_tables))
            # Every proof reports again what does not fit, but only the first one reports a gap.
            self._proved = proved._replace(
                messages=self._proved.messages + proved.messages,
                gaps=self._proved.gaps + proved.gaps,
            )
            step.outcome = f"{proved.messages:,} messages, {len(proved.problems)} problems"

    def _compact(self) -> frozenset[Hour]:
        """Compact the hours that are due, and return the hours with files that differ from their
        proof.
        """
        due = self._compaction.due() if self._config.compact_files else []
        done = Compacted()
        if due:
            with self._progress.step("compact") as step:
                for one in self._compaction.run(due):
                    done = done.plus(one)
                    step.advance(done.directories + len(done.suspects), len(due))
                step.outcome = f"{done.files_before:,} files into {done.files_after:,}"
            self._compacted = self._compacted.plus(done)
        return done.suspects


def _said(written: Written) -> str:
    return f"{written.messages:,} messages, {written.files:,} files"


def _log(config: Config, context: Context, spark: Any) -> Source:
    if config.store is not None:
        assert config.broker is not None, "checked by the configuration"
        return StoreSource(
            spark,
            config.store,
            config.broker,
            config.topics,
            config.topic_pattern,
            config.min_partitions,
        )
    return LiveSource(
        context.cluster.options(),
        config.topics,
        config.topic_pattern,
        config.min_partitions,
        config.commit_group,
        config.safe_group,
    )


@contextmanager
def _gap_logs(config: Config, spark: Any) -> Iterator[Path | None]:
    """Yield a directory where the workers of an archive in a remote file system note gaps, if there
    is one that they and the driver see.
    """
    if not is_uri(config.path):
        yield None
        return
    if config.work_path is None and not spark.sparkContext.master.startswith("local"):
        if not config.fail_on_data_loss:
            raise ConfigError(
                "fail_on_data_loss is false and path is a URI, so on a cluster give work_path: a "
                "directory that the driver and all workers see, where they note what is gone"
            )
        yield None
        return
    try:
        directory = tempfile.TemporaryDirectory(prefix="cometmq-gaps-", dir=config.work_path)
    except OSError as error:
        raise ConfigError(
            f"work_path is {config.work_path!r}, where nothing can be written: {error}"
        ) from error
    with directory as name:
        yield Path(name)
