"""From a listener's verdict to offsets, send-backs and local retries."""

from __future__ import annotations

import asyncio

from tests.unit.client.fakes import FakeInstance, until

from cometmq.client.consumption import Consumption
from cometmq.client.offset_store import RemoteOffsetStore
from cometmq.client.process_queue import ProcessQueue
from cometmq.errors import RemoteError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeResult

QUEUE = MessageQueue("t", "a", 0)


class Bench:
    """A consumption whose listener refuses the messages in `bad`, and sends back unless `broken`."""

    def __init__(self, fake: FakeInstance, batch_max_size: int = 1) -> None:
        self.offsets = RemoteOffsetStore(fake.instance, "g")
        self.process_queue = ProcessQueue(QUEUE)
        self.bad: set[int] = set()
        self.broken = False
        self.drops = False  # the queue goes to another member while the listener runs
        self.heard: list[list[int]] = []
        self.sent_back: list[int] = []
        self.consumption = Consumption(
            "g",
            self._listen,
            self.offsets,
            self._send_back,
            concurrency=2,
            batch_max_size=batch_max_size,
            local_retry_s=0.01,
        )

    def pulled(self, *offsets: int) -> list[MessageExt]:
        messages = [MessageExt("t", b"x", queue_offset=offset) for offset in offsets]
        self.process_queue.put(messages)
        self.consumption.submit(self.process_queue, messages)
        return messages

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        offsets = [message.queue_offset for message in messages]
        self.heard.append(offsets)
        self.process_queue.dropped = self.drops
        later = self.bad.intersection(offsets)
        return ConsumeResult.RECONSUME_LATER if later else ConsumeResult.SUCCESS

    async def _send_back(self, message: MessageExt) -> None:
        if self.broken:
            raise RemoteError("not now", code=1)
        self.sent_back.append(message.queue_offset)


async def test_consumed_messages_move_the_offset(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.pulled(5, 6, 7)
    await until(lambda: bench.offsets.get(QUEUE) == 8)
    assert len(bench.process_queue) == 0
    await bench.consumption.close(1)


async def test_a_refused_message_is_sent_back_and_done_with(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.bad = {6}
    bench.pulled(5, 6, 7)
    await until(lambda: bench.offsets.get(QUEUE) == 8)
    assert bench.sent_back == [6]
    await bench.consumption.close(1)


async def test_what_cannot_be_sent_back_holds_the_offset_and_is_retried_here(
    fake: FakeInstance,
) -> None:
    bench = Bench(fake)
    bench.bad, bench.broken = {6}, True
    messages = bench.pulled(5, 6, 7)
    await until(lambda: bench.heard.count([6]) == 3)
    assert bench.offsets.get(QUEUE) == 6
    assert messages[1].reconsume_times >= 2
    bench.bad.clear()
    await until(lambda: bench.offsets.get(QUEUE) == 8)
    await bench.consumption.close(1)


async def test_messages_come_in_lists_of_at_most_the_batch_size(fake: FakeInstance) -> None:
    bench = Bench(fake, batch_max_size=3)
    bench.pulled(*range(8))
    await until(lambda: bench.offsets.get(QUEUE) == 8)
    assert bench.heard == [[0, 1, 2], [3, 4, 5], [6, 7]]
    await bench.consumption.close(1)


async def test_a_batch_is_refused_as_a_whole(fake: FakeInstance) -> None:
    bench = Bench(fake, batch_max_size=3)
    bench.bad = {4}
    bench.pulled(*range(6))
    await until(lambda: bench.offsets.get(QUEUE) == 6)
    assert sorted(bench.sent_back) == [3, 4, 5]
    await bench.consumption.close(1)


async def test_the_outcome_of_a_dropped_queue_does_not_count(fake: FakeInstance) -> None:
    bench = Bench(fake, batch_max_size=2)
    bench.bad = {3}
    bench.drops = True
    bench.pulled(0, 1)
    await until(lambda: bench.heard == [[0, 1]])
    await bench.consumption.close(1)
    assert bench.offsets.get(QUEUE) is None
    assert bench.sent_back == []


async def test_messages_of_a_dropped_queue_do_not_reach_the_listener(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.drops = True
    bench.pulled(0, 1, 2)
    await until(lambda: bench.heard)
    await bench.consumption.close(1)
    assert bench.heard == [[0]]


async def test_a_dropped_queues_local_retry_ends(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.bad, bench.broken = {1}, True
    bench.pulled(1)
    await until(lambda: len(bench.heard) == 2)
    bench.process_queue.dropped = bench.drops = True
    heard = len(bench.heard)
    await asyncio.sleep(0.05)
    assert len(bench.heard) <= heard + 1
    await bench.consumption.close(1)


async def test_close_hands_back_what_was_refused(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.bad = {0}
    bench.pulled(0)
    await asyncio.sleep(0)
    await bench.consumption.close(5)
    assert bench.sent_back == [0]
    assert bench.offsets.get(QUEUE) == 1
