"""The tasks of a step's Spark jobs, and how often Spark is asked for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cometmq.pipelines.progress import JobTasks, Progress


class Tracker:
    """Reports jobs with two stages of three tasks each, as Spark's status tracker does; of the last
    one, a stage has a task done.
    """

    def __init__(self) -> None:
        self.jobs = 0
        self.asked = 0
        self.is_over = False

    def getJobIdsForGroup(self, group: str) -> list[int]:
        assert group == "of this step"
        return list(range(self.jobs))

    def getJobInfo(self, job: int) -> Any:
        self.asked += 1
        status = "SUCCEEDED" if self._has_ended(job) else "RUNNING"
        return SimpleNamespace(stageIds=[2 * job, 2 * job + 1], status=status)

    def getStageInfo(self, stage: int) -> Any:
        self.asked += 1
        if not self._has_ended(stage // 2) and stage % 2:
            return None  # not begun
        done = 3 if self._has_ended(stage // 2) else 1
        return SimpleNamespace(numCompletedTasks=done, numTasks=3)

    def _has_ended(self, job: int) -> bool:
        return self.is_over or job < self.jobs - 1


def test_a_job_that_has_ended_is_asked_for_once() -> None:
    tracker = Tracker()
    tasks = JobTasks(tracker, "of this step")
    assert tasks.count() == (0, 0)
    asked = []
    for tracker.jobs in range(1, 101):
        before = tracker.asked
        assert tasks.count() == (6 * (tracker.jobs - 1) + 1, 6 * (tracker.jobs - 1) + 3)
        asked.append(tracker.asked - before)
    # The one that runs, and once more the one that has ended since.
    assert max(asked) == 6
    tracker.is_over = True
    assert tasks.count() == (600, 600)
    before = tracker.asked
    assert tasks.count() == (600, 600)
    assert tracker.asked == before


def test_progress_that_is_shown_is_asked_for() -> None:
    class Shown(Progress):
        def advance(self, step: str, done: int, total: int | None) -> None:
            pass

    assert Shown().shows_parts
    assert not Progress().shows_parts


def test_nobody_asks_for_progress_that_is_not_shown() -> None:
    class Context:
        """A Spark context without a status tracker."""

        def __init__(self) -> None:
            self.said: list[tuple[Any, ...]] = []

        def setJobGroup(self, group: str, title: str) -> None:
            self.said.append(("group", title))

        def setLocalProperty(self, name: str, value: str | None) -> None:
            self.said.append((name, value))

    context = Context()
    with Progress().step("count") as step, step.spark_jobs(SimpleNamespace(sparkContext=context)):
        assert context.said == [("group", "count")]
    assert context.said[1:] == [
        ("spark.jobGroup.id", None),
        ("spark.job.description", None),
    ]
