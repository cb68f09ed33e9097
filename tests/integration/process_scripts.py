"""Run programs that fork, or end without closing their clients; test_process_safety.py names them.

Each prints one line for each thing that it found out; the last line is `end`, when the interpreter
begins to end.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from tests.waits import SEND_WAIT_MS, WAIT_S

import cometmq
import cometmq.aio
from cometmq import ConsumeFromWhere, ConsumeResult, LocalTransactionState, Message, MessageExt
from cometmq.errors import ClientStateError, ForkedClientError

FIRST = ConsumeFromWhere.FIRST_OFFSET
# A fork of a busy machine, or its disk, may take longer than a send waits by itself.
PATIENT: dict[str, Any] = {"send_timeout_ms": SEND_WAIT_MS}


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def in_child(work: Callable[[], None], *, leave: bool = False) -> None:
    """Fork; the child does `work` and ends as a program does, or at once with `leave`."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
            traceback.print_exc()
            os._exit(3)
        if leave:
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    say("child ended", os.waitstatus_to_exitcode(status))


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except ForkedClientError:
        return "ForkedClientError"
    except ClientStateError as error:
        return f"{type(error).__name__}: {error}"
    return "served"


def fork_blocking(namesrv: str) -> None:
    """Fork children while other threads send: these may hold any lock at that moment."""
    producer = cometmq.Producer("forking", namesrv=namesrv, **PATIENT)
    producer.start()
    consumer = cometmq.PushConsumer(
        "forking-c", lambda _: ConsumeResult.SUCCESS, namesrv=namesrv, consume_from=FIRST
    )
    consumer.subscribe("forked")
    lite = cometmq.LitePullConsumer("forking-l", namesrv=namesrv)
    lite.subscribe("forked")
    consumer.start()
    lite.start()
    stop = threading.Event()
    sent = [0, 0, 0]

    def send(index: int) -> None:
        while not stop.is_set():
            producer.send(Message("forked", b"parent"))
            sent[index] += 1

    threads = [threading.Thread(target=send, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    parents_id = producer.client_id

    def child() -> None:
        say("send:", refused(lambda: producer.send(Message("forked", b"x"))))
        say("send_async:", refused(lambda: producer.send_async(Message("forked", b"x"))))
        say("subscribe:", refused(lambda: consumer.subscribe("other")))
        say("poll:", refused(lambda: lite.poll(100)))
        say("start:", refused(producer.start))
        for client in (producer, consumer, lite):
            client.close()
        with cometmq.Producer("forking", namesrv=namesrv, **PATIENT) as fresh:
            say("fresh:", fresh.send(Message("forked", b"child")).status.name)
            say("new id:", fresh.client_id != parents_id)

    for turn in range(4):
        in_child(child, leave=turn % 2 == 0)
    before = sum(sent)
    while sum(sent) < before + 100:  # the parent's sockets still serve it
        stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    for client in (lite, consumer, producer):
        client.close()


def fork_asyncio(namesrv: str) -> None:
    async def child(producer: cometmq.aio.Producer) -> None:
        async with cometmq.aio.Producer("forking", namesrv=namesrv, **PATIENT) as fresh:
            result = await fresh.send(Message("forked", b"child"))
            say("fresh:", result.status.name)
            # By then the child has a loop of its own, but the client still belongs to the parent.
            try:
                await producer.send(Message("forked", b"x"))
            except ForkedClientError:
                say("send: ForkedClientError")

    async def parent() -> None:
        async with cometmq.aio.Producer("forking", namesrv=namesrv, **PATIENT) as producer:
            await producer.send(Message("forked", b"parent"))
            in_child(lambda: in_thread(lambda: asyncio.run(child(producer))), leave=True)
            for _ in range(20):
                await producer.send(Message("forked", b"parent"))

    asyncio.run(parent())


def in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a thread: a forked coroutine cannot run a loop inside its own loop."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _work(namesrv: str, queue: multiprocessing.SimpleQueue[str]) -> None:
    with cometmq.Producer("pool", namesrv=namesrv, **PATIENT) as producer:
        producer.send(Message("forked", b"worker"))
        queue.put(producer.client_id)


def fork_workers(namesrv: str) -> None:
    """Run workers of multiprocessing beside a client of their parent's."""
    context = multiprocessing.get_context("fork")
    with cometmq.Producer("pool", namesrv=namesrv, **PATIENT) as producer:
        ids: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
        workers = [context.Process(target=_work, args=(namesrv, ids)) for _ in range(4)]
        for worker in workers:
            worker.start()
        known = {ids.get() for _ in workers} | {producer.client_id}
        for worker in workers:
            worker.join()
        say("ids:", len(known))
        say("codes:", {worker.exitcode for worker in workers})
        producer.send(Message("forked", b"parent"))


def unclosed_blocking(namesrv: str) -> None:
    producer = cometmq.Producer("unclosed", namesrv=namesrv, **PATIENT)
    producer.start()
    producer.send(Message("unclosed", b"x"))
    heard = threading.Event()

    def listen(_messages: list[MessageExt]) -> ConsumeResult:
        heard.set()
        threading.Event().wait()  # a listener that never returns
        return ConsumeResult.SUCCESS

    consumer = cometmq.PushConsumer("unclosed-c", listen, namesrv=namesrv, consume_from=FIRST)
    consumer.subscribe("unclosed")
    consumer.start()
    lite = cometmq.LitePullConsumer("unclosed-l", namesrv=namesrv)
    lite.subscribe("unclosed")
    lite.start()
    assert heard.wait(WAIT_S)


def unclosed_transaction(namesrv: str) -> None:
    """Begin a transaction whose local part never ends."""
    begun = threading.Event()

    class Stuck:
        def execute(self, _message: Message, _arg: object) -> LocalTransactionState:
            begun.set()
            threading.Event().wait()
            return LocalTransactionState.COMMIT

        def check(self, _message: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.UNKNOWN

    producer = cometmq.TransactionProducer("unclosed-t", Stuck(), namesrv=namesrv, **PATIENT)
    producer.start()
    send = producer.send_in_transaction
    threading.Thread(target=send, args=(Message("unclosed", b"x"),), daemon=True).start()
    assert begun.wait(WAIT_S)


def unclosed_without_cluster(_namesrv: str) -> None:
    """Use a client that nobody answers: neither a name server nor a broker."""
    producer = cometmq.Producer("unclosed", namesrv="127.0.0.1:1")
    producer.start()
    producer.send_async(Message("t", b"x"))


def unclosed_asyncio(namesrv: str) -> None:
    async def main() -> None:
        producer = cometmq.aio.Producer("unclosed", namesrv=namesrv, **PATIENT)
        await producer.start()
        await producer.send(Message("unclosed", b"x"))

        async def listen(_messages: list[MessageExt]) -> ConsumeResult:
            await asyncio.sleep(3600)
            return ConsumeResult.SUCCESS

        consumer = cometmq.aio.PushConsumer(
            "unclosed-c", listen, namesrv=namesrv, consume_from=FIRST
        )
        consumer.subscribe("unclosed")
        await consumer.start()

    asyncio.run(main())


def consume(namesrv: str, topic: str, kind: str) -> None:
    """Print the first message that comes, and never be done with it."""

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        say("heard", messages[0].body.decode())
        threading.Event().wait()
        return ConsumeResult.SUCCESS

    consumer = cometmq.PushConsumer(
        topic,
        listen,
        namesrv=namesrv,
        consume_from=FIRST,
        orderly=kind == "orderly",
        concurrency=1,
    )
    consumer.subscribe(topic)
    consumer.start()
    threading.Event().wait()


if __name__ == "__main__":
    script: Callable[..., None] = globals()[sys.argv[1]]
    script(*sys.argv[2:])
    say("end")
