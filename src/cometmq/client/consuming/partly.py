"""Says of a job what its listener did not get: messages that do not fit their codec."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.errors import CometMQError
from cometmq.model.message import MessageExt


class Refused(NamedTuple):
    """Is a message that does not fit. It is given back with a delay level; -1 is for the dead letters."""

    message: MessageExt
    error: CometMQError
    level: int


class Partly(NamedTuple):
    """Is what a listener returns that got some of a job's messages only: those that fit.

    `outcome` is what the user's listener returned or raised, SUCCESS if it got none. Messages that are
    neither `kept` nor `refused` are done.
    """

    outcome: object
    kept: list[MessageExt]
    refused: list[Refused]
