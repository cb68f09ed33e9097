"""Client program of the interop suite over CometMQ's own blocking clients.

It takes scenarios (produce, consume, request, transact) from standard input and prints events, as the
Java program does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Credentials,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendResult,
    Tls,
    TransactionProducer,
    create_reply_message,
)
from cometmq.errors import CometMQError

ANSWER_TIMEOUT_S = 90.0
# What a send may take on a machine that is busy with something else: one that is repeated comes twice.
PATIENCE_MS = 60_000

# Events have standard output for themselves: a log line must not run into one of them.
_events = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
_printing = threading.Lock()


def emit(event: str, **fields: Any) -> None:
    """Print one event; its name comes first, readers know an event by that."""
    line = json.dumps({"event": event, **fields}, ensure_ascii=False, separators=(",", ":"))
    with _printing:
        _events.write(line.encode() + b"\n")
        _events.flush()


def body(index: int, size: int) -> bytes:
    """The pattern every client program of the suite sends."""
    return bytes((index * 31 + j * 7 + j // 256) & 0xFF for j in range(size))


def produce(args: dict[str, str]) -> None:
    """Send `count` messages in one mode and print the result of each send."""
    first, count = int(args.get("first", "0")), int(args.get("count", "10"))
    indexes = range(first, first + count)
    with Producer(
        args.get("group", "interop-producer"), send_timeout_ms=PATIENCE_MS, **options(args)
    ) as producer:
        mode = args.get("mode", "sync")
        if mode == "sync":
            for index in indexes:
                emit_sent(
                    index, 1, producer.send(message(args, index), queue=queue(args, producer))
                )
        elif mode == "async":
            send_async(args, producer, indexes)
        elif mode == "oneway":
            for index in indexes:
                producer.send_oneway(message(args, index))
                emit("sent", index=index, count=1)
        elif mode == "batch":
            size = int(args.get("batch", "10"))
            for start in indexes[::size]:
                batch = [message(args, index) for index in indexes[start - first :][:size]]
                emit_sent(start, len(batch), producer.send_batch(batch))
        else:
            raise ValueError(f"unknown mode {mode}")
        for index in (int(text) for text in args.get("recall", "").split(",") if text):
            emit(
                "recalled",
                index=index,
                msgId=producer.recall(args["topic"], _recall_handles[index]),
            )
    emit("summary", sent=count, failed=0)


def options(args: dict[str, str]) -> dict[str, Any]:
    """Arguments that producers and consumers share."""
    return {
        "namesrv": args["namesrv"],
        "namespace": args.get("namespace"),
        "enable_trace": args.get("trace") == "true",
        **access(args),
    }


def access(args: dict[str, str]) -> dict[str, Any]:
    """How a client gets in: with an access key it signs, with `tls=true` it talks TLS and trusts
    whatever certificate it is shown.
    """
    return {
        "credentials": (
            Credentials(args["access-key"], args["secret-key"]) if "access-key" in args else None
        ),
        "tls": Tls(verify=False) if args.get("tls") == "true" else None,
    }


def queue(args: dict[str, str], producer: Producer) -> Any:
    """The queue that `--queue` asks for, None for the producer's own choice."""
    if "queue" not in args:
        return None
    queues = producer.queues(args["topic"])
    return next(one for one in queues if one.queue_id == int(args["queue"]))


def send_async(args: dict[str, str], producer: Producer, indexes: range) -> None:
    """Send everything at once, then wait for the answers."""
    futures: list[tuple[int, Future[SendResult]]] = [
        (index, producer.send_async(message(args, index))) for index in indexes
    ]
    for index, future in futures:
        emit_sent(index, 1, future.result(ANSWER_TIMEOUT_S))


def message(args: dict[str, str], index: int) -> Message:
    """Message `index` of the run."""
    prefix = args.get("prefix", "m")
    tags = args.get("tags", "").split(",")
    delays = args.get("delays", "").split(",")
    one = Message(
        args["topic"],
        body(index, int(args.get("size", "64"))),
        tags=tags[index % len(tags)] or None,
        keys=(f"{prefix}-{index}", f"all-{prefix}"),
        flag=index % 7,
        properties={"index": str(index), "note": "grün € 😀"},
    )
    delay(one, delays[index % len(delays)])
    return one


