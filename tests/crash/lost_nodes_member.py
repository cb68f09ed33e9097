"""Producers and consumers of one process that outlive their servers, and write down what they see.

Run as `python -m tests.crash.lost_nodes_member NAMESRV CLUSTER HISTORY`. It makes the topic, sends
until its input ends, and goes on consuming until its input says `end`. A line of the history is one of

| line | meaning |
| --- | --- |
| `A number sender status broker queue offset` | the message is acknowledged |
| `F number error` | nobody acknowledged the message |
| `R consumer broker queue offset number` | a consumer has it; each line of a consumer comes in its order |
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

from tests.waits import until

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt
from cometmq.admin import AdminClient
from cometmq.aio import LitePullConsumer, Producer, PushConsumer
from cometmq.errors import CometMQError, ServersFailedError

TOPIC = "lost"
SENDERS = 6
PAUSE_S = 0.01
BODY_BYTES = 300


def body_of(number: int) -> bytes:
    return str(number).encode().ljust(BODY_BYTES, b".")


def number_of(body: bytes) -> int:
    return int(body.rstrip(b"."))


class Member:
    def __init__(self, namesrv: str, cluster: str, history: str) -> None:
        self._namesrv = namesrv
        self._cluster = cluster
        self._history = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = itertools.count()
        self._stopped = False

    async def run(self) -> None:
        await self._make_topic()
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop.add_reader(0, lambda: lines.put_nowait(sys.stdin.readline().strip()))
        first = ConsumeFromWhere.FIRST_OFFSET
        async with AsyncExitStack() as stack:
            push = PushConsumer(
                "lost-push", self._listener("push"), namesrv=self._namesrv, consume_from=first
            )
            push.subscribe(TOPIC)
            await stack.enter_async_context(push)
            pull = LitePullConsumer("lost-pull", namesrv=self._namesrv, consume_from=first)
            pull.subscribe(TOPIC)
            await stack.enter_async_context(pull)
            producer = Producer("lost-producers", namesrv=self._namesrv, send_timeout_ms=2000)
            await stack.enter_async_context(producer)
            polling = asyncio.create_task(self._poll(pull))
            senders = [asyncio.create_task(self._send(producer, n)) for n in range(SENDERS)]
            sys.stdout.write("running\n")
            sys.stdout.flush()
            assert await lines.get() == "stop"
            self._stopped = True
            await asyncio.gather(*senders)
            sys.stdout.write("stopped\n")
            sys.stdout.flush()
            assert await lines.get() == "end"
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    async def _make_topic(self) -> None:
        """Make the topic; try again, as the error advises, while a slave confirms it too late."""
        async with AdminClient(namesrv=self._namesrv) as admin:

            async def fault() -> ServersFailedError | None:
                try:
                    await admin.topics.create(
                        TOPIC, read_queues=2, write_queues=2, cluster=self._cluster
                    )
                except ServersFailedError as error:
                    return error
                return None

            await until(fault, lambda error: error is None)

    async def _send(self, producer: Producer, sender: int) -> None:
        while not self._stopped:
            number = next(self._numbers)
            try:
                result = await producer.send(Message(TOPIC, body_of(number)))
            except CometMQError as error:
                self._write(f"F {number} {type(error).__name__}")
                await asyncio.sleep(0.2)
                continue
            queue = result.queue
            self._write(
                f"A {number} {sender} {result.status.name} {queue.broker_name} {queue.queue_id} "
                f"{result.queue_offset}"
            )
            await asyncio.sleep(PAUSE_S)

    def _listener(self, name: str) -> Callable[[list[MessageExt]], ConsumeResult]:
        def listen(messages: list[MessageExt]) -> ConsumeResult:
            self._received(name, messages)
            return ConsumeResult.SUCCESS

        return listen

    async def _poll(self, consumer: LitePullConsumer) -> None:
        while True:
            self._received("pull", await consumer.poll())

    def _received(self, name: str, messages: list[MessageExt]) -> None:
        lines = [
            f"R {name} {message.broker_name} {message.queue_id} {message.queue_offset} "
            f"{number_of(message.body)}"
            for message in messages
        ]
        if lines:
            self._write("\n".join(lines))

    def _write(self, text: str) -> None:
        line = text.encode() + b"\n"
        assert os.write(self._history, line) == len(line)


if __name__ == "__main__":
    asyncio.run(Member(*sys.argv[1:]).run())
