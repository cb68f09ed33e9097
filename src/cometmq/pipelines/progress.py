"""Track how far a pipeline is: the pipeline reports it, and its caller shows it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

_POLL_S: Final = 0.5


class Progress:
    """Receives a pipeline's progress and shows nothing. Subclasses show it."""

    @property
    def shows_parts(self) -> bool:
        """Return whether a subclass shows how far a step is. If not, Spark is not asked for it."""
        return type(self).advance is not Progress.advance

    def begin(self, step: str) -> None:
        """Note that work on the step with this title begins."""

    def advance(self, step: str, done: int, total: int | None) -> None:
        """Note that `done` of `total` parts are done; total is None if unknown. Called from any
        thread.
        """

    def end(self, step: str, outcome: str) -> None:
        """Note that the step is done; `outcome` gives its result in a few words."""

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
        try:
            if self._progress.shows_parts:
                with self._watched(JobTasks(context.statusTracker(), group)):
                    yield
            else:
                yield
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)
            context.setLocalProperty("spark.job.description", None)

    @contextmanager
    def _watched(self, tasks: JobTasks) -> Iterator[None]:
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(tasks, over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _watch(self, tasks: JobTasks, over: threading.Event) -> None:
        while not over.wait(_POLL_S):
            done, total = tasks.count()
            if total:
                self.advance(done, total)


class JobTasks:
    """Counts the tasks of a group of Spark jobs. Spark is asked about a job that has ended only
    once: an audit has hundreds, and Spark goes through all stages that it remembers to find one.
    """

    def __init__(self, tracker: Any, group: str) -> None:
        self._tracker = tracker
        self._group = group
        self._ended: dict[int, tuple[int, int]] = {}

    def count(self) -> tuple[int, int]:
        """Return how many tasks are done, and how many there are so far."""
        found = []
        for job in self._tracker.getJobIdsForGroup(self._group):
            if job not in self._ended:
                # Asked first, so that tasks which end in between are counted.
                info = self._tracker.getJobInfo(job)
                tasks = self._of_stages(info.stageIds if info else ())
                if info is None or info.status == "RUNNING":
                    found.append(tasks)
                    continue
                self._ended[job] = tasks
            found.append(self._ended[job])
        return sum(done for done, _ in found), sum(total for _, total in found)

    def _of_stages(self, stages: Iterable[int]) -> tuple[int, int]:
        infos = [info for one in stages if (info := self._tracker.getStageInfo(one)) is not None]
        return sum(one.numCompletedTasks for one in infos), sum(one.numTasks for one in infos)
