"""Send the messages of the proof by Java's client and ours, in all the ways that change the form of a record.

Both send in chunks. Each chunk has batches, single messages, delays, transactions (some are rolled back), bodies
that the client compresses, and a body of 1 MiB. Keys are Chinese and end with the number of the message, so the
proof can look for the acknowledged messages in the log.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from tests.interop.clients import Event, JavaClient
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS

from cometmq import LocalTransactionState, Message, TransactionProducer
from cometmq.errors import CometMQError

JAVA, OURS, LATER, LARGE = "orders-java", "orders-ours", "orders-later", "orders-large"
TOPICS: Final = (JAVA, OURS, LATER, LARGE)
MIB: Final = 1 << 20
# Clients compress bodies of more than 4 KiB.
_COMPRESSED_BYTES: Final = 8192
_BATCH: Final = 200
_ATTEMPTS: Final = 10
# The shares of a chunk: the batches of Java's client, and the single messages of each client.
_JAVA_SHARE: Final = 0.45
_SINGLE_SHARE: Final = 0.01
_RARE_SHARE: Final = 0.001
_VERDICTS: Final = ("commit", "commit", "rollback")
_KINDS_LATER: Final = ("延时", "事务")
_DELAYS: Final = "level:1,ms:1500"


class Sent:
    """Keeps the numbers of acknowledged and of rolled back messages, by the prefix of their keys."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, list[range]] = {}
        self.rolled_back: dict[str, list[int]] = {}
        self.failed = 0
        self._next: Counter[str] = Counter()

    def reserve(self, prefix: str, count: int) -> int:
        """Reserve `count` numbers that no message has yet. Return the first."""
        first = self._next[prefix]
        self._next[prefix] += count
        return first

    def add(self, prefix: str, first: int, count: int = 1) -> None:
        self.acknowledged.setdefault(prefix, []).append(range(first, first + count))

    def add_rolled_back(self, prefix: str, number: int) -> None:
        self.rolled_back.setdefault(prefix, []).append(number)

    def of_topic_later(self) -> Sent:
        """Return the part that was sent to the topic LATER."""
        part = Sent()
        for prefix, ranges in self.acknowledged.items():
            if prefix.endswith(_KINDS_LATER):
                part.acknowledged[prefix] = list(ranges)
        return part

    @property
    def count(self) -> int:
        return sum(len(one) for ranges in self.acknowledged.values() for one in ranges)


def rare(chunk: int) -> int:
    """Return how many messages of a rare kind a chunk has: each kind of transaction at least once."""
    return max(len(_VERDICTS), int(chunk * _RARE_SHARE))


class JavaSender:
    """Sends by Java's client, a scenario of the interop suite for each kind of message."""

    def __init__(self, namesrv: str, calm: threading.Lock) -> None:
        self.sent = Sent()
        self._namesrv = namesrv
        self._calm = calm
        self._client = JavaClient(5)

    def send_chunk(self, chunk: int) -> None:
        self._produce(
            "订单批", JAVA, int(chunk * _JAVA_SHARE), mode="batch", batch=_BATCH, size=200
        )
        self._produce("订单单", JAVA, int(chunk * _SINGLE_SHARE), mode="async", size=64)
        self._produce("订单压缩", LARGE, rare(chunk), size=_COMPRESSED_BYTES)
        self._produce("订单大", LARGE, 1, size=MIB)
        self._produce("订单延时", LATER, rare(chunk), delays=_DELAYS)
        # A transaction whose producer has ended would wait for an answer for ever.
        with self._calm:
            self._transact("订单事务", rare(chunk))

    def _produce(self, prefix: str, topic: str, count: int, **args: object) -> None:
        """Send so many messages, also when a killed broker ends a scenario."""
        for _ in range(_ATTEMPTS):
            if count == 0:
                return
            first = self.sent.reserve(prefix, count)
            for event in self._run(
                "produce", prefix, topic=topic, first=first, count=count, tags="paid,open", **args
            ):
                if event["event"] == "sent":
                    self.sent.add(prefix, event["index"], event["count"])
                    count -= event["count"]
                elif event["event"] == "failed":
                    self.sent.failed += 1

    def _transact(self, prefix: str, count: int) -> None:
        first = self.sent.reserve(prefix, count)
        with self._client.start(
            "transact", namesrv=self._namesrv, topic=LATER, group="java-transactions",
            prefix=prefix, first=first, count=count, verdicts=",".join(_VERDICTS), check="commit",
        ) as client:  # fmt: skip
            client.wait_for(lambda events: any(one["event"] == "all-sent" for one in events))
            events = client.finish()
        for event in events:
            if event["event"] == "state" and event["state"] == "COMMIT_MESSAGE":
                self.sent.add(prefix, event["index"])
            elif event["event"] == "state":
                self.sent.add_rolled_back(prefix, event["index"])

    def _run(self, scenario: str, prefix: str, **args: object) -> list[Event]:
        with self._client.start(
            scenario, namesrv=self._namesrv, prefix=prefix, may_fail=True, **args
        ) as client:
            client.wait_for(
                lambda events: any(one["event"] == "summary" for one in events), JVM_WAIT_S
            )
            return client.finish()


