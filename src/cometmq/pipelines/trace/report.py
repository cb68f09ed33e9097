"""Report the results of traces, for programs and for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cometmq.pipelines.report import Report as BaseReport
from cometmq.pipelines.report import Section, Table
from cometmq.pipelines.trace.events import MALFORMED
from cometmq.pipelines.trace.figures import latency_figure
from cometmq.pipelines.trace.measures import (
    CONSUME,
    DELIVER,
    PRODUCE,
    QUANTILES,
    STEPS,
    STORE,
    Tables,
)
from cometmq.spark.gaps import Gap

_TITLES: Final = {
    PRODUCE: "produce: from the send to the answer",
    STORE: "store: from made to stored",
    DELIVER: "deliver: from stored to the listener",
    CONSUME: "consume: in the listener",
}


class Latency(msgspec.Struct):
    """One distribution, in ms. `histogram` counts messages by the upper bound of their step in ms;
    a step is a tenth of a factor of ten.
    """

    measure: str
    topic: str
    group: str | None
    count: int
    p50: float
    p99: float
    p999: float
    most: int
    histogram: dict[int, int]


class Slow(msgspec.Struct):
    measure: str
    topic: str
    group: str | None
    msg_id: str | None
    ms: int
    at: str | None


class Failure(msgspec.Struct):
    """Counts sends (`produce`) or consumptions (`consume`) that failed with this code."""

    kind: str
    topic: str
    group: str | None
    code: str
    count: int


class Failed(msgspec.Struct):
    kind: str
    topic: str
    group: str | None
    code: str
    msg_id: str | None
    at: str | None
    ms: int


class Report(BaseReport):
    """The report on traces.

    source: where the traces were read.
    events: how many there were of each kind.
    broken: limits that were exceeded.
    gaps: messages that were gone or damaged when the pipeline came to read them.
    """

    source: str
    events: dict[str, int]
    latencies: list[Latency]
    slowest: list[Slow]
    failures: list[Failure]
    failed: list[Failed]
    broken: list[str]
    gaps: list[Gap]

    def sections(self) -> list[Section]:
        slow = [[e.measure, e.topic, e.group, e.ms, e.at, e.msg_id] for e in self.slowest]
        failed = [[e.kind, e.topic, e.group, e.code, e.at, e.ms, e.msg_id] for e in self.failed]
        return [
            Table(
                "Latencies in ms",
                ["measure", "topic", "group", "count", "p50", "p99", "p999", "most"],
                [
                    [
                        *(e.measure, e.topic, e.group, e.count),
                        *(e.p50, e.p99, e.p999, e.most),
                    ]
                    for e in self.latencies
                ],
                empty="no event in the traces",
            ),
            *(
                [Table("Limits exceeded", ["limit"], [[e] for e in self.broken])]
                * bool(self.broken)
            ),
            *(
                [Table("Gone or damaged", ["what"], [[str(gap)] for gap in self.gaps])]
                * bool(self.gaps)
            ),
            *([latency_figure(self.latencies, _TITLES)] * bool(self.latencies)),
            Table(
                "Failures",
                ["what", "topic", "group", "code", "count"],
                [[e.kind, e.topic, e.group, e.code, e.count] for e in self.failures],
            ),
            Table(
                "The slowest",
                ["measure", "topic", "group", "ms", "at (UTC)", "message"],
                slow,
                page_only=True,
            ),
            Table(
                "The first failures",
                ["what", "topic", "group", "code", "at (UTC)", "ms", "message"],
                failed,
                page_only=True,
            ),
            Table(
                "Events",
                ["kind", "count"],
                [[kind, count] for kind, count in sorted(self.events.items())],
                page_only=True,
            ),
        ]


def make_report(
    started: datetime,
    source: str,
    events: Mapping[str, int],
    tables: Tables,
    limits: Mapping[str, float],
    gaps: Sequence[Gap],
) -> Report:
    histograms: dict[tuple[str, str, str | None], dict[int, int]] = {}
    for row in tables.histogram:
        of = histograms.setdefault((row.measure, row.topic, row.grp), {})
        of[upper_bound_ms(row.step)] = of.get(upper_bound_ms(row.step), 0) + row["count"]
    latencies = []
    for row in tables.latencies:
        p50, p99, p999 = row.quantiles
        histogram = histograms[row.measure, row.topic, row.grp]
        latencies.append(
            Latency(
                row.measure, row.topic, row.grp, row["count"], p50, p99, p999, row.most, histogram
            )
        )
    broken = _broken(latencies, limits)
    malformed = events.get(MALFORMED, 0)
    return Report(
        pipeline="trace",
        started=started,
        holds=not broken and not malformed and not gaps,
        summary=_summary(
            sum(events.values()) - malformed, malformed, broken, tables.failures, gaps
        ),
        source=source,
        events=dict(events),
        latencies=latencies,
        slowest=[
            Slow(row.measure, row.topic, row.grp, row.msg_id, row.ms, _time(row.at_ms))
            for row in tables.slowest
        ],
        failures=[
            Failure(row.kind, row.topic, row.grp, row.code, row["count"]) for row in tables.failures
        ],
        failed=[
            Failed(row.kind, row.topic, row.grp, row.code, row.msg_id, _time(row.at_ms), row.ms)
            for row in tables.failed
        ],
        broken=broken,
        gaps=list(gaps),
    )


def upper_bound_ms(step: int) -> int:
    """Return the highest whole ms that falls into a step of the histogram; 0 for the step of 0
    ms.
    """
    if step < 0:
        return 0
    return math.ceil(10 ** ((step + 1) / STEPS) - 1e-6) - 1


def _broken(latencies: list[Latency], limits: Mapping[str, float]) -> list[str]:
    broken = []
    for name, limit in limits.items():
        measure, _, quantile = name.partition(".")
        assert quantile in QUANTILES, name
        for each in latencies:
            found = getattr(each, quantile)
            if each.measure == measure and found > limit:
                broken.append(
                    f"{name} of {each.topic}, {each.group or 'no group'}, is {found:,.1f} ms; "
                    f"the limit is {limit:,.1f} ms"
                )
    return broken


def _summary(
    events: int, malformed: int, broken: list[str], failures: list[Any], gaps: Sequence[Gap]
) -> str:
    parts = [f"{events:,} events of {(malformed and 'readable ') or ''}traces"]
    failed = sum(row["count"] for row in failures)
    parts.append(f"{failed:,} failures" if failed else "no failure")
    if malformed:
        parts.append(f"{malformed:,} trace messages could not be read")
    if gaps:
        parts.append(f"{sum(gap.count for gap in gaps):,} gone or damaged")
    if broken:
        parts.append(f"{len(broken)} limits exceeded")
    return ", ".join(parts)


def _time(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
