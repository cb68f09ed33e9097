"""Append the bytes of a master's log to a slave's, one whole record after the other."""

from __future__ import annotations

from typing import Final

from cometmq.errors import StoreError
from cometmq.protocol.messages.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import HEAD, record_struct
from cometmq.store.log.commit_log import CommitLog

_GLANCE: Final = record_struct("size", "magic", "physical_offset")
# A record may be larger than this slave would take from a producer: the limit only keeps a master
# that lies about sizes from filling the memory.
_LEAST_LIMIT: Final = 64 * 1024 * 1024
_BEYOND_BODY: Final = 64 * 1024


class ReplicaLog:
    """Takes bytes in parts of any size, and gives the log whole records only.

    The log of a slave that is stopped or killed therefore ends behind a record. Half a record whose
    missing bytes read as zeros could look like a whole one to a recovery, since the checksum covers
    the body only. Of a record that has come in part, up to `maxMessageSize` and 64 KiB are kept in
    memory, at least 64 MiB. For the thread that owns the store.
    """

    __slots__ = ("_largest", "_log", "_start", "_tail")

    def __init__(self, commit_log: CommitLog, max_message_size: int) -> None:
        self._log = commit_log
        self._largest = max(max_message_size + _BEYOND_BODY, _LEAST_LIMIT)
        # The first bytes of a record whose rest has not come, and where they lie in the log.
        self._tail = bytearray()
        self._start = commit_log.end

    @property
    def end(self) -> int:
        """The offset from which on bytes are missing."""
        return self._start + len(self._tail) if self._tail else self._log.end

    def forget_part(self) -> None:
        """Forget the bytes of a record that has come in part."""
        self._tail.clear()

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes that lie at `offset` in the master's log.

        Raises StoreError if they do not continue this log or are no records, and what
        `CommitLog.append_bytes` raises. Then it takes none of them, unless a file cannot be made:
        it may have taken the bytes in front of that file, and `end` is the position of the first missing byte.
        """
        tail = self._tail
        if not tail:
            self._log.check_continues(offset, len(data))
            self._start = offset
            self._append(memoryview(data))
            return
        had = len(tail)
        if offset != self._start + had:
            raise StoreError(
                f"bytes of the commit-log offset {offset} do not continue this log, which ends at "
                f"{self._start + had}"
            )
        self._log.check_continues(self._start, had + len(data))
        view = memoryview(data)
        if had < HEAD.size:
            missing = HEAD.size - had
            head = bytes(tail) + bytes(view[:missing])
            if len(head) < HEAD.size:
                tail += view
                return
            size, _ = HEAD.unpack(head)
            self._check_head(head, self._start)
        else:
            size, _ = HEAD.unpack_from(tail)
        missing = size - had
        if len(view) < missing:
            tail += view
            return
        # The rest is looked at first, so that a fault there leaves all as it was.
        whole = self._whole(view, missing, self._start + size)
        first = bytes(tail) + bytes(view[:missing])
        self._check_place(first, 0, self._start)
        self._log.append_bytes(self._start, first)
        tail.clear()
        self._start += size
        self._keep(view, missing, whole)

    def _append(self, view: memoryview) -> None:
        self._keep(view, 0, self._whole(view, 0, self._start))

    def _keep(self, view: memoryview, begin: int, whole: int) -> None:
        """Give the log the records from `begin` up to `whole` of the view, and keep the bytes
        behind them.
        """
        if whole > begin:
            self._log.append_bytes(self._start, view[begin:whole])
            self._start += whole - begin
        self._tail += view[whole:]

    def _whole(self, view: memoryview, begin: int, offset: int) -> int:
        """Return where the last whole record ends, of those that begin at `begin` of the view.

        `offset` is the commit-log offset of the first. Raises StoreError if one is no record.
        """
        at, length = begin, len(view)
        shift = offset - begin
        glance_at, glance_size = _GLANCE.unpack_from, _GLANCE.size
        # Bytes behind the place where the file ends belong to no record.
        file_end = offset - offset % self._log.file_size + self._log.file_size - shift
        largest = self._largest
        while at + glance_size <= length:
            size, magic, place = glance_at(view, at)
            if (
                (magic != MAGIC_V1 and magic != MAGIC_V2)  # noqa: PLR1714 - a tuple takes longer
                or not MIN_RECORD_SIZE <= size <= largest
                or place != at + shift
                or at + size > file_end
            ):
                self._check_head(view[at : at + HEAD.size], at + shift)
                if magic != MAGIC_BLANK:
                    raise self._no_record(at + shift)
            if at + size > length:
                return at
            at += size
        if at + HEAD.size <= length:
            # The first bytes of a record, or a blank at the very end of the file.
            self._check_head(view[at : at + HEAD.size], at + shift)
            size, magic = HEAD.unpack_from(view, at)
            if magic == MAGIC_BLANK and at + size <= length:
                at += size
        return at

    def _check_place(self, record: bytes, at: int, offset: int) -> None:
        """Raise StoreError if a whole record says that it belongs elsewhere."""
        _, magic = HEAD.unpack_from(record, at)
        if magic != MAGIC_BLANK and _GLANCE.unpack_from(record, at)[2] != offset:
            raise self._no_record(offset)

    def _check_head(self, head: bytes | memoryview, offset: int) -> None:
        """Raise StoreError unless these 8 bytes can begin a record, or a blank, at `offset`."""
        size, magic = HEAD.unpack(head)
        left = self._log.file_size - offset % self._log.file_size
        is_record = magic in (MAGIC_V1, MAGIC_V2) and size >= MIN_RECORD_SIZE
        is_blank = magic == MAGIC_BLANK and size == left
        if not (is_record or is_blank) or size > left:
            raise self._no_record(offset)
        if size > self._largest:
            raise StoreError(
                f"the record at the commit-log offset {offset} of the master has {size} bytes, the "
                f"limit here is {self._largest}: set maxMessageSize to that of the master"
            )

    def _no_record(self, offset: int) -> StoreError:
        return StoreError(
            f"no record begins at the commit-log offset {offset} of the master, or it leaves its "
            "file: mappedFileSizeCommitLog must be the same on both; if it is, `cometmq store "
            "check` shows what the master's log has there"
        )
