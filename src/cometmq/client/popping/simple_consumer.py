"""Provide the consumer that receives messages for a time, and acknowledges each by itself.

Java: SimpleConsumer of the gRPC clients; on the wire it is the pop of MQClientAPIImpl.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.consuming.listeners.consume_hooks import Admission, ConsumeHooks
from cometmq.client.consuming.listeners.send_back import Returns
from cometmq.client.consuming.listeners.undecodable import (
    OnUndecodable,
    check_on_undecodable,
    payloads_of,
)
from cometmq.client.faces import BLOCKING_FOR, refuses
from cometmq.client.hooks import ConsumeMessageHook, FilterMessageHook, Hook
from cometmq.client.instance import ClientInstance
from cometmq.client.limits import check_flag, check_range
from cometmq.client.membership.positions import lag_of, stored_offset
from cometmq.client.membership.subscribing import message_selector
from cometmq.client.options import takes
from cometmq.client.popping.acknowledging import Acknowledgements
from cometmq.client.popping.iteration import ReceivingIteration
from cometmq.client.popping.message import MOST_INVISIBLE_MS, ReceivedMessage
from cometmq.client.popping.requests import ANSWER_S, ANY_QUEUE, PAUSE_S, PopRequests
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.client.tracing.consume_trace import ConsumeTrace
from cometmq.client.tracing.dispatcher import TraceDispatcher
from cometmq.client.tracing.traced_client import TracedClient, TracedOptions
from cometmq.errors import (
    ClientStateError,
    CometMQError,
    RouteNotFoundError,
)
from cometmq.filtering.tags import accepts, build_subscription, selects_all
from cometmq.logs.loggers import get_logger
from cometmq.model.durations import Duration, Milliseconds, milliseconds
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere, QueueLag
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.payloads.codec import Codec
from cometmq.payloads.codecs import Codecs, codecs_of
from cometmq.protocol.pop.headers import (
    NotificationRequestHeader,
)
from cometmq.runtime.back_off import BackOff

log = get_logger(__name__)

# A request waits so long at a broker at most; a longer wait takes several.
_POLL_S: Final = 20.0
# The first delay of a retry, as brokers have it.
_UNDECODABLE_DELAY_MS: Final = 10_000
# An iteration logs each of this many latest reasons of failed calls once.
_MOST_REASONS: Final = 16


@dataclass(repr=False, kw_only=True)
class SimpleConsumerOptions(TracedOptions):
    """Holds the options of a simple consumer; SimpleConsumer explains them."""

    max_messages: int = 16
    invisible_ms: Milliseconds = Milliseconds(60_000)
    wait_ms: Milliseconds = Milliseconds(20_000)
    from_newest: bool = False
    ordered: bool = False
    codecs: Codecs | Mapping[str, Codec[Any]] | None = None
    on_undecodable: OnUndecodable = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max_messages(self.max_messages)
        check_range("invisible_ms", self.invisible_ms, 10, MOST_INVISIBLE_MS)
        check_range("wait_ms", self.wait_ms, 0, 24 * 3600 * 1000)
        check_flag("from_newest", self.from_newest)
        check_flag("ordered", self.ordered)
        self.codecs = codecs_of(self.codecs)
        check_on_undecodable(self.on_undecodable)


def check_max_messages(max_messages: int) -> None:
    # A broker gives 32 at a time.
    check_range("max_messages", max_messages, 1, 32)


class _Member:
    """Is the group's member as its instance sees it. `subscriptions` are those of now, by topic."""

    def __init__(
        self, group: str, subscriptions: dict[str, SubscriptionData], consume_from: str
    ) -> None:
        self.group = group
        self._subscriptions = subscriptions
        self._consume_from = consume_from

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            consume_from_where=self._consume_from,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def rebalance_soon(self) -> None:
        """Do nothing: members share all queues."""


