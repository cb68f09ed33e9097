"""Sending dead letters again: code 30001, which only CometMQ's brokers know.

`docs/decisions/0026` says why it has a code of its own. Request: the header below, and a body of JSON
that selects letters; answer: a body of JSON that says how far the redrive came. The broker answers
after a second at the latest; whoever asks again with the same id waits on until `finished`.
"""

from __future__ import annotations

import msgspec

from cometmq.protocol.bodies import Body
from cometmq.protocol.header import Header, Int64

NO_END_MS = 2**63 - 1


class RedriveDeadLettersRequestHeader(Header):
    """`redrive_id` is of the caller's choice: under one id no letter is sent twice.

    With `only_group` the letters go to the group's retry topic, where no other group sees them.
    """

    redrive_id: str
    group: str
    only_group: bool = False


class LetterSelection(msgspec.Struct, rename="camel", frozen=True):
    """Which letters: every condition that is given holds.

    `ids` are unique ids or offset ids, of the letter or of its first record; of `keys` a letter has
    one. Times are those at which letters were stored, ms since the epoch, both included.
    """

    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    begin_ms: Int64 = 0
    end_ms: Int64 = NO_END_MS


class RedriveReport(Body):
    """`sent_count` letters were sent; `skipped_count` were selected but name no topic that exists.

    Letters of the dead-letter queue below `next_offset` are dealt with, those from `end_offset` on
    came too late for this redrive.
    """

    redrive_id: str
    group: str
    sent_count: Int64
    skipped_count: Int64
    next_offset: Int64
    end_offset: Int64
    finished: bool
