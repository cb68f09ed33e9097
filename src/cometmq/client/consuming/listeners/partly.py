"""Describe the messages of a job that do not fit their codec, so its listener did not get them."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.errors import CometMQError
from cometmq.model.message import MessageExt


class Refused(NamedTuple):
    """Holds a message that does not fit. It is given back with a delay level; -1 is for the dead letters."""

    message: MessageExt
    error: CometMQError
    level: int


class Partly(NamedTuple):
    """Holds the outcome of a listener that got only those of a job's messages that fit.

    `outcome` is the result or exception of the user's listener, SUCCESS if it got no message.
    Messages that are neither `kept` nor `refused` are done.
    """

    outcome: object
    kept: list[MessageExt]
    refused: list[Refused]
