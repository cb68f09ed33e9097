"""From a listener's verdict to offsets, send-backs and local retries."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fakes import FakeInstance
from tests.waits import until

from cometmq.client.consuming.listeners.consumption import Cause, Consumption, committing
from cometmq.client.membership.offset_store import RemoteOffsetStore
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.errors import RemoteError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeReport, ConsumeResult

QUEUE = MessageQueue("t", "a", 0)


class Bench:
    """A consumption whose listener refuses the messages in `bad`, and sends back unless `broken`."""

    def __init__(
        self,
        fake: FakeInstance,
        batch_max_size: int = 1,
        *,
        broadcasting: bool = False,
        consume_timeout_s: float = 900.0,
        local_retry_s: float = 0.01,
    ) -> None:
        self.offsets = RemoteOffsetStore(fake.instance, "g")
        self.process_queue = ProcessQueue(QUEUE)
        self.bad: set[int] = set()
        self.broken = False
        self.report: ConsumeReport | None = None
        self.hold: asyncio.Event | None = None
        self.causes: list[Cause] = []
        self.holds_back: asyncio.Event | None = None  # sending back waits for it
        self.drops = False  # the queue goes to another member while the listener runs
        self.heard: list[list[int]] = []
        self.sent_back: list[int] = []
        self.levels: list[int] = []
        self.consumption = Consumption(
            "g",
            self._listen,
            committing(self.offsets),
            None if broadcasting else self._send_back,
            concurrency=2,
            batch_max_size=batch_max_size,
            local_retry_s=local_retry_s,
            consume_timeout_s=consume_timeout_s,
        )

    def pulled(self, *offsets: int) -> list[MessageExt]:
        messages = [MessageExt("t", b"x", queue_offset=offset) for offset in offsets]
        self.process_queue.put(messages)
        self.consumption.submit(self.process_queue, messages)
        return messages

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult | ConsumeReport:
        offsets = [message.queue_offset for message in messages]
        self.heard.append(offsets)
        self.process_queue.dropped = self.drops
        if self.hold is not None:
            await self.hold.wait()
        if self.report is not None:
            return self.report
        later = self.bad.intersection(offsets)
        return ConsumeResult.RECONSUME_LATER if later else ConsumeResult.SUCCESS

    async def _send_back(
        self, _queue: ProcessQueue, message: MessageExt, level: int, cause: Cause
    ) -> None:
        self.causes.append(cause)
        if self.holds_back is not None:
            await self.holds_back.wait()
        if self.broken:
            raise RemoteError("not now", code=1)
        self.sent_back.append(message.queue_offset)
        self.levels.append(level)


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


async def test_what_waits_to_be_retried_here_is_left_to_others_at_the_close(
    fake: FakeInstance, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(fake, local_retry_s=0.1)
    bench.bad, bench.broken = {5, 6}, True
    bench.pulled(5)
    await until(lambda: bench.heard == [[5]] and not bench.consumption._sending_back)
    bench.broken, bench.holds_back = False, asyncio.Event()
    bench.pulled(6)
    await until(lambda: bool(bench.consumption._sending_back))
    closing = asyncio.create_task(bench.consumption.close(5))
    await asyncio.sleep(0.2)  # twice as long as until the retry
    bench.holds_back.set()
    await closing
    assert bench.heard == [[5], [6]]
    assert "task failed" not in caplog.text


async def test_close_hands_back_what_was_refused(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.bad = {0}
    bench.pulled(0)
    await asyncio.sleep(0)
    await bench.consumption.close(5)
    assert bench.sent_back == [0]
    assert bench.offsets.get(QUEUE) == 1


@pytest.mark.parametrize(
    ("ack_index", "sent_back"), [(-1, [0, 1, 2]), (0, [1, 2]), (2, []), (9, [])]
)
async def test_what_lies_after_the_ack_index_is_sent_back(
    fake: FakeInstance, ack_index: int, sent_back: list[int]
) -> None:
    bench = Bench(fake, batch_max_size=3)
    bench.report = ConsumeReport(ack_index=ack_index)
    bench.pulled(0, 1, 2)
    await until(lambda: bench.offsets.get(QUEUE) == 3)
    assert bench.sent_back == sent_back
    await bench.consumption.close(1)


async def test_a_report_chooses_the_delay_level(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.report = ConsumeReport(ConsumeResult.RECONSUME_LATER, delay_level=9)
    bench.pulled(0)
    await until(lambda: bench.offsets.get(QUEUE) == 1)
    assert (bench.sent_back, bench.levels) == ([0], [9])
    await bench.consumption.close(1)


async def test_suspend_counts_as_later_where_nothing_is_in_order(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.report = ConsumeReport(ConsumeResult.SUSPEND)
    bench.pulled(0)
    await until(lambda: bench.sent_back == [0])
    await bench.consumption.close(1)


async def test_in_broadcasting_a_refused_message_is_left_behind(fake: FakeInstance) -> None:
    bench = Bench(fake, broadcasting=True)
    bench.bad = {1}
    bench.pulled(0, 1, 2)
    await until(lambda: bench.offsets.get(QUEUE) == 3)
    assert bench.sent_back == []
    await bench.consumption.close(1)


@pytest.mark.parametrize("verdict", [ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER])
async def test_a_stuck_listener_loses_its_message_to_a_later_delivery(
    fake: FakeInstance, verdict: ConsumeResult
) -> None:
    bench = Bench(fake, consume_timeout_s=0.05)
    bench.hold = asyncio.Event()
    bench.report = ConsumeReport(verdict)
    bench.pulled(0)
    await until(lambda: bench.offsets.get(QUEUE) == 1)
    bench.hold.set()
    await asyncio.sleep(0.02)
    await bench.consumption.close(1)
    # What the listener says after that changes nothing.
    assert (bench.sent_back, bench.levels) == ([0], [3])
    assert bench.offsets.get(QUEUE) == 1


async def test_a_stuck_message_that_cannot_be_sent_back_is_tried_again(fake: FakeInstance) -> None:
    bench = Bench(fake, consume_timeout_s=0.02)
    bench.hold = asyncio.Event()
    bench.broken = True
    bench.pulled(0)
    await asyncio.sleep(0.1)
    assert bench.offsets.get(QUEUE) is None
    bench.broken = False
    await until(lambda: bench.sent_back == [0])
    bench.hold.set()
    await bench.consumption.close(1)


async def test_more_listeners_may_run_when_that_is_said(fake: FakeInstance) -> None:
    bench = Bench(fake)
    bench.hold = asyncio.Event()
    bench.pulled(*range(6))
    await until(lambda: len(bench.heard) == 2)
    bench.consumption.runner.concurrency = 5
    bench.pulled(6)
    await until(lambda: len(bench.heard) == 5)
    bench.hold.set()
    await until(lambda: bench.offsets.get(QUEUE) == 7)
    await bench.consumption.close(1)
