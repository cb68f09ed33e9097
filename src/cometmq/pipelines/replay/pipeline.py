"""Send messages of an archive or a store into a topic once more.

The replay chooses messages by time, tag, key and SQL. It sends them in the order of each queue, at
a rate, and exactly once however often it is killed and started again. docs/pipelines.md says how to
use it, docs/internals/pipelines.md why it works like this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

from cometmq.errors import ConfigError
from cometmq.model.names import FORBIDDEN_SEND_TOPICS, check_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.configuration import check_names
from cometmq.pipelines.context import Context
from cometmq.pipelines.known_names import some_of, unknown_name
from cometmq.pipelines.message_logs import read_store
from cometmq.pipelines.replay.plan import (
    Chunk,
    Found,
    HourCount,
    Origin,
    ReplayPlan,
    cut_chunks,
    share_lanes,
    target_of,
)
from cometmq.pipelines.replay.report import Report, Sample, samples_of
from cometmq.pipelines.replay.rows import find, in_lanes, key_target, rows_of
from cometmq.pipelines.resending.engine import Resend, Settings
from cometmq.pipelines.resending.lanes import MADE_OF
from cometmq.pipelines.resending.ledger import Ledger, Progress
from cometmq.pipelines.resending.marks import REPLAY
from cometmq.pipelines.resending.pacing import share_rate
from cometmq.pipelines.resending.timeline import PASSED_OVER, Timeline, timeline_of
from cometmq.pipelines.targets import ends_of, writable_queues

__all__ = ["Config", "Report", "run"]

# With a rate, a chunk is at most this much work, because a resumed run looks through one chunk
# again.
_CHUNK_S: Final = 60
_LEAST_IN_CHUNK: Final = 1000
# The columns of messages that counting reads, and those of samples.
_COUNTED: Final = ("topic", "broker", "queue_id", "queue_offset", "properties", "store_time")
_SHOWN: Final = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "store_time",
    "tags",
    "keys",
    "body",
)


class Config(Settings, frozen=True, kw_only=True):
    """archive: the directory of the archive from which messages are read.
    store: instead of an archive, the directory of a broker's store. broker: the name of that
        store's broker.
    topics: the topics from which the messages come.
    queues: only these queues of the topics, such as `orders@broker-a:0`.
    to: the topic to send to; without it each message goes to the topic that it came from.
    id: the name of this replay: under one id nothing is sent twice.
    state: the directory that keeps the ledger of sent messages.
    rate: the most messages a second of the whole job.
    keep_days: for how many days `state` keeps the ledgers of other ids after they were finished; 0
        keeps them all.
    dry_run: count and show what would be sent, and send nothing.
    delivery: at-least-once takes no locks: messages may come twice if two attempts at the same work
        run at the same time, or if one is killed while it sends.
    chunk_messages: the approximate number of messages that are finished before the next ones begin.

    Selection has further keys.
    """

    topics: Sequence[str]
    archive: str | None = None
    store: str | None = None
    broker: str | None = None
    queues: Sequence[str] = ()
    to: str | None = None
    dry_run: bool = False
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    chunk_messages: int = 1_000_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.archive is None) == (self.store is None):
            raise ConfigError(
                "give archive, the directory of an archive, or store, that of a broker's store; "
                f"{'neither' if self.archive is None else 'both'} is given"
            )
        if self.broker is not None and self.store is None:
            raise ConfigError("broker names the broker of a store; an archive knows its own")
        if not self.topics:
            raise ConfigError('topics is empty; name where messages come from: topics = ["orders"]')
        self._check_names()
        if self.chunk_messages < _LEAST_IN_CHUNK:
            raise ConfigError(f"chunk_messages is {self.chunk_messages}, below {_LEAST_IN_CHUNK}")
        self.check_sending(sends=not self.dry_run, unit="messages", instead="dry_run = true")

    def _check_names(self) -> None:
        for queue in self.queues:
            if (topic := parse_queue(queue).topic) not in self.topics:
                raise ConfigError(
                    f"queues: {queue!r} is a queue of {topic}, which topics does not name"
                )
        for topic in [self.to] if self.to is not None else self.topics:
            check_names([topic], "to" if self.to else "topics", check_topic)
            if topic in FORBIDDEN_SEND_TOPICS:
                raise ConfigError(f"to: {topic} is the broker's own, nothing may be sent to it")


def parse_queue(text: str) -> Origin:
    """Read a queue written as `orders@broker-a:0`. Raise ConfigError."""
    topic, at, rest = text.rpartition("@")
    broker, colon, number = rest.rpartition(":")
    if not (topic and at and colon and number.isdecimal()):
        raise ConfigError(f"queues: {text!r} is no queue; write it as orders@broker-a:0")
    return Origin(topic, broker, int(number))


def check_archived(spark: Any, path: str, topics: Sequence[str], queues: Sequence[str]) -> None:
    """Raise ConfigError for topics and queues that the archive at `path` never had."""
    from cometmq.pipelines.archive.layout import layout_of

    known = {
        Origin(*state.queue) for state in layout_of(spark, path, "archive").load_state().queues
    }
    if not known:
        return  # a copy of the data without the archive's state
    names = {origin.topic for origin in known}
    for topic in topics:
        if topic not in names:
            raise unknown_name(
                f"topics: the archive {path} has no topic {topic}; it has", topic, names
            )
    for queue in queues:
        if (wanted := parse_queue(queue)) not in known:
            of_topic = {"{}@{}:{}".format(*one) for one in known if one.topic == wanted.topic}
            raise ConfigError(
                f"queues: the archive {path} has no queue {queue}; it has {some_of(of_topic)}"
            )


def run(config: Config, context: Context) -> Report:
    """Send the messages, or report what would be sent. Raise what `Resend.send` raises."""
    replay = _Replay(config, context)
    report: Report = replay.look() if config.dry_run else replay.send()
    return report


class _Replay(Resend[Config, ReplayPlan]):
    kind = REPLAY
    plan_type = ReplayPlan
    asked = ("archive", "store", "broker", "topics", "queues", "to")

    # Choosing the messages

    def _frame(self, columns: Collection[str], *, push_filters: bool = False) -> Any:
        """Return the messages of the configured topics, queues and times, with these columns at
        least.
        """
        from pyspark.sql import functions as f

        config, spark = self._config, self._context.spark
        if config.archive is not None:
            from cometmq.pipelines.archive.layout import layout_of, read

            if not layout_of(spark, config.archive, "archive").data.exists():
                raise ConfigError(
                    f"archive: {config.archive} holds no archive; name the directory that the "
                    "pipeline archive wrote to as its path"
                )
            frame = read(spark, config.archive).where(f.col("topic").isin(*config.topics))
        else:
            assert config.store is not None, "checked by the configuration"
            wanted_columns = config.columns_with(columns)
            frame = read_store(
                spark,
                config.store,
                config.topics,
                wanted_columns,
                broker=config.broker,
                push_filters=push_filters,
            )
        if config.queues:
            wanted = f.lit(False)
            for topic, broker, queue_id in map(parse_queue, config.queues):
                here = (f.col("topic") == topic) & (f.col("queue_id") == queue_id)
                wanted |= here & (f.coalesce("broker", f.lit(broker)) == broker)
            frame = frame.where(wanted)
        return config.within_times(frame)

    def _new_plan(self) -> ReplayPlan:
        from pyspark.sql import functions as f

        config = self._config
        topics = config.topics if config.to is None else [config.to]
        by_topic = writable_queues(self._connecting, topics)
        for topic, queues in by_topic.items():
            if not queues:
                raise ConfigError(
                    f"{'topics' if config.to is None else 'to'}: no broker has a topic {topic} that "
                    "may be written to; create it, or name another one by to"
                )
        targets = sorted(queue for queues in by_topic.values() for queue in queues)
        frame = self._frame(_COUNTED)
        if config.archive is not None:
            check_archived(self._context.spark, config.archive, config.topics, config.queues)
        config.check(frame)
        with self._counting() as step:
            found = find(frame, config.condition(), key_target(targets, config.to))
            hours = len({row.hour for row in found})
            shown = f.when(config.condition(), f.col("topic")).otherwise(PASSED_OVER)
            timeline = timeline_of(frame, shown, hours)
            step.outcome = f"{sum(row.chosen for row in found):,} of "
            step.outcome += f"{sum(row.messages for row in found):,} messages chosen"
        return self._plan_of(found, targets, timeline)

    def _plan_of(
        self, found: list[Found], targets: list[MessageQueue], timeline: Timeline
    ) -> ReplayPlan:
        config = self._config
        origins = sorted({row.origin for row in found if row.chosen})
        places: Counter[str] = Counter()
        target_by_origin = {}
        for origin in origins:
            place = places[origin.topic]
            places[origin.topic] += 1
            target_by_origin[origin] = target_of(origin, place, targets, config.to or origin.topic)
        most = config.chunk_messages
        if config.rate is not None:
            most = min(most, max(int(config.rate * _CHUNK_S), _LEAST_IN_CHUNK))
        return ReplayPlan(
            asked=self._asked,
            targets=targets,
            origins=list(target_by_origin.items()),
            has_keys=any(row.key_target is not None for row in found),
            chunks=cut_chunks(found, target_by_origin, most),
            hours=_hours(found),
            queues=_queues(found),
            timeline=timeline,
        )

    # Sending it

    def _send_all(self, plan: ReplayPlan, ledger: Ledger[ReplayPlan], progress: Progress) -> None:
        done = sum(chunk.count for chunk in plan.chunks[: progress.chunks_done])
        with self._context.progress.step("send") as step:
            step.advance(done, plan.chosen)
            for number, chunk in enumerate(plan.chunks):
                if number < progress.chunks_done:
                    continue
                if not progress.bases:
                    # From these offsets on, the logs hold what this chunk sends.
                    progress.bases = ends_of(self._connecting, plan.targets)
                    ledger.save(progress)
                self._send_chunk(plan, chunk, progress)
                progress.chunks_done, progress.bases = number + 1, []
                ledger.save(progress)
                done += chunk.count
                step.advance(done, plan.chosen)
            step.outcome = f"{progress.sent:,} messages sent"

    def _send_chunk(self, plan: ReplayPlan, chunk: Chunk, progress: Progress) -> None:
        spark, config = self._context.spark, self._config
        lanes = share_lanes(chunk.counts, spark.sparkContext.defaultParallelism)

        def new_frame() -> Any:
            frame = self._frame(MADE_OF, push_filters=True)
            return self._within_hours(frame, chunk.hours).where(config.condition())

        self._send(
            plan,
            progress.bases,
            lanes,
            share_rate(config.rate, lanes, chunk.counts),
            in_lanes(rows_of(new_frame, chunk, plan, config.to, spark), lanes),
            progress,
            exactly_once=config.delivery == "exactly-once",
        )

    def _within_hours(self, frame: Any, hours: tuple[str, str]) -> Any:
        from pyspark.sql import functions as f

        if self._config.archive is not None:
            return frame.where(f.col("hour").between(*hours))
        first, last = (f.to_timestamp(f.lit(f"{hour}:00:00Z")) for hour in hours)
        end = last + f.expr("INTERVAL 1 HOUR")
        return frame.where((f.col("store_time") >= first) & (f.col("store_time") < end))

    def _samples(self) -> list[Sample]:
        with self._context.progress.step("look at some of them") as step:
            samples = samples_of(self._frame(_SHOWN).where(self._config.condition()))
            step.outcome = f"{len(samples)}"
        return samples

    def _report(self, plan: ReplayPlan, progress: Progress, before: int) -> Report:
        config = self._config
        is_all_there = progress.sent + progress.already_there == plan.chosen
        passed = sum(hour.passed_over for hour in plan.hours)
        to = config.to or "the topics they came from"
        if config.dry_run:
            summary = f"{plan.chosen:,} messages of {plan.chosen + passed:,} would be sent to {to}"
        else:
            summary = self._said(plan, progress, before, "messages", to)
        if progress.refused:
            summary += f"; {progress.refused:,} cannot be sent"
        elif progress.finished and not is_all_there:
            summary += "; what lies there is not what was counted when it began"
        return Report(
            **self._common(plan, progress),
            pipeline="replay",
            holds=config.dry_run or (progress.finished and is_all_there),
            summary=summary,
            dry_run=config.dry_run,
            delivery=config.delivery,
            to=config.to,
            passed_over=passed,
            chunks=len(plan.chunks),
            by_hour=plan.hours,
            by_queue=[(*origin, count) for origin, count in plan.queues],
            samples=self._samples() if config.dry_run else [],
        )


def _hours(found: list[Found]) -> list[HourCount]:
    chosen: Counter[tuple[str, str]] = Counter()
    passed: Counter[tuple[str, str]] = Counter()
    for row in found:
        key = (row.origin.topic, row.hour)
        chosen[key] += row.chosen
        passed[key] += row.messages - row.chosen
    return [HourCount(*key, chosen[key], passed[key]) for key in sorted(chosen)]


def _queues(found: list[Found]) -> list[tuple[Origin, int]]:
    counts: Counter[Origin] = Counter()
    for row in found:
        counts[row.origin] += row.chosen
    return sorted(counts.items())
