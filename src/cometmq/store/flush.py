"""What must go to disk, and up to where it has gone (Java: FlushRealTimeService, GroupCommitService,
FlushConsumeQueueService).

The methods block in fdatasync, so a broker calls them from an executor, one call at a time, while
its loop thread appends. Each reads the positions first, then syncs, then publishes: what is
appended meanwhile belongs to the next call.
"""

from __future__ import annotations

from cometmq.store.checkpoint import Checkpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.queue_table import QueueTable


class Flusher:
    """Flushes one store. Errors of the disk are StoreErrors; the caller must then stop writing,
    because the kernel drops the pages it could not write and says so only once.
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
        """Sync the log if so many pages of 4096 bytes wait (0: any byte); the flushed offset."""
        # Timestamp before position: a message between the two is then flushed, but not claimed.
        timestamp = self._log.readable_timestamp
        written = self._log.readable_end
        if self._log.files.flush(written, least_pages):
            self._checkpoint.physic_msg_timestamp = timestamp
        return self._log.files.flushed

    def flush_consume_queues(self, least_pages: int = 0) -> None:
        """Sync queues of which so many pages wait; with 0 all of them, and then the checkpoint."""
        timestamp = self._log.dispatched_timestamp
        self._queues.flush(least_pages)
        if least_pages == 0:
            self._checkpoint.logics_msg_timestamp = timestamp
            self._checkpoint.flush()

    def flush_checkpoint(self) -> None:
        """Write the checkpoint unless it is on disk as it stands."""
        self._checkpoint.flush_if_changed()

    def flush_all(self) -> None:
        """Everything, the log first: a checkpoint never speaks of what is not in the log."""
        self.flush_commit_log()
        self.flush_consume_queues()
