"""Drive both faces of the client in one way, so that a scenario is written once.

The blocking face is used as it is. The asyncio face runs on a loop thread of its own: its methods
are awaited there, and its listeners are coroutines. The virtual face is the asyncio face in a
virtual cluster: each of its calls has the cluster run until the call is done.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
from tests.integration.patience import be_patient
from tests.integration.raw_client import wait_until_readable
from tests.integration.routes import wait_until_routed
from tests.integration.virtual import Driver
from tests.waits import SEND_WAIT_MS, WAIT_S, eventually

import cometmq
import cometmq.aio
from cometmq import ConsumeResult, MessageExt, SendResult
from cometmq.runtime.portal import LoopThread

# Every answer has all the time that a busy machine may need, unless a test says otherwise. This
# holds for the answer to a producer's send, too.
PATIENT = {"send_timeout_ms": SEND_WAIT_MS}

# What a listener does, for both faces. A generator that yields seconds takes so long in between: its
# thread sleeps, or its coroutine does.
Handle = Callable[[list[MessageExt]], ConsumeResult | Generator[float, None, Any] | None]


@pytest.fixture(scope="module", autouse=True)
def patient_starts() -> Iterator[None]:
    """Have the module's clients wait for answers as `be_patient` says.

    For a module, so that other tests of this process find all as it ships.
    """
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch.setattr, patch.setitem)
        yield


class Face(Protocol):
    namesrv: str

    def producer(self, group: str, **options: Any) -> Any:
        """Return a started producer that is closed at the test's end."""

    def consumer(self, group: str, topic: str, handle: Handle, **options: Any) -> Any:
        """Return a started consumer closed at the test's end; `tags` is the subscription."""

    def new_producer(self, group: str, **options: Any) -> Any:
        """Return a producer that is not started."""

    def new_consumer(self, group: str, *args: Any, **options: Any) -> Any:
        """Return a consumer that is not started."""

    def new_lite_pull_consumer(self, group: str, **options: Any) -> Any:
        """Return a lite pull consumer that is not started."""

    def new_simple_consumer(self, group: str, **options: Any) -> Any:
        """Return a simple consumer that is not started."""

    def received(self, messages: list[Any]) -> list[Any]:
        """Return messages whose methods are called like those of a blocking consumer's."""

    def following(self, consumer: Any) -> Iterator[Any]:
        """Return the iteration over a consumer; the messages' methods are called as by `received`."""

    def started(self, client: Any) -> Any:
        """Start a client that is closed at the test's end."""

    def listener(self, handle: Handle) -> Any:
        """Return `handle` in the form that this face takes."""

    def until_readable(self, result: SendResult) -> None:
        """Wait until the message that `result` names can be read, and those before it."""

    def until_routed(self, topic: str, broker: str, *more: str) -> None:
        """Wait until the name server knows that the brokers have the topic."""


class BlockingFace:
    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self._open: list[Any] = []

    def new_producer(self, group: str, **options: Any) -> Any:
        return cometmq.Producer(group, **{"namesrv": self.namesrv, **PATIENT, **options})

    def new_consumer(self, group: str, *args: Any, **options: Any) -> Any:
        return cometmq.PushConsumer(group, *args, **{"namesrv": self.namesrv, **options})

    def new_lite_pull_consumer(self, group: str, **options: Any) -> Any:
        return cometmq.LitePullConsumer(group, **{"namesrv": self.namesrv, **options})

    def new_simple_consumer(self, group: str, **options: Any) -> Any:
        return cometmq.SimpleConsumer(group, **{"namesrv": self.namesrv, **options})

    def received(self, messages: list[Any]) -> list[Any]:
        return messages

    def following(self, consumer: Any) -> Iterator[Any]:
        return iter(consumer)

    def producer(self, group: str, **options: Any) -> Any:
        return self.started(self.new_producer(group, **options))

    def consumer(
        self, group: str, topic: str, handle: Handle, tags: str = "*", **options: Any
    ) -> Any:
        consumer = self.new_consumer(group, self.listener(handle), **options)
        consumer.subscribe(topic, tags)
        return self.started(consumer)

    def listener(self, handle: Handle) -> Any:
        def listen(messages: list[MessageExt]) -> Any:
            outcome = handle(messages)
            if not isinstance(outcome, Generator):
                return outcome
            try:
                while True:
                    time.sleep(next(outcome))
            except StopIteration as end:
                return end.value

        return listen

    def until_readable(self, result: SendResult) -> None:
        queue = result.queue
        assert queue is not None
        wait_until_readable(
            self.namesrv, queue.topic, queue.broker_name, queue.queue_id, result.queue_offset
        )

    def until_routed(self, topic: str, broker: str, *more: str) -> None:
        wait_until_routed(self.namesrv, topic, broker, *more)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def started(self, client: Any) -> Any:
        client.start()
        self._open.append(client)
        return client


