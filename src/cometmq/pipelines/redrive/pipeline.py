"""Count a group's dead letters by topic, reason and time, and send chosen ones again.

The pipeline only looks, unless `send` is true. Under one id no letter is sent twice, however often
the redrive is killed, repeated, or started by two people at once. docs/pipelines.md says how to use
it, docs/internals/pipelines.md why it works like this.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, ConfigError, RouteNotFoundError
from cometmq.model.names import check_group, dlq_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.configuration import check_names
from cometmq.pipelines.context import Context
from cometmq.pipelines.known_names import unknown_name
from cometmq.pipelines.message_logs import groups_among, read_live
from cometmq.pipelines.redrive.letters import (
    DESCRIBED_BY,
    NOWHERE,
    Choice,
    LetterCount,
    RedrivePlan,
    condition,
    count_letters,
    described,
    to_targets,
)
from cometmq.pipelines.redrive.report import Report
from cometmq.pipelines.resending.engine import Resend, Settings
from cometmq.pipelines.resending.hashing import spans_of
from cometmq.pipelines.resending.lanes import COLUMNS, MADE_OF
from cometmq.pipelines.resending.ledger import Ledger, Progress
from cometmq.pipelines.resending.marks import REDRIVE
from cometmq.pipelines.resending.pacing import share_rate
from cometmq.pipelines.resending.timeline import Timeline, timeline_of
from cometmq.pipelines.targets import ends_of, writable_queues

__all__ = ["Config", "Report", "run"]

# How far the clocks of two brokers may differ: a letter and its resent message may lie at different
# brokers.
_CLOCKS_DIFFER_MS: Final = 3600 * 1000
# The columns of letters that counting reads, besides those that describe them.
_COUNTED: Final = ("store_time",)


class Config(Settings, frozen=True, kw_only=True):
    """group: the group of the dead letters.
    topics: only letters that came from these topics.
    reasons: only letters with one of these reasons.
    reason_property: the property in which the application says why it gave up; without it, a
        letter's reason is the number of attempts.
    send: send the chosen letters; false only shows the letters.
    to: `topic` sends the letters to their topic, where all its groups see them, `group` to the
        group's retry topic. Do not use `group` for a group that consumes in order: brokers make such
        letters dead letters again.
    id: the name of this redrive: under one id no letter is sent twice.
    state: the directory that keeps the ledger of sent letters.
    rate: the most letters a second of the whole job.
    keep_days: for how many days `state` keeps the ledgers of other ids after they were finished; 0
        keeps them all.

    Selection has further keys; its times are those at which letters became dead letters.
    """

    group: str
    topics: Sequence[str] = ()
    reasons: Sequence[str] = ()
    reason_property: str | None = None
    send: bool = False
    to: Literal["topic", "group"] = "topic"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names([self.group], "group", check_group)
        self.check_sending(sends=self.send, unit="letters", instead="leave send out to look only")


def run(config: Config, context: Context) -> Report:
    """Count the dead letters, or send the chosen ones. Raise what `Resend.send` raises."""
    redrive = _Redrive(config, context)
    report: Report = redrive.send() if config.send else redrive.look()
    return report


class _Redrive(Resend[Config, RedrivePlan]):
    kind = REDRIVE
    plan_type = RedrivePlan
    asked = ("group", "topics", "reasons", "reason_property", "to")

    def __init__(self, config: Config, context: Context) -> None:
        super().__init__(config, context)
        self._choice = Choice(config.topics, config.reasons, config.reason_property)

    # Counting

    def _new_plan(self) -> RedrivePlan:
        letters = self._bounds()
        counts: list[LetterCount] = []
        timeline = Timeline(1, [])
        if any(low < end for _, low, end in letters):
            frame = self._letters(letters, _COUNTED)
            self._config.check(frame)
            with self._counting() as step:
                counts = count_letters(frame, condition(self._config, self._choice))
                hours = len({found.hour for found in counts})
                timeline = timeline_of(frame, frame["reason"], hours)
                step.outcome = f"{sum(found.chosen for found in counts):,} of "
                step.outcome += f"{sum(found.count for found in counts):,} dead letters chosen"
        self._check_names(counts)
        targets = self._targets(counts)
        return RedrivePlan(
            asked=self._asked,
            letters=letters,
            targets=targets,
            bases=self._bases(targets, counts) if self._config.send else [],
            counts=counts,
            timeline=timeline,
        )

    def _bounds(self) -> list[tuple[MessageQueue, int, int]]:
        """Return the offsets that the dead-letter queues have."""
        topic = dlq_topic(self._config.group)
        with BlockingRangeReader(**self._connecting.parameters()) as reader:
            try:
                bounds = reader.offsets(reader.queues(topic))
            except RouteNotFoundError:
                return []  # a group without dead letters has no such topic
            except CometMQError as error:
                raise ConfigError(f"[cluster]: {self._connecting.namesrv}: {error}") from error
        return [(queue, low, end) for queue, (low, end) in sorted(bounds.items())]

    def _letters(
        self, bounds: Sequence[tuple[MessageQueue, int, int]], columns: Collection[str]
    ) -> Any:
        """Return the letters of these offsets, described, with these columns at least."""
        cluster = self._context.cluster
        ranges = {queue: (low, end) for queue, low, end in bounds}
        wanted = self._config.columns_with({*columns, *DESCRIBED_BY})
        letters = read_live(self._context.spark, cluster.options(), ranges, wanted)
        return described(letters, self._choice, cluster.namespace)

    def _check_names(self, counts: Sequence[LetterCount]) -> None:
        """Raise ConfigError for a group, topic or reason that nobody knows.

        A misspelt name would choose nothing, and nobody would notice.
        """
        config, group = self._config, self._config.group
        reasons = {found.reason for found in counts}
        for reason in config.reasons if counts else ():
            if reason not in reasons:
                refusal = (
                    f"reasons: no dead letter of {group} was given up for {reason!r}; there are"
                )
                raise unknown_name(refusal, reason, reasons)
        origins = {found.topic for found in counts} - {NOWHERE}
        without_letters = sorted(set(config.topics) - origins)
        if counts and not without_letters:
            return
        with BlockingRangeReader(**self._connecting.parameters()) as reader:
            there = set(reader.topics())
        groups = groups_among(there)
        if not counts and group not in groups:
            raise unknown_name(
                f"group: no broker has met a consumer of {group}; there are", group, groups
            )
        for topic in without_letters:
            if topic not in there:
                refusal = f"topics: no dead letter of {group} came from {topic}, which no broker has; there are"
                raise unknown_name(refusal, topic, origins)

    def _targets(self, counts: Sequence[LetterCount]) -> list[MessageQueue]:
        topics = {found.topic for found in counts if found.chosen} - {NOWHERE}
        if self._config.to == "group":
            topics = {retry_topic(self._config.group)} if topics else set()
        found = writable_queues(self._connecting, topics)
        return sorted(queue for queues in found.values() for queue in queues)

    def _bases(self, targets: Sequence[MessageQueue], counts: Sequence[LetterCount]) -> list[int]:
        """Return the log offsets from which on the targets may hold messages of this redrive.

        No letter was sent again before it was dead. So a run that knows nothing but the id of an
        earlier run finds everything that the earlier run has sent.
        """
        if not targets:
            return []
        first_ms = min(found.first_ms for found in counts if found.chosen)
        return ends_of(self._connecting, targets, since_ms=max(0, first_ms - _CLOCKS_DIFFER_MS))

    # Sending

    def _send_all(
        self, plan: RedrivePlan, _ledger: Ledger[RedrivePlan], progress: Progress
    ) -> None:
        if not plan.targets:
            return
        config, spark = self._config, self._context.spark
        spans = spans_of(plan.targets)
        lanes = [tuple(range(first, first + count)) for first, count in spans.values()]
        chosen = {
            first: max(1, self._chosen_for(plan, topic)) for topic, (first, _) in spans.items()
        }
        letters = self._letters(plan.letters, MADE_OF).where(condition(config, self._choice))
        letters = to_targets(letters, plan.targets, to_group=config.to == "group")
        in_order = letters.repartitionById(len(lanes), "lane").sortWithinPartitions(
            "broker", "queue_id", "queue_offset"
        )
        with self._context.progress.step("send") as step, step.spark_jobs(spark):
            self._send(
                plan,
                plan.bases,
                lanes,
                share_rate(config.rate, [(first,) for first in chosen], chosen),
                in_order.select(*COLUMNS),
                progress,
                exactly_once=True,
                keeps_unique_id=True,
                looks_everywhere=True,
            )
            step.outcome = f"{progress.sent:,} dead letters sent"

    def _chosen_for(self, plan: RedrivePlan, topic: str) -> int:
        if self._config.to == "group":
            return plan.chosen
        return sum(found.chosen for found in plan.counts if found.topic == topic)

    def _report(self, plan: RedrivePlan, progress: Progress, before: int) -> Report:
        config = self._config
        there = progress.sent + progress.already_there
        known = {target.topic for target in plan.targets}
        stranded = [
            found
            for found in plan.counts
            if found.chosen
            and (found.topic == NOWHERE or (config.to == "topic" and found.topic not in known))
        ]
        lost = sum(found.chosen for found in stranded)
        total = sum(found.count for found in plan.counts)
        where = "their topics" if config.to == "topic" else f"the retry topic of {config.group}"
        if config.send:
            what = f"dead letters of {config.group}"
            summary = self._said(plan, progress, before, what, where)
        else:
            summary = (
                f"{config.group} has {total:,} dead letters; {plan.chosen:,} would be sent to "
            )
            summary += where
        if lost:
            summary += f"; {lost:,} come from topics that are not there"
        if progress.refused:
            summary += f"; {progress.refused:,} cannot be sent"
        return Report(
            **self._common(plan, progress),
            pipeline="redrive",
            holds=not lost and (not config.send or there == plan.chosen),
            summary=summary,
            group=config.group,
            send=config.send,
            to=config.to,
            letters=total,
            stranded=sorted({found.topic or "(unknown)" for found in stranded}),
            counts=plan.counts,
        )
