"""Define the errors of code that runs in virtual time."""

from __future__ import annotations


class VirtualTimeError(RuntimeError):
    """Is the base of these errors; each message says what to do."""


class DeadlockError(VirtualTimeError):
    """All tasks wait and no timer is set, or none for days; or a task keeps the time from going
    on.
    """


class BlockingCallError(VirtualTimeError):
    """Code in virtual time called what would hold up the only thread, or leave the virtual world."""


class LeftBehindError(VirtualTimeError):
    """A run ended and left tasks, timers or connections behind."""


class NodeKilledError(VirtualTimeError):
    """The node was killed while somebody outside of it awaited its work."""
