"""Judge whether the figures of an archive's files match those of the log. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple

from msgspec.structs import replace

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import (
    Figures,
    Hour,
    Manifest,
    QueueState,
    SafeRange,
)
from cometmq.pipelines.archive.proving.figures import Place, Sum, summed
from cometmq.pipelines.archive.proving.inventory import Inventory, Problem, of_file
from cometmq.pipelines.archive.proving.spans import Span, length, within
from cometmq.spark.gaps import Gap


class Evidence(NamedTuple):
    """Holds the facts of the log for a proof.

    spans: the offsets of each queue that are to be proved now.
    away: queues whose broker cannot be asked.
    log: the figures of the log for these spans.
    lost: spans that were archived and are gone from the log; for them `log` holds the archive's own
        figures.
    gaps: messages that were gone before they were archived.
    """

    spans: dict[MessageQueue, Span]
    away: frozenset[MessageQueue]
    log: dict[Sum, Figures]
    lost: dict[MessageQueue, list[Span]]
    gaps: tuple[Gap, ...] = ()

    def without_messages(self) -> dict[MessageQueue, int]:
        """Count, for each queue, the offsets that are neither in the log nor noted as gone.

        Queues with none are left out. A count is negative if the log has messages in a range that
        is noted as gone.
        """
        counts = dict.fromkeys(self.spans, 0)
        for (_, queue, _), one in self.log.items():
            counts[queue] += one.count
        gone = spans_by_queue(self.gaps)
        left = {
            queue: span[1] - span[0] - length(within(span, gone.get(queue, ()))) - counts[queue]
            for queue, span in self.spans.items()
        }
        return {queue: count for queue, count in left.items() if count}


class Judgement:
    """Compares the files of some hours with the log's figures.

    failed: the hours of queues that do not fit, with the figures of log and archive.
    problems: faults of files that show without comparing messages.
    """

    def __init__(
        self,
        manifests: Mapping[Hour, Manifest],
        hours: Iterable[Hour],
        evidence: Evidence,
        inventory: Inventory,
        found: Iterable[tuple[Hour, str | None, Figures]],
    ) -> None:
        self._manifests = {hour: manifests.get(hour, Manifest(*hour)) for hour in sorted(hours)}
        self._evidence = evidence
        self._found: dict[tuple[Hour, str], list[Figures]] = {}
        for hour, name, one in found:
            self._found.setdefault((hour, str(name)), []).append(one)
        self.problems = [*inventory.problems, *self._changed(inventory), *self._strange(inventory)]
        self.failed = self._compare()
        self.failed_queues = {queue for _, queue in self.failed}
        for queue, count in evidence.without_messages().items():
            self.failed_queues.add(queue)
            start, end = evidence.spans[queue]
            place = (queue.broker_name, queue.queue_id, start, end - 1)
            said = f"{count:,} of these offsets are neither in the log nor noted as gone"
            self.problems.append(
                Problem("offsets without messages", queue.topic, None, None, *place, said)
            )
        self._bad_hours = {hour for hour, _ in self.failed}
        self._bad_hours |= {Hour(one.topic, one.hour or "") for one in self.problems}

    def of_files(self, hour: Hour) -> list[tuple[str, Figures]]:
        """Return the present figures of each file of the manifest."""
        names = (file.name for file in self._manifests[hour].files)
        return [(name, one) for name in names for one in self._found.get((hour, name), ())]

    def manifests(self) -> tuple[Manifest, ...]:
        """Return the manifests that change. A directory that holds only strange files gets none."""
        changed = (self._after(one) for one in self._manifests.values() if one.files or one.log)
        return tuple(one for one in changed if one != self._manifests[one.key])

    def proved(self, queue: MessageQueue) -> Span | None:
        """Return the span of a queue that is proved now and was not proved before."""
        return None if queue in self.failed_queues else self._evidence.spans.get(queue)

    # Inside

    def _compare(self) -> dict[Place, tuple[Figures | None, Figures | None]]:
        kept = ((hour, one) for hour, manifest in self._manifests.items() for one in manifest.log)
        new = ((hour, one) for (hour, *_), one in self._evidence.log.items())
        wanted = summed([*kept, *new])
        there = summed((hour, one) for hour in self._manifests for _, one in self.of_files(hour))
        failed = {
            (hour, queue)
            for hour, queue, form in {*wanted, *there}
            if queue not in self._evidence.away
            and wanted.get((hour, queue, form)) != there.get((hour, queue, form))
        }
        return {place: (_of(wanted, place), _of(there, place)) for place in sorted(failed)}

    def _changed(self, inventory: Inventory) -> Iterable[Problem]:
        """Yield a problem for each proved file whose contents have changed."""
        for hour, manifest in self._manifests.items():
            there = {path.name for path in inventory.listed.get(hour, ())}
            for file in manifest.files:
                now = {
                    (one.broker, one.queue_id): one
                    for one in self._found.get((hour, file.name), ())
                }
                if file.name not in there or not file.queues:
                    continue
                for before in file.queues:
                    one = now.get((before.broker, before.queue_id))
                    if one != before:
                        said = f"has {one.count if one else 0:,} messages, was proved with {before.count:,}"
                        if one and one.count == before.count:
                            said = "its messages are not those that were proved"
                        yield from of_file("file changed", hour, file.name, [before], said)

    def _strange(self, inventory: Inventory) -> Iterable[Problem]:
        for hour, paths in inventory.strange.items():
            for path in paths:
                said = "is none of the archive's: take it away"
                found = self._found.get((hour, path.name), ())
                yield from of_file("strange file", hour, path.name, found, said)

    def _after(self, manifest: Manifest) -> Manifest:
        hour = manifest.key
        new = [
            (hour, one)
            for (at, queue, _), one in self._evidence.log.items()
            if at == hour and self.proved(queue)
        ]
        log = summed([*((hour, one) for one in manifest.log), *new])
        files = manifest.files
        if self._fits(hour):
            files = tuple(
                replace(file, queues=tuple(sorted(self._found.get((hour, file.name), ()))))
                for file in files
            )
        ledger = tuple(log[place] for place in sorted(log))
        return Manifest(*hour, files, ledger, hour in self._bad_hours)

    def _fits(self, hour: Hour) -> bool:
        """Return whether everything in the hour's files is proved."""
        unproved = {*self.failed_queues, *self._evidence.away}
        return hour not in self._bad_hours and not any(
            MessageQueue(hour.topic, one.broker, one.queue_id) in unproved
            for _, one in self.of_files(hour)
        )


