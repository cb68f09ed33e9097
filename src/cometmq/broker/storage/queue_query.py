"""Show the units of a consume queue: codes 321 and 354 (Java: AdminBrokerProcessor)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Final

from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.filtering.tags import tag_matcher
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.bodies.overview import CheckRocksdbCqWriteResult, ConsumeQueueData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.headers import (
    CheckRocksdbCqWriteProgressRequestHeader,
    QueryConsumeQueueRequestHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.consume_queue_ext import (
    MIN_UNIT_SIZE,
    ExtendedConsumeQueue,
    ExtUnit,
    offset_at,
)

_Test = Callable[[ExtUnit], bool]

# Units that are read at once; after them the loop may do other work.
_CHUNK: Final = 256


class QueueQuery:
    """Serves questions about single consume queues. For the loop's thread only."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._store = parts.store
        self._clients = parts.clients
        self._filters = parts.filters.manager
        self._long_answers = parts.long_answers

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.QUERY_CONSUME_QUEUE, self.query)
        handlers.register(requests.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, self.check_rocksdb)

    async def query(
        self, connection: Connection, call: Request[QueryConsumeQueueRequestHeader]
    ) -> RemotingCommand:
        """Return units as they lie on disk, both ends of the queue, and a group's subscription."""
        header = call.header
        queue = self._store.queues.find(header.topic, header.queue_id)
        if queue is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!"
            )
        low, end = queue.min_offset, queue.next_offset
        parts = [b'"maxQueueIndex":%d,"minQueueIndex":%d' % (end, low)]
        subscription = None
        if header.consumer_group is not None:
            subscription = self._subscription(header.consumer_group, header.topic)
            parts += self._selection(header, subscription)
        if not low <= header.index < end:
            # As in Java no refusal; here with both ends, which say where to look.
            remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
            return response(ResponseCode.SUCCESS, remark, body=b"{%b}" % b",".join(parts))
        async with self._long_answers.turn(connection):
            answer = LongAnswer(self._clock, self._config.max_frame_length, "ask for fewer units")
            test = None if subscription is None else self._test(header, subscription)
            await self._add_units(answer, header, test)
            body = await answer.body(b'{%b,"queueData":[' % b",".join(parts), b"]}")
        return response(ResponseCode.SUCCESS, body=body)

    def _subscription(self, group: str, topic: str) -> SubscriptionData | None:
        online = self._clients.consumer_group(group)
        return online.subscriptions.get(topic) if online is not None else None

    def _selection(
        self, header: QueryConsumeQueueRequestHeader, subscription: SubscriptionData | None
    ) -> list[bytes]:
        if subscription is None:
            offline = f"{header.consumer_group}@{header.topic} is not online!"
            return [b'"filterData":%b' % encode_body(offline)]
        # Java writes the word null for a subscription without an expression.
        data = self._filters.get(header.topic, header.consumer_group or "")
        return [
            b'"filterData":%b' % encode_body(encode_body(data).decode()),
            b'"subscriptionData":%b' % encode_body(subscription),
        ]

    def _test(
        self, header: QueryConsumeQueueRequestHeader, subscription: SubscriptionData
    ) -> _Test:
        """Return what the queue alone says of whether the group may want a message."""
        matches = tag_matcher(subscription)
        data = self._filters.get(header.topic, header.consumer_group or "")
        matches_ext = self._filters.ext_matcher(data) if data is not None else None
        return lambda unit: (
            (matches is None or matches(unit.tags_code))
            and (matches_ext is None or matches_ext(unit))
        )

    async def _add_units(
        self, answer: LongAnswer, header: QueryConsumeQueueRequestHeader, test: _Test | None
    ) -> None:
        offset, left = header.index, header.count
        while left > 0:
            # Looked up again for each chunk, because the queue may be deleted meanwhile.
            queue = self._store.queues.find(header.topic, header.queue_id)
            units = queue.stored_units(offset, min(left, _CHUNK)) if queue is not None else None
            chunk = list(units) if units is not None else []
            if not chunk or queue is None:
                return
            for place, size, code in chunk:
                comma = b"," if left < header.count else b""
                unit = _described(queue, place, size, code, test)
                await answer.write(comma + encode_body(unit))
                left -= 1
            offset += len(chunk)

    def check_rocksdb(
        self, _connection: Connection, _call: Request[CheckRocksdbCqWriteProgressRequestHeader]
    ) -> RemotingCommand:
        """Say that no copy of the queues in RocksDB lags behind: there is none.

        Java's broker without RocksDB says the same, but only in its log.
        """
        result = CheckRocksdbCqWriteResult("there is no RocksDB here, no need to check", 0)
        return response(ResponseCode.SUCCESS, body=encode_body(result))


def _described(
    queue: ConsumeQueue, place: int, size: int, code: int, test: _Test | None
) -> ConsumeQueueData:
    if offset_at(code) is None:
        return ConsumeQueueData(place, size, code)
    found = queue.ext.get(code) if isinstance(queue, ExtendedConsumeQueue) else None
    if found is None:
        return ConsumeQueueData(place, size, code, msg=f"Cq extend not exist!addr: {code}")
    # Java: the fields of CqExtUnit.
    extension = {
        "bitMapSize": len(found.bit_map),
        "filterBitMap": b64encode(found.bit_map).decode(),
        "msgStoreTime": found.store_timestamp,
        "size": MIN_UNIT_SIZE + len(found.bit_map),
        "tagsCode": found.tags_code,
    }
    return ConsumeQueueData(
        place,
        size,
        found.tags_code,
        extend_data_json=encode_body(extension).decode(),
        bit_map=_bits(found.bit_map) or None,
        eval=test is not None and test(found),
    )


def _bits(bit_map: bytes) -> str:
    """Return the bits, the last one first, in lines (Java: BitsArray.toString)."""
    digits = [f"{byte:08b}" + ("" if i % 8 else "\n") for i, byte in enumerate(bit_map)]
    return "".join(reversed(digits))
