"""Client program of the interop suite over RocketMQ's Python client for gRPC: `python grpc_python_client.py
DIRECTORY ROOTS`, with the directory that has the client.

Its lines, scenarios and events are those of the Java program, `java/src/grpc`: it takes scenarios from standard
input and runs one after the other.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from typing import Any

# Events have standard output for themselves: the client prints lines of its own.
_events = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
_printing = threading.Lock()

sys.path.insert(0, sys.argv[1])
client: Any = importlib.import_module("rocketmq")  # of DIRECTORY, which was put into the path
FilterType: Any = importlib.import_module("rocketmq.grpc_protocol").FilterType
InternalError: Any = importlib.import_module("rocketmq.v5.exception").InternalErrorException

# The time that a call may take on a machine that is busy with something else.
PATIENCE_S = 20
RECEIVED_AT_ONCE = 16


def emit(event: str, **fields: Any) -> None:
    """Print one event; its name comes first, because readers recognise an event by it."""
    line = json.dumps({"event": event, **fields}, ensure_ascii=False, separators=(",", ":"))
    with _printing:
        _events.write(line.encode() + b"\n")
        _events.flush()


class Lines:
    """Reads standard input on a thread, so that a scenario can check whether it has to end."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while line := sys.stdin.readline():
            self._lines.put(line.removesuffix("\n"))
        # One line ends the running scenario, one the loop over scenarios.
        self._lines.put("")
        self._lines.put("")

    def next_scenario(self) -> str:
        self._is_over = False
        return self._lines.get()

    def await_end(self) -> None:
        """Wait for the line that ends the scenario, or for the end of standard input."""
        if not self._is_over:
            line = self._lines.get()
            assert line in {"end", ""}, f"a scenario runs, this is no end: {line}"
            self._is_over = True

    def end_came(self) -> bool:
        if not self._lines.empty():
            self.await_end()
        return self._is_over


class Args:
    """The arguments of a scenario."""

    def __init__(self, flags: list[str]) -> None:
        self._values = dict(flag.removeprefix("--").split("=", 1) for flag in flags)

    def text(self, name: str, otherwise: str = "") -> str:
        return self._values.get(name, otherwise)

    def number(self, name: str, otherwise: int = 0) -> int:
        return int(self._values.get(name, otherwise))

    def flag(self, name: str) -> bool:
        return self.text(name) == "true"

    def in_turn(self, name: str, index: int) -> str:
        """Return the value at `index` of a list whose values take turns."""
        values = self.text(name).split(",")
        return values[index % len(values)]

    def configuration(self) -> Any:
        credentials = client.Credentials(self.text("access-key"), self.text("secret-key"))
        return client.ClientConfiguration(
            self.text("endpoints"), credentials, self.text("namespace"), PATIENCE_S
        )

    def subscriptions(self) -> dict[str, Any]:
        kind = FilterType.SQL if self.flag("sql") else FilterType.TAG
        return {
            self.text("topic"): client.FilterExpression(self.text("expression", "*"), kind),
        }

    def fails(self, message: Any, deliveries: int) -> bool:
        """Say whether this delivery of a message, by its number, fails."""
        return deliveries <= int(self.in_turn("fail-times", index_of(message)) or 0)


def index_of(message: Any) -> int:
    return int(message.properties["index"])


