"""Say in errors of sends whether the broker may have stored the message."""

from __future__ import annotations

from copy import copy
from typing import Final

from cometmq.errors import CometMQError, Stored

_CERTAINTIES: Final = (Stored.NO, Stored.UNKNOWN, Stored.YES)


def saying(error: CometMQError, stored: Stored) -> CometMQError:
    """Return `error` if it says `stored`, else a copy that does: other sends may have it, too."""
    if error.stored is stored:
        return error
    copied = copy(error).with_traceback(error.__traceback__)
    copied.stored = stored
    return copied


def of_both(one: Stored, other: Stored) -> Stored:
    """Return the joint verdict of two attempts: the message is not stored only if neither stored
    it.
    """
    return max(one, other, key=_CERTAINTIES.index)
