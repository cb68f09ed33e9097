"""Store a consumer's offsets (Java: RemoteBrokerOffsetStore, LocalFileOffsetStore)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from cometmq.client.instance import ClientInstance
from cometmq.client.membership.first_commits import FirstCommits
from cometmq.errors import CometMQError, IllegalArgumentError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.protocol.fastjson.queue_table import decode_queue_table, encode_queue_table
from cometmq.runtime.state_files.json_file import JsonFile

log = get_logger(__name__)

# Java: the system property rocketmq.client.localOffsetStoreDir.
LOCAL_DIRECTORY_VARIABLE: Final = "ROCKETMQ_CLIENT_LOCAL_OFFSET_STORE_DIR"

# A broker has served a commit that was sent this long ago.
COMMIT_SERVED_S: Final = 0.5


class NoOffsetAtSlaveError(RouteNotFoundError):
    """Says that a slave has no offset of the group, and that its master cannot be asked. `is_news` is
    False if the same was said before.
    """

    is_news = True


class OffsetStore(Protocol):
    """Keeps the offsets of this member's queues: for each, that of the next message to consume."""

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset known to this store, or None, without asking a broker."""

    def pull_offset(self, queue: MessageQueue) -> int:
        """Return the offset that a pull may carry to the broker, or 0 for none."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None: ...

    def remove(self, queue: MessageQueue) -> None:
        """Forget the queue's offset in memory, since another member consumes the queue now."""

    async def fetch(self, queue: MessageQueue) -> int | None:
        """Return the stored offset, or None if there is none. Raises RemotingError, RemoteError."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets. Logs a failure, which costs only time: messages above an offset that
        was not stored are consumed again.
        """

    async def persist_oneway(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets without waiting, as the periodic commit does."""


class RemoteOffsetStore:
    """Stores offsets at the brokers, for all members of a group: at a master, or at a slave while
    the master cannot be reached. Members commit again to the master when it is back, which
    overrides the offsets at its slave.

    A Java broker serves the commits of one connection in different threads, and keeps the offset
    that comes last. A one-way commit that was sent a moment ago could so set the offset back after
    a queue was handed over. Hence `persist` first waits until the broker has served it. For the
    same reason the store waits for the first commit for a topic, see FirstCommits.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._firsts = FirstCommits()
        # By queue, when its last one-way commit was sent, on the clock of the loop.
        self._oneway_at: dict[MessageQueue, float] = {}
        # The failures of commits that were logged. Each is logged once, since commits are frequent.
        self._said: dict[MessageQueue, tuple[int, str]] = {}
        # Brokers without an offset at the slave and with a master that could not be asked.
        self._unknown_at: set[str] = set()

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset known to this store, or None, without asking the broker."""
        return self._offsets.get(queue)

    def pull_offset(self, queue: MessageQueue) -> int:
        """Return the offset known to this store, or 0 before the first commit for the topic."""
        return self._offsets.get(queue, 0) if self._firsts.made(self._group, queue) else 0

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._said.pop(queue, None)

    async def fetch(self, queue: MessageQueue) -> int | None:
        """Return the broker's offset, None if it has none. Raises RemotingError, RemoteError.

        A slave copies offsets every few seconds, so a slave without an offset does not prove that
        there is none: then NoOffsetAtSlaveError is raised.
        """
        address = self._instance.need_reader(queue.broker_name, queue.topic)
        offset = await self._instance.brokers.query_consumer_offset(address, self._group, queue)
        master = self._instance.routes.master_address(queue.broker_name)
        if offset is None and address != master:
            error = NoOffsetAtSlaveError(
                f"the slave {address} has no offset of group {self._group} at {queue}, and the "
                f"master of {queue.broker_name}, which may have one, cannot be reached"
            )
            error.is_news = queue.broker_name not in self._unknown_at
            self._unknown_at.add(queue.broker_name)
            raise error
        self._unknown_at.discard(queue.broker_name)
        if offset is not None:
            self._offsets[queue] = offset
            if offset > 0:  # a Java broker also answers 0 when it has no offset
                self._firsts.found(self._group, queue)
        return offset

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets and wait for the broker. Logs a failure, which costs only time:
        messages above an offset that was not stored are consumed again.
        """
        await asyncio.gather(*(self._persist(queue) for queue in queues))

    async def persist_oneway(self, queues: Iterable[MessageQueue]) -> None:
        """Send the offsets without waiting for an answer, as the periodic commit does.

        Waits for the first commit for a topic, because more commits may follow at once.
        """
        for queue in queues:
            offset = self._offsets.get(queue)
            if offset is None or not self._instance.routes.read_addresses(queue.broker_name):
                continue
            address = self._instance.need_reader(queue.broker_name, queue.topic)
            # Heartbeats restore a lost connection; connecting here would hold up the other queues.
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
        address = self._instance.need_reader(queue.broker_name, queue.topic)
        await self._instance.brokers.update_consumer_offset(address, self._group, queue, offset)
        self._said.pop(queue, None)


class LocalOffsetStore:
    """Stores offsets in a file, for a broadcasting consumer, which consumes every queue.

    The file is `<directory>/<client id>/<group>/offsets.json`, with the previous one as `.bak`, as
    in Java's client. Raises IllegalArgumentError for a client id that is no file name, and
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
        """Keep the offset: no other member moves it."""

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
    """Store the offsets as a consumer does every few seconds, and wait for one answer per broker.

    The call that gets no answer reveals a broker that is gone without closing its connection.
    Pulls, which wait long by design, would reveal it half a minute later.
    """
    asked = {q.broker_name: q for q in queues if offsets.get(q) is not None}
    await offsets.persist_oneway([q for q in queues if asked.get(q.broker_name) != q])
    await offsets.persist(asked.values())


def local_directory(directory: str | os.PathLike[str] | None) -> Path:
    """Return the directory of offset files: the given one, else the environment's, else Java's."""
    if directory is not None and not isinstance(directory, str | os.PathLike):
        raise IllegalArgumentError(
            f"local_offset_dir is {directory!r:.80}, a {type(directory).__name__}; pass a path"
        )
    given: Any = directory or os.environ.get(LOCAL_DIRECTORY_VARIABLE)
    return Path(given) if given else Path.home() / ".rocketmq_offsets"


def _decode(text: str) -> dict[MessageQueue, int]:
    return decode_queue_table(text.encode(), "offsetTable", int)
