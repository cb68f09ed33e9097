"""Serve sends and replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cometmq.broker.delays.put import MessagePut
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.parts import Parts, Service
from cometmq.broker.replication.copies import NeededCopies
from cometmq.broker.retries.retry import RetryHandler
from cometmq.broker.sends.reply import ReplyHandler
from cometmq.broker.sends.send import SendHandler
from cometmq.broker.storage.group_commit import DiskLine, GroupCommit, SlaveLine
from cometmq.model.topic import TopicConfig


class Sends(Service):
    """Serves sends and replies.

    `put_half` stores half messages; `announced` returns when name servers know all topics. With
    `copies` sends wait for slaves, with `group_commit` for the disk.
    """

    runs_on_slave = False

    def __init__(
        self,
        parts: Parts,
        put: MessagePut,
        put_half: Callable[[IncomingMessage], tuple[int, int]],
        retry: RetryHandler,
        announced: Callable[[], Awaitable[None]],
        copies: NeededCopies | None = None,
        group_commit: GroupCommit | None = None,
    ) -> None:
        self._parts = parts
        self._group_commit = group_commit
        self._handler = SendHandler(
            parts,
            put,
            put_half,
            retry,
            announced,
            self._group_commit,
            None if copies is None else copies.check,
        )

    @property
    def waiting_count(self) -> int:
        """How many sends wait for the disk or for slaves."""
        return 0 if self._group_commit is None else self._group_commit.waiting_count

    def close(self) -> None:
        """End the thread."""
        self._handler.large_batches.close()

    async def open(self) -> None:
        parts, handler = self._parts, self._handler
        parts.topics.on_change.append(self._topics_changed)
        parts.topics.on_remove.append(handler.topic_changed)
        handler.register(parts.handlers)
        ReplyHandler(parts, handler).register(parts.handlers)

    def _topics_changed(self, topics: list[TopicConfig]) -> None:
        for topic in topics:
            self._handler.topic_changed(topic.topic_name)


def group_commit(parts: Parts, copies: NeededCopies | None) -> GroupCommit | None:
    """Create the lines in which answers wait until messages are safe; None if they do not wait."""
    config = parts.store.config
    disk = slaves = None
    if config.flush_disk_type == "SYNC_FLUSH":
        disk = DiskLine(parts.flusher, lambda: config.sync_flush_timeout / 1000, parts.tasks)
    if copies is not None:
        slaves = SlaveLine(copies)
    return None if disk is None and slaves is None else GroupCommit(disk, slaves)
