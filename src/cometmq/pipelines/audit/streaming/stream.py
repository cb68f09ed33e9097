"""Audit round by round, until a signal stops the process."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace as changed

from cometmq.pipelines.audit.found import folded, merged
from cometmq.pipelines.audit.report import Report, make_report
from cometmq.pipelines.audit.rows import Bounds
from cometmq.pipelines.audit.settings import Config
from cometmq.pipelines.audit.streaming.stream_round import Outcome, Round
from cometmq.pipelines.audit.streaming.stream_state import State, StateDirectory
from cometmq.pipelines.context import Context
from cometmq.pipelines.message_logs import open_message_log
from cometmq.pipelines.progress import Progress
from cometmq.pipelines.stopping import signals_set

_HOUR_MS: Final = 3_600_000


class Stream:
    def __init__(self, config: Config, context: Context) -> None:
        assert config.state is not None, "checked by the configuration"
        self._config = config
        self._context = context
        self._directory = StateDirectory(config.state)

    def run(self, stopped: threading.Event) -> Report:
        """Audit until `stopped` is set, but one round at least; return the last round's report."""
        monotonic = self._context.clock.monotonic
        with (
            self._directory.held(),
            signals_set(stopped),
            self._context.progress.step("audit") as step,
        ):
            state = self._directory.load(self._config, self._context.clock.now_ms())
            audited = 0
            while True:
                begun_s = monotonic()
                before = sum(place.to - place.first for place in state.queues)
                state, report, is_behind = self._round(state)
                audited += sum(place.to - place.first for place in state.queues) - before
                step.advance(audited)
                self._context.publish(report)
                if not is_behind:
                    stopped.wait(max(0.0, begun_s + self._config.interval_s - monotonic()))
                if stopped.is_set():
                    step.outcome = f"{audited:,} messages in {state.rounds:,} rounds"
                    return report

    def _round(self, state: State) -> tuple[State, Report, bool]:
        """Compare and commit; return the new state, its report, and whether more waits."""
        config = self._config
        # A stream runs for months, so the steps of a round are of no interest.
        context = replace(self._context, progress=Progress())
        with (
            open_message_log(context, {}, config.work_path) as log,
            closing(Round(config, context, log, state, self._directory)) as one,
        ):
            outcome = one.outcome()
            after = self._with_sums(outcome)
            self._directory.commit(after)
            return after, self._report(one, after, outcome), outcome.is_behind

    def _with_sums(self, outcome: Outcome) -> State:
        state = outcome.state
        totals = merged([*state.totals, *outcome.judged])
        hours_from = state.cut_ms // _HOUR_MS - self._config.keep_days * 24
        if any(one.hour is not None and one.hour < hours_from for one in totals):
            totals = folded(totals, hours_from)
            state = changed(state, hours_from=hours_from)
        return changed(state, totals=totals)

    def _report(self, one: Round, state: State, outcome: Outcome) -> Report:
        cut = one.cut
        first = {place.queue: place.first for place in state.queues}
        report = make_report(
            datetime.fromtimestamp(state.started_ms / 1000, UTC),
            self._config,
            one.basis,
            Bounds(cut.log, cut.archived, cut.committed, first),
            one.what(),
            state.totals,
            outcome.waiting,
        )
        report.rounds = state.rounds
        if state.hours_from is not None:
            begin = datetime.fromtimestamp(state.hours_from * 3600, UTC)
            report.hours_from = f"{begin:%Y-%m-%dT%H}"
        return report
