"""Pauses between the attempts of one call."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.1
LAST_S: Final = 1.0


class BackOff:
    """Doubles the pause after each failure, from `first_s` up to `last_s` seconds."""

    def __init__(self, first_s: float = FIRST_S, last_s: float = LAST_S) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._pause_s = first_s

    def next_s(self) -> float:
        """Return the pause that is due now, in seconds, and double the one after it."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._last_s)
        return pause_s

    async def wait(self, deadline: float | None = None) -> None:
        """Sleep for the due pause, but not beyond `deadline` by the running loop's clock."""
        # Imported here because the supervisor of processes counts pauses and has no loop.
        import asyncio

        pause_s = self.next_s()
        if deadline is not None:
            pause_s = min(pause_s, max(0.0, deadline - asyncio.get_running_loop().time()))
        await asyncio.sleep(pause_s)

    def reset(self) -> None:
        """Begin again with the shortest pause, after a success."""
        self._pause_s = self._first_s
