"""A message that a producer's error says is not stored is nowhere: an error's `stored` says "in the
log, not in it, or nobody knows" (docs/internals/clients.md).

There is no leniency: an error that cannot know has to say "unknown".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation

NAME: Final = "refused is not stored"


def judge(evidence: Evidence) -> Iterator[Violation]:
    delivered = {number: seen[0] for (_, number), seen in evidence.delivered.items()}
    for failed in evidence.failed.values():
        if failed.stored != "no":
            continue
        send = evidence.sends[failed.send]
        for message in send.messages:
            number = message.number
            if number in delivered:
                what = f"message {number} was delivered though its send was refused"
                events = (send, failed, delivered[number])
                yield Violation(invariant=NAME, what=what, events=events)
            elif number in evidence.records:
                where = {f"{at} at {each.position}" for at, each in evidence.records[number]}
                what = f"message {number} is in the log of {', '.join(sorted(where))} though its send was refused"
                yield Violation(invariant=NAME, what=what, events=(send, failed))
