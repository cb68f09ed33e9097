"""Model one direction of the way between two hosts."""

from __future__ import annotations

from cometmq.runtime.randomness import Randomness

# The part of its usual latency that a packet may take longer.
_JITTER = 0.5


class Link:
    """Holds the latency of what one host sends to another, and the faults that it meets.

    `is_lossy` says that nothing arrives, because of a fault or because a machine is off.
    """

    __slots__ = (
        "_off_ends",
        "_randomness",
        "bytes_per_s",
        "delay_s",
        "free_at_s",
        "is_lossy",
        "refuses",
        "usual_s",
        "vanishes",
    )

    def __init__(self, randomness: Randomness, latency_s: tuple[float, float]) -> None:
        self._randomness = randomness
        self.usual_s = randomness.uniform(*latency_s)
        self._off_ends = 0
        # When all that was sent at `bytes_per_s` has left.
        self.free_at_s = 0.0
        self.heal()

    def heal(self) -> None:
        """Undo all faults but those of machines that are off."""
        self.refuses = False
        self.vanishes = False
        self.delay_s: tuple[float, float] | None = None
        self.bytes_per_s: float | None = None
        self.is_lossy = self._off_ends > 0

    def swallow(self) -> None:
        """Let nothing arrive until the link is healed."""
        self.vanishes = self.is_lossy = True

    def end_goes_off(self) -> None:
        self._off_ends += 1
        self.is_lossy = True

    def end_comes_on(self) -> None:
        self._off_ends -= 1
        self.is_lossy = self.vanishes or self._off_ends > 0

    def draw_latency_s(self) -> float:
        """Return how long the next packet takes."""
        latency_s = self.usual_s * (1.0 + _JITTER * self._randomness.random())
        if self.delay_s is not None:
            latency_s += self._randomness.uniform(*self.delay_s)
        return latency_s

    def longest_latency_s(self) -> float:
        """Return the most that a packet takes that is sent now."""
        longest_s = self.usual_s * (1.0 + _JITTER)
        return longest_s if self.delay_s is None else longest_s + self.delay_s[1]
