"""Dead letters of a group: counted by topic, reason and time, and chosen ones sent again.

It looks only, unless `send` is true. Under one id no letter is sent twice, however often the redrive is
killed, repeated, or started by two people at once. docs/pipelines.md says how to use it,
decisions/0053 why it is like this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from cometmq.client.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, ConfigError, RouteNotFoundError
from cometmq.model.names import check_group, dlq_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.context import Context
from cometmq.pipelines.redrive.letters import (
    NOWHERE,
    Choice,
    LetterCount,
    RedrivePlan,
    condition,
    count_letters,
    described,
    read_letters,
    to_targets,
)
from cometmq.pipelines.redrive.report import Report
from cometmq.pipelines.report import now
from cometmq.pipelines.resending.lanes import COLUMNS, Errand
from cometmq.pipelines.resending.ledger import Ledger, Progress
from cometmq.pipelines.resending.marks import REDRIVE, Marks, check_id
from cometmq.pipelines.resending.pacing import share_rate
from cometmq.pipelines.resending.selection import Selection
from cometmq.pipelines.resending.timeline import Timeline, timeline_of
from cometmq.pipelines.targets import connecting_to, ends_of, writable_queues

__all__ = ["Config", "Report", "run"]

# At most, those of two brokers: a letter and what is made of it may lie at different ones.
_CLOCKS_DIFFER_MS: Final = 3600 * 1000
_ASKED: Final = (
    *("group", "topics", "reasons", "reason_property", "to"),
    *("since", "until", "tags", "keys", "where"),
)


class Config(Selection, frozen=True, kw_only=True):
    """group: whose dead letters.
    topics: of these topics, where letters came from. reasons: for one of these reasons.
    reason_property: the property in which the application says why it gave up; without it a letter's
        reason is how often it was tried.
    send: send the chosen ones; false only shows what there is.
    to: `topic`, where all groups of the topic see them, or `group`, the group's retry topic. A group
        that consumes in order must not be sent to like that: brokers put what comes there among its
        dead letters again.
    id: names this redrive: under one id no letter is sent twice. state: the directory that remembers
        it.
    rate: letters a second, of the whole job.

    And what Selection has; its times are those at which letters became dead letters.
    """

    group: str
    topics: Sequence[str] = ()
    reasons: Sequence[str] = ()
    reason_property: str | None = None
    send: bool = False
    to: Literal["topic", "group"] = "topic"
    id: str = ""
    state: str = ""
    rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            check_group(self.group)
        except CometMQError as error:
            raise ConfigError(f"group: {error}") from error
        if self.rate is not None and not 0 < self.rate <= 10**9:
            raise ConfigError(f"rate is {self.rate}; letters a second are a number above 0")
        if self.send:
            check_id("id", self.id)
            if not self.state:
                raise ConfigError(
                    "state is not given; name a directory that remembers what was sent, "
                    "or leave send out to look only"
                )


def run(config: Config, context: Context) -> Report:
    """Raises ConfigError before anything is sent, CometMQError or Spark's errors when it cannot go on;
    run again it does.
    """
    redrive = _Redrive(config, context)
    if not config.send:
        return redrive.look()
    ledger = Ledger(config.state, config.id, RedrivePlan)
    with ledger.held():
        return redrive.send(ledger)


class _Redrive:
    def __init__(self, config: Config, context: Context) -> None:
        self._config = config
        self._context = context
        self._started = now()
        self._connecting = connecting_to(context.cluster)
        self._choice = Choice(config.topics, config.reasons, config.reason_property)
        self._asked = {name: getattr(config, name) for name in _ASKED}

    def look(self) -> Report:
        return self._report(self._new_plan(), Progress())

    def send(self, ledger: Ledger[RedrivePlan]) -> Report:
        plan = ledger.plan(self._asked) or ledger.begin(self._new_plan())
        progress = ledger.progress()
        before = progress.sent + progress.already_there
        if not progress.finished:
            self._send_all(plan, progress)
            progress.finished = True
            ledger.save(progress)
        return self._report(plan, progress, before)

    # What there is

    def _new_plan(self) -> RedrivePlan:
        letters = self._bounds()
        counts: list[LetterCount] = []
        timeline = Timeline(1, [])
        if any(low < end for _, low, end in letters):
            frame = self._letters(letters)
            self._config.check(frame)
            progress, spark = self._context.progress, self._context.spark
            with progress.step("count") as step, step.spark_jobs(spark):
                counts = count_letters(frame, condition(self._config, self._choice))
                hours = len({found.hour for found in counts})
                timeline = timeline_of(frame, frame["reason"], hours)
                step.outcome = f"{sum(found.chosen for found in counts):,} of "
                step.outcome += f"{sum(found.count for found in counts):,} dead letters chosen"
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
        """Which offsets the dead-letter queues have."""
        topic = dlq_topic(self._config.group)
        with BlockingRangeReader(**self._connecting.parameters()) as reader:
            try:
                bounds = reader.offsets(reader.queues(topic))
            except RouteNotFoundError:
                return []  # a group without dead letters has no such topic
            except CometMQError as error:
                raise ConfigError(f"[cluster]: {self._connecting.namesrv}: {error}") from error
        return [(queue, low, end) for queue, (low, end) in sorted(bounds.items())]

    def _letters(self, bounds: Sequence[tuple[MessageQueue, int, int]]) -> Any:
        cluster = self._context.cluster
        letters = read_letters(self._context.spark, cluster, self._config.group, bounds)
        return described(letters, self._choice, cluster.namespace)

    def _targets(self, counts: Sequence[LetterCount]) -> list[MessageQueue]:
        topics = {found.topic for found in counts if found.chosen} - {NOWHERE}
        if self._config.to == "group":
            topics = {retry_topic(self._config.group)} if topics else set()
        found = writable_queues(self._connecting, topics)
        return sorted(queue for queues in found.values() for queue in queues)

    def _bases(self, targets: Sequence[MessageQueue], counts: Sequence[LetterCount]) -> list[int]:
        """Nothing was sent again before it was dead. So whoever takes over from a run of which nothing
        but the id is known finds all that was sent.
        """
        if not targets:
            return []
        first_ms = min(found.first_ms for found in counts if found.chosen)
        return ends_of(self._connecting, targets, since_ms=max(0, first_ms - _CLOCKS_DIFFER_MS))

    # Sending

    def _send_all(self, plan: RedrivePlan, progress: Progress) -> None:
        if not plan.targets:
            return
        config, spark = self._config, self._context.spark
        topics = sorted({target.topic for target in plan.targets})
        lanes = [
            tuple(at for at, target in enumerate(plan.targets) if target.topic == topic)
            for topic in topics
        ]
        chosen = {
            lane[0]: max(1, self._chosen_for(plan, topic))
            for lane, topic in zip(lanes, topics, strict=True)
        }
        errand = Errand(
            self._connecting,
            Marks(REDRIVE, config.id),
            tuple(plan.targets),
            tuple(plan.bases),
            tuple(lanes),
            tuple(share_rate(config.rate, [(lane[0],) for lane in lanes], chosen)),
            exactly_once=True,
            keeps_unique_id=True,
            looks_everywhere=True,
        )
        letters = self._letters(plan.letters).where(condition(config, self._choice))
        letters = to_targets(letters, plan.targets, to_group=config.to == "group")
        in_order = letters.repartitionById(len(lanes), "lane").sortWithinPartitions(
            "broker", "queue_id", "queue_offset"
        )
        with self._context.progress.step("send") as step, step.spark_jobs(spark):
            for outcome in errand.run(in_order.select(*COLUMNS)):
                progress.add(outcome)
            step.outcome = f"{progress.sent:,} dead letters sent"

    def _chosen_for(self, plan: RedrivePlan, topic: str) -> int:
        if self._config.to == "group":
            return plan.chosen
        return sum(found.chosen for found in plan.counts if found.topic == topic)

    def _report(self, plan: RedrivePlan, progress: Progress, before: int = 0) -> Report:
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
            summary = f"{there:,} of {plan.chosen:,} chosen dead letters of {config.group} are in "
            summary += where + (f", {there - before:,} of them by this run" if before else "")
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
            pipeline="redrive",
            started=self._started,
            holds=not lost and (not config.send or there == plan.chosen),
            summary=summary,
            group=config.group,
            id=config.id,
            send=config.send,
            to=config.to,
            letters=total,
            chosen=plan.chosen,
            sent=progress.sent,
            already_there=progress.already_there,
            refused=progress.refused,
            refusals=progress.reasons,
            stranded=sorted({found.topic or "(unknown)" for found in stranded}),
            counts=plan.counts,
            timeline=plan.timeline,
        )
