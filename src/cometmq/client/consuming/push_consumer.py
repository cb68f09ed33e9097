"""Provide the asyncio push consumer (Java: DefaultMQPushConsumer)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from cometmq.client.consuming.consumer_options import GroupOptions
from cometmq.client.consuming.group_consumer import GroupConsumer
from cometmq.client.consuming.listeners.handlers import Handlers, check_takes_messages
from cometmq.client.consuming.listeners.listening import Listener
from cometmq.client.consuming.listeners.nothing_returned import check_none_means, refusing_none
from cometmq.client.consuming.listeners.orderly import SUSPEND_MS
from cometmq.client.consuming.push_member import ConsumerOptions, GroupMember
from cometmq.client.faces import LISTENER_FOR, refuses
from cometmq.client.instance import ClientInstance
from cometmq.client.limits import check_flag, check_range
from cometmq.client.options import choice, takes
from cometmq.client.popping.popper import PopOptions
from cometmq.client.pulling.process_queue import FlowLimits
from cometmq.client.pulling.puller import PullOptions
from cometmq.client.running import check_main_thread
from cometmq.errors import ClientStateError, IllegalArgumentError
from cometmq.model.durations import Milliseconds
from cometmq.model.results import (
    ConsumeFromWhere,
    ConsumeResult,
    DamagedMessage,
    MessageModel,
)
from cometmq.model.subscription import SUB_ALL
from cometmq.runtime.signals import stop_event

CLOSE_TIMEOUT_MS: Final = 10_000
CONSUME_TIMEOUT_MS: Final = 15 * 60 * 1000

# Options that have no meaning in the other mode.
_PULL_ONLY: Final = (
    "message_model", "local_offset_dir", "allocation", "consume_timestamp_ms", "pull_batch_size",
    "pull_interval_ms", "pull_threshold_for_queue", "pull_threshold_size_for_queue_bytes",
    "pull_threshold_for_topic", "pull_threshold_size_for_topic_bytes", "consume_max_span",
    "on_damaged", "client_rebalance", "on_assigned", "on_revoked", "rebalance_callback_timeout_ms",
    "consume_message_batch_max_age_ms",
)  # fmt: skip
_POP_ONLY: Final = ("pop_batch_size", "pop_invisible_ms", "pop_threshold_for_queue")
_REMEDIES: Final = {
    "pop": "take mode='pull'",
    "pull": "take mode='pop', or client_rebalance=False to follow the brokers' choice",
}

ListenerT = TypeVar("ListenerT", bound=Listener)


@dataclass(repr=False)
class PushConsumerOptions(GroupOptions):
    """Holds the options of a push consumer; PushConsumer explains them."""

    listener: Listener | None = None
    _: KW_ONLY
    orderly: bool = False
    concurrency: int = 20
    consume_message_batch_max_size: int = 1
    consume_message_batch_max_age_ms: Milliseconds = Milliseconds(0)
    max_reconsume_times: int = -1
    suspend_current_queue_time_ms: Milliseconds = Milliseconds(SUSPEND_MS)
    consume_timeout_ms: Milliseconds = Milliseconds(CONSUME_TIMEOUT_MS)
    pull_batch_size: int = 32
    pull_interval_ms: Milliseconds = Milliseconds(0)
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic_bytes: int = -1
    on_damaged: DamagedMessage = DamagedMessage.DEAD_LETTER
    close_timeout_ms: Milliseconds = Milliseconds(CLOSE_TIMEOUT_MS)
    mode: Literal["pull", "pop"] = "pull"
    client_rebalance: bool = True
    pop_batch_size: int = 32
    pop_invisible_ms: Milliseconds = Milliseconds(60_000)
    pop_threshold_for_queue: int = 96
    none_means: ConsumeResult = ConsumeResult.SUCCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_mode()
        check_range("pop_batch_size", self.pop_batch_size, 1, 32)
        check_range("pop_invisible_ms", self.pop_invisible_ms, 5_000, 300_000)
        check_range("pop_threshold_for_queue", self.pop_threshold_for_queue, 1, 1000)
        # The ranges of DefaultMQPushConsumerImpl.checkConfig.
        check_range("concurrency", self.concurrency, 1, 1000)
        check_range("consume_message_batch_max_size", self.consume_message_batch_max_size, 1, 1024)
        age_ms = self.consume_message_batch_max_age_ms
        check_range("consume_message_batch_max_age_ms", age_ms, 0, 60_000)
        if age_ms and self.consume_message_batch_max_size == 1:
            raise IllegalArgumentError(
                f"consume_message_batch_max_age_ms is {age_ms}, but a listener gets one message at a time; "
                "set consume_message_batch_max_size, too"
            )
        check_range("max_reconsume_times", self.max_reconsume_times, -1, 2**31 - 1)
        check_range("pull_batch_size", self.pull_batch_size, 1, 1024)
        check_range("pull_interval_ms", self.pull_interval_ms, 0, 65535)
        check_range("suspend_current_queue_time_ms", self.suspend_current_queue_time_ms, 10, 30_000)
        check_range("consume_timeout_ms", self.consume_timeout_ms, 1, 24 * 3600 * 1000)
        if self.pull_threshold_for_topic != -1:
            check_range("pull_threshold_for_topic", self.pull_threshold_for_topic, 1, 6_553_500)
        if self.pull_threshold_size_for_topic_bytes != -1:
            topic_bytes = self.pull_threshold_size_for_topic_bytes
            check_range("pull_threshold_size_for_topic_bytes", topic_bytes, 1, 100 * 1024**3)
        check_range("close_timeout_ms", self.close_timeout_ms, 0, 24 * 3600 * 1000)
        check_flag("orderly", self.orderly)
        self.on_damaged = choice("on_damaged", self.on_damaged, DamagedMessage)
        self.none_means = check_none_means(self.none_means)

    @property
    def division(self) -> Literal["pop", "ask"] | None:
        """Return how queues are divided: "pop" not at all, "ask" by a broker, None by the members."""
        if self.mode == "pop":
            return "pop"
        # As in Java, a broker divides no queues for these.
        divided = self.orderly or self.message_model is MessageModel.BROADCASTING
        return None if self.client_rebalance or divided else "ask"

    def _check_mode(self) -> None:
        if self.mode not in ("pull", "pop"):
            raise IllegalArgumentError(f"mode is {self.mode!r:.100}; it is 'pull' or 'pop'")
        check_flag("client_rebalance", self.client_rebalance)
        for option, meant in ((_PULL_ONLY, "pop"), (_POP_ONLY, "pull")):
            if self.mode != meant or (meant == "pull" and not self.client_rebalance):
                continue
            for name in option:
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise IllegalArgumentError(
                        f"{name} means nothing to a consumer of mode={meant!r}; leave it out, or "
                        f"{_REMEDIES[meant]}"
                    )
        if self.mode == "pop" and self.consume_from is ConsumeFromWhere.TIMESTAMP:
            raise IllegalArgumentError(
                "consume_from is TIMESTAMP, but a group that pops begins with the first message or "
                "behind the last one; take FIRST_OFFSET or LAST_OFFSET, or mode='pull'"
            )


class PushConsumer(GroupConsumer[GroupMember]):
    """Hands the messages of its topics to a listener, and shares them with the rest of its group.

        consumer = PushConsumer("billing", listener, namesrv="127.0.0.1:9876")
        consumer.subscribe("orders", "paid || refunded")
        async with consumer: ...

    The listener gets a list of messages (one, unless `consume_message_batch_max_size` is larger), all of
    one queue. With `consume_message_batch_max_age_ms` it gets the list when the list is full, or when its
    first message has waited for that time (up to a minute). Without it, the list has the messages of one
    pull. They are consumed when the listener returns, unless it returns another ConsumeResult than
    SUCCESS. A listener that is a function runs in one of up to `concurrency` threads, a coroutine function
    in one of as many tasks on the loop. After an exception, and after anything but SUCCESS and None, the
    broker delivers the messages again later, `max_reconsume_times` times, and then moves them to the
    group's dead-letter topic. With -1 the group's retryMaxTimes counts, 16 unless an operator has changed
    it; Java's consumers send 16. The listener may also return a ConsumeReport, to acknowledge a part of
    the list or to choose the delay. A listener that takes longer than `consume_timeout_ms` loses its
    messages to a later delivery, unless the consumer is `orderly` or broadcasting. With `none_means`
    RECONSUME_LATER, the old meaning, messages for which the listener returns None come again;
    this is deprecated.

    `MessageExt.failure` of a retry or dead letter says why the delivery before it failed: the exception's
    type and text, and the member. `note_failures=False` leaves that out, for exceptions with texts that
    nobody else may read.

    `on_assigned` gets the queues that come to this consumer, and `on_revoked` the queues that
    leave it, including the queues of its retry topic. A function runs in a thread, a coroutine
    function on the loop, one call at a time. A queue is consumed only after `on_assigned` has
    returned, so a `seek` there comes in time. `on_revoked` is called when no more messages of these
    queues are handed out, before their offsets are committed and another member gets the queues,
    and also at the close. An `orderly` consumer first waits for the listener. In other consumers a listener
    may still be running; its messages come again. A queue with a lost lock is gone before the call.
    The rebalance waits for a callback for at most `rebalance_callback_timeout_ms` (30 s); then it
    logs the function's name and goes on. With mode="pop" no queue belongs to a member, so the
    consumer refuses both callbacks.

    With `codecs`, a dict from topic to codec, `message.value` is the decoded body. `on_undecodable` decides
    about a message that does not fit its codec. "raise" (the default) hands it to the listener, and its
    `value` raises UndecodableError. With "retry" it comes again later, and "dead-letter" makes it a
    dead letter at once. In both cases the listener does not get it, and `MessageExt.failure` has
    the reason. A function of (message, error) returns "retry", "dead-letter", or None if the
    message is done. See `cometmq.payloads`.

    `consume_from` says where a group without a stored offset begins. `consume_timestamp_ms` is the
    time for ConsumeFromWhere.TIMESTAMP (default: half an hour ago). The consumer pulls no more of a
    queue while more than `pull_threshold_for_queue` messages or
    `pull_threshold_size_for_queue_bytes` of it wait to be consumed or, unless it is `orderly`,
    while their offsets span more than `consume_max_span`. `pull_threshold_for_topic` and
    `pull_threshold_size_for_topic_bytes`, where they are not -1, replace the limits for a queue:
    they are divided among the topic's queues that this consumer has. `close` waits up to
    `close_timeout_ms` for running listeners.

    With `orderly` the messages of one queue are consumed one after the other: by one member, in one
    listener at a time, under a lock of the broker. After anything but SUCCESS the queue rests for
    `suspend_current_queue_time_ms`, and then the listener gets the same messages again,
    `max_reconsume_times` times (-1: without limit) before they go to the dead-letter topic.

    With `message_model` BROADCASTING every member gets every message once; nothing is delivered
    again. The consumer then keeps its offsets in a file below `local_offset_dir` (default: the
    environment's ROCKETMQ_CLIENT_LOCAL_OFFSET_STORE_DIR, else ~/.rocketmq_offsets), in a directory
    named after its client id. So consumers of one group on one host need an `instance_name` each.

    With `mode="pop"` the brokers give each message to whichever member asks, and hide it from the
    others for `pop_invisible_ms` (5 s to 5 min). The consumer renews that time while a listener works.
    No queue belongs to a member, so there may be more members than queues, and nothing is rebalanced
    when one comes or goes. Each message is acknowledged by itself; acknowledgements of one moment share a
    request. The consumer pops up to `pop_batch_size` at a time, and pauses while it holds
    `pop_threshold_for_queue` messages of a broker's topic. After any result but SUCCESS
    the message comes again to any member, after the delays of pull mode. The lower of
    `max_reconsume_times` and the group's retryMaxTimes counts; Java's brokers have no such limit for
    pops, so -1 means 16 there. With `orderly` the messages of a queue come in batches: no member gets
    the next one before each message of the last one is acknowledged, and no lock is taken. A group
    without an offset begins with the first message if `consume_from` is FIRST_OFFSET, otherwise behind
    the last one. Messages that members sent back in mode "pull" are still pulled. Options of the other
    mode are refused. The brokers must know POP: CometMQ, or Java's from 5.0 on.

    With `client_rebalance=False` a consumer of mode "pull" asks a broker for its queues, and pops
    instead if an operator chose that for the group (`cometmq admin setConsumeMode`), as Java's do.
    Consumers that are `orderly` or broadcasting do not ask, and pull.

    `on_damaged` says what the consumer does with a message that is not what was stored (its body
    contradicts its CRC, or the broker's bytes are no record of the queue); see DamagedMessage. By
    default it sends the bytes to the dead-letter topic, with the properties DAMAGED_TOPIC,
    DAMAGED_BROKER, DAMAGED_QUEUE_ID, DAMAGED_QUEUE_OFFSET, DAMAGED_COMMIT_LOG_OFFSET, DAMAGED_SIZE
    and DAMAGED_REASON. If there are more bytes than a message may have, it sends the first ones. In
    broadcasting there are no dead letters, so it skips the message. It logs each damaged message as
    an error, and `damage_counts` counts them.

    AsyncClient explains `namespace`, `credentials` and `tls`; TracedClient explains the options of
    traces. `start` raises AccessDeniedError when a broker does not let the consumer in.
    """

    @takes(PushConsumerOptions)
    def __init__(self, options: PushConsumerOptions) -> None:
        super().__init__(options)
        # Orderly, no message overtakes a slow one, so the span of the offsets held needs no bound.
        span = sys.maxsize if options.orderly else options.consume_max_span
        self._options = ConsumerOptions(
            member=self._member_options(
                options,
                options.on_damaged,
                PullOptions(
                    options.pull_batch_size,
                    options.pull_interval_ms,
                    FlowLimits(
                        options.pull_threshold_for_queue,
                        options.pull_threshold_size_for_queue_bytes,
                        span,
                    ),
                    options.pull_threshold_for_topic,
                    options.pull_threshold_size_for_topic_bytes,
                ),
            ),
            orderly=options.orderly,
            suspend_ms=options.suspend_current_queue_time_ms,
            consume_timeout_s=options.consume_timeout_ms / 1000,
            concurrency=options.concurrency,
            batch_max_size=options.consume_message_batch_max_size,
            batch_max_age_s=options.consume_message_batch_max_age_ms / 1000,
            max_reconsume_times=options.max_reconsume_times,
            division=options.division,
            pop=PopOptions(
                options.pop_batch_size, options.pop_invisible_ms, options.pop_threshold_for_queue
            ),
        )
        self._close_timeout_ms = options.close_timeout_ms
        self._pops = options.mode == "pop"
        self._takes_none = options.none_means is ConsumeResult.SUCCESS
        self._listener: Listener | None = None
        self._handlers = Handlers()
        if options.listener is not None:
            self.listen(options.listener)

    def listen(self, listener: ListenerT) -> ListenerT:
        """Set the listener before the start. Returns it, so that `listen` serves as a decorator."""
        if not self._unstarted:
            raise ClientStateError(f"{self._name()} has started; set the listener before")
        if self._handlers:
            raise ClientStateError(
                f"{self._name()} has handlers by on(), so it takes no listener for all messages; use one "
                "of the two"
            )
        if not callable(listener):
            raise IllegalArgumentError(
                f"the listener {listener!r} cannot be called; pass a function or a coroutine "
                "function that takes a list of messages and returns a ConsumeResult"
            )
        check_takes_messages(listener)
        self._listener = listener if self._takes_none else refusing_none(listener)
        return listener

    def on(
        self, topic: str, tags: str | Collection[str] = SUB_ALL
    ) -> Callable[[ListenerT], ListenerT]:
        """Return a decorator that makes a function the handler of a topic, or of some of its tags.

            @consumer.on("orders", tags=["paid", "refunded"])
            def bill(messages): ...

        A handler is a listener for its own messages. The consumer subscribes to the topics and tags of all
        its handlers, so do not call `subscribe`. Each message has one handler. Raises IllegalArgumentError
        if two handlers take the same message, or if some are functions and others coroutine functions. If
        no handler takes a message (a retry from before a change of the program, say), it counts as failed.
        Raises ClientStateError for a consumer with a listener or a subscription, and after the start.
        """

        if callable(topic):
            raise IllegalArgumentError(
                f'the topic is {topic!r:.100}, a function; write @consumer.on("orders"), with the topic in brackets'
            )

        def add(handler: ListenerT) -> ListenerT:
            if not self._unstarted:
                raise ClientStateError(f"{self._name()} has started; add handlers before")
            if self._listener is not None:
                raise ClientStateError(
                    f"{self._name()} has a listener for all messages, so it takes no handlers by on(); use "
                    "one of the two"
                )
            self._handlers.add(topic, tags, handler)
            self._subscribe(topic, self._handlers.expression(topic), None, None)
            return handler

        return add

    if not TYPE_CHECKING:
        __iter__ = refuses("for", LISTENER_FOR)
        __aiter__ = refuses("async for", LISTENER_FOR)

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        """Consume all messages of `topic`, or those with one of `tags` (`TagA || TagB`).

        With `sql`, consume the messages whose properties the expression selects:
        `sql="a > 5 AND b IS NOT NULL"`. The brokers need enablePropertyFilter for it. With
        `predicate`, consume the messages that a function at the brokers selects; `predicate` is its
        name in their filterPredicateModules. The consumer asks one of the brokers whether it serves
        the selection. If the broker refuses, `start` raises RemoteError (code 23 and the place of
        the fault, or code 1); after the start the refusal is only logged.

        Replaces an earlier subscription to the topic. All members of a group must subscribe alike.
        While the consumer runs, the change takes effect in the background.
        """
        if self._handlers:
            raise ClientStateError(
                f"{self._name()} has handlers, which subscribe to their topics; add on({topic!r}) instead"
            )
        self._subscribe(topic, tags, sql, predicate)

    async def run(self) -> None:
        """Consume until SIGTERM or SIGINT, then close.

        Starts the consumer, unless it runs. At the signal the consumer pulls nothing more, waits for running
        listeners (`close_timeout_ms`), commits their messages and leaves the group, so none of these
        messages comes again. Messages that no listener has begun go to other members. A second signal ends
        the process at once. Several consumers may run together: `asyncio.gather(one.run(), two.run())`.

        Raises ClientStateError outside of the main thread, since no other thread gets signals, and all that
        `start` raises.
        """
        check_main_thread(self._name())
        with stop_event() as stopped:
            try:
                if self._unstarted:
                    await self.start()
                await stopped.wait()
            finally:
                await self.close()

    @property
    def paused(self) -> bool:
        """True while the whole consumer is paused."""
        return self._member is not None and self._member.gates.paused

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many listeners may run at the same time (Java: updateCorePoolSize)."""
        check_range("concurrency", concurrency, 1, 1000)
        self._running_member().set_concurrency(concurrency)

    def _check_own_queues(self) -> None:
        if self._pops:
            raise ClientStateError(
                f"{self._name()} pops: no queue is its own, so it cannot choose an offset or pause single "
                "queues; pause a topic, or set the group's offsets by `cometmq admin resetOffsetByTime`"
            )

    def _check_ready(self) -> None:
        if self._handlers:
            self._check_handlers()
        elif self._listener is None:
            raise ClientStateError(
                f"{self._name()} has no listener; pass one to the constructor or to listen(), or add "
                "handlers by on()"
            )

    def _check_handlers(self) -> None:
        handled = {self._namespace.wrap(topic) for topic in self._handlers.topics()}
        for topic in self._subscriptions.keys() - handled:
            raise ClientStateError(
                f"{self._name()} subscribes to {self._namespace.unwrap(topic)}, of which no handler takes "
                "messages; add one by on(), or leave the subscription out"
            )

    async def _open(self, instance: ClientInstance) -> None:
        listener, options = self._listener, self._options
        if self._handlers:
            handled = self._handlers.listener()
            listener = handled if self._takes_none else refusing_none(handled)
            options = replace(options, together=self._handlers.key)
        assert listener is not None, "checked before"
        if self._payloads is not None:
            listener = self._payloads.around(listener)
        self._member = GroupMember(instance, self._group, self._subscriptions, listener, options)
        await self._member.start()

    async def _wind_down(self) -> None:
        await self._running_member().drain(self._close_timeout_ms / 1000)

    async def _shut(self, _instance: ClientInstance) -> None:
        assert self._member is not None, "set by start"
        await self._member.close(self._close_timeout_ms / 1000)
