"""A group with a filter is given only what the filter wants (Java: FilterAPI, ExpressionMessageFilter;
the client compares tags once more, since a broker compares their hashes). That it is given all of it is
judged by "delivered at least once". There is no leniency.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation

NAME: Final = "filtered exactly"


def judge(evidence: Evidence) -> Iterator[Violation]:
    for (group, number), deliveries in evidence.delivered.items():
        send, sent = evidence.outgoing[number]
        configured = evidence.groups.get((group, send.topic))
        if configured is None:
            what = f"{group} was given message {number} of {send.topic}, which it does not consume"
            yield Violation(invariant=NAME, what=what, events=(send, deliveries[0]))
        elif not evidence.wants(group, send.topic, number):
            what = (
                f"{group} wants {configured.filter.expression!r} and was given message {number} "
                f"(tag {sent.tags})"
            )
            yield Violation(invariant=NAME, what=what, events=(send, deliveries[0]))
