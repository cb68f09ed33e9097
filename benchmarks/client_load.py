"""Load a broker with one client library, in a process of its own, so its processor time is the client's.

    python -m benchmarks.client_load --client "CometMQ, asyncio" --job async --address 127.0.0.1:9876 --topic bench

`benchmarks.clients` starts this process. Jobs are ways to send (`sync`, `async`, `batch`, `oneway`), ways to
drain a full topic (`listener`, `polls`, `iteration`), and `memory`. The result is one line of JSON on stdout
(`ClientLoad`, or `ClientMemory`). This module has the adapters of our client, `benchmarks.other_clients` those
of other Python clients, and `java/ClientLoad.java` does the same work in Java.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.client_faces import (
    ASYNC,
    BATCH,
    BATCHED,
    DRAINS,
    IN_FLIGHT,
    LISTENER,
    MEMORY,
    MORE_CLIENTS,
    ONEWAY,
    POLLS,
    SENDS,
    SILENCE_LIMIT_S,
    SYNC,
    AsyncioFace,
    BlockingFace,
    ClientMemory,
    Meter,
)
from benchmarks.memory import read_memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    import cometmq
    from benchmarks.client_faces import Done

# Jobs ---------------------------------------------------------------------------------------------


def run_blocking(face: BlockingFace, job: str, meter: Meter) -> ClientMemory | None:
    body = b"m" * face.given.body_bytes
    if job in DRAINS:
        face.drain(job, meter)
        return None
    face.open(0)
    try:
        if job == MEMORY:
            return _memory_blocking(face, body)
        if job == ASYNC:
            _many_blocking(face, body, meter)
            return None
        bodies = [body] * BATCHED
        steps: dict[str, Callable[[], None]] = {
            SYNC: lambda: face.send(body),
            BATCH: lambda: face.send_batch(bodies),
            ONEWAY: lambda: face.send_oneway(body),
        }
        step, count = steps[job], BATCHED if job == BATCH else 1
        while True:
            began_s = time.perf_counter()
            step()
            if not meter.add(count, time.perf_counter() - began_s):
                return None
    finally:
        face.close()


def _many_blocking(face: BlockingFace, body: bytes, meter: Meter) -> None:
    room = threading.Semaphore(IN_FLIGHT)

    def send() -> None:
        began_s = time.perf_counter()

        def done(accepted: bool) -> None:
            if accepted:
                meter.add(1, time.perf_counter() - began_s)
            else:
                meter.failed()
            room.release()

        face.send_async(body, done)

    while not meter.over.is_set():
        if not room.acquire(timeout=SILENCE_LIMIT_S):
            meter.give_up()
        send()
    for _ in range(IN_FLIGHT):
        if not room.acquire(timeout=SILENCE_LIMIT_S):
            meter.give_up()


def _memory_blocking(face: BlockingFace, body: bytes) -> ClientMemory:
    face.send(body)
    one = _look()
    for number in range(1, MORE_CLIENTS + 1):
        face.open(number)
        face.send(body)
    return _growth(one, _look())


async def run_asyncio(face: AsyncioFace, job: str, meter: Meter) -> ClientMemory | None:
    body = b"m" * face.given.body_bytes
    if job in DRAINS:
        await face.drain(job, meter)
        return None
    if job == MEMORY:
        return await _memory_asyncio(face, body)
    async with face.producer(0) as producer:
        if job == ASYNC:
            await _many_asyncio(face, producer, body, meter)
            return None
        bodies = [body] * BATCHED
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            SYNC: lambda: face.send(producer, body),
            BATCH: lambda: face.send_batch(producer, bodies),
            ONEWAY: lambda: face.send_oneway(producer, body),
        }
        step, count = steps[job], BATCHED if job == BATCH else 1
        while True:
            began_s = time.perf_counter()
            await step()
            if not meter.add(count, time.perf_counter() - began_s):
                return None


async def _many_asyncio(face: AsyncioFace, producer: Any, body: bytes, meter: Meter) -> None:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def send() -> None:
        began_s = time.perf_counter()

        def done(future: asyncio.Future[Any]) -> None:
            if future.exception() is None:
                meter.add(1, time.perf_counter() - began_s)
            else:
                meter.failed()
            room.release()

        (await face.send_async(producer, body)).add_done_callback(done)

    while not meter.over.is_set():
        await room.acquire()
        await send()
    for _ in range(IN_FLIGHT):
        await asyncio.wait_for(room.acquire(), SILENCE_LIMIT_S)


async def _memory_asyncio(face: AsyncioFace, body: bytes) -> ClientMemory:
    async with contextlib.AsyncExitStack() as stack:
        await face.send(await stack.enter_async_context(face.producer(0)), body)
        one = _look()
        for number in range(1, MORE_CLIENTS + 1):
            await face.send(await stack.enter_async_context(face.producer(number)), body)
        return _growth(one, _look())


def _look() -> tuple[int, int, int]:
    """Return resident and anonymous memory in KiB, and the number of threads."""
    memory = read_memory(os.getpid())
    threads = len(list(Path("/proc/self/task").iterdir()))
    return memory.resident_kib, memory.anonymous_kib, threads


def _growth(one: tuple[int, int, int], many: tuple[int, int, int]) -> ClientMemory:
    each_kib, each_threads = ((many[n] - one[n]) / MORE_CLIENTS for n in (1, 2))
    return ClientMemory(one[0], one[2], each_kib, each_threads)


# Our adapters -------------------------------------------------------------------------------------


class CometAsyncio(AsyncioFace):
    def __init__(self, given: argparse.Namespace) -> None:
        from cometmq import Message, aio

        super().__init__(given)
        self._aio, self._message = aio, Message

    def producer(self, number: int) -> AbstractAsyncContextManager[Any]:
        return self._aio.Producer(
            "bench-clients", namesrv=self.given.address, instance_name=f"bench-{number}"
        )

    async def send(self, producer: Any, body: bytes) -> None:
        await producer.send(self._message(self.given.topic, body))

    async def send_async(self, producer: Any, body: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = producer.send_async(self._message(self.given.topic, body))
        return future

    async def send_batch(self, producer: Any, bodies: Sequence[bytes]) -> None:
        await producer.send_batch([self._message(self.given.topic, body) for body in bodies])

    async def send_oneway(self, producer: Any, body: bytes) -> None:
        await producer.send_oneway(self._message(self.given.topic, body))

    async def drain(self, job: str, meter: Meter) -> None:
        given = self.given
        if job == LISTENER:

            async def listen(messages: list[Any]) -> None:
                meter.add(len(messages))

            pushed = self._aio.PushConsumer(given.group, listen, namesrv=given.address)
            pushed.subscribe(given.topic)
            async with pushed:
                await asyncio.to_thread(meter.wait)
            return
        consumer = self._aio.LitePullConsumer(given.group, namesrv=given.address)
        consumer.subscribe(given.topic)
        async with consumer:
            if job == POLLS:
                while meter.add(len(await consumer.poll())):
                    pass
                return
            async for message in consumer:
                await message.ack()
                if not meter.add(1):
                    return


class CometBlocking(BlockingFace):
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._comet = importlib.import_module("cometmq")
        self._open: list[cometmq.Producer] = []

    def open(self, number: int) -> None:
        instance = f"bench-{number}"
        producer = self._comet.Producer(
            "bench-clients", namesrv=self.given.address, instance_name=instance
        )
        producer.start()
        self._open.append(producer)

    def close(self) -> None:
        for producer in self._open:
            producer.close()

    def _message(self, body: bytes) -> Any:
        return self._comet.Message(self.given.topic, body)

    def send(self, body: bytes) -> None:
        self._open[-1].send(self._message(body))

    def send_async(self, body: bytes, done: Done) -> None:
        self._open[-1].send_async(self._message(body), lambda _, error: done(error is None))

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        self._open[-1].send_batch([self._message(body) for body in bodies])

    def send_oneway(self, body: bytes) -> None:
        self._open[-1].send_oneway(self._message(body))

    def drain(self, job: str, meter: Meter) -> None:
        given = self.given
        if job == LISTENER:

            def listen(messages: list[cometmq.MessageExt]) -> None:
                meter.add(len(messages))

            pushed = self._comet.PushConsumer(given.group, listen, namesrv=given.address)
            pushed.subscribe(given.topic)
            with pushed:
                meter.wait()
            return
        consumer = self._comet.LitePullConsumer(given.group, namesrv=given.address)
        consumer.subscribe(given.topic)
        with consumer:
            if job == POLLS:
                while meter.add(len(consumer.poll())):
                    pass
                return
            for message in consumer:
                message.ack()
                if not meter.add(1):
                    return


# The program --------------------------------------------------------------------------------------


def main() -> None:
    given = _parsed()
    if given.without_uvloop:
        sys.modules["uvloop"] = None  # type: ignore[assignment]  # so that its import fails
    # Libraries print to standard output, which is for the result alone.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if given.path:
        sys.path.insert(0, given.path)
    meter = Meter(given.warmup_seconds, given.seconds, given.available)
    made = _face(given)
    memory: ClientMemory | None
    if isinstance(made, AsyncioFace):
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            memory = runner.run(run_asyncio(made, given.job, meter))
    else:
        memory = run_blocking(made, given.job, meter)
    results.write(json.dumps(asdict(memory or meter.result())) + "\n")
    results.flush()
    # Threads and virtual machines of libraries may keep a process alive.
    os._exit(0)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _face(given: argparse.Namespace) -> AsyncioFace | BlockingFace:
    if given.client == "comet-asyncio":
        return CometAsyncio(given)
    if given.client == "comet-blocking":
        return CometBlocking(given)
    from benchmarks.other_clients import FACES

    return FACES[given.client](given)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_load")
    parser.add_argument("--client", required=True)
    parser.add_argument("--job", required=True, choices=(*SENDS, *DRAINS, MEMORY))
    parser.add_argument(
        "--address", required=True, help="address of the name server, of the proxy, or of Kafka"
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="bench-clients")
    parser.add_argument("--path", default="", help="directory of other packages")
    parser.add_argument(
        "--class-path", default="", help="class path of the Java client below pyrocketmq"
    )
    parser.add_argument("--without-uvloop", action="store_true")
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--warmup-seconds", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--available", type=int, default=0, help="messages in the topic to drain")
    return parser.parse_args()


if __name__ == "__main__":
    main()
