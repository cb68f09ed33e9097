"""Defines what is wrong with code that runs in virtual time."""

from __future__ import annotations


class VirtualTimeError(RuntimeError):
    """Is the base of these errors; each message says what to do."""


class DeadlockError(VirtualTimeError):
    """Everybody waits and no timer is set, or for days; or somebody does not let the time go on."""


class BlockingCallError(VirtualTimeError):
    """Code in virtual time called what would hold up the only thread, or leave the virtual world."""


class LeftBehindError(VirtualTimeError):
    """A run ended and left tasks, timers or connections behind."""


class NodeKilledError(VirtualTimeError):
    """The node was killed while somebody outside of it awaited its work."""