def delay(one: Message, wanted: str) -> None:
    """`level:2`, `sec:1`, `ms:1500`, `at:2000` for so many ms from now, or nothing."""
    kind, _, value = wanted.partition(":")
    if kind == "level":
        one.delay_level = int(value)
    elif kind == "sec":
        one.properties["TIMER_DELAY_SEC"] = value
    elif kind == "ms":
        one.delay_ms = int(value)
    elif kind == "at":
        one.deliver_at_ms = int(time.time() * 1000) + int(value)


_recall_handles: dict[int, str] = {}


def emit_sent(index: int, count: int, result: SendResult) -> None:
    """Print the result of one send."""
    if result.recall_handle is not None:
        _recall_handles[index] = result.recall_handle
    emit(
        "sent",
        index=index,
        count=count,
        status=result.status.name,
        msgId=result.msg_id,
        offsetMsgId=result.offset_msg_id,
        topic=result.queue.topic,
        brokerName=result.queue.broker_name,
        queueId=result.queue.queue_id,
        queueOffset=result.queue_offset,
        recallHandle=result.recall_handle,
    )


def ask(args: dict[str, str]) -> None:
    """Send `count` requests, one after the other; print the reply to each, or the failure."""
    first, count = int(args.get("first", "0")), int(args.get("count", "10"))
    timeout_ms = int(args.get("ttl-ms", "10000"))
    failed = 0
    group = args.get("group", "interop-requester")
    with Producer(group, namesrv=args["namesrv"], **access(args)) as producer:
        for index in range(first, first + count):
            try:
                reply = producer.request(message(args, index), timeout_ms=timeout_ms)
                emit("replied", index=index, **described(reply))
            except CometMQError as error:
                failed += 1
                emit("failed", index=index, error=str(error))
    emit("summary", sent=count - failed, failed=failed)


def transact(args: dict[str, str]) -> None:
    """A transaction producer: sends messages whose verdicts take turns, answers every check with
    `check`, until standard input closes.
    """
    verdicts = args.get("verdicts", "commit").split(",")
    member = args.get("member", "transact")
    listener = Verdicts(args.get("check", "unknown"), verdicts)
    with TransactionProducer(
        args["group"],
        listener,
        namesrv=args["namesrv"],
        **access(args),
        instance_name=member,
        send_timeout_ms=PATIENCE_MS,
    ) as producer:
        emit("started", member=member)
        first = int(args.get("first", "0"))
        for index in range(first, first + int(args.get("count", "0"))):
            result = producer.send_in_transaction(message(args, index), index)
            emit_sent(index, 1, result)
            emit("state", index=index, state=result.state.value)
        emit("all-sent")
        await_end()
    emit("summary", checked=listener.checked)


class Verdicts:
    """The transaction listener of `transact`."""

    def __init__(self, check: str, verdicts: list[str]) -> None:
        self.checked = 0
        self._check = check
        self._verdicts = verdicts

    def execute(self, _message: Message, index: int) -> LocalTransactionState:
        return state(self._verdicts[index % len(self._verdicts)])

    def check(self, one: MessageExt) -> LocalTransactionState:
        self.checked += 1
        emit("checked", **described(one), transactionId=one.transaction_id)
        return state(self._check)


def state(verdict: str) -> LocalTransactionState:
    """The verdict of that name; `raise` raises."""
    if verdict == "raise":
        raise RuntimeError("the listener was told to fail")
    return LocalTransactionState[verdict.upper()]


