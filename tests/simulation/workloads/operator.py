"""Does what people and tools do beside producers and consumers: make topics, reset, read, look."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.simulation import history as h
from tests.simulation.workloads.recording import Sends, queue_of
from tests.simulation.workloads.stage import Stage

from cometmq.aio import AdminClient, Producer
from cometmq.bulk.range_pulls import Missing
from cometmq.bulk.range_reader import RangeReader
from cometmq.client.pulling.received import MAX_BODY_BYTES
from cometmq.errors import CometMQError, ProtocolError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, body_is_intact, decode_records

# How long a tool is given to do one thing; a fault may keep it from that.
_PATIENCE_S: Final = 120.0


class Operator:
    """Works on a node of its own. A step that a fault prevents stays undone."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    async def make_topic(self, topic: str, queues: int) -> None:
        """Make a topic at every broker, before there are faults."""
        async with self._admin() as admin:
            for broker in self._stage.cluster.nodes.brokers:
                await admin.topics.create(
                    topic, read_queues=queues, write_queues=queues, broker=broker
                )
                self._stage.record(
                    h.TopicCreated(
                        at_s=self._stage.at_s,
                        node=self._name,
                        topic=topic,
                        broker=broker,
                        queues=queues,
                    )
                )

    async def make_group(self, group: str, max_times: int) -> None:
        """Make a group at every broker, which counts the tries of those that pop."""
        async with self._admin() as admin:
            for broker in self._stage.cluster.nodes.brokers:
                await admin.groups.create(group, broker=broker, retry_max_times=max_times)

    async def reset(self, group: str, topic: str, timestamp_ms: int) -> None:
        """Have a group go on at a time."""
        asked = h.OffsetsReset(
            at_s=self._stage.at_s,
            node=self._name,
            group=group,
            topic=topic,
            timestamp_ms=timestamp_ms,
        )
        self._stage.record(asked)
        async with self._admin() as admin:
            offsets = await admin.offsets.reset_to_time(group, topic, timestamp_ms)
        self._stage.record(
            h.OffsetsReset(
                at_s=self._stage.at_s,
                node=self._name,
                group=group,
                topic=topic,
                offsets={str(queue_of(queue)): offset for queue, offset in offsets.items()},
                timestamp_ms=timestamp_ms,
                done=True,
            )
        )

    async def look(self, topic: str, groups: list[str]) -> None:
        """See where the queues of a topic end, and what the groups have committed."""
        async with self._admin() as admin:
            for group in groups:
                for seen in await admin.offsets.of_topic(topic, group):
                    queue = queue_of(seen.queue)
                    self._stage.record(
                        h.OffsetSeen(
                            at_s=self._stage.at_s,
                            node=self._name,
                            group=group,
                            queue=queue,
                            offset=seen.committed_offset,
                        )
                    )
                    self._stage.record(
                        h.QueueSeen(
                            at_s=self._stage.at_s,
                            node=self._name,
                            queue=queue,
                            min_offset=seen.min_offset,
                            max_offset=seen.max_offset,
                        )
                    )

    async def read(
        self, topic: str, rng: Random | None = None, slave: tuple[str, str] | None = None
    ) -> None:
        """Read all of a topic, or of each queue a range that `rng` draws.

        With a `slave` (a brokerName and an address) what that broker has is read there.
        """
        async with RangeReader(
            namesrv=self._stage.namesrv, instance_name=self._name, patience_ms=20_000
        ) as reader:
            if slave is not None:
                await self._read_at(reader, topic, slave)
                return
            bounds = await reader.offsets(await reader.queues(topic))
            for queue, whole in bounds.items():
                span = whole if rng is None else sorted(rng.randint(*whole) for _ in range(2))
                await self._read_range(reader, queue, *span)

    async def _read_at(self, reader: RangeReader, topic: str, slave: tuple[str, str]) -> None:
        """Read the queues of one broker as if its route named this server only."""
        broker, address = slave
        queues = [each for each in await reader.queues(topic) if each.broker_name == broker]
        routes = reader._running().routes
        with (
            patch.object(routes, "read_addresses", lambda *_: [address]),
            patch.object(routes, "master_address", lambda *_: None),
        ):
            for queue, (low, high) in (await reader.offsets(queues)).items():
                await self._read_range(reader, queue, low, high)

    async def intrude(self, topic: str, broker: str, address: str) -> None:
        """Send to the server at an address as if it were a broker's master: as a client may whose route
        is old, or that means no good.
        """
        producer = Producer(
            "intruders",
            namesrv=self._stage.namesrv,
            instance_name=f"{self._name}-intruder",
            retry_times=0,
        )
        async with producer:
            queue = MessageQueue(topic, broker, 0)
            number = self._stage.next_message()
            outgoing = h.Outgoing(number=number, body=f"intruder {number}".encode())
            routes = producer._running().routes
            with patch.object(routes, "master_address", lambda *_: address):
                sends = Sends(self._stage, self._name, set())
                await sends.send(producer, topic, outgoing, queue=queue)

    async def _read_range(
        self, reader: RangeReader, queue: MessageQueue, low: int, high: int
    ) -> None:
        found: list[h.Read] = []
        error = None
        try:
            async for chunk in reader.read(queue, low, high):
                records = decode_records(chunk.records)
                found += [_read(each) for each in records if each.queue_offset < high]
                # The bounds came from a server that lost the end of its log since; Spark's sources
                # raise then, too. What is missing for another reason is judged.
                if any(each.cause is Missing.BEYOND_THE_END for each in chunk.missing):
                    error = f"the queue ends before {high}"
        except CometMQError as raised:
            error = f"{type(raised).__name__}: {raised}"
        self._stage.record(
            h.RangeRead(
                at_s=self._stage.at_s,
                node=self._name,
                queue=queue_of(queue),
                begin=low,
                end=high,
                messages=tuple(found),
                error=error,
            )
        )

    async def attempt(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a work on the node, within a bounded time, as far as faults allow."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._stage.node(self._name).run_in(work)
        except (CometMQError, TimeoutError):
            pass

    async def insist(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a work on the node that must succeed: there are no faults."""
        await self._stage.node(self._name).run_in(work)

    def _admin(self) -> AdminClient:
        return AdminClient(namesrv=self._stage.namesrv)


def _read(record: StoredRecord) -> h.Read:
    if not body_is_intact(record):
        raise ProtocolError(f"the body at queue offset {record.queue_offset} is damaged")
    return h.Read(
        offset=record.queue_offset,
        topic=record.topic,
        body=bytes(decompress(record.body, record.sys_flag, max_length=MAX_BODY_BYTES)),
        properties=decode_properties(record.properties),
    )
