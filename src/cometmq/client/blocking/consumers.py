"""Provide the blocking consumers, which run the asyncio consumers on one background loop thread.

No rule of RocketMQ lives here. Parameters, results and errors are those of the asyncio classes
(`cometmq.client.consuming.push_consumer`, for producers `cometmq.client.producing.producer`), whose docstrings
explain them; a test keeps the signatures equal. Any thread may call any method, except from a
coroutine listener: it runs on the loop thread itself and must use `cometmq.aio`.
"""

from __future__ import annotations

import contextlib
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cometmq.client.blocking.client import BlockingClient
from cometmq.client.consuming.group_consumer import GroupConsumer as AsyncGroupConsumer
from cometmq.client.consuming.iteration import Iteration
from cometmq.client.consuming.lite_pull_consumer import LitePullConsumer as AsyncLitePullConsumer
from cometmq.client.consuming.pulled_message import PulledMessage as AsyncPulledMessage
from cometmq.client.consuming.push_consumer import ListenerT
from cometmq.client.consuming.push_consumer import PushConsumer as AsyncPushConsumer
from cometmq.client.faces import ASYNC_FOR, ASYNC_WITH, LISTENER_FOR, refuses
from cometmq.client.options import takes
from cometmq.client.popping.iteration import ReceivingIteration
from cometmq.client.popping.message import ReceivedMessage as AsyncReceivedMessage
from cometmq.client.popping.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from cometmq.errors import ClientStateError
from cometmq.model.durations import Duration, Moment
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import (
    DamageCounts,
    PullResult,
    QueueLag,
)
from cometmq.model.subscription import SUB_ALL

# Runs a coroutine on the loop thread and returns its result.
_Call = Callable[[Coroutine[Any, Any, Any]], Any]
# Calls a function on the loop thread soon.
_Post = Callable[[Callable[[], object]], None]


