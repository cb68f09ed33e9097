"""A broker process killed at any moment while members of two groups pop, again and again on one store.

Simple consumers pop, and acknowledge nine of ten messages; a push consumer that pops refuses one in
fifty. Promised, for SYNC_FLUSH and ASYNC_FLUSH alike, since a killed process loses nothing that
reached the page cache:

- each send that was acknowledged is delivered to both groups at least once;
- what a simple consumer has acknowledged in time, and the broker has answered, is never delivered
  again.

COMETMQ_POP_KILLS says how many kills there are together (default 20, `make crash`: 200),
COMETMQ_CRASH_SEED what is drawn (`tests.seeds`).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path

import pytest
from tests.crash.nursery import ForkedServer, Nursery
from tests.integration.server_processes import server_process
from tests.seeds import seed_of
from tests.waits import WAIT_S

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt
from cometmq.aio import Producer, PushConsumer, SimpleConsumer
from cometmq.client.popping.message import ReceivedMessage
from cometmq.errors import CometMQError
from cometmq.runtime.sockets.ports import HeldPort

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("COMETMQ_POP_KILLS", "20"))
TOPIC = "T"
QUEUES = 4
RECEIVERS = 3
# Longer than a broker is away. What is acknowledged within `SURELY_HIDDEN_S` is still hidden.
HIDDEN_MS = 15_000
SURELY_HIDDEN_S = 10.0
PAUSE_S = 0.01
REST_S = 4 * WAIT_S


class Ledger:
    """Remembers what was promised and what came. Bodies are the messages' numbers."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.received: set[bytes] = set()
        self.done: set[bytes] = set()
        self.pushed: set[bytes] = set()
        self.again: list[bytes] = []
        self.deliveries = 0

    def missing(self) -> int:
        return len(self.sent - self.done) + len(self.sent - self.pushed)


async def send(producer: Producer, ledger: Ledger, enough: asyncio.Event) -> None:
    number = 0
    while not enough.is_set():
        bodies = [b"%d" % (number + each) for each in range(8)]
        number += 8
        sends = [producer.send(Message(TOPIC, body)) for body in bodies]
        for body, result in zip(
            bodies, await asyncio.gather(*sends, return_exceptions=True), strict=True
        ):
            if isinstance(result, CometMQError):
                continue  # it may have been stored, or not
            if isinstance(result, BaseException):
                raise result
            ledger.sent.add(body)
        await asyncio.sleep(PAUSE_S)


async def receive(consumer: SimpleConsumer, ledger: Ledger, rng: random.Random) -> None:
    """Receive for ever."""
    while True:
        asked_s = time.monotonic()
        try:
            messages = await consumer.receive()
        except CometMQError:
            await asyncio.sleep(PAUSE_S)
            continue
        for message in messages:
            ledger.deliveries += 1
            if message.body in ledger.done:
                ledger.again.append(message.body)
            ledger.received.add(message.body)
        # A message that is not acknowledged the first time comes again.
        kept = [m for m in messages if m.reconsume_times or rng.random() < 0.9]
        # The broker hides them at the earliest when it was asked.
        until_s = asked_s + SURELY_HIDDEN_S
        await asyncio.gather(*(acknowledge(message, ledger, until_s) for message in kept))


async def acknowledge(message: ReceivedMessage, ledger: Ledger, until_s: float) -> None:
    while time.monotonic() < until_s:
        try:
            await message.ack()
        except CometMQError:
            await asyncio.sleep(PAUSE_S)
            continue
        if time.monotonic() < until_s:
            ledger.done.add(message.body)
        return


def configuration(directory: Path, flush: str, namesrv: str, port: int) -> Path:
    conf = directory / "broker.conf"
    conf.write_text(
        "brokerName=b\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
        f"listenPort={port}\nnamesrvAddr={namesrv}\nregisterNameServerPeriod=10000\n"
        f"storePathRootDir={directory}/store\nflushDiskType={flush}\n"
        f"mappedFileSizeCommitLog={4 * 1024 * 1024}\ndefaultTopicQueueNums={QUEUES}\n"
        "osPageCacheBusyTimeOutMills=60000\ndiskMaxUsedSpaceRatio=95\ncleanFileForciblyEnable=false\n"
    )
    return conf


