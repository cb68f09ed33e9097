"""taskiq with its own worker over a virtual cluster: tasks run, are retried, delayed and given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from taskiq import SimpleRetryMiddleware
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from cometmq.errors import IllegalArgumentError
from cometmq.taskiq import RocketMQBroker


@asynccontextmanager
async def started(broker: RocketMQBroker, *, worker: bool = False) -> AsyncIterator[RocketMQBroker]:
    broker.is_worker_process = worker
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: RocketMQBroker, **options: Any) -> AsyncIterator[RocketMQBroker]:
    """Run taskiq's worker until the block ends."""
    async with started(broker, worker=True):
        finish = asyncio.Event()
        receiver = Receiver(broker, run_startup=False, max_async_tasks=10, **options)
        listening = asyncio.create_task(receiver.listen(finish))
        try:
            yield broker
        finally:
            finish.set()
            await listening


async def test_a_task_runs_once_in_one_of_two_workers_at_its_time(cometmq_cluster: Any) -> None:
    loop = asyncio.get_running_loop()
    ran: list[tuple[str, int, float]] = []
    workers = [RocketMQBroker(cometmq_cluster.namesrv) for _ in range(2)]

    for number, broker in enumerate(workers):

        @broker.task("charge")
        async def charge(order: str, number: int = number) -> None:
            ran.append((order, number, loop.time()))

    client = RocketMQBroker(cometmq_cluster.namesrv)

    @client.task("charge")
    async def charge_of_client(order: str) -> None: ...

    async with started(client):
        sent_at = loop.time()
        for number in range(20):
            await charge_of_client.kiq(f"O-{number}")
        await charge_of_client.kicker().with_labels(delay=30).kiq("later")
        async with working(workers[0]), working(workers[1]):
            await asyncio.sleep(120)
    orders = sorted(order for order, _, _ in ran)
    assert orders == sorted([*(f"O-{number}" for number in range(20)), "later"])
    [later] = [at for order, _, at in ran if order == "later"]
    assert 30 <= later - sent_at < 35


async def test_a_long_task_is_hidden_until_it_ends_and_no_longer_than_allowed(
    cometmq_cluster: Any,
) -> None:
    began: list[str] = []
    ended: list[str] = []
    broker = RocketMQBroker(cometmq_cluster.namesrv, invisible_ms=10_000, longest_task_ms=100_000)

    @broker.task("work")
    async def work(name: str, seconds: float) -> None:
        began.append(name)
        await asyncio.sleep(seconds)
        ended.append(name)

    async with working(broker):
        await work.kiq("long", 60)
        await asyncio.sleep(80)
        assert (began, ended) == (["long"], ["long"])
        await work.kiq("too long", 150)
        await asyncio.sleep(160)
    assert began == ["long", "too long", "too long"]


async def test_tasks_of_a_worker_that_stops_or_was_killed_run_in_another_one(
    cometmq_cluster: Any,
) -> None:
    namesrv = cometmq_cluster.namesrv
    first, second = (RocketMQBroker(namesrv, invisible_ms=30_000) for _ in range(2))
    ran: list[str] = []

    @second.task("work")
    async def work(name: str) -> None:
        ran.append(name)

    async with started(first, worker=True):
        await work.kicker().with_broker(first).kiq("taken")
        messages = first.listen()
        await anext(messages)
        await messages.aclose()
    async with working(second):
        await asyncio.sleep(5)
        assert ran == ["taken"]


async def test_a_task_that_fails_is_retried_by_taskiqs_middleware(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    tries: list[int] = []

    @broker.task("fail", retry_on_error=True)
    async def fail() -> None:
        tries.append(1)
        raise ValueError("the task's own error")

    async with working(broker):
        await fail.kiq()
        await asyncio.sleep(30)
    assert len(tries) == 3


@pytest.mark.parametrize("delay", ["soon", -1, float("nan"), float("inf")])
async def test_a_delay_that_is_none_is_refused_before_anything_is_sent(
    cometmq_cluster: Any, delay: Any
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)

    @broker.task("work")
    async def work() -> None: ...

    async with started(broker):
        with pytest.raises(SendTaskError) as raised:
            await work.kicker().with_labels(delay=delay).kiq()
        assert isinstance(raised.value.__cause__, IllegalArgumentError)
        assert "the label delay is" in str(raised.value.__cause__)
        assert await cometmq_cluster.messages("taskiq") == []
