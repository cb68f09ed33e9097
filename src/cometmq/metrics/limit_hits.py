"""Count how often each limit of a server refused something.

Every refusal of a request is an error with the limit's name (`CometMQError.limit`), which the
connection counts where it turns the error into an answer. `hit` counts refusals without an error:
connections, pulls that are answered at once instead of being held, and the like.
"""

from __future__ import annotations

from cometmq.errors import CometMQError


class LimitHits:
    """Counts the hits of one server's limits, by the limits' names. For the loop's thread only."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        # How many refusals there were. Limits that were never hit are not here.
        self.counts: dict[str, int] = {}

    def hit(self, limit: str) -> None:
        """Count one refusal."""
        self.counts[limit] = self.counts.get(limit, 0) + 1

    def note(self, error: Exception) -> None:
        """Count an error if a limit raised it."""
        if isinstance(error, CometMQError) and error.limit:
            self.hit(error.limit)