class _GroupConsumer(BlockingClient, of=AsyncGroupConsumer):
    """Has the methods that push and lite pull consumers share."""

    _async: AsyncGroupConsumer[Any]

    def unsubscribe(self, topic: str) -> None:
        self._apply(self._async.unsubscribe, topic)

    def assigned_queues(self) -> list[MessageQueue]:
        return self._apply(self._async.assigned_queues)

    def damage_counts(self) -> DamageCounts:
        return self._apply(self._async.damage_counts)

    def pause(self, queues: Iterable[MessageQueue] | str | None = None) -> None:
        self._apply(self._async.pause, queues)

    def resume(self, queues: Iterable[MessageQueue] | str | None = None) -> None:
        self._apply(self._async.resume, queues)

    def paused_queues(self) -> list[MessageQueue]:
        return self._apply(self._async.paused_queues)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._call(self._async.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue | str) -> None:
        self._call(self._async.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue | str) -> None:
        self._call(self._async.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue | str, timestamp_ms: Moment) -> None:
        self._call(self._async.seek_to_time(queue, timestamp_ms))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: Moment) -> int:
        return self._call(self._async.offset_for_timestamp(queue, timestamp_ms))

    def min_offset(self, queue: MessageQueue) -> int:
        return self._call(self._async.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._call(self._async.max_offset(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._call(self._async.committed(queue))

    def lag(self) -> dict[MessageQueue, QueueLag]:
        return self._call(self._async.lag())


class PushConsumer(_GroupConsumer, of=AsyncPushConsumer):
    """Consumes like `cometmq.aio.PushConsumer`, whose text follows in `help`, but blocks.

    Use `with` for `async with`. Any thread may call the methods.
    """

    @takes(AsyncPushConsumer)
    def __init__(self, asynchronous: AsyncPushConsumer) -> None:
        self._async: AsyncPushConsumer = asynchronous
        super().__init__(asynchronous)

    def listen(self, listener: ListenerT) -> ListenerT:
        return self._async.listen(listener)

    def on(
        self, topic: str, tags: str | Collection[str] = SUB_ALL
    ) -> Callable[[ListenerT], ListenerT]:
        return self._async.on(topic, tags)

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        self._apply(self._async.subscribe, topic, tags, sql=sql, predicate=predicate)

    def run(self) -> None:
        self._run_until_signal()

    if not TYPE_CHECKING:
        __iter__ = refuses("for", LISTENER_FOR)
        __aiter__ = refuses("async for", LISTENER_FOR)

    @property
    def paused(self) -> bool:
        return self._async.paused

    def set_concurrency(self, concurrency: int) -> None:
        self._apply(self._async.set_concurrency, concurrency)


class _Acknowledged(MessageExt):
    """Is the base of messages whose methods run on the loop thread, by `call`."""

    __slots__ = ("_async", "_call", "_post")

    _async: AsyncReceivedMessage | AsyncPulledMessage
    _call: _Call
    _post: _Post | None

    @classmethod
    def of(
        cls,
        message: AsyncReceivedMessage | AsyncPulledMessage,
        call: _Call,
        post: _Post | None = None,
    ) -> Self:
        made = object.__new__(cls)
        message.copy_to(made)
        made._async = message
        made._call = call
        made._post = post
        return made

    def ack(self) -> None:
        self._call(self._async.ack())

    def __enter__(self) -> Self:
        self._async.enter_block()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._async.leave_block(exc)
        self._settle(exc)

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refuses("async with", ASYNC_WITH)

    def _settle(self, error: BaseException | None) -> None:
        self._call(self._async.settle(error))


class ReceivedMessage(_Acknowledged):
    """Holds a message like `cometmq.aio.ReceivedMessage`, whose methods it has, but blocks.

    with message:        # acknowledges it, or gives it back if the block raises
        handle(message.body)
    """

    __slots__ = ()

    _async: AsyncReceivedMessage

    def nack(self, delay_ms: Duration = 0) -> None:
        self._call(self._async.nack(delay_ms))

    def dead_letter(self, reason: str | BaseException = "rejected") -> None:
        self._call(self._async.dead_letter(reason))

    def extend(self, invisible_ms: Duration) -> None:
        self._call(self._async.extend(invisible_ms))


class PulledMessage(_Acknowledged):
    """Holds a message like `cometmq.aio.PulledMessage`, whose methods it has, but blocks.

    with message:        # acknowledges it, or gives it back if the block raises
        handle(message.body)
    """

    __slots__ = ()

    _async: AsyncPulledMessage

    def ack(self) -> None:
        # No wait for the loop: later calls of this thread run after the acknowledgement.
        assert self._post is not None, "given by the iteration"
        self._async.claim()
        try:
            self._post(self._async.acknowledge)
        except ClientStateError:  # the consumer is closed, so the message comes again
            self._async.unclaim()
            raise

    def nack(self, delay_ms: Duration | None = None) -> None:
        self._call(self._async.nack(delay_ms))

    def _settle(self, error: BaseException | None) -> None:
        if error is not None:
            super()._settle(error)
        elif not self._async.is_settled:
            self.ack()


class SimpleConsumer(BlockingClient, of=AsyncSimpleConsumer):
    """Consumes like `cometmq.aio.SimpleConsumer`, whose text follows in `help`, but blocks.

    Use `with` for `async with`, and no `await`. Any thread may call the methods.
    """

    @takes(AsyncSimpleConsumer)
    def __init__(self, asynchronous: AsyncSimpleConsumer) -> None:
        self._async = asynchronous
        super().__init__(asynchronous)

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        self._apply(self._async.subscribe, topic, tags, sql=sql, predicate=predicate)

    def unsubscribe(self, topic: str) -> None:
        self._apply(self._async.unsubscribe, topic)

    def receive(
        self,
        max_messages: int | None = None,
        *,
        invisible_ms: Duration | None = None,
        wait_ms: Duration | None = None,
    ) -> list[ReceivedMessage]:
        return [
            ReceivedMessage.of(message, self._call)
            for message in self._call(
                self._async.receive(max_messages, invisible_ms=invisible_ms, wait_ms=wait_ms)
            )
        ]

    def lag(self) -> dict[MessageQueue, QueueLag]:
        return self._call(self._async.lag())

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return _by_receives(aiter(self._async), self._async.check_started, self._call)

    if not TYPE_CHECKING:
        __aiter__ = refuses("async for", ASYNC_FOR)


def _by_receives(
    messages: ReceivingIteration, check_started: Callable[[], object], call: _Call
) -> Iterator[ReceivedMessage]:
    """Yield the messages of a simple consumer. One wake-up of this thread brings all that one `receive` returns."""
    while received := call(messages.next_list()):
        for message in received:
            if messages.has_ended:
                return
            check_started()  # a fork must not go on with the messages of its parent
            yield ReceivedMessage.of(message, call)


def _by_lists(
    messages: Iteration, check_started: Callable[[], object], call: _Call, post: _Post
) -> Iterator[PulledMessage]:
    """Yield the messages of a lite pull consumer.

    To wake this thread costs more than most of what is done with a message, so one wake-up brings many.
    """
    try:
        while not messages.has_ended:
            check_started()  # a fork must not go on with the messages of its parent
            message = messages.take_handed()
            if message is not None:
                yield PulledMessage.of(message, call, post)
                continue
            call(messages.hand_over())
            if not messages.handed:
                return
    finally:
        # Also after a KeyboardInterrupt, which may come before the loop has handed over anything.
        if not messages.has_ended:
            with contextlib.suppress(ClientStateError):  # a fork, or a loop that stops
                post(messages.put_back)


class LitePullConsumer(_GroupConsumer, of=AsyncLitePullConsumer):
    """Consumes like `cometmq.aio.LitePullConsumer`, whose text follows in `help`, but blocks.

    Use `with` for `async with`, and no `await`. Any thread may call the methods.
    """

    @takes(AsyncLitePullConsumer)
    def __init__(self, asynchronous: AsyncLitePullConsumer) -> None:
        self._async: AsyncLitePullConsumer = asynchronous
        super().__init__(asynchronous)

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        self._apply(self._async.subscribe, topic, tags, sql=sql, predicate=predicate)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        self._apply(self._async.assign, queues)

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._call(self._async.queues(topic))

    def poll(self, timeout_ms: Duration | None = None) -> list[MessageExt]:
        return self._call(self._async.poll(timeout_ms))

    def __iter__(self) -> Iterator[PulledMessage]:
        return _by_lists(aiter(self._async), self._async.check_started, self._call, self._post)

    if not TYPE_CHECKING:
        __aiter__ = refuses("async for", ASYNC_FOR)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        tags: str = "*",
        *,
        sql: str | None = None,
        predicate: str | None = None,
        suspend_ms: Duration = 0,
    ) -> PullResult:
        return self._call(
            self._async.pull(
                queue,
                offset,
                max_messages,
                tags,
                sql=sql,
                predicate=predicate,
                suspend_ms=suspend_ms,
            )
        )

    def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True
    ) -> None:
        self._call(self._async.commit(offsets, wait=wait))
