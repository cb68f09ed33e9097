"""A range that was read without an error has every offset of it once, in order (CometMQ's RangeReader,
as Spark's source uses it: "what is gone raises DataLossError, nothing is skipped").

A reader that cannot give a message says so. A broker with a flipped bit may give a wrong offset, see
`Evidence`; else there is no leniency. That each offset has the right message
is judged by "offsets dense and never reused".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation
from tests.simulation.history import RangeRead

NAME: Final = "ranges complete"


def judge(evidence: Evidence) -> Iterator[Violation]:
    for event in evidence.history.of(RangeRead):
        if evidence.may_be_damaged(event.queue.broker, event.at_s):
            continue
        offsets = [read.offset for read in event.messages]
        wanted = list(range(event.begin, event.end))
        if event.error is not None:
            wanted = wanted[: len(offsets)]  # what came before the error
        if offsets != wanted:
            missing = [offset for offset in wanted if offset not in set(offsets)]
            what = (
                f"the range {event.begin} to {event.end} of {event.queue} was given as "
                f"{len(offsets)} messages; missing are {missing[:10]}"
            )
            yield Violation(invariant=NAME, what=what, events=(event,))
