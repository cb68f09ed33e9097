"""Clients get over every fault of the network: in bounded time, and without a lost message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

import pytest
from tests.waits import until

from cometmq import ConsumeResult, Message, MessageExt
from cometmq.aio import Producer, PushConsumer
from cometmq.errors import CometMQError
from cometmq.testing import Cluster

TOPIC: Final = "orders"
SEND_TIMEOUT_MS: Final = 3000
# A client that waits for a dead connection learns of it by its next heartbeat, or before.
NOTICED_WITHIN_S: Final = 40.0

# A broker that has not synced a message may lose it when its power goes.
SYNCED: Final = {"flushDiskType": "SYNC_FLUSH"}
LINKS: Final = {
    "producer": ("app-1", "broker-a"),
    "consumer": ("app-2", "broker-a"),
    "producer's routes": ("app-1", "namesrv-0"),
    "registrations": ("broker-a", "namesrv-0"),
}


class Traffic:
    """A producer on `app-1` sends two messages a second to a push consumer on `app-2`."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = cluster.node("app-1"), cluster.node("app-2")
        with self._nodes[0]:
            self._producer = Producer("shop", namesrv=cluster.namesrv)
        with self._nodes[1]:
            self._consumer = PushConsumer("billing", self._listen, namesrv=cluster.namesrv)
            self._consumer.subscribe(TOPIC)
        self._sending: asyncio.Task[None]
        self._ends = False
        self.acknowledged: list[bytes] = []
        self.consumed: dict[bytes, None] = {}
        self.longest_s = 0.0

    async def __aenter__(self) -> Traffic:
        await self._nodes[0].run_in(self._producer.start())
        await self._nodes[0].run_in(self._producer.send(Message(TOPIC, b"makes the topic")))
        await self._nodes[1].run_in(self._consumer.start())
        self._sending = asyncio.ensure_future(self._nodes[0].run_in(self._send_all()))
        await self.flows(within_s=30)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ends = True
        await self._sending
        await self._nodes[0].run_in(self._producer.close())
        await self._nodes[1].run_in(self._consumer.close())

    async def flows(self, within_s: float) -> None:
        """Wait until a message that is sent from now on is acknowledged and consumed."""
        sent = len(self.acknowledged)
        await until(lambda: len(self.acknowledged) > sent + 1, wait_s=within_s, pause_s=0.1)
        last = self.acknowledged[-1]
        await until(lambda: last in self.consumed, wait_s=within_s, pause_s=0.1)

    async def _send_all(self) -> None:
        number, loop = 0, asyncio.get_running_loop()
        while not self._ends:
            number += 1
            body, began_s = b"%d" % number, loop.time()
            with suppress(CometMQError):
                await self._producer.send(Message(TOPIC, body), timeout_ms=SEND_TIMEOUT_MS)
                self.acknowledged.append(body)
            self.longest_s = max(self.longest_s, loop.time() - began_s)
            await asyncio.sleep(0.5)

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        self.consumed.update(dict.fromkeys(bytes(each.body) for each in messages))
        return ConsumeResult.SUCCESS


class Trial(NamedTuple):
    """A fault, how long it holds, and its end."""

    name: str
    begin: Callable[[Cluster], object]
    end: Callable[[Cluster], Awaitable[None] | None] = Cluster.heal_all
    hold_s: float = 10.0


def get_over(*trials: Trial) -> None:
    """Let messages flow, have one fault after the other, and see them flow again after each."""

    async def main(cluster: Cluster) -> None:
        async with Traffic(cluster) as traffic:
            for trial in trials:
                try:
                    await get_over_one(cluster, traffic, trial)
                except AssertionError as error:
                    error.add_note(f"after the fault {trial.name}")
                    raise

    with Cluster(clock="virtual", seed=1, properties=SYNCED) as cluster:
        cluster.run(main(cluster))


async def get_over_one(cluster: Cluster, traffic: Traffic, trial: Trial) -> None:
    trial.begin(cluster)
    await asyncio.sleep(trial.hold_s)
    if (ending := trial.end(cluster)) is not None:
        await ending
    await traffic.flows(within_s=NOTICED_WITHIN_S)
    sent = set(traffic.acknowledged)
    await until(lambda: traffic.consumed.keys() >= sent, wait_s=NOTICED_WITHIN_S, pause_s=0.1)
    # A client reads once more before it gives up, a millisecond later.
    assert traffic.longest_s <= SEND_TIMEOUT_MS / 1000 + 0.002


def restart(node: str) -> Callable[[Cluster], Awaitable[None]]:
    return lambda cluster: cluster.restart(node)


@pytest.mark.parametrize("link", LINKS)
def test_clients_get_over_the_faults_of_a_link(link: str) -> None:
    a, b = LINKS[link]
    get_over(
        Trial("cut", lambda c: c.cut(a, b)),
        Trial("blackhole", lambda c: c.blackhole(a, b)),
        Trial("blackhole there", lambda c: c.blackhole(a, b, one_way=True)),
        Trial("blackhole back", lambda c: c.blackhole(b, a, one_way=True)),
        Trial("reset", lambda c: c.reset_connections(a, b)),
        Trial("delay", lambda c: c.delay(a, b, 0.0, 5.0)),
        Trial("slow", lambda c: c.slow(a, b, 200)),
    )


@pytest.mark.parametrize("node", ["broker-a", "namesrv-0"])
def test_clients_get_over_the_loss_of_a_server(node: str) -> None:
    get_over(
        Trial("kill", lambda c: c.kill(node), restart(node)),
        Trial("power_off", lambda c: c.power_off(node), restart(node)),
        Trial("pause", lambda c: c.pause(node), lambda c: c.resume(node)),
    )


def test_clients_get_over_a_blackhole_that_outlives_all_registrations() -> None:
    nodes = ["namesrv-0", "app-1", "app-2"]
    get_over(Trial("partition", lambda c: c.partition(["broker-a"], nodes), hold_s=130))
