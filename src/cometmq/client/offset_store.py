"""A group's offsets as its broker stores them (Java: RemoteBrokerOffsetStore)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError
from cometmq.model.queue import MessageQueue

log = structlog.get_logger(__name__)


class RemoteOffsetStore:
    """Offsets of the queues this member consumes; an offset is that of the next message to consume."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}

    def get(self, queue: MessageQueue) -> int | None:
        """What is known here, without asking the broker."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)

    async def fetch(self, queue: MessageQueue) -> int | None:
        """The offset stored at the broker, None if there is none. Raises RemotingError, RemoteError."""
        address = self._instance.need_master(queue.broker_name, queue.topic)
        offset = await self._instance.brokers.query_consumer_offset(address, self._group, queue)
        if offset is not None:
            self._offsets[queue] = offset
        return offset

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets and wait for the broker; failures are logged, for nothing is lost but
        time: what was not stored is consumed again."""
        await asyncio.gather(*(self._persist(queue) for queue in queues))

    async def persist_oneway(self, queues: Iterable[MessageQueue]) -> None:
        """Send the offsets without waiting for an answer, as the periodic commit does."""
        for queue in queues:
            offset = self._offsets.get(queue)
            address = self._instance.routes.master_address(queue.broker_name)
            if offset is None or address is None:
                continue
            # A lost connection is being restored already; connecting here would hold up the rest.
            if self._instance.remoting.connected(address) is not None:
                await self._instance.brokers.update_consumer_offset_oneway(
                    address, self._group, queue, offset
                )

    async def _persist(self, queue: MessageQueue) -> None:
        offset = self._offsets.get(queue)
        if offset is None:
            return
        try:
            address = self._instance.need_master(queue.broker_name, queue.topic)
            await self._instance.brokers.update_consumer_offset(address, self._group, queue, offset)
        except CometMQError as error:
            log.warning(
                "offset not committed",
                group=self._group,
                queue=str(queue),
                offset=offset,
                reason=str(error),
            )