def body(index: int, size: int) -> bytes:
    """The pattern every client program of the suite sends."""
    return bytes((index * 31 + j * 7 + j // 256) & 0xFF for j in range(size))


def made_message(args: Args, index: int) -> Any:
    prefix = args.text("prefix", "m")
    message = client.Message()
    message.topic = args.text("topic")
    message.body = body(index, args.number("size", 64))
    # The client adds each key that it is given to a set.
    for key in (f"{prefix}-{index}", f"all-{prefix}"):
        message.keys = key
    message.add_property("index", str(index))
    message.add_property("note", "grün € 😀")
    if tag := args.in_turn("tags", index):
        message.tag = tag
    if group := args.in_turn("groups", index):
        message.message_group = group
    if delay_ms := args.in_turn("delays-ms", index):
        # The client takes whole seconds, and shows milliseconds to consumers.
        message.delivery_timestamp = int(time.time() + int(delay_ms) / 1000)
    if priority := args.in_turn("priorities", index):
        message.priority = int(priority)
    return message


def described(message: Any) -> dict[str, Any]:
    """Everything a test compares of a received message; the body as size and CRC-32."""
    return {
        "topic": message.topic,
        "tags": message.tag,
        # A set to this client: `m-1 all-m`, the order of the other programs, is the reverse of the alphabet's.
        "keys": " ".join(sorted(message.keys, reverse=True)),
        "properties": message.properties,
        "size": len(message.body),
        "crc32": zlib.crc32(message.body),
        "msgId": message.message_id,
        "group": message.message_group,
        "deliveryTimestamp": message.delivery_timestamp,
        "priority": message.priority,
        "bornHost": message.born_host,
        "bornTimestamp": message.born_timestamp,
        "attempt": message.delivery_attempt,
        "at": int(time.time() * 1000),
    }


def produce(args: Args, _lines: Lines) -> None:
    """Send `count` messages, print the receipt of each, and recall those whose indexes `recall` names."""
    first, count = args.number("first"), args.number("count", 10)
    topic = args.text("topic")
    producer = client.Producer(args.configuration(), [topic], tls_enable=args.flag("tls"))
    producer.startup()
    try:
        handles = {}
        for index in range(first, first + count):
            receipt = producer.send(made_message(args, index))
            handles[index] = receipt.recall_handle
            emit("sent", index=index, msgId=receipt.message_id, recallHandle=receipt.recall_handle)
        for index in (int(text) for text in args.text("recall").split(",") if text):
            emit("recalled", index=index, msgId=producer.recall_message(topic, handles[index]))
    finally:
        producer.shutdown()
    emit("summary", sent=count, failed=0)


class Checker(client.TransactionChecker):  # type: ignore[misc]  # it is known at run time only
    def __init__(self, args: Args) -> None:
        self._args = args

    def check(self, message: Any) -> Any:
        emit("checked", **described(message))
        verdict = self._args.in_turn("verdicts", index_of(message))
        if verdict == "unknown":
            verdict = self._args.text("check", "commit")
        kinds = client.TransactionResolution
        return kinds.COMMIT if verdict == "commit" else kinds.ROLLBACK


def transact(args: Args, lines: Lines) -> None:
    """Send `count` half messages; `verdicts` (commit, rollback, or unknown for none) take turns, and the answer to
    the broker's question about one without a verdict is `check`.
    """
    count = args.number("count", 3)
    producer = client.Producer(
        args.configuration(), [args.text("topic")], Checker(args), tls_enable=args.flag("tls")
    )
    producer.startup()
    for index in range(count):
        transaction = producer.begin_transaction()
        receipt = producer.send(made_message(args, index), transaction)
        emit("sent", index=index, msgId=receipt.message_id)
        verdict = args.in_turn("verdicts", index)
        if verdict == "commit":
            transaction.commit()
        elif verdict == "rollback":
            transaction.rollback()
    emit("all-sent")
    lines.await_end()
    producer.shutdown()
    emit("summary", sent=count)


class Listener(client.MessageListener):  # type: ignore[misc]  # it is known at run time only
    def __init__(self, args: Args) -> None:
        self._args = args
        self._deliveries: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._deliveries.total()

    def consume(self, message: Any) -> Any:
        member = self._args.text("member", "member")
        emit("message", member=member, **described(message))
        self._deliveries[message.message_id] += 1
        time.sleep(int(self._args.in_turn("delay-ms", index_of(message)) or 0) / 1000)
        # The client does not count in the message how often it has called the listener for a FIFO message.
        deliveries = max(message.delivery_attempt, self._deliveries[message.message_id])
        result = client.ConsumeResult
        return result.FAILURE if self._args.fails(message, deliveries) else result.SUCCESS


def consume(args: Args, lines: Lines) -> None:
    """Run a push consumer that prints every message until the line that ends the scenario."""
    listener = Listener(args)
    consumer = client.PushConsumer(
        args.configuration(),
        args.text("group"),
        listener,
        args.subscriptions(),
        consumption_thread_count=4,
        tls_enable=args.flag("tls"),
    )
    consumer.startup()
    emit("started", member=args.text("member", "member"))
    lines.await_end()
    consumer.shutdown()
    emit("summary", received=listener.count)


def receive(args: Args, lines: Lines) -> None:
    """Run a simple consumer until it has acknowledged `expected` messages, or without that, until the line that ends
    the scenario. A message that fails is made visible again after `hide-s`. With `extend-s` each other message is
    hidden for so long from then on, and held for `hold-ms`, before its acknowledgement.
    """
    consumer = client.SimpleConsumer(
        args.configuration(),
        args.text("group"),
        args.subscriptions(),
        await_duration=args.number("await-s", 5),
        tls_enable=args.flag("tls"),
    )
    consumer.startup()
    emit("started")
    expected, done = args.number("expected"), 0
    while done < expected if expected else not lines.end_came():
        for message in received(consumer, args.number("invisible-s", 30)):
            emit("message", **described(message))
            if args.fails(message, message.delivery_attempt):
                consumer.change_invisible_duration(message, args.number("hide-s", 1))
                continue
            if extend_s := args.number("extend-s"):
                consumer.change_invisible_duration(message, extend_s)
                time.sleep(args.number("hold-ms") / 1000)
            consumer.ack(message)
            emit("acknowledged", msgId=message.message_id)
            done += 1
    consumer.shutdown()
    emit("summary", received=done)


def received(consumer: Any, invisible_s: int) -> list[Any]:
    """Receive once. A simple consumer of this client receives without waiting for the proxy's answer to its settings;
    if Java's proxy does not know these yet, it answers with an error, after which the program receives again.
    """
    try:
        messages: list[Any] = consumer.receive(RECEIVED_AT_ONCE, invisible_s)
    except InternalError as error:
        if '"settings" is null' not in str(error):
            raise
        return []
    return messages


def main() -> None:
    """Run the scenarios that the lines of standard input name, one after the other."""
    scenarios = {"produce": produce, "transact": transact, "consume": consume, "receive": receive}
    lines = Lines()
    while line := lines.next_scenario():
        scenario, *flags = line.split("\t")
        args = Args(flags)
        try:
            scenarios[scenario](args, lines)
        except Exception as error:
            if not args.flag("may-fail"):
                raise
            emit("failed", error=f"{type(error).__name__}: {error}", cause=str(error.__cause__))
            emit("summary", failed=1)
        lines.await_end()
        emit("ended")


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - it is printed, and the process ends
        traceback.print_exc()
        os._exit(1)
    # The client's own threads would keep the process alive.
    os._exit(0)
