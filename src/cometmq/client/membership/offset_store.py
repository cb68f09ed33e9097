"""Where a consumer's offsets are kept (Java: RemoteBrokerOffsetStore, LocalFileOffsetStore)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from cometmq.client.instance import ClientInstance
from cometmq.client.membership.first_commits import FirstCommits
from cometmq.errors import CometMQError, IllegalArgumentError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.queue_table import decode_queue_table, encode_queue_table
from cometmq.runtime.json_file import JsonFile

log = structlog.get_logger(__name__)

# Java: the system property rocketmq.client.localOffsetStoreDir.
LOCAL_DIRECTORY_VARIABLE: Final = "ROCKETMQ_CLIENT_LOCAL_OFFSET_STORE_DIR"

# A commit that was sent so long ago has been served.
COMMIT_SERVED_S: Final = 0.5


class OffsetStore(Protocol):
    """Offsets of the queues this member consumes; an offset is that of the next message to consume."""

    def get(self, queue: MessageQueue) -> int | None:
        """What is known here, without asking anybody."""

    def pull_offset(self, queue: MessageQueue) -> int:
        """The offset that a pull may carry to the broker, 0 for none."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None: ...

    def remove(self, queue: MessageQueue) -> None:
        """Forget what is known here, as the queue is another member's now."""

    async def fetch(self, queue: MessageQueue) -> int | None:
        """The stored offset, None if there is none. Raises RemotingError, RemoteError."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets; failures are logged, for nothing is lost but time: what was not stored
        is consumed again."""

    async def persist_oneway(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets without waiting, as the periodic commit does."""


class RemoteOffsetStore:
    """At the brokers, for all members of a group.

    A Java broker serves the commits of one connection in different threads, and takes whichever offset
    comes last. So who waits for a commit waits first until the one that was sent a moment ago without
    waiting is served: it would set the offset back behind the hand-over of a queue. For the same
    reason the first commit for a topic is waited for, see FirstCommits.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._firsts = FirstCommits()
        # When commits were sent that nobody waits for, on the clock of the loop.
        self._oneway_at: dict[MessageQueue, float] = {}
        # Commits that failed, each said once: the next one comes in seconds.
        self._said: dict[MessageQueue, tuple[int, str]] = {}

    def get(self, queue: MessageQueue) -> int | None:
        """What is known here, without asking the broker."""
        return self._offsets.get(queue)

    def pull_offset(self, queue: MessageQueue) -> int:
        """What is known here, once the broker has a commit for the topic."""
        return self._offsets.get(queue, 0) if self._firsts.made(self._group, queue) else 0

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._said.pop(queue, None)

    async def fetch(self, queue: MessageQueue) -> int | None:
        """The offset stored at the broker, None if there is none. Raises RemotingError, RemoteError."""
        address = self._instance.need_master(queue.broker_name, queue.topic)
        offset = await self._instance.brokers.query_consumer_offset(address, self._group, queue)
        if offset is not None:
            self._offsets[queue] = offset
            if offset > 0:  # a Java broker also answers 0 when it has none
                self._firsts.found(self._group, queue)
        return offset

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets and wait for the broker; failures are logged, for nothing is lost but
        time: what was not stored is consumed again."""
        await asyncio.gather(*(self._persist(queue) for queue in queues))

    async def persist_oneway(self, queues: Iterable[MessageQueue]) -> None:
        """Send the offsets without waiting for an answer, as the periodic commit does.

        The first commit for a topic is waited for, because more of them may follow at once.
        """
        for queue in queues:
            offset = self._offsets.get(queue)
            address = self._instance.routes.master_address(queue.broker_name)
            if offset is None or address is None:
                continue
            # A lost connection is being restored already; connecting here would hold up the rest.
            if self._instance.remoting.connected(address) is None:
                continue
            if not self._firsts.made(self._group, queue):
                await self._persist(queue)
            else:
                self._oneway_at[queue] = asyncio.get_running_loop().time()
                await self._instance.brokers.update_consumer_offset_oneway(
                    address, self._group, queue, offset
                )

    async def _persist(self, queue: MessageQueue) -> None:
        sent_at = self._oneway_at.pop(queue, None)
        if sent_at is not None:
            rest_s = sent_at + COMMIT_SERVED_S - asyncio.get_running_loop().time()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
        if self._offsets.get(queue) is None:
            return
        try:
            await self._firsts.commit(self._group, queue, lambda: self._commit(queue))
        except CometMQError as error:
            offset = self._offsets.get(queue, 0)
            failure = (offset, str(error))
            say = log.debug if self._said.get(queue) == failure else log.warning
            self._said[queue] = failure
            say(
                "offset not committed",
                group=self._group,
                queue=str(queue),
                offset=offset,
                reason=str(error),
            )

    async def _commit(self, queue: MessageQueue) -> None:
        offset = self._offsets.get(queue)
        if offset is None:
            return
        address = self._instance.need_master(queue.broker_name, queue.topic)
        await self._instance.brokers.update_consumer_offset(address, self._group, queue, offset)
        self._said.pop(queue, None)


class LocalOffsetStore:
    """In a file of this client, for a broadcasting consumer: every member consumes everything.

    The file is `<directory>/<client id>/<group>/offsets.json`, with the previous one as `.bak`, as
    Java's client has it. Raises IllegalArgumentError for a client id that is no file name,
    ConfigError for a file that cannot be read.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        if "/" in client_id or client_id in (".", ".."):
            raise IllegalArgumentError(
                f"client id {client_id!r} cannot name a directory for the offsets; choose an "
                "instance_name and unit_name without slashes"
            )
        self._file = JsonFile(directory / client_id / group / "offsets.json")
        self._offsets: dict[MessageQueue, int] = self._file.read(_decode) or {}
        self._saved = dict(self._offsets)

    def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def pull_offset(self, _queue: MessageQueue) -> int:
        return 0

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def remove(self, queue: MessageQueue) -> None:
        """Nothing to forget: nobody else moves the offset."""

    async def fetch(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def persist(self, _queues: Iterable[MessageQueue]) -> None:
        if self._offsets == self._saved:
            return
        offsets = dict(self._offsets)
        try:
            await self._file.save(encode_queue_table("offsetTable", offsets).decode())
        except OSError as error:
            log.warning("offsets not saved", path=str(self._file.path), reason=str(error))
        else:
            self._saved = offsets

    async def persist_oneway(self, queues: Iterable[MessageQueue]) -> None:
        await self.persist(queues)


async def persist_periodically(offsets: OffsetStore, queues: Collection[MessageQueue]) -> None:
    """Store the offsets as a consumer does every few seconds, waiting for one answer per broker.

    A peer that is gone without a word is found by a call that gets no answer; pulls, which wait
    long by design, would find it half a minute later.
    """
    asked = {q.broker_name: q for q in queues if offsets.get(q) is not None}
    await offsets.persist_oneway([q for q in queues if asked.get(q.broker_name) != q])
    await offsets.persist(asked.values())


def local_directory(directory: str | os.PathLike[str] | None) -> Path:
    """Where offset files lie: as given, else as the environment says, else as Java's client."""
    if directory is not None and not isinstance(directory, str | os.PathLike):
        raise IllegalArgumentError(
            f"local_offset_dir is {directory!r:.80}, a {type(directory).__name__}; pass a path"
        )
    given: Any = directory or os.environ.get(LOCAL_DIRECTORY_VARIABLE)
    return Path(given) if given else Path.home() / ".rocketmq_offsets"


def _decode(text: str) -> dict[MessageQueue, int]:
    return decode_queue_table(text.encode(), "offsetTable", int)
