"""Pop, acknowledge, renew, kill and let time pass at random, and compare with what a group may expect.

A kill is a copy of the store's directory while the broker runs: what a process has written is in the files whatever
becomes of it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.integration.own_broker import SetClock
from tests.integration.pop_peer import ACK, CHANGE, POP, Popped, pop_ext, popped
from tests.integration.raw_client import send_ext
from tests.unit.broker.broker_box import GROUP, Client, new_broker
from tests.waits import until

from cometmq.broker.server import Broker

SEND = 10
STEPS = 160
HOUR_MS = 3_600_000


@dataclass
class Known:
    """A message's state in the group; `hidden_until` is a time of the broker."""

    deliveries: int = 0
    hidden_until: int = 0
    is_done: bool = False
    last: Popped | None = None


@dataclass
class Run:
    directory: Path
    draw: random.Random
    clock: SetClock = field(default_factory=SetClock)
    messages: dict[bytes, Known] = field(default_factory=dict)
    lives: int = 0

    async def start(self) -> None:
        self.broker: Broker = new_broker(self.directory / f"{self.lives}", clock=self.clock)
        await self.broker.start()
        self.client = Client(self.broker)
        group = self.broker.groups.get(GROUP)
        assert group is not None
        group.retry_max_times = 1_000

    async def stop(self) -> None:
        await self.broker.close()

    async def kill(self) -> None:
        before = self.directory / f"{self.lives}"
        self.lives += 1
        shutil.copytree(before, self.directory / f"{self.lives}")
        await self.broker.close()
        shutil.rmtree(before)
        await self.start()

    async def send(self) -> None:
        for _ in range(self.draw.randrange(1, 6)):
            body = b"%d" % len(self.messages)
            ext = send_ext("orders", queueId=self.draw.randrange(2))
            assert (await self.client.ask(SEND, ext, body)).code == 0
            self.messages[body] = Known()

    async def pop(self, most: int = 8) -> int:
        invisible_ms = self.draw.randrange(30_000, 200_000)
        ext = pop_ext(maxMsgNums=self.draw.randrange(1, most), invisibleTime=invisible_ms)
        found = popped(await self.client.ask(POP, ext))
        for message in found:
            known = self.messages[message.body]
            assert not known.is_done, f"{message.body!r} was acknowledged"
            assert known.hidden_until <= message.handle.pop_time, f"{message.body!r} is hidden"
            assert message.record.reconsume_times == known.deliveries
            known.deliveries += 1
            known.hidden_until = message.handle.pop_time + invisible_ms
            known.last = message
        return len(found)

    def in_hand(self) -> list[Known]:
        """Return messages that stay hidden for longer than any machine is busy."""
        soon_ms = self.clock.now_ms() + 20_000
        return [
            known
            for known in self.messages.values()
            if known.last is not None and not known.is_done and known.hidden_until > soon_ms
        ]

    async def ack(self) -> None:
        for known in self.draw.choices(self.in_hand(), k=3) if self.in_hand() else ():
            assert known.last is not None
            assert (await self.client.ask(ACK, known.last.ext())).code == 0
            known.is_done = True

    async def change(self) -> None:
        if self.in_hand():
            known = self.draw.choice(self.in_hand())
            assert known.last is not None
            wanted_ms = self.draw.choice([0, 60_000, 600_000])
            answer = await self.client.ask(CHANGE, known.last.ext(invisibleTime=wanted_ms))
            assert answer.code == 0, answer.remark
            popped_ms = int(answer.ext["popTime"])
            known.last.handle = known.last.handle._replace(pop_time=popped_ms)
            known.hidden_until = popped_ms + wanted_ms

    async def wait(self, ms: int | None = None) -> None:
        self.clock.ahead_ms += self.draw.randrange(100_000) if ms is None else ms
        state = self.broker.pops.state
        state.on_due_earlier()
        now_ms = self.clock.now_ms()
        await until(lambda: state.table.next_due_ms() > now_ms)


@pytest.mark.parametrize("seed", range(2))
async def test_no_message_is_lost_or_comes_too_early(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, random.Random(seed))
    await run.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(run.stop)
        steps: list[Callable[[], Awaitable[object]]] = [
            run.send,
            run.pop,
            run.pop,
            run.pop,
            run.ack,
            run.ack,
            run.change,
            run.wait,
        ]
        for step in range(STEPS):
            if step % 40 == 39:
                await run.kill()
            else:
                await run.draw.choice(steps)()
        while not all(known.is_done for known in run.messages.values()):
            await run.wait(HOUR_MS)
            assert await run.pop(33), "nothing comes, and not all is acknowledged"
            while run.in_hand():
                await run.ack()
        assert run.broker.pops.state.table.count == 0
        assert sum(known.deliveries for known in run.messages.values()) > len(run.messages)
