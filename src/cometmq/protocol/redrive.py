"""Define the request to send dead letters again: code 30001, which only CometMQ's brokers know.

`docs/internals/requests.md` says why it has a code of its own. The request has the header below and
a JSON body that selects letters; the answer has a JSON body that says how far the redrive is. The broker
answers after a second at the latest. A caller that repeats the request with the same id waits on
until `finished`.
"""

from __future__ import annotations

import msgspec

from cometmq.protocol.bodies.cluster import Body
from cometmq.protocol.header import Header, Int64

NO_END_MS = 2**63 - 1
# The property of a message that a redrive has sent: the redrive's id.
REDRIVE_ID = "REDRIVE_ID"


class RedriveDeadLettersRequestHeader(Header):
    """The caller chooses `redrive_id`: under one id no letter is sent twice.

    With `only_group`, the letters go to the group's retry topic, where no other group sees them.
    """

    redrive_id: str
    group: str
    only_group: bool = False


class LetterSelection(msgspec.Struct, rename="camel", frozen=True):
    """Selects letters that meet every condition given.

    `ids` are unique ids or offset ids, of the letter or of its first record. A letter has at least
    one of `keys`. Times are when letters were stored, in ms since the epoch, both included.
    """

    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    begin_ms: Int64 = 0
    end_ms: Int64 = NO_END_MS


class RedriveReport(Body):
    """How far a redrive is. `sent_count` letters were sent; `skipped_count` were selected but name
    no topic that exists.

    Letters of the dead-letter queue below `next_offset` are dealt with; those from `end_offset` on
    came too late for this redrive.
    """

    redrive_id: str
    group: str
    sent_count: Int64
    skipped_count: Int64
    next_offset: Int64
    end_offset: Int64
    finished: bool
