"""Measure the tables after each round of their driver: how complete and how large they are."""

from __future__ import annotations

from cometmq.pipelines.archive.pipeline import Standing
from cometmq.pipelines.archive.proving.judgement import spans_by_queue
from cometmq.pipelines.archive.proving.spans import length, within
from cometmq.pipelines.progress import Progress
from cometmq.pipelines.table.completeness import Completeness
from cometmq.pipelines.table.notes import Figures, Note, Notes, TableFigures, TopicFigures


class Observer:
    """Writes figures to the supervisor whenever the stream reports its state."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._completeness = Completeness()
        self._batches = 0
        self._messages = 0

    def observe(self, standing: Standing) -> None:
        if standing.written.messages > self._messages:
            self._messages = standing.written.messages
            self._batches += 1
        if self._notes.has_supervisor:
            self._notes.write(Note(figures=self.figures(standing)))

    def figures(self, standing: Standing) -> Figures:
        archive = standing.archive
        until_ms = self._completeness.until_ms(
            archive.state.queues,
            standing.ends,
            standing.looked_ms,
            are_published=not any(one.problem for one in standing.tables),
        )
        gone = spans_by_queue(archive.layout.load_gaps())
        decoded = {one.topic: one for one in standing.decoded}
        rows, missing, lag, files, sizes = (dict.fromkeys(until_ms, 0) for _ in range(5))
        for state in archive.state.queues:
            lost = length(within((state.first, state.to), gone.get(state.queue, ())))
            rows[state.topic] += state.to - state.first - lost
            missing[state.topic] += lost
            lag[state.topic] += max(0, standing.ends.get(state.queue, 0) - state.to)
        for manifest in archive.manifests.values():
            files[manifest.topic] += len(manifest.files)
            sizes[manifest.topic] += sum(file.bytes for file in manifest.files)
        return Figures(
            tuple(
                TopicFigures(
                    one,
                    rows[one],
                    missing[one],
                    lag[one],
                    until_ms[one] or None,
                    files[one],
                    sizes[one],
                    decoded[one].undecodable if one in decoded else None,
                    decoded[one].waiting if one in decoded else None,
                )
                for one in sorted(until_ms)
            ),
            tuple(TableFigures(one.format, one.snapshots, one.problem) for one in standing.tables),
            self._batches,
            len(standing.proved.problems),
        )


class SignsOfLife(Progress):
    """Passes calls on to another progress, and notes each step forward as a sign of life for the supervisor."""

    def __init__(self, progress: Progress, notes: Notes) -> None:
        self._progress = progress
        self._notes = notes
        self._last: tuple[str, int] | None = None

    def begin(self, step: str) -> None:
        self._moved(step, -1)
        self._progress.begin(step)

    def advance(self, step: str, done: int, total: int | None) -> None:
        self._moved(step, done)
        self._progress.advance(step, done, total)

    def end(self, step: str, outcome: str) -> None:
        self._progress.end(step, outcome)

    def _moved(self, step: str, done: int) -> None:
        if self._last != (step, done):
            self._last = (step, done)
            self._notes.write(Note())