async def kill_again_and_again(
    nursery: Nursery, conf: Path, kills: int, rng: random.Random
) -> ForkedServer:
    """Return the last broker, which lives."""
    broker = await asyncio.to_thread(nursery.broker, conf)
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.1, 0.9))
        await asyncio.to_thread(broker.kill)
        broker = await asyncio.to_thread(nursery.broker, conf)
    return broker


async def scenario(
    nursery: Nursery, conf: Path, namesrv: str, kills: int, rng: random.Random
) -> Ledger:
    ledger = Ledger()

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        if messages[0].reconsume_times == 0 and rng.random() < 0.02:
            return ConsumeResult.RECONSUME_LATER
        ledger.pushed.update(message.body for message in messages)
        return ConsumeResult.SUCCESS

    enough = asyncio.Event()
    first = await asyncio.to_thread(nursery.broker, conf)
    await asyncio.to_thread(first.kill)
    killing = asyncio.create_task(kill_again_and_again(nursery, conf, kills, rng))
    # A send that is repeated may be stored twice, and both messages are delivered.
    producer = Producer("senders", namesrv=namesrv, send_timeout_ms=2_000, retry_times=0)
    push = PushConsumer(
        "pushed", listen, namesrv=namesrv, mode="pop", pop_invisible_ms=5_000,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
    )  # fmt: skip
    push.subscribe(TOPIC)
    simple = [
        SimpleConsumer("received", namesrv=namesrv, invisible_ms=HIDDEN_MS, wait_ms=1_000,
                       instance_name=f"receiver-{number}")
        for number in range(RECEIVERS)
    ]  # fmt: skip
    clients = [producer, push, *simple]
    for consumer in simple:
        consumer.subscribe(TOPIC)
    for client in clients:
        await client.start()
    sending = asyncio.create_task(send(producer, ledger, enough))
    receiving = [asyncio.create_task(receive(each, ledger, rng)) for each in simple]
    broker: ForkedServer | None = None
    try:
        broker = await killing
        enough.set()
        await sending
        # An acknowledgement that is lost shows when the message would be visible again.
        visible_s = time.monotonic() + HIDDEN_MS / 1000 + 2
        deadline = time.monotonic() + REST_S
        while (ledger.missing() or time.monotonic() < visible_s) and time.monotonic() < deadline:
            for task in receiving:
                assert not task.done(), task.exception()
            await asyncio.sleep(0.1)
    finally:
        enough.set()
        for task in (sending, *receiving):
            task.cancel()
        await asyncio.gather(sending, *receiving, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
        if broker is None:
            broker = await killing
        await asyncio.to_thread(broker.kill)
    return ledger


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_what_is_popped_and_acknowledged_survives_kills(
    tmp_path: Path, flush: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of("COMETMQ_CRASH_SEED")
    kills = KILLS // 2
    with server_process("namesrv", tmp_path) as names, HeldPort() as held:
        conf = configuration(tmp_path, flush, names.address, held.port)
        with Nursery() as nursery:
            ledger = asyncio.run(scenario(nursery, conf, names.address, kills, random.Random(seed)))
    counts = (
        f"{kills} kills, {flush}, {len(ledger.sent)} acknowledged sends, {len(ledger.done)} "
        f"acknowledged pops, {ledger.deliveries} deliveries, seed {seed}"
    )
    assert ledger.again == [], f"acknowledged, and delivered again: {counts}"
    assert not ledger.sent - ledger.received, f"never delivered: {counts}"
    assert not ledger.sent - ledger.pushed, f"never delivered to a listener: {counts}"
    assert len(ledger.done) > kills, counts
    with capsys.disabled():
        sys.stdout.write(f"\n{counts} ")
