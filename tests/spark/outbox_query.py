"""Call the sink of a stream as Spark does, step by step and without a Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.spark.sink_rows import awaited_messages, by_key, make_topic

from cometmq.bulk.producer import BlockingBulkProducer, BulkProducer
from cometmq.bulk.sending import BulkSending, Parcel
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.outbox import Outbox, batch_unit
from cometmq.spark.sink.outbox_sending import QUIET_S, KeptPart, OutboxSending, commit_unit, decide
from cometmq.spark.sink.tasks import Place, keep_rows

KEYS = 5


class DiedError(Exception):
    """In place of a kill."""


class Dying(BlockingBulkProducer, of=BulkProducer):
    """Dies when so many parcels are sent, and acknowledged."""

    parcels = 0

    def put(self, sending: BulkSending, parcels: Iterable[Parcel]) -> None:
        """All of them, or as many as are left to it."""
        some = list(islice(parcels, self.parcels + 1))
        super().put(sending, some[: self.parcels])
        self.flush(sending)
        if len(some) > self.parcels:
            raise DiedError
        self.parcels -= len(some)


class OutboxQuery:
    """Calls a stream's sink as Spark does, step by step."""

    def __init__(
        self,
        namesrv: str,
        directory: Path,
        topic: str,
        brokers: tuple[str, ...] = ("broker-a", "broker-b"),
        quiet_s: float = QUIET_S,
        **options: Any,
    ) -> None:
        self.namesrv = namesrv
        self._quiet_s = quiet_s
        self.topic = topic
        self.given = {
            "namesrv": namesrv,
            "topic": topic,
            "delivery": "exactly-once",
            "checkpointLocation": str(directory / "checkpoint"),
            "batchBytes": "400",
            **{name: str(value) for name, value in options.items()},
        }
        self.options = SinkOptions(self.given, streaming=True)
        assert self.options.outbox is not None
        self.outbox = Outbox(self.options.outbox)
        make_topic(namesrv, topic, brokers)

    def tasks(self, batch_id: int, rows: int, owner: str = "query") -> list[KeptPart]:
        """Two tasks, each with the rows of its keys."""
        decided = self.outbox.latest()
        parts = []
        for partition in range(2):
            mine = [at for at in range(rows) if at % KEYS % 2 == partition]
            batch = pa.record_batch(
                {
                    "body": pa.array([f"{batch_id}-{at}" for at in mine], pa.string()),
                    "sharding_key": pa.array([f"K-{at % KEYS}" for at in mine], pa.string()),
                }
            )
            place = Place(owner, batch_unit(batch_id), partition, batch_id)
            parts.append(keep_rows(self.options, self.outbox, decided, place, iter([batch])))
        return parts

    def commit(self, batch_id: int, parts: list[KeptPart]) -> None:
        commit_unit(self.options, self.outbox, batch_unit(batch_id), parts, self._quiet_s)

    def die_behind(self, batch_id: int, parts: list[KeptPart], parcels: int) -> None:
        """The driver is gone when it has decided and sent so many parcels, or all there are."""
        parameters = self.options.connecting.parameters()
        unit = self.outbox.unit(batch_unit(batch_id))
        with self.outbox.lock(), Dying("dying", in_flight=4, **parameters) as producer:
            producer.parcels = parcels
            decision = unit.decision() or decide(self.options, producer, unit, parts)
            with suppress(DiedError):
                OutboxSending(self.options, producer, 0).run(unit, decision, resumed=False)

    def check(self, *batches: tuple[int, int]) -> None:
        """All rows of these batches are there once, in order by key."""
        expected = [f"{batch_id}-{at}" for batch_id, rows in batches for at in range(rows)]
        # A Java broker puts messages into their queues behind the answers.
        messages = awaited_messages(self.namesrv, self.topic, len(expected))
        assert Counter(m.body.decode() for m in messages) == Counter(expected)
        found = by_key(messages, lambda message: message.properties["__SHARDINGKEY"])
        for key, bodies in found.items():
            rows = [row for row in expected if f"K-{int(row.split('-')[1]) % KEYS}" == key]
            assert bodies == rows
