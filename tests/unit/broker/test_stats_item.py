"""Samples of counters, against a model that keeps every sample of every counter."""

from __future__ import annotations

import random
import tracemalloc

from cometmq.broker.stats_item import (
    DAY,
    HOUR,
    MINUTE,
    SAMPLE_PERIOD_S,
    WINDOWS,
    Growth,
    Sampler,
    StatsItem,
    Totals,
)

Snapshot = tuple[float, Totals]


class Model:
    """Keeps the snapshots of one counter in one window: those of a period each, and a first one
    with zeros that is a period older.
    """

    def __init__(self, window: int) -> None:
        self.period_s = WINDOWS[window].samples * SAMPLE_PERIOD_S
        self.periods = WINDOWS[window].periods
        self.snapshots: list[Snapshot] = []

    def add(self, now_s: float, totals: Totals) -> None:
        if not self.snapshots:
            self.snapshots.append((now_s - self.period_s, (0,) * len(totals)))
        self.snapshots.append((now_s, totals))
        del self.snapshots[: -(self.periods + 1)]

    def growth(self, width: int) -> Growth:
        if not self.snapshots:
            return Growth((0,) * width, 0.0)
        (began_s, first), (ended_s, last) = self.snapshots[0], self.snapshots[-1]
        grown = tuple(b - a for a, b in zip(first, last, strict=True))
        return Growth(grown, ended_s - began_s)


class Sampled:
    """Counters with samples, and the models of them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.sampler = Sampler(lambda: self.now_s)
        self.totals: dict[str, Totals] = {}
        self.items: dict[str, StatsItem] = {}
        self.models: dict[str, list[Model]] = {}
        self.count = 0

    def add(self, name: str, *grown: int) -> None:
        if name not in self.items:
            self.items[name] = StatsItem(len(grown))
            self.models[name] = [Model(i) for i in range(len(WINDOWS))]
        before = self.totals.get(name, (0,) * len(grown))
        self.totals[name] = tuple(a + b for a, b in zip(before, grown, strict=True))

    def sample(self) -> None:
        for _ in self.sampler.sample((self.items[name], self.totals[name]) for name in self.items):
            pass
        for name, models in self.models.items():
            for window, model in zip(WINDOWS, models, strict=True):
                if self.count % window.samples == 0:
                    model.add(self.now_s, self.totals[name])
        self.count += 1
        self.now_s += SAMPLE_PERIOD_S

    def check(self) -> None:
        for name, item in self.items.items():
            width = len(self.totals[name])
            for window in range(len(WINDOWS)):
                assert self.sampler.growth(item, window) == self.models[name][window].growth(width)


def test_windows_grow_as_if_every_sample_were_kept() -> None:
    chance = random.Random(7)
    sampled = Sampled()
    born = {"steady": 0, "rare": 3, "late": 4_000}
    shares = {"steady": 1.0, "rare": 0.0005, "late": 0.02}
    for number in range(10_000):
        for name, first in born.items():
            if number == first or (number > first and chance.random() < shares[name]):
                sampled.add(name, chance.randrange(100), chance.randrange(5_000))
        sampled.sample()
        if number < 20 or number % 37 == 0:
            sampled.check()


def test_the_minute_of_a_new_counter_is_as_long_as_its_samples() -> None:
    sampled = Sampled()
    sampled.sample()
    sampled.add("t", 30)
    growth = sampled.sampler.growth
    assert growth(sampled.items["t"], MINUTE) == ((0,), 0.0)
    sampled.sample()
    item = sampled.items["t"]
    assert growth(item, MINUTE) == ((30,), 10.0)
    for seconds in (20.0, 30.0, 40.0, 50.0, 60.0):
        sampled.sample()
        assert growth(item, MINUTE) == ((30,), seconds)
    sampled.sample()
    assert growth(item, MINUTE) == ((0,), 60.0)
    # The hour is sampled every ten minutes, the day every hour.
    assert growth(item, HOUR) == growth(item, DAY) == ((0,), 0.0)
    for _ in range(60):
        sampled.sample()
    assert growth(item, HOUR) == ((30,), 600.0)


def test_who_asks_while_a_sample_is_taken_gets_the_one_before() -> None:
    sampled = Sampled()
    for name in ("a", "b"):
        sampled.add(name, 10)
    sampled.sample()
    for name in ("a", "b"):
        sampled.add(name, 5)
    sampled.now_s += 1
    under_way = sampled.sampler.sample(
        (sampled.items[name], sampled.totals[name]) for name in sampled.items
    )
    next(under_way)
    before = [sampled.sampler.growth(item, MINUTE) for item in sampled.items.values()]
    assert before == [((10,), 10.0), ((10,), 10.0)]
    assert len(list(under_way)) == 1
    after = [sampled.sampler.growth(item, MINUTE) for item in sampled.items.values()]
    assert after == [((15,), 21.0), ((15,), 21.0)]


def test_a_sample_that_broke_off_is_taken_again() -> None:
    sampled = Sampled()
    sampled.add("a", 10)
    sampled.sample()
    sampled.add("a", 5)
    (item,) = sampled.items.values()
    next(sampled.sampler.sample(iter([(item, sampled.totals["a"])])))
    sampled.add("a", 2)
    sampled.sample()
    assert sampled.sampler.growth(item, MINUTE).totals == (17,)


def test_a_counter_keeps_no_more_samples_than_the_windows_need() -> None:
    sampled = Sampled()

    def bytes_held_after(samples: int) -> int:
        for _ in range(samples):
            sampled.add("t", 1, 100)
            sampled.sample()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        held = bytes_held_after(12_000)
        # Each sample has a number and two totals: 24 bytes in a window that keeps all of them.
        assert bytes_held_after(12_000) - held < 12_000 * 24 / 2
    finally:
        tracemalloc.stop()