class SimpleConsumer(TracedClient):
    """Receives messages when the caller asks, and keeps nothing: each message is acknowledged by itself.

        consumer = SimpleConsumer("billing", namesrv="127.0.0.1:9876")
        consumer.subscribe("orders")
        async with consumer:
            for message in await consumer.receive():
                ...
                await message.ack()

    The broker hides a received message from the other members of the group for `invisible_ms`. If it is
    not acknowledged by then, it comes again to any member that asks; after the group's `retryMaxTimes`
    deliveries it is a dead letter. All members read all queues: there may be more members than queues,
    nothing is rebalanced when one comes or goes, and a slow message holds up no other.

    `async for message in consumer` receives without end, `max_messages` at a time, and goes on after
    failures of servers. Acknowledgements of one turn of the loop go to a broker in one request.

    Options: `max_messages` (1 to 32), `invisible_ms` and `wait_ms` are the defaults of `receive`. A group
    that never committed begins with the oldest messages, or with `from_newest` at the end. With `ordered`
    the messages of a queue come in order, in batches: no member gets the next one before each message of
    the last one is acknowledged.

    With `codecs` each message has its `value`; PushConsumer explains `codecs` and `on_undecodable`. With
    "retry" the message comes again after 10 s, and the retry does not have the reason.

    The brokers must know POP: CometMQ, or Java's from 5.0 on. CometMQ's and Java's remoting clients of one
    group may pop and pull in turn (`cometmq admin setConsumeMode`), not at the same time.
    """

    _hook_kinds = (ConsumeMessageHook, FilterMessageHook)
    _trace_kind = "CONSUME"

    @takes(SimpleConsumerOptions)
    def __init__(self, options: SimpleConsumerOptions) -> None:
        super().__init__(options)
        self._options = options
        self._admit = Admission(self._hooks, self.group, self._namespace)
        self._consume_hooks = ConsumeHooks(self._hooks, self.group, self._namespace, math.inf)
        self._payloads = payloads_of(
            options.codecs, options.on_undecodable, self.group, self._namespace
        )
        self._returns: Returns | None = None
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._acknowledgements: Acknowledgements | None = None
        self._next_source = 0
        self._pops: PopRequests | None = None
        # Questions to brokers whether they have something.
        self._questions: dict[MessageQueue, asyncio.Task[bool]] = {}

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        """Receive messages of `topic`, too. PushConsumer.subscribe explains the selection."""
        selector = message_selector(topic, tags, sql, predicate)
        topic = self._namespace.wrap(topic)
        self._subscriptions[topic] = build_subscription(
            topic, *selector, sub_version=self._clock.now_ms()
        )
        if not self._unstarted:
            self._running().heartbeats.beat_soon()

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to `topic`; without one, nothing happens."""
        self._subscriptions.pop(self._namespace.wrap(topic), None)

    async def receive(
        self,
        max_messages: int | None = None,
        *,
        invisible_ms: Duration | None = None,
        wait_ms: Duration | None = None,
    ) -> list[ReceivedMessage]:
        """Return up to `max_messages` messages, or an empty list when none come within `wait_ms`.

        They are hidden from the others for `invisible_ms` (10 ms to a day). A call that is cancelled
        may have taken messages, which come again when their time is over.

        Raises ClientStateError without a subscription, RouteNotFoundError if a topic does not exist,
        and RemotingError or RemoteError if no broker answers.
        """
        instance = self._running()
        most = self._options.max_messages if max_messages is None else max_messages
        hidden_ms = milliseconds(
            self._options.invisible_ms if invisible_ms is None else invisible_ms
        )
        waits_ms = milliseconds(self._options.wait_ms if wait_ms is None else wait_ms)
        check_max_messages(most)
        check_range("invisible_ms", hidden_ms, 10, MOST_INVISIBLE_MS)
        check_range("wait_ms", waits_ms, 0, 24 * 3600 * 1000)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + waits_ms / 1000
        while True:
            sources = await self._sources(instance)
            left_s = max(0.0, deadline - loop.time())
            if len(sources) == 1:
                wait_s = min(left_s, _POLL_S)
                messages = await self._pop(sources[0], most, hidden_ms, wait_s)
            else:
                messages = await self._pop_first(sources, most, hidden_ms)
                if not messages and left_s > 0:
                    await self._wait_for_any(instance, sources, min(left_s, _POLL_S))
                    if loop.time() < deadline:
                        continue
                    messages = await self._pop_first(sources, most, hidden_ms)
            if messages or loop.time() >= deadline:
                return messages

    async def lag(self) -> dict[MessageQueue, QueueLag]:
        """Return how far the group is behind at each queue of the topics; see PushConsumer.lag."""
        instance = self._running()
        queues = {
            queue
            for topic in self._subscriptions
            if (route := instance.routes.route(topic)) is not None
            for queue in route.subscribe_queues(topic)
        }
        committed = functools.partial(stored_offset, instance, self._group)
        lags = await lag_of(instance, queues, committed)
        return {self._namespace.unwrap_queue(queue): lag for queue, lag in lags.items()}

    def __aiter__(self) -> ReceivingIteration:
        """Receive without end; the iteration ends when the consumer is closed."""
        return ReceivingIteration(self._lists(), lambda: self._instance is None)

    if not TYPE_CHECKING:
        __iter__ = refuses("for", BLOCKING_FOR)

    async def _lists(self) -> AsyncIterator[list[ReceivedMessage]]:
        instance = self._running()
        back_off = BackOff()
        # Since the last answer. Brokers that are away fail in turn, each with a reason of its own.
        logged: deque[str] = deque(maxlen=_MOST_REASONS)
        while self._runs_on(instance):
            try:
                messages = await self.receive()
            except CometMQError as error:
                if not self._runs_on(instance):
                    return
                if isinstance(error, ClientStateError):
                    raise
                if (reason := str(error)) not in logged:
                    logged.append(reason)
                    log.warning(
                        "no messages are received, the consumer goes on trying",
                        group=self.group,
                        reason=reason,
                    )
                await back_off.wait()
                continue
            back_off.reset()
            if logged:
                logged.clear()
                log.info("messages can be received again", group=self.group)
            if messages:
                yield messages

    # Inside

    def _runs_on(self, instance: ClientInstance) -> bool:
        return self._instance is instance

    async def _sources(self, instance: ClientInstance) -> list[MessageQueue]:
        """Return the brokers to ask, beginning with another one at each call."""
        if not self._subscriptions:
            raise ClientStateError(
                f"{self._name()} subscribes to nothing; call subscribe(topic) before receive()"
            )
        sources: list[MessageQueue] = []
        for topic in self._subscriptions:
            if instance.routes.route(topic) is None:
                await instance.routes.refresh(topic)
            route = instance.routes.route(topic)
            queues = [] if route is None else route.subscribe_queues(topic)
            names = sorted({queue.broker_name for queue in queues})
            sources += [
                MessageQueue(topic, name, ANY_QUEUE)
                for name in names
                if instance.routes.master_address(name)
            ]
        if not sources:
            topics = ", ".join(map(self._namespace.unwrap, self._subscriptions))
            raise RouteNotFoundError(
                f"the routes of {topics} name no master with queues that may be read"
            )
        first = self._next_source % len(sources)
        self._next_source = first + 1
        return sources[first:] + sources[:first]

    async def _pop_first(
        self, sources: list[MessageQueue], most: int, hidden_ms: int
    ) -> list[ReceivedMessage]:
        """Return the messages of the first source that has some. Raises what the last one raised, if all did."""
        failures: list[CometMQError] = []
        for source in sources:
            try:
                messages = await self._pop(source, most, hidden_ms, 0.0)
            except CometMQError as error:
                failures.append(error)
                continue
            if messages:
                return messages
        if len(failures) == len(sources):
            raise failures[-1]
        return []

    async def _pop(
        self, source: MessageQueue, most: int, hidden_ms: int, wait_s: float
    ) -> list[ReceivedMessage]:
        """Take messages of one source; wait there for `wait_s` seconds."""
        subscription = self._subscriptions.get(source.topic)
        if subscription is None:  # it ended meanwhile
            return []
        assert self._pops is not None, "set by start"
        popped = await self._pops.pop(source, subscription, most, hidden_ms, wait_s)
        messages = [ReceivedMessage.of(message, receipt, self._said) for message, receipt in popped]
        return await self._wanted(source, subscription, messages)

    async def _wanted(
        self, source: MessageQueue, subscription: SubscriptionData, messages: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Return the messages that the user selects. The others are done: brokers select tags by hashes only."""
        wanted: list[MessageExt] = list(messages)
        if not selects_all(subscription):
            wanted = [message for message in wanted if accepts(subscription, message.tags)]
        queue = MessageQueue(source.topic, source.broker_name, 0)
        kept = {id(message) for message in self._admit(queue, wanted)}
        for message in messages:
            if id(message) not in kept:
                await message.ack()
        messages = await self._fitting([message for message in messages if id(message) in kept])
        if messages and self._consume_hooks:
            first = messages[0]
            self._consume_hooks.polled(
                MessageQueue(first.topic, first.broker_name, first.queue_id), messages
            )
            for message in messages:
                message.watch(self._consume_hooks)
        return messages

    async def _fitting(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Decode messages. Return those that the user gets, and give the others back."""
        if self._payloads is None or not messages:
            return messages
        assert self._returns is not None, "set by start"
        found = await self._payloads.sort(messages)
        refused = {id(each.message): each for each in found.refused}
        kept = {id(message) for message in found.kept}
        for message in messages:
            each = refused.get(id(message))
            try:
                if each is not None and each.level >= 0:
                    await message.nack(_UNDECODABLE_DELAY_MS)
                elif id(message) not in kept:
                    if each is not None:
                        await self._returns.send_back(message, each.level, each.error)
                    await message.ack()
            except CometMQError as error:
                log.warning(
                    "a message that does not fit its codec could not be given back; it comes again "
                    "when its invisible time is over",
                    group=self.group,
                    msg_id=message.msg_id,
                    reason=str(error),
                )
        return [message for message in messages if id(message) in kept]

    async def _wait_for_any(
        self, instance: ClientInstance, sources: list[MessageQueue], wait_s: float
    ) -> None:
        """Wait until one of the brokers has something to pop, for `wait_s` seconds at most.

        Questions that are not answered by then go on: the next call waits for their answers.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while (left_s := deadline - loop.time()) > 0:
            self._running()
            for source in sources:
                if source not in self._questions:
                    self._questions[source] = instance.tasks.spawn(
                        self._has_something(instance, source), "wait-for-messages"
                    )
            asked = [self._questions[source] for source in sources]
            await asyncio.wait(asked, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            answered = [source for source in sources if self._is_answered(source)]
            found = [self._questions.pop(source).result() for source in answered]
            if any(found):
                return

    def _is_answered(self, source: MessageQueue) -> bool:
        question = self._questions.get(source)
        return question is not None and question.done() and not question.cancelled()

    async def _has_something(self, instance: ClientInstance, source: MessageQueue) -> bool:
        """Return whether a broker has something to pop, or gets something within _POLL_S."""
        header = NotificationRequestHeader(
            consumer_group=self._group,
            topic=source.topic,
            queue_id=ANY_QUEUE,
            poll_time=int(_POLL_S * 1000),
            born_time=0,  # the broker's clock; see PopRequests
            order=self._options.ordered,
        )
        try:
            address = instance.need_master(source.broker_name, source.topic)
            answer = await instance.brokers.notification(address, header, _POLL_S + ANSWER_S)
        except CometMQError as error:
            log.debug("a broker does not say what it has", reason=str(error))
        else:
            if answer.has_msg or not answer.polling_full:
                return answer.has_msg
        # The broker cannot be asked, or holds as many questions as it may.
        await asyncio.sleep(PAUSE_S)
        return False

    def _said(self) -> Acknowledgements:
        self._running()
        assert self._acknowledgements is not None, "set by start"
        return self._acknowledgements

    def _trace(self, dispatcher: TraceDispatcher) -> Hook:
        return ConsumeTrace(dispatcher)

    def _process_queues(self) -> list[ProcessQueue]:
        return []

    async def _open(self, instance: ClientInstance) -> None:
        self._returns = Returns(instance, self._group, None, self._namespace)
        self._acknowledgements = Acknowledgements(instance, self._group, self._returns)
        self._pops = PopRequests(
            instance=instance,
            group=self._group,
            ordered=self._options.ordered,
            from_newest=self._options.from_newest,
        )
        consume_from = (
            ConsumeFromWhere.LAST_OFFSET
            if self._options.from_newest
            else ConsumeFromWhere.FIRST_OFFSET
        )
        instance.tasks.spawn(instance.look_for_servers(self.group), "look for servers")
        instance.add_consumer(_Member(self._group, self._subscriptions, consume_from.value))
        instance.heartbeats.beat_soon()

    async def _shut(self, instance: ClientInstance) -> None:
        for question in self._questions.values():
            question.cancel()
        self._questions.clear()
        await instance.remove_consumer(self._group)
