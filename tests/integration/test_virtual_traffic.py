"""The figures of a broker's traffic in virtual time: nothing is sampled while nothing is counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from cometmq import Message
from cometmq.aio import AdminClient, LitePullConsumer, Producer
from cometmq.testing import Cluster
from cometmq.testing.virtual.handles import Timer

MINUTE, HOUR, DAY = 60, 3600, 86_400
SPANS_S = (10, 60, 600)
BROKER = "broker-a"


class Box:
    """A broker with the topic `orders`, whose figures are read as tools read them."""

    def __init__(self, cluster: Cluster, producer: Producer, admin: AdminClient) -> None:
        self.cluster = cluster
        self._producer = producer
        self._admin = admin
        self.sent = 0

    async def burst(self, count: int) -> None:
        """Send `count` messages at once."""
        await asyncio.gather(*(self._producer.send(Message("orders", b"x")) for _ in range(count)))
        self.sent += count

    async def info(self) -> dict[str, str]:
        (table,) = (await self._admin.brokers.runtime_info(broker=BROKER)).values()
        return table

    async def rates(self, name: str = "putTps") -> list[float]:
        return [float(rate) for rate in (await self.info())[name].split(" ") if rate]

    async def mornings(self) -> list[int]:
        """Return how many messages were there yesterday morning, this morning and now."""
        info = await self.info()
        names = ("YesterdayMorning", "TodayMorning", "TodayNow")
        return [int(info[f"msgPutTotal{name}"]) for name in names]


def play(story: Callable[[Box], Awaitable[None]]) -> None:
    """Play a story at a broker that has run for ten minutes, and so knows all rates."""

    async def main(cluster: Cluster) -> None:
        async with (
            Producer("shop", namesrv=cluster.namesrv) as producer,
            AdminClient(namesrv=cluster.namesrv) as admin,
        ):
            box = Box(cluster, producer, admin)
            await box.burst(1)
            await asyncio.sleep(601)
            await story(box)

    with Cluster(clock="virtual", seed=11, properties={"defaultTopicQueueNums": "1"}) as cluster:
        cluster.run(main(cluster))


def near(count: float) -> list[object]:
    """Return the rates of `count` messages that all came in the last ten seconds."""
    return [pytest.approx(count / span_s) for span_s in SPANS_S]


def test_a_burst_after_an_idle_hour_counts_with_all_its_messages_and_for_its_time_only() -> None:
    async def story(box: Box) -> None:
        await asyncio.sleep(HOUR)
        assert await box.rates() == [0.0, 0.0, 0.0]
        await box.burst(120)
        await asyncio.sleep(3)
        assert await box.rates() == near(120)
        assert (await box.mornings())[-1] == 121

    play(story)


def test_a_burst_leaves_one_rate_after_the_other_while_the_broker_is_idle() -> None:
    async def story(box: Box) -> None:
        await box.burst(120)
        await asyncio.sleep(30)
        assert await box.rates() == [0.0, *near(120)[1:]]
        await asyncio.sleep(MINUTE)
        assert await box.rates() == [0.0, 0.0, *near(120)[2:]]
        await asyncio.sleep(10 * MINUTE)
        assert await box.rates() == [0.0, 0.0, 0.0]

    play(story)


def test_puts_of_a_minute_that_ended_long_ago_are_not_of_the_last_one() -> None:
    async def times(box: Box) -> int:
        text = (await box.info())["putMessageDistributeTime"]
        return sum(int(entry.rpartition(":")[2]) for entry in text.split())

    async def story(box: Box) -> None:
        await box.burst(120)
        await asyncio.sleep(MINUTE + 1)
        assert await times(box) == 120
        await asyncio.sleep(MINUTE + 1)
        assert await times(box) == 0
        await box.burst(7)
        await asyncio.sleep(10 * MINUTE)
        assert await times(box) == 0
        await box.burst(8)
        await asyncio.sleep(MINUTE + 1)
        assert await times(box) == 8

    play(story)


def test_mornings_are_right_after_idle_nights_and_a_clock_that_goes_back() -> None:
    async def story(box: Box) -> None:
        # It is 22:23 UTC.
        assert await box.mornings() == [0, 0, 1]
        await asyncio.sleep(3 * HOUR)
        await box.burst(20)
        assert await box.mornings() == [0, 1, 21]
        box.cluster.skew_clock(BROKER, 2 * DAY * 1000)
        await asyncio.sleep(3)
        assert await box.mornings() == [21, 21, 21]
        await box.burst(3)
        box.cluster.skew_clock(BROKER, -DAY * 1000)
        await asyncio.sleep(HOUR)
        await box.burst(4)
        await asyncio.sleep(3)
        assert await box.mornings() == [21, 21, 28]
        assert await box.rates() == [0.4, *near(4)[1:]]
        box.cluster.skew_clock(BROKER, 2 * DAY * 1000)
        await asyncio.sleep(3)
        assert await box.mornings() == [21, 28, 28]

    play(story)


def test_pulls_count_after_an_idle_hour_as_well() -> None:
    async def story(box: Box) -> None:
        await box.burst(40)
        await asyncio.sleep(HOUR)
        async with LitePullConsumer("billing", namesrv=box.cluster.namesrv) as consumer:
            (queue,) = await consumer.queues("orders")
            offset = 0
            while offset < box.sent:
                offset = (await consumer.pull(queue, offset=offset)).next_begin_offset
        await asyncio.sleep(3)
        assert await box.rates("getTransferredTps") == near(41)

    play(story)


class Sent(NamedTuple):
    at_s: float
    messages: int


@pytest.mark.parametrize("seed", range(5))
def test_rates_are_those_of_what_came_in_their_spans_whenever_they_are_read(seed: int) -> None:
    draw = random.Random(seed)

    async def story(box: Box) -> None:
        now_s = asyncio.get_running_loop().time
        sent = [Sent(0.0, 1)]
        for _ in range(60):
            await asyncio.sleep(draw.choice((0.1, 0.5, 1, 3, 8, 40, 200)) * draw.uniform(0.5, 1.5))
            if draw.random() < 0.6:
                count = draw.randint(1, 20)
                await box.burst(count)
                sent.append(Sent(now_s(), count))
                continue
            for rate, span_s in zip(await box.rates(), SPANS_S, strict=True):
                # Samples are a second apart, and the last one may be a second old.
                least, most = (
                    sum(each.messages for each in sent if begin <= now_s() - each.at_s <= end)
                    for begin, end in ((1.1, span_s - 1.1), (-0.1, span_s + 2.1))
                )
                assert least <= round(rate * span_s, 3) <= most

    play(story)


def test_an_idle_broker_woke_each_second_for_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[float] = []
    run = Timer.run

    def noted(timer: Timer) -> None:
        if timer.node is not None and timer.node.name == BROKER:
            woken.append(timer.when())
        run(timer)

    monkeypatch.setattr(Timer, "run", noted)

    async def story(box: Box) -> None:
        woken.clear()
        await asyncio.sleep(MINUTE)

    play(story)
    # With the looks at files, for which there is no reason in virtual time, it is two a second more.
    assert 0 < len(woken) < MINUTE
