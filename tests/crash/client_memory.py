"""A client process that sends and consumes many small messages and says what memory it holds.

Run as `python -m tests.crash.client_memory NAMESRV FACE COUNT`; prints a JSON line for each tenth:
`{"sent": …, "consumed": …, "anonymous_kib": …}`. With TRACE=1 in the environment it ends with the lines
of code whose allocations grew most since the first tenth.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

from benchmarks.memory import read_memory

import cometmq
import cometmq.aio
from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt

TOPIC = "memory"
BODY = b"x" * 100
IN_FLIGHT = 64
# Of a queue. What a consumer that lags behind holds for the moment is small, and is no leak.
HELD = 100
THREADS = 8
# What an answer may take on a machine that is busy with something else.
PATIENCE_MS = 60_000


class Count:
    """Count the messages consumed, by any thread."""

    def __init__(self) -> None:
        self.consumed = 0
        self._lock = threading.Lock()

    def listen(self, messages: list[MessageExt]) -> ConsumeResult:
        with self._lock:
            self.consumed += len(messages)
        return ConsumeResult.SUCCESS

    async def listen_async(self, messages: list[MessageExt]) -> ConsumeResult:
        return self.listen(messages)


class Report:
    def __init__(self, count: Count) -> None:
        self._count = count
        self._first: tracemalloc.Snapshot | None = None
        if os.environ.get("TRACE"):
            tracemalloc.start()

    def tell(self, sent: int) -> None:
        gc.collect()
        if tracemalloc.is_tracing() and self._first is None:
            self._first = tracemalloc.take_snapshot()
        memory = read_memory(os.getpid()).anonymous_kib
        line = {"sent": sent, "consumed": self._count.consumed, "anonymous_kib": memory}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        if self._first is not None:
            for statistic in tracemalloc.take_snapshot().compare_to(self._first, "lineno")[:15]:
                sys.stderr.write(f"{statistic}\n")


def blocking(namesrv: str, total: int) -> None:
    count = Count()
    report = Report(count)
    consumer = cometmq.PushConsumer(
        "memory-in",
        count.listen,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        pull_threshold_for_queue=HELD,
    )
    consumer.subscribe(TOPIC)
    step = total // 10
    with (
        cometmq.Producer("memory-out", namesrv=namesrv, send_timeout_ms=PATIENCE_MS) as producer,
        consumer,
        ThreadPoolExecutor(THREADS) as pool,
    ):

        def send(times: int) -> None:
            for _ in range(times):
                producer.send(Message(TOPIC, BODY))

        for sent in range(step, total + 1, step):
            list(pool.map(send, [step // THREADS] * THREADS))
            while count.consumed < sent // THREADS * THREADS:
                time.sleep(0.01)
            report.tell(sent)
    report.close()


async def asynchronous(namesrv: str, total: int) -> None:
    count = Count()
    report = Report(count)
    consumer = cometmq.aio.PushConsumer(
        "memory-in",
        count.listen_async,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        pull_threshold_for_queue=HELD,
    )
    consumer.subscribe(TOPIC)
    step = total // 10
    async with (
        cometmq.aio.Producer(
            "memory-out", namesrv=namesrv, send_timeout_ms=PATIENCE_MS
        ) as producer,
        consumer,
    ):

        async def send(times: int) -> None:
            for _ in range(times):
                await producer.send(Message(TOPIC, BODY))

        for sent in range(step, total + 1, step):
            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(send(step // IN_FLIGHT))
            expected = sent // step * (step // IN_FLIGHT * IN_FLIGHT)
            while count.consumed < expected:  # noqa: ASYNC110 - a signal for each would cost more
                await asyncio.sleep(0.01)
            report.tell(sent)
    report.close()


if __name__ == "__main__":
    if sys.argv[2] == "asyncio":
        asyncio.run(asynchronous(sys.argv[1], int(sys.argv[3])))
    else:
        blocking(sys.argv[1], int(sys.argv[3]))
