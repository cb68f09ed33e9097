"""Write what was stored since the last batch from the log into the archive's files, each message
once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from cometmq.errors import CometMQError, DataLossError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.columns import made_for
from cometmq.pipelines.archive.commits import Archive, Commit, batch_name
from cometmq.pipelines.archive.layout import (
    Manifest,
    QueueState,
    in_order,
)
from cometmq.pipelines.archive.proving.figures import with_hour
from cometmq.pipelines.archive.schemas import Schema
from cometmq.pipelines.archive.source import Source
from cometmq.pipelines.archive.staging import staged_files
from cometmq.pipelines.locations import Location
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.spark.gaps import BEYOND_THE_END, RETENTION
from cometmq.spark.live.admission import shared
from cometmq.spark.live.identity import Marks
from cometmq.spark.live.plan import Range, lost

log = get_logger(__name__)

ORDER: Final = ("topic", "hour", "broker", "queue_id", "queue_offset")
CODEC: Final = "zstd"
# Bytes of uncompressed columns in a row group. Readers pass over groups in which no offset is wanted,
# and divide a file among tasks by its groups. Parquet's own 128 MiB would give most files one.
ROW_GROUP_BYTES: Final = 16 << 20
# Columns of which nearly every value is another one. Parquet would look for a dictionary of each in
# every row group, find that it is larger than the values, and encode them again without.
_WITHOUT_DICTIONARY: Final = (
    "queue_offset",
    "commit_log_offset",
    "msg_id",
    "offset_msg_id",
    "body",
    "body_crc",
    "properties.key_value.value",
)
# Columns without statistics: nobody asks for their lowest and highest value in a row group.
_WITHOUT_STATISTICS: Final = ("body", "properties.key_value.key", "properties.key_value.value")


class Waiting(NamedTuple):
    """The offsets of one queue that wait to be archived.

    The archive holds offsets below `start`. The log has messages from `low` on. The batch may take
    offsets below `end`.
    """

    start: int
    low: int
    end: int


class Written(NamedTuple):
    messages: int = 0
    files: int = 0
    bytes: int = 0

    def plus(self, other: Written) -> Written:
        return Written(*map(sum, zip(self, other, strict=True)))


class Batches:
    """Moves the archive forward, at most `max_messages` at a time.

    note_loss: archive on behind messages that the log no longer has, and note them as gaps.
    target_bytes: the size of files that a batch has at most, as far as can be foreseen.
    min_tasks: the fewest tasks that write a batch.
    """

    def __init__(
        self,
        spark: Any,
        archive: Archive,
        log: Source,
        *,
        max_messages: int,
        note_loss: bool,
        target_bytes: int = 128 << 20,
        min_tasks: int = 1,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._log = log
        self._max_messages = max_messages
        self._note_loss = note_loss
        self._target_bytes = target_bytes
        self._min_tasks = min_tasks
        # The offsets that this run has committed for the consumer group that shows how far the archive is.
        self._committed: dict[MessageQueue, int] = {}
        self._has_committed = False
        self._refused = ""
        # The end of each queue on a broker that answered the last look at the log, and the time of that look.
        self.ends: dict[MessageQueue, int] = {}
        self.looked_ms = 0

    def waiting(
        self, target: Mapping[MessageQueue, int] | None = None, *, all_of_them: bool
    ) -> dict[MessageQueue, Waiting]:
        """Return the ranges that are in the log and not archived, up to `target` (exclusive) if
        given.

        Raise DataLossError if messages are gone that were not archived, unless `note_loss` is set.
        """
        known = self._archive.state.by_queue()
        identity = self._log.identity
        identity.marks = {queue: state.mark for queue, state in known.items() if state.mark}
        looked_ms = SYSTEM_CLOCK.now_ms()
        bounds = self._log.bounds(
            {queue: state.to for queue, state in known.items()}, all_of_them=all_of_them
        )
        self.ends = {queue: high for queue, (_, high) in bounds.items()}
        self.looked_ms = looked_ms
        waiting = {}
        for queue, (low, high) in bounds.items():
            start = known[queue].to if queue in known else low
            end = high if target is None else min(high, target.get(queue, start))
            self._check(queue, start, (low, high))
            # A new queue is noted while it is still empty, so that messages that retention deletes from
            # now on count as a gap.
            if start < end or start < low or queue not in known:
                waiting[queue] = Waiting(start, max(start, low), max(start, low, end))
        if not waiting:
            # The run that archived the last batch may have ended before it committed the offsets for
            # the group, or a broker was away then. Maybe no further batch comes that commits them.
            self._commit_for_group(
                {
                    queue: offset
                    for queue, offset in self._archived_offsets().items()
                    if self._committed.get(queue) != offset
                }
            )
        return waiting

    def commit_again(self) -> None:
        """Commit the archived offsets for the group, of each queue whose broker answered the last look.

        A broker keeps committed offsets in memory for some seconds. If it is killed meanwhile, it goes back to
        older offsets, and maybe no further batch comes that commits newer ones.
        """
        self._commit_for_group(self._archived_offsets())

    def write(self, waiting: Mapping[MessageQueue, Waiting]) -> Written:
        """Archive these ranges, or as much of them as fits into one batch."""
        ranges = self._admitted(waiting)
        if not self._has_committed:
            # A refusal of the first commit is raised, because every later commit would be refused, too
            # (there is no such group, for example).
            self._log.archived({queue: start for queue, (start, _) in ranges.items()})
            self._has_committed = True
        staged = self._archive.new_staging()
        gaps = self._archive.new_gap_log() if self._note_loss else None
        filled = {queue: bounds for queue, bounds in ranges.items() if bounds[0] < bounds[1]}
        # Before the messages are read: the topic may be created again meanwhile.
        marks = self._log.marks({queue: end for queue, (_, end) in ranges.items()})
        if filled:
            schema = self._archive.schema()
            frame = self._log.rows(self._spark, filled, gaps, schema.columns)
            write_files(with_hour(frame), staged, schema, tasks=self._tasks(filled))
        commit = self._commit_of(ranges, marks, staged, gaps)
        self._archive.commit(commit)
        self._commit_for_group({queue: end for queue, (_, end) in ranges.items()})
        number = commit.state.next_batch - 1
        files = [f for m in commit.manifests for f in m.files if f.batch == number]
        messages = sum(end - start for start, end in ranges.values())
        missing = sum(gap.end - gap.start for gap in commit.gaps if gap.queue is not None)
        return Written(messages - missing, len(files), sum(file.bytes for file in files))

    # Inside

    def _archived_offsets(self) -> dict[MessageQueue, int]:
        known = self._archive.state.by_queue()
        return {queue: known[queue].to for queue in self.ends if queue in known}

    def _check(self, queue: MessageQueue, start: int, bound: Range) -> None:
        low, high = bound
        if (found := self._log.identity.made_again.get(queue)) is not None:
            raise DataLossError(
                f"topic {queue.topic} was deleted and made again since it was archived: {found}. "
                "Archive the new topic under another path"
            )
        if start > high:
            raise DataLossError(
                f"{lost(queue, high, start, BEYOND_THE_END)} are archived, and the queue ends before "
                "them: its topic was deleted and created again, or its broker lost messages. "
                "Archive "
                "the new topic under another path"
            )
        if start < low and not self._note_loss:
            raise DataLossError(
                f"{lost(queue, start, low, RETENTION)} are gone before they were archived. Set "
                "fail_on_data_loss = false in the table [archive] to go on behind them; they are "
                "then listed in _gaps and in the report"
            )

    def _admitted(self, waiting: Mapping[MessageQueue, Waiting]) -> dict[MessageQueue, Range]:
        """Return the ranges of one batch. Queues share `max_messages` in proportion to their
        lengths.
        """
        counts = shared({q: one.end - one.low for q, one in waiting.items()}, self._max_messages)
        return {
            queue: (one.start, one.low + counts[queue])
            for queue, one in waiting.items()
            if counts[queue] or one.low == one.end
        }

    def _commit_for_group(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit the archived offsets for the consumer group that shows how far the archive is.

        Log a failure, and the same failure once: the archive does not depend on the group's offsets.
        """
        if not offsets:
            return
        try:
            self._log.archived(offsets)
        except CometMQError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning(
                    "the archived offsets are not committed for the group", reason=self._refused
                )
            return
        self._refused = ""
        self._committed |= offsets

    def _tasks(self, ranges: Mapping[MessageQueue, Range]) -> int:
        """Return how many tasks write these ranges: as few as keep Spark busy, since each task
        writes a file of its own for every hour; more if files would become larger than those of
        compaction.
        """
        messages = sum(end - start for start, end in ranges.values())
        files = [file for one in self._archive.manifests.values() for file in one.files]
        counts = [sum(one.count for one in file.queues) for file in files]
        known = [(file.bytes, count) for file, count in zip(files, counts, strict=True) if count]
        per_message = sum(size for size, _ in known) / sum(c for _, c in known) if known else 0.0
        tasks = math.ceil(messages * per_message / self._target_bytes)
        parallelism: int = self._spark.sparkContext.defaultParallelism
        return max(tasks, parallelism, self._min_tasks)

    def _commit_of(
        self,
        ranges: Mapping[MessageQueue, Range],
        marks: Marks,
        staged: Location,
        gaps: Path | None,
    ) -> Commit:
        archive = self._archive
        number = archive.state.next_batch
        manifests = []
        found = staged_files(staged, batch_name(number), number, archive.state.form)
        for hour, files in found.files.items():
            before = archive.manifests.get(hour, Manifest(*hour))
            manifests.append(Manifest(*hour, (*before.files, *files), before.log, before.suspect))
        queues = archive.state.by_queue()
        for queue, (start, end) in ranges.items():
            before_it = queues.get(queue)
            queues[queue] = QueueState(
                *queue,
                first=before_it.first if before_it else start,
                to=end,
                proved_to=before_it.proved_to if before_it else start,
                mark=marks.get(queue),
            )
        state = replace(archive.state, next_batch=number + 1, queues=in_order(queues))
        return Commit(
            "files",
            tuple(manifests),
            state,
            staged.name,
            gaps=archive.gaps_noted(gaps),
            sources=found.sources,
        )


