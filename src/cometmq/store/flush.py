"""Sync the store's files and note how far each part is on disk (Java: FlushRealTimeService,
GroupCommitService, FlushConsumeQueueService).

The methods block in fdatasync, so a broker calls them from an executor, one call at a time, while
its loop thread appends. Each method reads the positions first, then syncs, then publishes them:
messages appended meanwhile belong to the next call.
"""

from __future__ import annotations

from cometmq.store.checkpoint import Checkpoint
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.queue_table import QueueTable


class Flusher:
    """Flushes one store. Errors of the disk are StoreErrors. After one the caller must stop
    writing, because the kernel drops the pages it could not write and reports that only once.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, checkpoint: Checkpoint) -> None:
        self._log = log
        self._queues = queues
        self._checkpoint = checkpoint

    @property
    def flushed_offset(self) -> int:
        """Everything in the commit log below this offset is on disk."""
        return self._log.files.flushed

    def flush_commit_log(self, least_pages: int = 0) -> int:
        """Sync the log if at least `least_pages` pages of 4096 bytes wait (0: any byte).

        Returns the flushed offset.
        """
        # Timestamp before position: a message appended between the two reads is flushed although
        # the checkpoint does not vouch for it; the other way round would be wrong.
        timestamp = self._log.readable_timestamp
        written = self._log.readable_end
        if self._log.files.flush(written, least_pages):
            self._checkpoint.physic_msg_timestamp = timestamp
        return self._log.files.flushed

    def flush_consume_queues(self, least_pages: int = 0) -> None:
        """Sync the queues of which at least `least_pages` pages wait.

        With 0 sync all of them, and then the checkpoint.
        """
        timestamp = self._log.dispatched_timestamp
        self._queues.flush(least_pages)
        if least_pages == 0:
            self._checkpoint.logics_msg_timestamp = timestamp
            self._note_begin()
            self._checkpoint.flush()

    def _note_begin(self) -> None:
        # Only when the first file is on disk: a loss of power could take it without any message.
        files = self._log.files
        if self._checkpoint.log_begins is None and files.flushed > files.min_offset:
            self._checkpoint.log_begins = files.min_offset

    @property
    def checkpoint_is_due(self) -> bool:
        return self._checkpoint.is_changed

    def flush_checkpoint(self) -> None:
        """Write the checkpoint, unless the file has its values already."""
        self._note_begin()
        self._checkpoint.flush_if_changed()

    def flush_all(self) -> None:
        """Flush log, queues and checkpoint, the log first: the checkpoint must never vouch for
        messages that the log does not have.
        """
        self.flush_commit_log()
        self.flush_consume_queues()
