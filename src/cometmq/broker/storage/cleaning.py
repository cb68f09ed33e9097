"""Clean the store at intervals and when operators ask for it: codes 306, 316 and 329 (Java:
CleanCommitLogService, AdminBrokerProcessor).
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Final

from cometmq.broker.topics.topics import TopicManager
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers
from cometmq.store.retention.cleaner import Work
from cometmq.store.store import MessageStore

log = get_logger(__name__)

_FIRST_RUN_S: Final = 60.0


class CleaningTimer:
    """Runs the store's cleaner every cleanResourceInterval; files are deleted beside the loop.

    For the loop's thread only.
    """

    def __init__(self, store: MessageStore, tasks: TaskOwner, workers: Workers) -> None:
        self._store = store
        self._tasks = tasks
        self._executor = workers.worker("clean-store")

    def start(self) -> None:
        self._store.cleaner.say_surprises()
        # Java waits a minute; a disk that is full at the start should be known sooner.
        first_s = min(_FIRST_RUN_S, self._period_s())
        self._tasks.every(self._period_s, self.run, "clean-store", first_s=first_s)

    def _period_s(self) -> float:
        return self._store.config.clean_resource_interval / 1000

    async def run(self) -> None:
        """One run of the cleaner."""
        await self.work_off(self._store.cleaner.run())

    async def work_off(self, steps: Generator[Work, None, None]) -> None:
        """Do the store's work, step after step, beside the loop. Raises what a step raises; those
        behind it are then not done.
        """
        loop = asyncio.get_running_loop()
        with closing(steps):
            for work in steps:
                if work.pause_ms:
                    await asyncio.sleep(work.pause_ms / 1000)
                await loop.run_in_executor(self._executor, work.do)

    def close(self) -> None:
        """Wait for the deletion under way; the timer ends with its task."""
        self._executor.shutdown(wait=True)


class CleaningHandlers:
    """Serves the requests by which operators have the store cleaned at once."""

    def __init__(self, store: MessageStore, topics: TopicManager, timer: CleaningTimer) -> None:
        self._store = store
        self._topics = topics
        self._timer = timer

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.DELETE_EXPIRED_COMMITLOG, self.delete_expired_commit_log)
        handlers.register(requests.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_expired_consume_queue)
        handlers.register(requests.CLEAN_UNUSED_TOPIC, self.clean_unused_topic)

    def delete_expired_commit_log(
        self, connection: Connection, _: Request[NoHeader]
    ) -> RemotingCommand:
        """Delete expired files in the next runs of the cleaner, whatever the hour."""
        log.info("deletion of expired files was asked for", peer=connection.peer)
        self._store.cleaner.delete_manually()
        return response(ResponseCode.SUCCESS)

    async def clean_expired_consume_queue(
        self, connection: Connection, _: Request[NoHeader]
    ) -> RemotingCommand:
        """Remove queues without messages; the queues of topics that exist keep their offsets."""
        topics: set[str] = set()

        def forgotten(topic: str) -> None:
            topics.add(topic)
            self._topics.queues_removed(topic)

        await self._timer.work_off(self._store.removal_of_lost_queues(self._is_retained, forgotten))
        self._log(connection, topics)
        return response(ResponseCode.SUCCESS)

    async def clean_unused_topic(
        self, connection: Connection, _: Request[NoHeader]
    ) -> RemotingCommand:
        """Remove the queues of topics that have no configuration."""
        unused = {topic for topic in self._store.topics() if not self._is_retained(topic)}
        for topic in unused:
            self._topics.queues_removed(topic)
        await self._timer.work_off(self._store.deletion(unused))
        self._log(connection, unused)
        return response(ResponseCode.SUCCESS)

    def _is_retained(self, topic: str) -> bool:
        """Say whether a topic exists, or the broker itself may need it again.

        Light queues have no configuration; Java keeps them, too.
        """
        return (
            topic in self._topics.table.topic_config_table
            or names.is_system_topic(topic)
            or topic.startswith(names.LMQ_PREFIX)
        )

    def _log(self, connection: Connection, topics: Iterable[str]) -> None:
        log.info("queues removed on request", peer=connection.peer, topics=sorted(topics))
