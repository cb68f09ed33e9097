"""One queue's messages in order: what each verdict leads to, and how a queue is released."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.fakes import FakeInstance
from tests.waits import WAIT_S, until

from cometmq.client.consuming.listeners.consumption import Cause
from cometmq.client.consuming.listeners.orderly import OrderlyConsumption, committing_in_order
from cometmq.client.membership.offset_store import RemoteOffsetStore
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.errors import RemoteError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeReport, ConsumeResult

QUEUE = MessageQueue("t", "a", 0)


class Lock:
    valid = True


class Bench:
    """Returns `verdicts` one after the other (an exception is raised), then SUCCESS."""

    def __init__(self, fake: FakeInstance, **options: Any) -> None:
        self.offsets = RemoteOffsetStore(fake.instance, "g")
        self.lock = Lock()
        self.process_queue = ProcessQueue(QUEUE, self.lock)
        self.verdicts: list[Any] = []
        self.heard: list[list[int]] = []
        self.retired: list[int] = []
        self.broken = False
        self.hold: asyncio.Event | None = None
        settings = {"concurrency": 4, "batch_max_size": 1, "suspend_ms": 10, **options}
        self.consumption = OrderlyConsumption(
            "g", self._listen, committing_in_order(self.offsets), self._retire, **settings
        )

    def pulled(self, *offsets: int) -> list[MessageExt]:
        messages = [MessageExt("t", b"x", queue_offset=offset) for offset in offsets]
        self.process_queue.put(messages)
        self.consumption.submit(self.process_queue, messages)
        return messages

    async def _listen(self, messages: list[MessageExt]) -> Any:
        self.heard.append([message.queue_offset for message in messages])
        if self.hold is not None:
            await self.hold.wait()
        verdict = self.verdicts.pop(0) if self.verdicts else ConsumeResult.SUCCESS
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def _retire(self, message: MessageExt, _cause: Cause, _final: bool) -> None:
        if self.broken:
            raise RemoteError("not now", code=1)
        self.retired.append(message.queue_offset)


async def test_messages_come_one_after_the_other(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.pulled(5, 6)
    bench.pulled(7)
    await until(lambda: bench.offsets.get(QUEUE) == 8)
    assert bench.heard == [[5], [6], [7]]
    await bench.consumption.close(1)


@pytest.mark.parametrize(
    "verdict",
    [
        ConsumeResult.SUSPEND,
        ConsumeResult.RECONSUME_LATER,
        "no verdict",
        ValueError("x"),
        ConsumeReport(ConsumeResult.SUSPEND, suspend_current_queue_time_ms=10),
    ],
)
async def test_what_is_not_success_comes_again_before_the_rest(
    fake: FakeInstance, verdict: Any
) -> None:
    bench = Bench(fake)
    bench.verdicts = [ConsumeResult.SUCCESS, verdict, verdict]
    messages = bench.pulled(0, 1, 2)
    await until(lambda: bench.offsets.get(QUEUE) == 3)
    assert bench.heard == [[0], [1], [1], [1], [2]]
    assert [m.reconsume_times for m in messages] == [0, 2, 0]
    await bench.consumption.close(1)


async def test_a_message_without_chances_is_retired_and_the_queue_goes_on(
    fake: FakeInstance,
) -> None:
    bench = Bench(fake, max_reconsume_times=1)
    bench.verdicts = [ConsumeResult.SUSPEND] * 2
    bench.pulled(0, 1)
    await until(lambda: bench.offsets.get(QUEUE) == 2)
    assert bench.retired == [0]
    assert bench.heard == [[0], [0], [1]]
    await bench.consumption.close(1)


async def test_what_cannot_be_retired_is_tried_again(fake: FakeInstance) -> None:
    bench = Bench(fake, max_reconsume_times=0)
    bench.broken = True
    bench.verdicts = [ConsumeResult.SUSPEND] * 3
    bench.pulled(0, 1)
    await until(lambda: bench.offsets.get(QUEUE) == 2)
    assert bench.heard == [[0]] * 4 + [[1]]
    assert bench.retired == []
    await bench.consumption.close(1)


async def test_only_what_remains_of_a_batch_comes_again(fake: FakeInstance) -> None:
    bench = Bench(fake, batch_max_size=3, max_reconsume_times=2)
    bench.verdicts = [ConsumeResult.SUSPEND]
    messages = [MessageExt("t", b"x", queue_offset=offset) for offset in range(3)]
    messages[1].reconsume_times = 2
    bench.process_queue.put(messages)
    bench.consumption.submit(bench.process_queue, messages)
    await until(lambda: bench.offsets.get(QUEUE) == 3)
    assert bench.retired == [1]
    assert bench.heard == [[0, 1, 2], [0, 2]]
    await bench.consumption.close(1)


async def test_nothing_is_consumed_without_a_valid_lock(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.lock.valid = False
    bench.pulled(0)
    await asyncio.sleep(0.12)
    assert bench.heard == []
    bench.lock.valid = True
    await until(lambda: bench.heard == [[0]])
    await bench.consumption.close(1)


async def test_a_released_queue_waits_for_its_listener_and_counts_it(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.hold = asyncio.Event()
    bench.pulled(0, 1)
    await until(lambda: bench.heard)
    bench.process_queue.dropped = True
    releasing = asyncio.get_running_loop().create_task(
        bench.consumption.release(bench.process_queue)
    )
    await asyncio.sleep(0.02)
    assert not releasing.done()
    assert bench.consumption.busy(QUEUE)
    bench.hold.set()
    await releasing
    assert not bench.consumption.busy(QUEUE)
    assert bench.heard == [[0]]
    assert bench.offsets.get(QUEUE) == 1
    await bench.consumption.close(1)


async def test_the_outcome_of_a_forfeited_queue_does_not_count(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.hold = asyncio.Event()
    bench.pulled(0)
    await until(lambda: bench.heard)
    bench.process_queue.dropped = bench.process_queue.forfeited = True
    bench.hold.set()
    await bench.consumption.release(bench.process_queue)
    assert bench.offsets.get(QUEUE) is None
    await bench.consumption.close(1)


async def test_a_suspended_queue_is_released_at_once(fake: FakeInstance) -> None:
    bench = Bench(fake, suspend_ms=600_000)
    bench.verdicts = [ConsumeResult.SUSPEND]
    bench.pulled(0)
    await until(lambda: bench.heard)
    await asyncio.sleep(0.01)
    bench.process_queue.dropped = True
    async with asyncio.timeout(WAIT_S):
        await bench.consumption.release(bench.process_queue)
    await bench.consumption.close(1)


async def test_close_lets_the_running_listener_finish(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.hold = asyncio.Event()
    bench.pulled(0, 1)
    await until(lambda: bench.heard)
    asyncio.get_running_loop().call_later(0.02, bench.hold.set)
    await bench.consumption.close(60)
    assert bench.heard == [[0]]
    assert bench.offsets.get(QUEUE) == 1


async def test_a_queue_whose_listener_outlives_the_close_stays_busy(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.hold = asyncio.Event()
    bench.pulled(0)
    await until(lambda: bench.heard)
    await bench.consumption.close(0.01)
    assert bench.consumption.busy(QUEUE)
    assert bench.offsets.get(QUEUE) is None
