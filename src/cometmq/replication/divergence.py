"""Find out whether the log of a slave is the beginning of its master's log.

The replication protocol compares offsets only. If a former master comes back as a slave, the end of
its log may hold messages that the new master never got, at offsets where the new master has others.
So before a slave asks for bytes, it asks the master's broker port for the record at the place of
its own last record (code 33, which Java's brokers serve, too) and compares the two. Logs only grow
at their end and are copied byte by byte: if the last records are the same, so is all before them.

No offset is reported to the master before that. A master would take it for an acknowledgement of
all its messages in front of it, also of those that the slave does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.errors import ProtocolError
from cometmq.model.names import SELF_TEST_TOPIC
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import ViewMessageRequestHeader
from cometmq.protocol.messages.record import MAGIC_BLANK
from cometmq.protocol.messages.record_layout import BODY_AT, HEAD, HEAD_SIZE
from cometmq.remoting.client import ASK_TIMEOUT_S, RemotingClient
from cometmq.remoting.credentials import refused
from cometmq.store.log.scan import ScannedRecord, check_record
from cometmq.store.store import MessageStore

if TYPE_CHECKING:
    # Loads numpy, which a broker can do without.
    from cometmq.store.files.mapped_file import MappedFile
    from cometmq.store.offline.rejoin import OwnLog

# How both lines of RocketMQ and this broker begin their answer when no message begins at an offset.
_NOT_FOUND: Final = "can not find message by the offset"

# Files and records of a file are far fewer than 2**20 and 2**24.
_MOST_QUESTIONS: Final = 44


class Bounds(NamedTuple):
    """Says from where to where a log reaches."""

    begin: int
    end: int


class Cause(Enum):
    """Says in which way a slave's log does not continue its master's."""

    DIFFERENT = "different"
    LONGER = "longer"
    GAP = "gap"


@dataclass(frozen=True)
class Divergence:
    """Says why a slave must not go on copying. Its text is for people, with the remedy.

    `offset` is that of the slave's last record, or of the blank behind it; `own_end` that of the end
    of its log. Both are the same if retention left no record in it.
    """

    cause: Cause
    offset: int
    own_end: int
    master: Bounds
    address: str

    def __str__(self) -> str:
        theirs = f"the log of the master {self.address}"
        reach = f"reaches from {self.master.begin} to {self.master.end}"
        remedy = (
            "stop this slave and mend its store with `cometmq store rejoin "
            f"DIR --master {self.address}`, which keeps the part that is cut off"
        )
        if self.offset == self.own_end:
            # There is nothing to be kept.
            remedy = "stop this slave and empty its store, which has no message"
        if self.cause is Cause.GAP:
            return (
                f"this log ends at {self.own_end}, and {theirs} {reach}: the part between is gone;  "
                f"{remedy}"
            )
        if self.cause is Cause.LONGER:
            return (
                f"this log ends at {self.own_end}, behind the master's, and {theirs} {reach}: one "
                f"of them has messages that the other never had; if this log is the one that counts, make "
                f"this broker the master; if not, {remedy}"
            )
        return (
            f"the log has diverged: this one ends at {self.own_end}, and its last record, at "
            f"{self.offset}, is another one in {theirs}, which {reach}; {remedy}"
        )


class MasterLog:
    """Reads the log of a broker through its broker port. For the loop that uses `client`.

    Methods raise a kind of RemotingError if the broker cannot be asked, RemoteError if it refuses.
    """

    def __init__(
        self, client: RemotingClient, address: str, *, timeout_s: float = ASK_TIMEOUT_S
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self.address = address

    async def bytes_at(self, offset: int, topic: str) -> bytes | None:
        """Return the record, or with Java's brokers whatever has its size in front, that begins at
        `offset`; None if nothing does. `topic` is that of the own record: access control wants one.
        """
        what = f"the record at the commit-log offset {offset}"
        answer = await self._client.ask(
            self.address,
            requests.VIEW_MESSAGE_BY_ID,
            ViewMessageRequestHeader(offset=offset, topic=topic),
            what=what,
            timeout_s=self._timeout_s,
            also=(ResponseCode.SYSTEM_ERROR,),
        )
        if answer.code == ResponseCode.SUCCESS:
            return bytes(answer.body)
        if (answer.command.remark or "").startswith(_NOT_FOUND):
            return None
        raise refused(answer.command, self.address, what)

    async def bounds(self) -> Bounds:
        """Return from where to where the log reaches. Raises ProtocolError if the answer lacks it."""
        answer = await self._client.ask(
            self.address,
            requests.GET_BROKER_RUNTIME_INFO,
            NoHeader(),
            what="the state of its log",
            timeout_s=self._timeout_s,
        )
        table = answer.body.table
        try:
            begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(
                f"{self.address} does not say where its commit log begins and ends"
            ) from error
        # Java says -1 as long as there is no file.
        return Bounds(max(begin, 0), max(end, 0))


async def find_divergence(store: MessageStore, master: MasterLog) -> Divergence | None:
    """Return why the end of a slave's log does not fit its master's; None if it does.

    Asks once if all is well, three times at most. Raises what `MasterLog` raises when the master
    cannot be asked: then nothing is known, and the slave must not begin. For the store's thread.
    """
    log = store.commit_log
    tail = store.log_tail()
    own_end = log.end
    if tail.record < 0:
        # An empty log fits any. One that lost its records to retention has only its end to compare.
        bounds = await master.bounds() if own_end else Bounds(0, own_end)
        if own_end < bounds.begin:
            return _found(Cause.GAP, own_end, own_end, bounds, master)
        is_longer = own_end > bounds.end
        return _found(Cause.LONGER, own_end, own_end, bounds, master) if is_longer else None
    own = log.record_at(tail.record)
    assert own is not None, "the store has just found the record"
    topic = topic_of(own, tail.record)
    own = memoryview(bytes(own))
    theirs = await master.bytes_at(tail.record, topic)
    if theirs is not None and is_same(own, theirs, tail.record):
        if tail.blank < 0:
            return None
        behind = await master.bytes_at(tail.blank, topic)
        if behind is None or is_blank(behind):
            # Our brokers show no blanks. The end of the log says whether there is one.
            bounds = await master.bounds()
            is_longer = bounds.end < own_end
            return _found(Cause.LONGER, tail.blank, own_end, bounds, master) if is_longer else None
        return _found(Cause.DIFFERENT, tail.blank, own_end, await master.bounds(), master)
    bounds = await master.bounds()
    if own_end < bounds.begin:
        return _found(Cause.GAP, tail.record, own_end, bounds, master)
    if theirs is None and tail.record < bounds.begin:
        # The master has deleted the file of the record, and has all that follows it.
        return None
    cause = Cause.LONGER if own_end > bounds.end else Cause.DIFFERENT
    return _found(cause, tail.record, own_end, bounds, master)


def _found(
    cause: Cause, offset: int, own_end: int, bounds: Bounds, master: MasterLog
) -> Divergence:
    return Divergence(cause, offset, own_end, bounds, master.address)


def is_blank(data: bytes) -> bool:
    """Say whether the bytes begin with the blank that ends a file."""
    return len(data) >= HEAD_SIZE and HEAD.unpack_from(data)[1] == MAGIC_BLANK


def is_same(own: memoryview, theirs: bytes, offset: int) -> bool:
    """Say whether two records at one offset of two logs are the same message.

    A slave's record is a copy of all bytes, and no broker changes a record later. If one of the two
    is damaged, the fixed fields decide: they hold the place, the times, the hosts and the sum of
    the body.
    """
    if own == theirs:
        return True
    if all(
        isinstance(check_record(view, 0, offset, check_crc=True), ScannedRecord)
        for view in (own, memoryview(theirs))
    ):
        return False
    return own[:BODY_AT] == theirs[:BODY_AT]


def topic_of(record: memoryview, offset: int) -> str:
    """Return the topic of a record; that of self tests if it is damaged."""
    found = check_record(record, 0, offset, check_crc=False)
    return found.topic if isinstance(found, ScannedRecord) else SELF_TEST_TOPIC


class Common(NamedTuple):
    """Says how much of a log its master has, too: all up to the record at `offset`, -1 for nothing.

    With `whole` that is all there is, and the log can go on where it ends.
    """

    offset: int
    whole: bool
    master: Bounds


async def find_common(
    log: OwnLog,
    master: MasterLog,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Common:
    """Find the last record of a stopped store that its master has, too.

    Searches by halves, first the files, then the records of one file. So it asks 40 times at most.
    Raises what `MasterLog` raises.
    """
    asked = 0

    async def is_common(file: MappedFile, offset: int) -> bool:
        nonlocal asked
        own = log.record(file, offset)
        theirs = await master.bytes_at(offset, topic_of(own, offset))
        asked += 1
        progress(min(asked, _MOST_QUESTIONS), _MOST_QUESTIONS)
        # Nothing less than all bytes: the master sends again any records that are cut off too early.
        return theirs is not None and own == theirs

    async def begins_alike(file: MappedFile) -> bool:
        first = log.first(file)
        return first >= 0 and await is_common(file, first)

    bounds = await master.bounds()
    if log.last < 0:
        return Common(-1, True, bounds)
    if log.end == bounds.begin:
        # The master has deleted what could be compared, and has all that follows.
        return Common(log.last, True, bounds)
    files = [file for file in log.files if file.base >= bounds.begin]
    count = await _count(len(files), lambda index: begins_alike(files[index]))
    if not count:
        return Common(-1, False, bounds)
    file = files[count - 1]
    starts = log.starts(file)
    number = await _count(len(starts), lambda index: is_common(file, int(starts[index])))
    offset = int(starts[number - 1])
    if offset != log.last:
        return Common(offset, False, bounds)
    if log.blank < 0:
        return Common(offset, True, bounds)
    behind = await master.bytes_at(log.blank, topic_of(log.record(file, offset), offset))
    is_whole = (behind is None or is_blank(behind)) and bounds.end >= log.end
    return Common(offset, is_whole, bounds)


async def _count(count: int, is_common: Callable[[int], Awaitable[bool]]) -> int:
    """Return how many of the first items are common, if those behind the first other are none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if await is_common(middle):
            low = middle + 1
        else:
            high = middle
    return low