def consume(args: dict[str, str]) -> None:
    """Consumers of one group, printing every message, until the run's end."""
    members = int(args.get("members", "1"))
    with ExitStack() as stack:
        replier = None
        if args.get("reply") == "true":
            replier = stack.enter_context(
                Producer(
                    f"{args['group']}-replies",
                    namesrv=args["namesrv"],
                    **access(args),
                    send_timeout_ms=PATIENCE_MS,
                )
            )
        received = Received(args, replier)
        for number in range(members):
            name = args.get("member", "member") + (f"-{number}" if members > 1 else "")
            consumer = PushConsumer(
                args["group"],
                received.listener(name),
                **options(args),
                instance_name=name,
                orderly=args.get("orderly") == "true",
                max_reconsume_times=int(args.get("max-reconsume-times", "-1")),
                consume_from=(
                    ConsumeFromWhere.LAST_OFFSET
                    if args.get("from") == "last"
                    else ConsumeFromWhere.FIRST_OFFSET
                ),
            )
            consumer.subscribe(args["topic"], args.get("expression", "*"))
            stack.enter_context(consumer)
            emit("started", member=name)
        if args.get("until-stdin") == "true":
            await_end()
        else:
            received.done.wait(int(args.get("timeout-ms", "60000")) / 1000)
    emit("summary", received=received.count)


class Received:
    """Counts what the listeners got; `done` is set when it is all that was expected."""

    def __init__(self, args: dict[str, str], replier: Producer | None) -> None:
        self.count = 0
        self._replier = replier
        self.done = threading.Event()
        self._expected = int(args.get("expected", str(1 << 31)))
        self._delay_s = int(args.get("delay-ms", "0")) / 1000
        self._fail_times = [int(text) for text in args.get("fail-times", "0").split(",")]
        self._lock = threading.Lock()

    def listener(self, member: str) -> Any:
        """A blocking listener for one member."""

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            failed = False
            for one in messages:
                emit("message", member=member, **described(one))
                self._reply(one)
                failed |= self._fails(one)
                time.sleep(self._delay_s)
            with self._lock:
                self.count += len(messages)
                if self.count >= self._expected:
                    self.done.set()
            return ConsumeResult.RECONSUME_LATER if failed else ConsumeResult.SUCCESS

        return listen

    def _reply(self, one: MessageExt) -> None:
        if self._replier is None:
            return
        index = int(one.properties["index"])
        try:
            self._replier.send(create_reply_message(one, body(index + 1, 64)))
        except CometMQError as error:
            emit("reply-failed", index=index, error=str(error))

    def _fails(self, one: MessageExt) -> bool:
        index = int(one.properties.get("index", "0"))
        return one.reconsume_times < self._fail_times[index % len(self._fail_times)]


def described(one: MessageExt) -> dict[str, Any]:
    """Everything a test compares of a received message; the body as size and CRC-32."""
    return {
        "topic": one.topic,
        "msgId": one.msg_id,
        "offsetMsgId": one.offset_msg_id,
        "brokerName": one.broker_name,
        "queueId": one.queue_id,
        "queueOffset": one.queue_offset,
        "commitLogOffset": one.commit_log_offset,
        "tags": one.tags,
        "keys": one.properties.get("KEYS"),
        "properties": one.properties,
        "size": len(one.body),
        "crc32": zlib.crc32(one.body),
        "flag": one.flag,
        "sysFlag": one.sys_flag,
        "bornTimestamp": one.born_timestamp_ms,
        "storeTimestamp": one.store_timestamp_ms,
        "reconsumeTimes": one.reconsume_times,
    }


def await_end() -> None:
    """Wait for the line that ends the scenario, or for the end of standard input."""
    if not _ends:
        line = sys.stdin.readline()
        assert line in {"end\n", ""}, f"a scenario runs, this is no end: {line}"
        _ends.append(line)


# The line that ended the running scenario, once it came.
_ends: list[str] = []


def main() -> None:
    """Run the scenarios that the lines of standard input name, one after the other."""
    scenarios = {"produce": produce, "consume": consume, "request": ask, "transact": transact}
    while line := sys.stdin.readline():
        scenario, *arguments = line.removesuffix("\n").split("\t")
        _ends.clear()
        _recall_handles.clear()
        args = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
        try:
            scenarios[scenario](args)
        except CometMQError as error:
            if args.get("may-fail") != "true":
                raise
            emit("failed", error=f"{type(error).__name__}: {error}")
            emit("summary", failed=1)
        await_end()
        emit("ended")


if __name__ == "__main__":
    main()