class AsyncFace(BlockingFace):
    """Calls asyncio clients by `driver`: a loop thread, or what drives a virtual cluster."""

    def __init__(self, namesrv: str, driver: LoopThread | Driver) -> None:
        super().__init__(namesrv)
        self.driver = driver

    def new_producer(self, group: str, **options: Any) -> Any:
        options = {"namesrv": self.namesrv, **PATIENT, **options}
        return self.on_loop(cometmq.aio.Producer, group, **options)

    def new_consumer(self, group: str, *args: Any, **options: Any) -> Any:
        options = {"namesrv": self.namesrv, **options}
        return self.on_loop(cometmq.aio.PushConsumer, group, *args, **options)

    def new_lite_pull_consumer(self, group: str, **options: Any) -> Any:
        options = {"namesrv": self.namesrv, **options}
        return self.on_loop(cometmq.aio.LitePullConsumer, group, **options)

    def new_simple_consumer(self, group: str, **options: Any) -> Any:
        options = {"namesrv": self.namesrv, **options}
        return self.on_loop(cometmq.aio.SimpleConsumer, group, **options)

    def received(self, messages: list[Any]) -> list[Any]:
        return [OnLoop(message, self.driver) for message in messages]

    def following(self, consumer: Any) -> Iterator[Any]:
        messages = aiter(consumer.client)

        async def following() -> Any:
            return await anext(messages, None)

        while (message := self.driver.call(following())) is not None:
            yield from self.received([message])

    def listener(self, handle: Handle) -> Any:
        async def listen(messages: list[MessageExt]) -> Any:
            outcome = handle(messages)
            if not isinstance(outcome, Generator):
                return outcome
            try:
                while True:  # noqa: ASYNC110 - the generator decides how long
                    await asyncio.sleep(next(outcome))
            except StopIteration as end:
                return end.value

        return listen

    def on_loop(self, new: Callable[..., Any], *args: Any, **options: Any) -> OnLoop:
        """Make an asyncio client whose methods are called like those of a blocking one."""
        if isinstance(self.driver, LoopThread):
            return OnLoop(new(*args, **options), self.driver)
        with self.driver.node:
            return OnLoop(new(*args, **options), self.driver)


class OnLoop:
    """Calls the methods of an asyncio client on its loop and waits for what they await."""

    def __init__(self, client: Any, driver: LoopThread | Driver) -> None:
        self.client = client
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.client, name)
        return self._caller(value) if callable(value) else value

    def __enter__(self) -> OnLoop:
        self._caller(self.client.__aenter__)()
        return self

    def __exit__(self, *failure: object) -> None:
        self._caller(self.client.__aexit__)(*failure)

    def _caller(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            outcome = method(*args, **kwargs)
            return await outcome if inspect.isawaitable(outcome) else outcome

        return lambda *args, **kwargs: self._driver.call(call(*args, **kwargs))


@contextmanager
def open_face(name: str, namesrv: str, driver: Driver | None = None) -> Iterator[Face]:
    """Provide the blocking or the asyncio face, the latter in virtual time if there is a `driver`."""
    with ExitStack() as stack:
        face = BlockingFace(namesrv)
        if driver is not None:
            face = AsyncFace(namesrv, driver)
        elif name == "asyncio":
            thread = LoopThread("aio-face")
            thread.start()
            stack.callback(thread.stop)
            face = AsyncFace(namesrv, thread)
        stack.callback(face.close)
        yield face


class Received:
    """Keeps what a listener got, for tests that wait for it; `handle` is the listener."""

    def __init__(self, answer: ConsumeResult | None = ConsumeResult.SUCCESS) -> None:
        self.messages: list[MessageExt] = []
        self.answer = answer
        self._lock = threading.Lock()

    def handle(self, messages: list[MessageExt]) -> ConsumeResult | None:
        with self._lock:
            # Copies, because a message that is retried here is the same object with its count
            # raised.
            self.messages += [message.copy() for message in messages]
        return self.answer

    @property
    def bodies(self) -> list[bytes]:
        with self._lock:
            return [message.body for message in self.messages]

    def wait_for(self, count: int, wait_s: float = WAIT_S) -> list[MessageExt]:
        """Wait until `count` messages came; if they do not, fail and show what came."""
        eventually(lambda: len(self.messages) >= count, wait_s=wait_s, pause_s=0.002)
        with self._lock:
            return list(self.messages)


def member_of(consumer: Any) -> Any:
    """The member of the group that a consumer of any face is."""
    return (getattr(consumer, "_async", None) or consumer.client)._member
