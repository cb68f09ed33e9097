"""Keep the checkpoint: the store time up to which each part is on disk (Java: StoreCheckpoint).

The file has 4096 bytes, of which these are used:

offset  size    field
0       8       store timestamp of the last flushed message of the commit log
8       8       … of the last message whose consume-queue unit is flushed
16      8       … of the last message in a full index file
24      8       flushed offset of the master, 5.x
32      8       confirmed offset, 5.x
256     8       "CometMQ1", where a broker of ours has written what follows
264     8       offset at which the log begins
272     16      the first two fields again: if they differ, Java's broker has written since

The beginning of the log is updated when retention is about to delete the first file, so a log that
begins later has lost a file in another way.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Final

from cometmq.store.files.disk import Disk

SIZE: Final = 4096
_FIELDS: Final = struct.Struct(">qqqqq")
_NOTE_AT: Final = 256
_NOTE: Final = struct.Struct(">8sqqq")
_MARK: Final = b"CometMQ1"
# Subtracted for safety: a timestamp is taken when a flush begins, and clocks are coarse.
_MARGIN_MS: Final = 3000


class Checkpoint:
    """Holds the file's values. A missing or short file reads as zeros: then nothing is trusted."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._written = b""
        # Bytes that other brokers may keep between the fields and our note.
        self._between = bytes(_NOTE_AT - _FIELDS.size)
        self._writing = threading.Lock()
        # Where the log begins, None if it is not known.
        self.log_begins: int | None = None
        self.physic_msg_timestamp = 0
        self.logics_msg_timestamp = 0
        self.index_msg_timestamp = 0
        self.master_flushed_offset = 0
        self.confirm_physical_offset = 0

    def load(self) -> None:
        """Read the file, and make sure that it can be written later even on a full disk."""
        self.read()
        self.flush()

    def read(self) -> None:
        """Read the file, changing nothing on disk."""
        size = self._disk.size(self._path)
        data = self._disk.read(self._path) if size is not None else b""
        if len(data) < _FIELDS.size:
            return
        (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        ) = _FIELDS.unpack_from(data)
        if len(data) < _NOTE_AT + _NOTE.size:
            return
        self._between = data[_FIELDS.size : _NOTE_AT]
        mark, begins, *times = _NOTE.unpack_from(data, _NOTE_AT)
        if mark == _MARK and times == [self.physic_msg_timestamp, self.logics_msg_timestamp]:
            self.log_begins = begins

    def flush(self) -> None:
        """Write the file and sync it. The fields lie in one sector, so a crash leaves either the
        old or the new values.
        """
        with self._writing:
            fields = self._packed()
            self._disk.overwrite(self._path, fields, SIZE)
            self._written = fields

    def note_begin(self, offset: int) -> None:
        """Write down that the log begins at an offset, before the earlier files are deleted."""
        if self.log_begins is None or self.log_begins < offset:
            self.log_begins = offset
            self.flush()

    @property
    def is_changed(self) -> bool:
        """Whether the file has other values."""
        return self._packed() != self._written

    def flush_if_changed(self) -> None:
        """Write the file as `flush` does, unless it has these values already."""
        if self.is_changed:
            self.flush()

    def _packed(self) -> bytes:
        physic, logics = self.physic_msg_timestamp, self.logics_msg_timestamp
        fields = _FIELDS.pack(
            physic,
            logics,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        note = bytes(_NOTE.size)
        if self.log_begins is not None:
            note = _NOTE.pack(_MARK, self.log_begins, physic, logics)
        return fields + self._between + note

    @property
    def min_timestamp(self) -> int:
        """Store timestamp in ms: older messages are on disk in the log and in consume queues."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _MARGIN_MS)