class OurSender:
    """Sends by our client."""

    def __init__(self, namesrv: str, seed: int) -> None:
        self.sent = Sent()
        self._rng = random.Random(seed)
        self._producer = TransactionProducer(
            "our-transactions", self, namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS
        )

    def __enter__(self) -> Self:
        self._producer.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.__exit__(None, None, None)

    def send_chunk(self, chunk: int) -> None:
        self.send_batches(int(chunk * (1 - _JAVA_SHARE - 2 * _SINGLE_SHARE)))
        self._send("消息单", OURS, int(chunk * _SINGLE_SHARE), lambda: self._rng.randbytes(64))
        self._send("消息压缩", LARGE, rare(chunk), lambda: b"%d " % self._rng.randrange(10) * 3000)
        self._send("消息大", LARGE, 1, lambda: self._rng.randbytes(MIB))
        self._send("消息延时", LATER, rare(chunk), lambda: b"later", delay_level=1)
        self._transact("消息事务", rare(chunk))

    def send_batches(self, count: int) -> None:
        prefix = "消息批"
        body = self._rng.randbytes(400)
        for at in range(0, count, _BATCH):
            size = min(_BATCH, count - at)
            first = self.sent.reserve(prefix, size)
            messages = [
                Message(OURS, body[number % 200 :][:200], tags="paid", keys=[f"{prefix}-{number}"])
                for number in range(first, first + size)
            ]
            self._note(prefix, first, size, lambda batch=messages: self._producer.send_batch(batch))  # type: ignore[misc]  # mypy cannot infer it

    def execute(self, _message: Message, number: int) -> LocalTransactionState:
        return self._verdict(number)

    def check(self, message: Message) -> LocalTransactionState:
        return self._verdict(int(message.keys[0].rpartition("-")[2]))

    def _verdict(self, number: int) -> LocalTransactionState:
        if _VERDICTS[number % len(_VERDICTS)] == "commit":
            return LocalTransactionState.COMMIT
        return LocalTransactionState.ROLLBACK

    def _transact(self, prefix: str, count: int) -> None:
        first = self.sent.reserve(prefix, count)
        for number in range(first, first + count):
            message = Message(LATER, b"%d" % number, keys=[f"{prefix}-{number}"])
            try:
                self._producer.send_in_transaction(message, number)
            except CometMQError:
                self.sent.failed += 1
                continue
            if self._verdict(number) is LocalTransactionState.COMMIT:
                self.sent.add(prefix, number)
            else:
                self.sent.add_rolled_back(prefix, number)

    def _send(
        self, prefix: str, topic: str, count: int, body: Callable[[], bytes], delay_level: int = 0
    ) -> None:
        first = self.sent.reserve(prefix, count)
        for number in range(first, first + count):
            message = Message(topic, body(), keys=[f"{prefix}-{number}"], delay_level=delay_level)
            self._note(prefix, number, 1, lambda one=message: self._producer.send(one))  # type: ignore[misc]  # mypy cannot infer it

    def _note(self, prefix: str, first: int, count: int, send: Callable[[], object]) -> None:
        try:
            send()
        except CometMQError:
            self.sent.failed += 1
        else:
            self.sent.add(prefix, first, count)


class Loads:
    """Runs both senders, each in a thread of its own. Each sends a chunk for each call of `allow`."""

    def __init__(self, namesrv: str, messages: int, chunks: int, seed: int) -> None:
        # Held by the thread that sends Java's transactions or kills a broker.
        self.calm = threading.Lock()
        self._messages = messages
        self._chunks = chunks
        self._java = JavaSender(namesrv, self.calm)
        self._ours = OurSender(namesrv, seed)
        self._allowed: dict[JavaSender | OurSender, threading.Semaphore] = {
            self._java: threading.Semaphore(1),
            self._ours: threading.Semaphore(1),
        }
        self._threads = ThreadPoolExecutor(2)
        self._work: list[Future[None]] = []
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._ours.__enter__()
        self._work = [self._threads.submit(self._send, one) for one in self._allowed]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for one in self._allowed.values():
            one.release(self._chunks)
        self._threads.shutdown()
        self._ours.__exit__()

    @property
    def sent(self) -> list[Sent]:
        return [self._java.sent, self._ours.sent]

    @property
    def count(self) -> int:
        return sum(one.count for one in self.sent)

    def allow(self) -> None:
        """Have each sender send one more chunk."""
        for sender, allowed in self._allowed.items():
            allowed.release()
            at = list(self._allowed).index(sender)
            if self._work[at].done():
                self._work[at].result()

    def finish(self) -> None:
        """Send the remaining messages, and another one for each message that failed."""
        for allowed in self._allowed.values():
            allowed.release(self._chunks)
        for one in self._work:
            one.result()
        while (missing := self._messages - self.count) > 0:
            self._ours.send_batches(missing)

    def _send(self, sender: JavaSender | OurSender) -> None:
        chunk = -(-self._messages // self._chunks)
        for _ in range(self._chunks):
            self._allowed[sender].acquire()
            if self._ended.is_set():
                return
            sender.send_chunk(chunk)
