"""Write histories and stores by hand, for tests of what the checker says of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

from tests.simulation.checker import check
from tests.simulation.evidence import StoreImage, Violation
from tests.simulation.history import (
    AnyEvent,
    BrokerConfigured,
    Consumed,
    Delivered,
    FaultInjected,
    Filter,
    Flush,
    GroupConfigured,
    History,
    Outgoing,
    Queue,
    RunEnded,
    SendAcknowledged,
    SendStarted,
    Verdict,
)
from tests.simulation.store_reader import PLACEHOLDER_SIZE, index_hash, java_hash

BROKER: Final = "broker-a"
TOPIC: Final = "orders"
GROUP: Final = "g"
QUEUE: Final = Queue(TOPIC, BROKER, 0)
EPOCH_MS: Final = 1_700_000_000_000
LEVELS_MS: Final = (1000, 5000, 10_000, 30_000, 60_000)
_FILE_SIZE: Final = 64 * 1024
_SLOTS: Final = 500


class MadeStore:
    """Lay records into a commit log and their units into consume queues."""

    def __init__(self) -> None:
        self._log = bytearray()
        self._queues: dict[tuple[str, int], bytearray] = {}
        self._keys: list[tuple[str, int]] = []
        self.files: dict[str, bytes] = {}

    def add(
        self,
        message: Outgoing,
        *,
        topic: str = TOPIC,
        queue_id: int = 0,
        offset: int | None = None,
        store_ms: int = EPOCH_MS,
        reconsume_times: int = 0,
        sys_flag: int = 0,
        tags_code: int | None = None,
        body: bytes | None = None,
        has_unit: bool = True,
        is_indexed: bool = True,
        **properties: str,
    ) -> int:
        """Add the record of a message; return its position. By default its offset is the next one."""
        units = self._queues.setdefault((topic, queue_id), bytearray())
        offset = len(units) // 20 if offset is None else offset
        position = len(self._log)
        data = _record(
            message.body if body is None else body,
            topic,
            {**sent_properties(message), **properties},
            (queue_id, offset, position, sys_flag, store_ms, reconsume_times),
        )
        self._log += data
        if is_indexed:
            keys = (f"ID{message.number}", *message.keys)
            self._keys += [(f"{topic}#{key}", position) for key in keys]
        if has_unit:
            code = java_hash(message.tags or "") if tags_code is None else tags_code
            start = offset * 20
            while len(units) < start + 20:
                units += struct.pack(">qiq", 0, PLACEHOLDER_SIZE, 0)
            units[start : start + 20] = struct.pack(">qiq", position, len(data), code)
        return position

    def image(self, state: Any = "running") -> StoreImage:
        files = dict(self.files)
        files[f"commitlog/{0:020}"] = bytes(self._log).ljust(_FILE_SIZE, b"\0")
        for (topic, queue_id), units in self._queues.items():
            files[f"consumequeue/{topic}/{queue_id}/{0:020}"] = bytes(units).ljust(2000, b"\0")
        files["index/20231114221322501"] = self._index()
        return StoreImage(files=files, state=state)

    def _index(self) -> bytes:
        slots = [0] * _SLOTS
        entries = bytearray(20)
        for number, (text, position) in enumerate(self._keys, 1):
            key_hash = index_hash(text)
            slot = key_hash % _SLOTS
            entries += struct.pack(">iqii", key_hash, position, 0, slots[slot])
            slots[slot] = number
        header = struct.pack(
            ">qqqqii", EPOCH_MS, EPOCH_MS, 0, len(self._log), 0, len(self._keys) + 1
        )
        return header + struct.pack(f">{_SLOTS}i", *slots) + entries


def _record(
    body: bytes,
    topic: str,
    properties: Mapping[str, str],
    fields: tuple[int, int, int, int, int, int],
) -> bytes:
    queue_id, offset, position, sys_flag, store_ms, reconsume_times = fields
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    size = 91 + len(body) + len(topic) + len(encoded)
    return b"".join(
        (
            struct.pack(
                ">IIIiIqqi",
                size,
                0xDAA320A7,
                zlib.crc32(body) & 0x7FFFFFFF,
                queue_id,
                0,
                offset,
                position,
                sys_flag,
            ),
            struct.pack(">q8sq8s", EPOCH_MS, bytes(8), store_ms, bytes(8)),
            struct.pack(">iqi", reconsume_times, 0, len(body)),
            body,
            bytes([len(topic)]),
            topic.encode(),
            struct.pack(">H", len(encoded)),
            encoded,
        )
    )


def sent_properties(message: Outgoing) -> dict[str, str]:
    properties = {**message.user_properties, "UNIQ_KEY": f"ID{message.number}"}
    if message.tags is not None:
        properties["TAGS"] = message.tags
    if message.keys:
        properties["KEYS"] = " ".join(message.keys)
    return properties


def offset_msg_id(position: int) -> str:
    return f"7F00000100002A9F{position:016X}"


class Story:
    """Write a run with one broker, one topic and one group; time goes on by a second for each event."""

    def __init__(
        self,
        flush: Flush = "SYNC_FLUSH",
        *,
        max_reconsume_times: int = 2,
        **group: Any,
    ) -> None:
        self.now_s = 0.0
        self.events: list[AnyEvent] = []
        self.store = MadeStore()
        self.messages: dict[int, Outgoing] = {}
        self._deliveries = 0
        self.record(BrokerConfigured, broker=BROKER, flush=flush, delay_levels_ms=LEVELS_MS)
        self.record(
            GroupConfigured,
            group=GROUP,
            topic=TOPIC,
            max_reconsume_times=max_reconsume_times,
            **{"filter": Filter(), **group},
        )

    def record(self, kind: Any, **fields: Any) -> Any:
        self.now_s += 1
        event = kind(at_s=self.now_s, node="app", **fields)
        self.events.append(event)
        return event

    def message(self, number: int, **fields: Any) -> Outgoing:
        made = Outgoing(number=number, **{"body": b"body %d" % number, **fields})
        self.messages[number] = made
        return made

    def start(self, number: int, *, is_transaction: bool = False, **fields: Any) -> Outgoing:
        made = self.message(number, **fields)
        self.record(
            SendStarted, send=number, topic=TOPIC, messages=(made,), is_transaction=is_transaction
        )
        return made

    def acknowledge(
        self,
        number: int,
        offset: int,
        position: int | None,
        status: Any = "SEND_OK",
        queue: Queue = QUEUE,
    ) -> SendAcknowledged:
        acknowledged: SendAcknowledged = self.record(
            SendAcknowledged,
            send=number,
            status=status,
            queue=queue,
            offset=offset,
            offset_msg_ids=() if position is None else (offset_msg_id(position),),
        )
        return acknowledged

    def send(self, number: int, *, is_indexed: bool = True, **fields: Any) -> int:
        """Send, store and acknowledge a message; return its offset."""
        made = self.start(number, **fields)
        offset = number
        position = self.store.add(made, offset=offset, is_indexed=is_indexed)
        self.acknowledge(number, offset, position)
        return offset

    def deliver(
        self,
        number: int,
        verdict: Verdict | None = "success",
        *,
        times: int = 0,
        queue: Queue | None = None,
        offset: int | None = None,
        **changed: Any,
    ) -> Delivered:
        """Deliver a message and consume it; without a verdict its listener never ends."""
        self._deliveries += 1
        is_retry = times > 0 and queue is None
        queue = Queue(f"%RETRY%{GROUP}", BROKER, 0) if is_retry else queue or QUEUE
        message = self.messages[number]
        fields: dict[str, Any] = {
            "member": "m",
            "group": GROUP,
            "topic": TOPIC,
            "body": message.body,
            "properties": sent_properties(message),
            "store_ms": EPOCH_MS,
            **changed,
        }
        delivered: Delivered = self.record(
            Delivered,
            delivery=self._deliveries,
            queue=queue,
            offset=number if offset is None else offset,
            reconsume_times=times,
            **fields,
        )
        if verdict is not None:
            self.record(Consumed, delivery=self._deliveries, verdict=verdict)
        return delivered

    def fault(self, name: str, node: str = BROKER, **args: Any) -> FaultInjected:
        injected: FaultInjected = self.record(FaultInjected, name=name, args={"node": node, **args})
        return injected

    def end(self, *, live: bool = False) -> None:
        self.record(RunEnded, live=live)

    def judged(
        self, state: Any = "running", others: Mapping[str, MadeStore] | None = None
    ) -> list[Violation]:
        """Return what the checker finds; `others` are the stores of further brokers."""
        history = History(self.events)
        # What is judged has been written to a file and read.
        again = History.from_lines(history.lines())
        assert again.events == history.events
        images = {name: store.image(state) for name, store in (others or {}).items()}
        return check(again, {BROKER: self.store.image(state), **images})
