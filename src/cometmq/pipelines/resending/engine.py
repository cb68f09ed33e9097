"""Run a replay or a redrive: only look, or plan once, send in chunks, and report.

The two differ in which messages they choose and where these go. A `Resend` says so in the methods
that it overrides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import ConfigError
from cometmq.pipelines.context import Context
from cometmq.pipelines.progress import Step
from cometmq.pipelines.report import now
from cometmq.pipelines.resending.finished import Finished
from cometmq.pipelines.resending.lanes import Errand
from cometmq.pipelines.resending.ledger import Ledger, Progress, ResendPlan
from cometmq.pipelines.resending.marks import Marks, check_id
from cometmq.pipelines.resending.selection import Selection
from cometmq.pipelines.targets import connecting_to

# The settings of Selection that the ledger keeps: a further run under the same id must have the
# same.
_SELECTED = ("since", "until", "tags", "keys", "where")
_MOST_DAYS: Final = 36_500


class Settings(Selection, frozen=True, kw_only=True):
    """id: the name of this job: under one id nothing is sent twice.
    state: the directory that keeps the ledger of sent messages.
    rate: the most messages a second of the whole job.
    keep_days: for how many days `state` keeps the ledgers of other ids after they were finished; 0
        keeps them all.

    Selection has further keys.
    """

    id: str = ""
    state: str = ""
    rate: float | None = None
    keep_days: int = 90

    def check_sending(self, *, sends: bool, unit: str, instead: str) -> None:
        """Raise ConfigError if the settings lack what sending `unit` needs; `instead` says how to
        only look.
        """
        if self.rate is not None and not 0 < self.rate <= 10**9:
            raise ConfigError(f"rate is {self.rate}; {unit} a second are a number above 0")
        if not 0 <= self.keep_days <= _MOST_DAYS:
            raise ConfigError(f"keep_days is {self.keep_days}; it lies in 0..{_MOST_DAYS}")
        if sends:
            check_id("id", self.id)
            if not self.state:
                raise ConfigError(
                    f"state is not given; name a directory that remembers what was sent, or {instead}"
                )


C = TypeVar("C", bound=Settings)
P = TypeVar("P", bound=ResendPlan)


class Resend(ABC, Generic[C, P]):
    """One run of a replay or redrive.

    kind: REPLAY or REDRIVE.
    plan_type: the class of the plan that the ledger keeps.
    asked: the settings besides those of Selection that the plan depends on.
    """

    kind: str
    plan_type: type[P]
    asked: Sequence[str]

    def __init__(self, config: C, context: Context) -> None:
        self._config = config
        self._context = context
        self._started = now()
        self._dropped: list[str] = []
        self._connecting = connecting_to(context.cluster)
        self._asked = {name: getattr(config, name) for name in (*self.asked, *_SELECTED)}

    def look(self) -> Any:
        """Report what would be sent."""
        return self._report(self._new_plan(), Progress(), 0)

    def send(self) -> Any:
        """Send the messages that were not sent yet under this id, and report the result.

        Raise ConfigError before anything is sent, and CometMQError or Spark's errors when the run
        cannot go on; a further run continues.
        """
        config = self._config
        ledger = Ledger(config.state, config.id, self.plan_type)
        finished = Finished(config.state)
        finished.check(config.id)  # before a directory is made for it
        with ledger.held():
            finished.check(config.id)
            plan = ledger.plan(self._asked) or ledger.begin(self._new_plan())
            progress = ledger.progress()
            before = progress.sent + progress.already_there
            if not progress.finished:
                self._send_all(plan, ledger, progress)
                progress.finished, progress.ended = True, now()
                ledger.save(progress)
            if config.keep_days:
                self._dropped = finished.drop(config.keep_days, now(), but=config.id)
            return self._report(plan, progress, before)

    # Filled in by a replay and by a redrive

    @abstractmethod
    def _new_plan(self) -> P:
        """Decide what to send. Raise ConfigError."""

    @abstractmethod
    def _send_all(self, plan: P, ledger: Ledger[P], progress: Progress) -> None:
        """Send unfinished chunks by `_send`, in a step that shows the outcome."""

    @abstractmethod
    def _report(self, plan: P, progress: Progress, before: int) -> Any:
        """Make the report; `before` messages were in their targets when this run began."""

    # Given to them

    def _send(
        self,
        plan: P,
        bases: Sequence[int],
        lanes: Sequence[tuple[int, ...]],
        rates: Sequence[float | None],
        rows: Any,
        progress: Progress,
        **how: bool,
    ) -> None:
        """Send rows, a partition for each lane, and count the outcomes; `how` has further fields of
        Errand.
        """
        errand = Errand(
            self._connecting,
            Marks(self.kind, self._config.id),
            tuple(plan.targets),
            tuple(bases),
            tuple(lanes),
            tuple(rates),
            **how,
        )
        for outcome in errand.run(rows):
            progress.add(outcome)

    @contextmanager
    def _counting(self) -> Iterator[Step]:
        """Yield the step in which Spark counts messages."""
        spark = self._context.spark
        with self._context.progress.step("count") as step, step.spark_jobs(spark):
            yield step

    def _said(self, plan: P, progress: Progress, before: int, what: str, where: str) -> str:
        """Summarise what was sent: how many of the chosen messages, called `what`, are in
        `where`.
        """
        there = progress.sent + progress.already_there
        said = f"{there:,} of {plan.chosen:,} chosen {what} are in {where}"
        return said + (f", {there - before:,} of them by this run" if before else "")

    def _common(self, plan: P, progress: Progress) -> dict[str, Any]:
        """Return the fields that both reports have."""
        return {
            "started": self._started,
            "id": self._config.id,
            "chosen": plan.chosen,
            "sent": progress.sent,
            "already_there": progress.already_there,
            "refused": progress.refused,
            "refusals": progress.reasons,
            "timeline": plan.timeline,
            "ledgers_dropped": self._dropped,
        }