def _of(sums: Mapping[Sum, Figures], place: Place) -> Figures | None:
    """Return the figures of a place, of all schemas together: their checksum says nothing then."""
    found = [sums[one] for one in sorted(sums) if one[:2] == place]
    return reduce(Figures.plus, found) if found else None


def safe_ranges(
    queues: Iterable[QueueState],
    manifests: Iterable[Manifest],
    gaps: Iterable[Gap],
    proved_at: str,
) -> tuple[SafeRange, ...]:
    """Return the proved range of each queue, up to its first suspect hour."""
    ends: dict[MessageQueue, int] = {}
    for manifest in manifests:
        for one in manifest.log if manifest.suspect else ():
            queue = MessageQueue(manifest.topic, one.broker, one.queue_id)
            ends[queue] = min(one.first, ends.get(queue, one.first))
    gone = spans_by_queue(gaps)
    marks = []
    for state in queues:
        span = state.first, min(state.proved_to, ends.get(state.queue, state.proved_to))
        missing = length(within(span, gone.get(state.queue, ())))
        count = span[1] - span[0] - missing
        marks.append(SafeRange(*state.queue, *span, count, missing, proved_at))
    return tuple(marks)


def spans_by_queue(gaps: Iterable[Gap]) -> dict[MessageQueue, list[Span]]:
    """Return the offsets of the gaps whose queue is known. Looking for the gaps of each queue among
    all of them would take as long as there are queues times gaps.
    """
    found: dict[MessageQueue, list[Span]] = {}
    for gap in gaps:
        if (queue := gap.queue) is not None:
            found.setdefault(queue, []).append((gap.start, gap.end))
    return found
