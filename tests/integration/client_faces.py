"""Drive both faces of the client in one way, so that a scenario is written once.

The blocking face is used as it is. The asyncio face runs on a loop thread of its own: its methods
are awaited there, and its listeners are coroutines.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
from tests.integration.patience import be_patient
from tests.integration.raw_client import RawClient, wait_until_readable
from tests.waits import SEND_WAIT_MS, WAIT_S, eventually

import cometmq
import cometmq.aio
from cometmq import ConsumeResult, MessageExt, SendResult
from cometmq.runtime.portal import LoopThread

# Every answer has all the time that a busy machine may need, unless a test says otherwise. This
# holds for the answer to a producer's send, too.
PATIENT = {"send_timeout_ms": SEND_WAIT_MS}

Handle = Callable[[list[MessageExt]], ConsumeResult | None]
_GET_ROUTE = 105


@pytest.fixture(scope="module", autouse=True)
def patient_starts() -> Iterator[None]:
    """Have the module's clients wait for answers as `be_patient` says.

    For a module, so that other tests of this process find all as it ships.
    """
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch.setattr, patch.setitem)
        yield


class Face(Protocol):
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
        self._namesrv = namesrv
        self._open: list[Any] = []

    def new_producer(self, group: str, **options: Any) -> Any:
        return cometmq.Producer(group, **{"namesrv": self._namesrv, **PATIENT, **options})

    def new_consumer(self, group: str, *args: Any, **options: Any) -> Any:
        return cometmq.PushConsumer(group, *args, **{"namesrv": self._namesrv, **options})

    def new_lite_pull_consumer(self, group: str, **options: Any) -> Any:
        return cometmq.LitePullConsumer(group, **{"namesrv": self._namesrv, **options})

    def producer(self, group: str, **options: Any) -> Any:
        return self.started(self.new_producer(group, **options))

    def consumer(
        self, group: str, topic: str, handle: Handle, tags: str = "*", **options: Any
    ) -> Any:
        consumer = self.new_consumer(group, self.listener(handle), **options)
        consumer.subscribe(topic, tags)
        return self.started(consumer)

    def listener(self, handle: Handle) -> Any:
        return handle

    def until_readable(self, result: SendResult) -> None:
        queue = result.queue
        assert queue is not None
        wait_until_readable(
            self._namesrv, queue.topic, queue.broker_name, queue.queue_id, result.queue_offset
        )

    def until_routed(self, topic: str, broker: str, *more: str) -> None:
        # A producer of ours would not do: for a topic that does not exist it returns what would be
        # made.
        with RawClient(self._namesrv.split(";", maxsplit=1)[0]) as client:

            def known() -> bool:
                answer = client.ask(_GET_ROUTE, {"topic": topic})
                found = json.loads(answer.body)["brokerDatas"] if answer.body else []
                return {data["brokerName"] for data in found} >= {broker, *more}

            eventually(known)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def started(self, client: Any) -> Any:
        client.start()
        self._open.append(client)
        return client


class AsyncFace(BlockingFace):
    def __init__(self, namesrv: str) -> None:
        super().__init__(namesrv)
        self._thread = LoopThread("aio-face")
        self._thread.start()

    def new_producer(self, group: str, **options: Any) -> Any:
        options = {"namesrv": self._namesrv, **PATIENT, **options}
        return OnLoop(cometmq.aio.Producer(group, **options), self._thread)

    def new_consumer(self, group: str, *args: Any, **options: Any) -> Any:
        options = {"namesrv": self._namesrv, **options}
        return OnLoop(cometmq.aio.PushConsumer(group, *args, **options), self._thread)

    def new_lite_pull_consumer(self, group: str, **options: Any) -> Any:
        options = {"namesrv": self._namesrv, **options}
        return OnLoop(cometmq.aio.LitePullConsumer(group, **options), self._thread)

    def listener(self, handle: Handle) -> Any:
        async def listen(messages: list[MessageExt]) -> ConsumeResult | None:
            return handle(messages)

        return listen

    def close(self) -> None:
        super().close()
        self._thread.stop()


class OnLoop:
    """Calls the methods of an asyncio client on a loop thread and waits for what they await."""

    def __init__(self, client: Any, thread: LoopThread) -> None:
        self._client = client
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return self._caller(value) if callable(value) else value

    def _caller(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            outcome = method(*args, **kwargs)
            return await outcome if inspect.isawaitable(outcome) else outcome

        return lambda *args, **kwargs: self._thread.call(call(*args, **kwargs))


@contextmanager
def open_face(name: str, namesrv: str) -> Iterator[Face]:
    face = AsyncFace(namesrv) if name == "asyncio" else BlockingFace(namesrv)
    try:
        yield face
    finally:
        face.close()


class Received:
    """Keeps what a listener got, for tests that wait for it; `handle` is the listener."""

    def __init__(self, answer: ConsumeResult | None = ConsumeResult.SUCCESS) -> None:
        self.messages: list[MessageExt] = []
        self.answer = answer
        self._changed = threading.Condition()

    def handle(self, messages: list[MessageExt]) -> ConsumeResult | None:
        with self._changed:
            # Copies, because a message that is retried here is the same object with its count
            # raised.
            self.messages += [message.copy() for message in messages]
            self._changed.notify_all()
        return self.answer

    @property
    def bodies(self) -> list[bytes]:
        with self._changed:
            return [message.body for message in self.messages]

    def wait_for(self, count: int, wait_s: float = WAIT_S) -> list[MessageExt]:
        """Wait until `count` messages came; if they do not, fail and show what came."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.messages) >= count, wait_s):
                raise AssertionError(f"{len(self.messages)} of {count} messages came in {wait_s} s")
            return list(self.messages)
