"""Track how far a pipeline is: the pipeline reports it, and whoever runs it shows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

_POLL_S: Final = 0.5


class Progress:
    """Receives a pipeline's progress and shows nothing. Subclasses show it."""

    def begin(self, step: str) -> None:
        """Note that work on the step with this title begins."""

    def advance(self, step: str, done: int, total: int | None) -> None:
        """Note that `done` of `total` parts are done; total is None if unknown. Called from any
        thread.
        """

    def end(self, step: str, outcome: str) -> None:
        """Note that the step is done; `outcome` says in a few words what came of it."""

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        self.begin(title)
        step = Step(self, title)
        yield step
        self.end(title, step.outcome)


class Step:
    """A step that is being worked on."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._title = title
        self.outcome = ""

    def advance(self, done: int, total: int | None = None) -> None:
        self._progress.advance(self._title, done, total)

    @contextmanager
    def spark_jobs(self, spark: Any) -> Iterator[None]:
        """Advance by the tasks of the Spark jobs that this thread starts inside the block."""
        context = spark.sparkContext
        group = f"cometmq-{SYSTEM_RANDOMNESS.token_hex(16)}"
        context.setJobGroup(group, self._title)
        over = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(context.statusTracker(), group, over), daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)
            context.setLocalProperty("spark.job.description", None)

    def _watch(self, tracker: Any, group: str, over: threading.Event) -> None:
        while not over.wait(_POLL_S):
            done = total = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage_id in info.stageIds if info else ():
                    stage = tracker.getStageInfo(stage_id)
                    if stage is not None:
                        done += stage.numCompletedTasks
                        total += stage.numTasks
            if total:
                self.advance(done, total)
