"""Report the work of a replay, done or planned."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cometmq.pipelines.replay.plan import HourCount
from cometmq.pipelines.report import Section, Table
from cometmq.pipelines.resending.report import ResendReport
from cometmq.pipelines.resending.timeline import timeline_figure

_SAMPLES: Final = 10
_BODY_LETTERS: Final = 60


class Sample(msgspec.Struct, frozen=True):
    """A message that would be sent; `body` is the beginning of its body."""

    topic: str
    broker: str | None
    queue_id: int
    queue_offset: int
    store_time: datetime
    tags: str | None
    keys: str
    body: str


class Report(ResendReport):
    """The report of a replay.

    chosen, passed_over: the messages that were counted when the replay began.
    by_hour: their counts by topic and hour.
    by_queue: the chosen messages by queue.
    """

    dry_run: bool
    delivery: str
    to: str | None
    passed_over: int
    chunks: int
    by_hour: list[HourCount]
    by_queue: list[tuple[str, str, int, int]]
    samples: list[Sample]

    def sections(self) -> list[Section]:
        sections: list[Section] = [self._topics(), *self.refusal_tables()]
        sections.append(timeline_figure(self.timeline, "When they were stored first", "messages"))
        if self.dry_run:
            sections.append(self._hours())
        sections.append(self._queues())
        if self.dry_run:
            sections.append(self._samples())
        return sections + self.dropped_tables()

    def _topics(self) -> Table:
        counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for hour in self.by_hour:
            counts[hour.topic][0] += hour.chosen
            counts[hour.topic][1] += hour.passed_over
        rows = [
            [topic, self.to or topic, chosen, passed]
            for topic, (chosen, passed) in sorted(counts.items())
        ]
        columns = ["from topic", "to topic", "chosen", "passed over"]
        return Table("Messages", columns, rows, empty="there are none in these topics and times")

    def _hours(self) -> Table:
        rows = [[hour.topic, hour.hour, hour.chosen, hour.passed_over] for hour in self.by_hour]
        return Table("By hour of storing (UTC)", ["topic", "hour", "chosen", "passed over"], rows)

    def _queues(self) -> Table:
        rows = [
            [topic, broker or None, queue, count] for topic, broker, queue, count in self.by_queue
        ]
        return Table("Chosen by queue", ["topic", "broker", "queue", "messages"], rows)

    def _samples(self) -> Table:
        rows = [
            [
                f"{sample.topic}@{sample.broker or '?'}:{sample.queue_id}",
                sample.queue_offset,
                sample.store_time,
                sample.tags,
                sample.keys,
                sample.body,
            ]
            for sample in self.samples
        ]
        columns = ["queue", "offset", "stored", "tag", "keys", "body"]
        return Table("Some of them", columns, rows)


def samples_of(rows: Any) -> list[Sample]:
    """Return some of the messages in `rows`."""
    from pyspark.sql import functions as f

    some = rows.select(
        "topic",
        "broker",
        "queue_id",
        "queue_offset",
        # Python would convert a timestamp to the driver's own time zone.
        f.unix_millis("store_time").alias("store_ms"),
        "tags",
        f.concat_ws(" ", "keys").alias("keys"),
        f.substring("body", 1, _BODY_LETTERS * 4).alias("body"),
    ).limit(_SAMPLES)
    return [
        Sample(
            row.topic,
            row.broker,
            row.queue_id,
            row.queue_offset,
            datetime.fromtimestamp(row.store_ms / 1000, UTC),
            row.tags,
            row["keys"],
            _letters(bytes(row.body or b"")),
        )
        for row in some.collect()
    ]


def _letters(body: bytes) -> str:
    text = body.decode(errors="replace")
    shown = "".join(letter if letter.isprintable() else "\N{MIDDLE DOT}" for letter in text)
    return shown[:_BODY_LETTERS] + ("…" if len(shown) > _BODY_LETTERS else "")
