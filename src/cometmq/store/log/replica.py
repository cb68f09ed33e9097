"""Append the bytes of a master's log to a slave's, one whole record after the other."""

from __future__ import annotations

from cometmq.errors import StoreError
from cometmq.protocol.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.record_layout import HEAD
from cometmq.store.log.commit_log import CommitLog


class ReplicaLog:
    """Takes bytes in parts of any size, and gives the log whole records only.

    The log of a slave that is stopped or killed therefore ends behind a record: half a record whose
    missing bytes read as zeros may look like a whole one to a recovery, since the checksum covers
    the body only. For the thread that owns the store.
    """

    __slots__ = ("_log", "_start", "_tail")

    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        # The first bytes of a record whose rest has not come, and where they lie in the log.
        self._tail = bytearray()
        self._start = commit_log.end

    @property
    def end(self) -> int:
        """The offset from which on bytes are missing."""
        return self._start + len(self._tail) if self._tail else self._log.end

    def forget_unfinished(self) -> None:
        """Forget the bytes of a record whose rest has not come."""
        self._tail.clear()

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes that lie at `offset` in the master's log.

        Raises StoreError if they do not continue this log or are no records, and what
        `CommitLog.append_bytes` raises. They are then not taken.
        """
        tail = self._tail
        had = len(tail)
        if not had:
            self._log.check_continues(offset, len(data))
            self._start = offset
        elif offset != self._start + had:
            raise StoreError(
                f"bytes of the commit-log offset {offset} do not continue this log, which ends at "
                f"{self._start + had}"
            )
        tail += data
        try:
            whole = self._whole()
            if whole:
                self._log.append_bytes(self._start, bytes(tail[:whole]))
        except BaseException:
            del tail[had:]
            raise
        del tail[:whole]
        self._start += whole

    def _whole(self) -> int:
        """Return how many bytes of the tail are whole records, or blanks that end a file."""
        tail, at = self._tail, 0
        left = self._log.file_size - self._start % self._log.file_size
        while at + HEAD.size <= len(tail):
            size, magic = HEAD.unpack_from(tail, at)
            is_record = magic in (MAGIC_V1, MAGIC_V2) and size >= MIN_RECORD_SIZE
            is_blank = magic == MAGIC_BLANK and size == left - at
            if not (is_record or is_blank) or size > left - at:
                raise StoreError(
                    f"no record begins at the commit-log offset {self._start + at} of the master, "
                    "or it leaves its file: mappedFileSizeCommitLog must be the same on both; if "
                    "it is, `cometmq store check` tells what the master's log has there"
                )
            if at + size > len(tail):
                break
            at += size
        return at