def write_files(
    frame: Any, directory: Location, schema: Schema, *, tasks: int | None = None
) -> None:
    """Write a frame that has the column `hour` as files of a schema below `directory`, each file
    ordered by queue and offset, in row groups of about ROW_GROUP_BYTES.

    With `tasks`, at most this many tasks write: each takes whole parts of the reading, one after
    the other.
    """
    from pyspark.sql import functions as F

    # Spark puts a projection behind the sorter, which makes each row once more, for a column that names
    # directories and could be null. These never are.
    never_null = {"topic": F.coalesce("topic", F.lit("")), "hour": F.coalesce("hour", F.lit(""))}
    made = {**made_for(schema), "hour": F.col("hour")} | never_null
    frame = frame.select(*(column.alias(name) for name, column in made.items()))
    if tasks is not None:
        # Behind the selection, so that a row goes from it to the sorter without being made again.
        frame = frame.coalesce(tasks)
    writer = frame.sortWithinPartitions(*ORDER).write.partitionBy("topic", "hour")
    writer = writer.option("compression", CODEC).option("parquet.block.size", ROW_GROUP_BYTES)
    for name in _WITHOUT_DICTIONARY:
        writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
    for name in _WITHOUT_STATISTICS:
        writer = writer.option(f"parquet.column.statistics.enabled#{name}", "false")
    # A finished task moves its files once, not twice, which matters where a move is a copy. Spark
    # fails a job of which a task ends while it does so, and files of failed jobs stay in staging.
    writer = writer.option("mapreduce.fileoutputcommitter.algorithm.version", "2")
    # A batch of decoded bodies writes all of its tables into one directory.
    writer.mode("append").parquet(str(directory))
