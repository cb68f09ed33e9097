"""Run a small shop on the cluster of `cometmq dev --sample`, so that there is something to look at.

Orders, payments and shipments go on coming, and most groups keep up with them. Then there is what an
operator looks for:

- `fraud-check` is slower than its topic: its lag rises and falls.
- `reporting` has no member: its lag only rises.
- `mailer` has dead letters, `returns-desk` retries.
- `payment-reminders` has messages that wait for their time, by levels and to the second.
- Of the transactions of `payments` some are rolled back and two wait for a verdict.
- `big-orders` selects by SQL92, `warehouse` consumes in order, `search-index` broadcasts.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from cometmq.admin.client import AdminClient
from cometmq.client.consuming.push_consumer import PushConsumer
from cometmq.client.producing.producer import Producer
from cometmq.client.producing.transaction_producer import TransactionProducer
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    MessageModel,
)
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner

# Queues on each broker.
TOPICS: Final = {
    "customer-events": 4,
    "notifications": 2,
    "orders": 4,
    "payment-reminders": 2,
    "payments": 2,
    "returns": 2,
    "shipments": 4,
}
_SKUS: Final = ("kettle", "tea-green-100g", "teapot-glass", "cup-set-4", "strainer", "honey-500g")
_CITIES: Final = ("Berlin", "Lyon", "Porto", "杭州", "Chennai", "Cork", "Kraków")
# Orders of the time before the shop was looked at: those that `reporting` saw, and those after it.
_BEFORE: Final = 60
_AFTER: Final = 240
_AT_ONCE: Final = 20
# Trade rises and falls in waves between 1 and 3 orders a second.
_PERIOD_S: Final = 0.5
_WAVE_S: Final = 120.0
# `fraud-check` takes so long for an order: it falls behind in the upper half of a wave.
_CHECK_S: Final = 0.5
_LETTERS: Final = 8
_LEVELS: Final = (5, 9, 14, 16, 17, 18)
_DELAY_MINUTES: Final = (3, 20, 45, 90, 600, 1440)
_UNDECIDED: Final = 2
_HOUR_S: Final = 3600


class _Payments:
    """Decides on transactions; those of the terminal stay undecided."""

    async def execute(
        self, _message: Message, verdict: LocalTransactionState, /
    ) -> LocalTransactionState:
        return verdict

    async def check(self, _message: MessageExt, /) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


class Sample:
    """Runs the shop until `close`; `filled` is set when its past is there. For the loop's thread only."""

    def __init__(self, namesrv: str, root: Path) -> None:
        self._namesrv = namesrv
        self._root = root
        self._tasks = TaskOwner("sample")
        self._clients = AsyncExitStack()
        self._draw = current().randomness
        self._order = 41_000
        self._web: Producer
        self._stock: Producer
        self._pays: TransactionProducer
        self.filled = asyncio.Event()

    def start(self) -> None:
        """Begin to fill the cluster. Returns at once; a failure is logged."""
        self._tasks.spawn(self._run(), "fill")

    async def close(self) -> None:
        """Close the shop and its clients. Idempotent."""
        await self._tasks.close()
        await self._clients.aclose()

    async def _run(self) -> None:
        async with AdminClient(self._namesrv) as admin:
            for topic, queues in TOPICS.items():
                await admin.topics.create(topic, read_queues=queues, write_queues=queues)
        self._web = await self._enter(self._producer("web-shop", enable_trace=True))
        self._stock = await self._enter(self._producer("warehouse-scanner"))
        self._pays = await self._enter(
            TransactionProducer("payment-gateway", _Payments(), namesrv=self._namesrv)
        )
        await self._past()
        await self._members()
        await self._trouble()
        self.filled.set()
        began_s = asyncio.get_running_loop().time()

        async def trade() -> None:
            wave = (asyncio.get_running_loop().time() - began_s) / _WAVE_S
            per_second = 2 + math.sin(wave * math.tau)
            for _ in range(math.floor(per_second * _PERIOD_S + self._draw.random())):
                await self._sell()
            if self._draw.random() < 1 / 8:
                await self._notify("mai@example.org")

        self._tasks.every(_PERIOD_S, trade, "trade")

    async def _past(self) -> None:
        await self._sell_many(_BEFORE)
        seen = asyncio.Event()

        async def report(_messages: list[MessageExt]) -> ConsumeResult:
            seen.set()
            return ConsumeResult.SUCCESS

        async with self._consumer("reporting", "orders", report):
            await seen.wait()
        await self._sell_many(_AFTER)

    async def _sell_many(self, count: int) -> None:
        for _ in range(0, count, _AT_ONCE):
            await asyncio.gather(*(self._sell() for _ in range(_AT_ONCE)))

    async def _members(self) -> None:
        # Not "billing": the programs of README and guides are members of that group.
        consumer = self._consumer
        for number in (1, 2):
            await self._enter(
                consumer(
                    "invoicing",
                    "orders",
                    _take,
                    instance_name=f"invoicing-{number}",
                    enable_trace=True,
                )
            )
            await self._enter(
                consumer(
                    "search-index",
                    "customer-events",
                    _take,
                    message_model=MessageModel.BROADCASTING,
                    local_offset_dir=str(self._root / str(number)),
                    instance_name=f"search-{number}",
                )
            )
        for group, topic, listener, options in (
            ("big-orders", "orders", _take, {"sql": "amount > 150"}),
            ("dispatch", "payments", _take, {"tags": "captured"}),
            ("fraud-check", "orders", _check_slowly, {"concurrency": 1}),
            ("mailer", "notifications", _mail, {"max_reconsume_times": 0}),
            ("returns-desk", "returns", _often_later, {}),
            ("warehouse", "shipments", _take, {"orderly": True}),
        ):
            await self._enter(consumer(group, topic, listener, instance_name=group, **options))

    async def _trouble(self) -> None:
        for _ in range(_LETTERS):
            await self._notify("not an address")
        for level in _LEVELS:
            await self._remind(delay_level=level)
        for minutes in _DELAY_MINUTES:
            await self._remind(delay_ms=minutes * 60_000)
        for _ in range(_UNDECIDED):
            # The broker asks its producer about it in an hour.
            later = {"CHECK_IMMUNITY_TIME_IN_SECONDS": str(_HOUR_S)}
            await self._pay(self._next_order(), LocalTransactionState.UNKNOWN, later)

    async def _sell(self) -> None:
        """Send the messages of one order."""
        draw = self._draw
        order, customer = self._next_order(), f"K-{draw.randrange(1000, 1400)}"
        lines = [
            {"sku": draw.choice(_SKUS), "count": draw.randint(1, 4)}
            for _ in range(draw.randint(1, 3))
        ]
        city, amount = draw.choice(_CITIES), draw.randint(8, 240)
        placed = {"order": order, "customer": customer, "amount": amount, "lines": lines}
        await self._send(
            self._web, "orders", placed, tags="placed", keys=[order, customer],
            properties={"city": city, "amount": str(amount)},
        )  # fmt: skip
        await self._send(self._web, "customer-events", {"customer": customer, "did": "buy"})
        if draw.random() < 0.8:
            decided = LocalTransactionState.COMMIT
            if draw.random() < 0.1:
                decided = LocalTransactionState.ROLLBACK
            await self._pay(order, decided)
        if draw.random() < 0.6:
            ships = {"order": order, "to": city, "carrier": draw.choice(("DHL", "SF", "UPS"))}
            await self._send(
                self._stock, "shipments", ships, key=order, tags="packed", keys=[order]
            )
        if draw.random() < 0.05:
            await self._send(self._stock, "returns", {"order": order}, keys=[order])

    async def _pay(
        self, order: str, verdict: LocalTransactionState, properties: dict[str, str] | None = None
    ) -> None:
        body = _json({"order": order, "amount": 18, "currency": "EUR"})
        message = Message("payments", body, tags="captured", keys=[order], properties=properties)
        await self._pays.send_in_transaction(message, verdict)

    async def _notify(self, address: str) -> None:
        customer = f"K-{self._draw.randrange(1000, 1400)}"
        body = {"customer": customer, "address": address, "template": "order-confirmed"}
        await self._send(self._web, "notifications", body, tags="mail", keys=[customer])

    async def _remind(self, **delay: Any) -> None:
        order = self._next_order()
        body = {"order": order, "reminder": "payment is open"}
        await self._send(self._web, "payment-reminders", body, keys=[order], **delay)

    async def _send(
        self,
        producer: Producer,
        topic: str,
        body: dict[str, Any],
        *,
        key: str | None = None,
        **more: Any,
    ) -> None:
        await producer.send(Message(topic, _json(body), **more), key=key)

    def _next_order(self) -> str:
        self._order += 1
        return f"O-{self._order}"

    def _producer(self, group: str, **options: Any) -> Producer:
        return Producer(group, namesrv=self._namesrv, **options)

    def _consumer(
        self,
        group: str,
        topic: str,
        listener: Any,
        *,
        tags: str = "*",
        sql: str | None = None,
        **options: Any,
    ) -> PushConsumer:
        made = PushConsumer(
            group,
            listener,
            namesrv=self._namesrv,
            consume_from=ConsumeFromWhere.FIRST_OFFSET,
            **options,
        )
        made.subscribe(topic, tags, sql=sql)
        return made

    async def _enter(self, client: Any) -> Any:
        return await self._clients.enter_async_context(client)


async def _take(_messages: list[MessageExt]) -> ConsumeResult:
    return ConsumeResult.SUCCESS


async def _check_slowly(_messages: list[MessageExt]) -> ConsumeResult:
    await asyncio.sleep(_CHECK_S)
    return ConsumeResult.SUCCESS


async def _mail(messages: list[MessageExt]) -> ConsumeResult:
    fails = any(b"not an address" in message.body for message in messages)
    return ConsumeResult.RECONSUME_LATER if fails else ConsumeResult.SUCCESS


async def _often_later(messages: list[MessageExt]) -> ConsumeResult:
    fails = any(message.reconsume_times < 2 for message in messages)
    return ConsumeResult.RECONSUME_LATER if fails else ConsumeResult.SUCCESS


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
