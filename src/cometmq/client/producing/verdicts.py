"""Say in errors of sends whether the broker may have stored the message."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final

from cometmq.client.producing.encoding import Outgoing
from cometmq.errors import CometMQError, Stored

_CERTAINTIES: Final = (Stored.NO, Stored.UNKNOWN, Stored.YES)


def saying(error: CometMQError, stored: Stored) -> CometMQError:
    """Return `error` if it has the verdict `stored`, else a copy with it: other sends may share `error`."""
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


def failure_of(
    error: CometMQError, outgoing: Outgoing, tried: Sequence[str], timeout_s: float, stored: Stored
) -> CometMQError:
    """Make an error of the same kind that says how often and where the send was tried."""
    failure = type(error)(
        f"sending to topic {outgoing.topic} failed {len(tried)} times within {timeout_s * 1000:.0f} "
        f"ms, at {', '.join(tried)}; the last time: {error}",
        code=error.code,
        remark=error.remark,
        address=error.address,
    )
    failure.stored = stored
    return failure
