"""Keep the selections of groups from their pops, so that groups need no heartbeats (Java: ConsumerManager.compensateSubscribeData)."""

from __future__ import annotations

from typing import Final

from cometmq.filtering.tags import build_subscription
from cometmq.model.subscription import EXPRESSION_TAG, SubscriptionData
from cometmq.runtime.clock import Clock

# Pairs of a group and a topic, and bytes of an expression that is kept: 11 MB together.
MAX_POP_SUBSCRIPTIONS: Final = 10_000
_MAX_EXPRESSION: Final = 1024
# Java: subscriptionExpiredTimeout.
_KEPT_S: Final = 600.0


class PopSubscriptions:
    """Holds the last selection of each group and topic for ten minutes. For the loop's thread only.

    At the limit, the pair that popped longest ago makes room for a new one. A long expression is not kept. A
    selection that is not here is unknown.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Type, expression and time by pair; the pair that was used last stands last.
        self._known: dict[tuple[str, str], tuple[str | None, str | None, float]] = {}

    def note(self, group: str, topic: str, kind: str | None, expression: str | None) -> None:
        """Note the selection of a pop, with the present time."""
        key = group, topic
        self._known.pop(key, None)
        if expression is not None and len(expression) > _MAX_EXPRESSION:
            return
        if len(self._known) >= MAX_POP_SUBSCRIPTIONS:
            del self._known[next(iter(self._known))]
        self._known[key] = kind, expression, self._clock.monotonic()

    def find(self, group: str, topic: str) -> SubscriptionData | None:
        """Return a group's selection of a topic in its last pop; None if it is not known."""
        known = self._known.get((group, topic))
        if known is None or self._clock.monotonic() - known[2] > _KEPT_S:
            return None
        return build_subscription(topic, known[1], known[0] or EXPRESSION_TAG)
