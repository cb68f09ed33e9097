"""Open a store with delayed messages and all that retries need, on a clock that a test sets."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from tests.unit.store.store_box import CLIENT, Box

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.delays.put import MessagePut
from cometmq.broker.delays.recall import RecallHandler
from cometmq.broker.delays.state import DelayState
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.retries.budget import RetryBudget
from cometmq.broker.retries.max_reconsume import RetryLimits
from cometmq.broker.retries.retry import RetryHandler
from cometmq.broker.topics.topics import TopicManager
from cometmq.errors import StoreError
from cometmq.model import properties as p
from cometmq.protocol.command import Request
from cometmq.protocol.frame import Frame
from cometmq.protocol.header import HeaderT
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.tasks import TaskOwner
from cometmq.store.store import MessageStore


def connection() -> Connection:
    """Return a connection that leads nowhere, of a client with a known address, for tests without a
    loop.
    """

    async def make() -> Connection:
        return Connection(Handlers(), TaskOwner("test"))

    made = asyncio.run(make())
    made.packed_peer = CLIENT
    return made


def request(code: int, header: HeaderT, version: int = 479) -> Request[HeaderT]:
    return Request(code=code, header=header, version=version, frame=Frame(0, b"", b""))


class DelayBox:
    """A store with delayed messages. `settings` are the store's. Times count from the clock's first
    value.
    """

    def __init__(self, root: Path, *, config: BrokerConfig | None = None, **settings: Any) -> None:
        self.box = Box(
            root,
            **{
                "mapped_file_size_commit_log": 256 * 1024,
                "mapped_file_size_consume_queue": 20 * 100,
                "message_delay_level": "1s 5s 10s 20s 30s",
                "message_index_enable": False,
            }
            | settings,
        )
        self.clock = self.box.clock
        self.start_ms = self.clock.value
        self.config = config or BrokerConfig(broker_name="b", broker_ip1="127.0.0.1")
        self.dues: list[int] = []
        self.topics = TopicManager(self.config, self.clock)
        self.groups = GroupManager(self.config, self.clock, lambda: None)
        self.open(None)

    def open(
        self, state: DelayState | None, java_timer_check: bytes = b"", **settings: Any
    ) -> None:
        self.store: MessageStore = self.box.open()
        self.delayed = DelayedMessages(
            self.store, self.config.timer_precision_ms, self.dues.append, **settings
        )
        self.delayed.open(state, self.clock.now_ms(), java_timer_check)
        self.putting = MessagePut(self.config, self.store, self.clock, self.delayed)
        self.sent_back: list[tuple[str, str]] = []
        self.pulled_bytes = 0
        self.retry = RetryHandler(
            self.config,
            self.store,
            self.topics,
            self.groups,
            self.putting,
            lambda _: False,
            RetryLimits(lambda _: ()),
            Randomness(1),
            lambda group, topic: self.sent_back.append((group, topic)),
            RetryBudget(lambda _group: self.pulled_bytes),
        )
        self.recall = RecallHandler(self.config, self.clock, self.topics, self.putting)

    def put(self, properties: dict[str, str], *, topic: str = "orders", **fields: Any) -> int:
        """Put a message, and return its commit-log offset."""
        properties = {p.UNIQ_CLIENT_MESSAGE_ID: "U1", **properties}
        fields = {"queue_id": 2, "body": b"body", "born_timestamp": 77, **fields}
        message = IncomingMessage(topic=topic, properties=properties, born_host=CLIENT, **fields)
        return self.putting.put(message)[1]

    def put_of_java_batch(self, own_id: str, batch_id: str) -> int:
        """Put a message as a Java master stores one of a batch; return its commit-log offset."""
        text = f"UNIQ_KEY\x01{own_id}\x02WAIT\x01true\x02UNIQ_KEY\x01{batch_id}\x02"
        entry = BatchEntry(0, b"body", text.encode())
        queue = self.store.queue("orders", 2)
        return self.store.append_batch(queue, [entry], [0], 77, CLIENT)[1][0]

    def run_at(self, after_ms: int) -> None:
        """Deliver the messages that are due `after_ms` after the start."""
        self.clock.value = self.start_ms + after_ms
        while self.delayed.run(self.clock.value, 100):
            pass

    def record(self, place: int) -> StoredRecord:
        data = self.store.record_at(place)
        assert data is not None
        return decode_record(data)

    def records(self, topic: str = "orders", queue_id: int = 2) -> list[StoredRecord]:
        queue = self.store.queue(topic, queue_id)
        units = [queue.unit(offset) for offset in range(queue.min_offset, queue.next_offset)]
        return [self.record(unit.physical_offset) for unit in units if unit is not None]

    def bodies(self, topic: str = "orders", queue_id: int = 2) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]


class Failing:
    """Fails the store's appends for bodies that `fails` names."""

    def __init__(self, delays: DelayBox, error: StoreError, *fails: bytes) -> None:
        self.fails = set(fails)
        append_copy = delays.store.append_copy

        def failing(origin: int, queue: Any, body: Any, *args: Any, **fields: Any) -> None:
            if bytes(body) in self.fails:
                raise error
            append_copy(origin, queue, body, *args, **fields)

        append_copies = delays.store.append_copies

        def stopping(places: Any, suffix: bytes = b"") -> int:
            bodies = [delays.record(place).body for place, _ in places]
            good = list(itertools.takewhile(lambda body: body not in self.fails, bodies))
            return append_copies(places[: len(good)], suffix)

        delays.store.append_copy = failing
        delays.store.append_copies = stopping
