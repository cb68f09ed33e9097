"""Provide the asyncio consumer that callers poll for messages (Java: DefaultLitePullConsumer)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cometmq.client.consuming.consumer_options import GroupOptions
from cometmq.client.consuming.group_consumer import GroupConsumer
from cometmq.client.consuming.iteration import Iteration
from cometmq.client.consuming.listeners.consume_hooks import Admission, ConsumeHooks
from cometmq.client.consuming.lite_pull_member import LitePullMember, LitePullOptions
from cometmq.client.faces import BLOCKING_FOR, refuses
from cometmq.client.instance import ClientInstance
from cometmq.client.limits import check_flag, check_queue, check_range
from cometmq.client.membership.subscribing import message_selector
from cometmq.client.options import choice, takes
from cometmq.client.pulling.process_queue import FlowLimits
from cometmq.client.pulling.puller import PULL_TIMEOUT_S, SUSPEND_LITE_MS, PullOptions, pull_once
from cometmq.errors import ClientStateError, IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.model.durations import Duration, Milliseconds, milliseconds
from cometmq.model.message import MessageExt
from cometmq.model.names import check_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import (
    DamagedMessage,
    PullResult,
)

POLL_TIMEOUT_MS: Final = 5000
AUTO_COMMIT_INTERVAL_MS: Final = 5000


@dataclass(repr=False, kw_only=True)
class LitePullConsumerOptions(GroupOptions):
    """Holds the options of a lite pull consumer; LitePullConsumer explains them."""

    auto_commit: bool = True
    auto_commit_interval_ms: Milliseconds = Milliseconds(AUTO_COMMIT_INTERVAL_MS)
    poll_timeout_ms: Milliseconds = Milliseconds(POLL_TIMEOUT_MS)
    pull_batch_size: int = 10
    pull_threshold_for_all: int = 10_000
    on_damaged: DamagedMessage = DamagedMessage.SKIP

    def __post_init__(self) -> None:
        super().__post_init__()
        # Java refuses an autoCommitIntervalMillis below 1000.
        check_range("auto_commit_interval_ms", self.auto_commit_interval_ms, 1000, 24 * 3600 * 1000)
        check_range("poll_timeout_ms", self.poll_timeout_ms, 0, 24 * 3600 * 1000)
        check_range("pull_batch_size", self.pull_batch_size, 1, 1024)
        check_range("pull_threshold_for_all", self.pull_threshold_for_all, 1, 6_553_500)
        check_flag("auto_commit", self.auto_commit)
        self.on_damaged = choice("on_damaged", self.on_damaged, DamagedMessage)
        if self.on_damaged is DamagedMessage.DEAD_LETTER:
            raise IllegalArgumentError(
                "on_damaged is DamagedMessage.DEAD_LETTER: a lite pull consumer has no dead letters; "
                "choose SKIP, or STOP and take the bytes from the DamagedMessageError"
            )


class LitePullConsumer(GroupConsumer[LitePullMember]):
    """Returns messages when the caller polls, from queues that it pulls ahead of the polls.

        consumer = LitePullConsumer("billing", namesrv="127.0.0.1:9876")
        consumer.subscribe("orders")
        async with consumer:
            while True:
                for message in await consumer.poll(): ...

    `async for message in consumer` returns one message after the other, until the consumer is closed.
    A message counts as consumed when it is acknowledged (`await message.ack()`) or given back
    (`nack(delay_ms)`); `async with message` does one or the other. Until then it is open. The consumer
    commits the offset of the lowest open message of each queue, and the limits below bound the open
    messages. A consumer that iterates consumes its group's retry topic too, so all members of the group
    should iterate, or listen.

    After `subscribe` the consumer shares the queues of the topics with the rest of the group. After
    `assign` it has exactly the queues named, whatever other members do. Use one of them, not both.

    With `auto_commit`, the messages that a poll returned count as consumed at the next poll, and
    the consumer stores its offsets every `auto_commit_interval_ms`. So the messages returned last
    come again after a crash, and after a close without another poll or `commit`. Without
    `auto_commit` only `commit` counts.

    `on_assigned` and `on_revoked` are called as PushConsumer explains, but not for queues of `assign`. In
    `on_revoked` the consumer still has the queues, so `commit` and `message.ack()` count there.

    The consumer pulls no more of a queue while more than `pull_threshold_for_queue` of its messages
    wait to be polled, and nothing while more than `pull_threshold_for_all` messages of all queues
    wait.

    With `codecs` each message has its `value`; PushConsumer explains `codecs` and `on_undecodable`. A poll
    does not return a message that `on_undecodable` gives back. With assigned queues, and in broadcasting,
    nobody can take it back: the poll returns it, and its `value` raises.

    The consumer logs a damaged message (see DamagedMessage) as an error, counts it in
    `damage_counts`, and leaves it out. With `on_damaged` STOP it stops the message's queue instead:
    the poll that would return the message raises DamagedMessageError, once, and the other queues go
    on. `seek` to the message or behind it lets the queue go on. PushConsumer explains the other
    options.
    """

    @takes(LitePullConsumerOptions)
    def __init__(self, options: LitePullConsumerOptions) -> None:
        super().__init__(options)
        self._on_damaged = options.on_damaged
        self._on_undecodable_retries = options.on_undecodable == "retry" or callable(
            options.on_undecodable
        )
        flow = FlowLimits(
            options.pull_threshold_for_queue,
            options.pull_threshold_size_for_queue_bytes,
            options.consume_max_span,
        )
        self._options = LitePullOptions(
            member=self._member_options(
                options,
                options.on_damaged,
                PullOptions(options.pull_batch_size, flow=flow, lite=True),
            ),
            auto_commit=options.auto_commit,
            auto_commit_interval_s=options.auto_commit_interval_ms / 1000,
            pull_threshold_for_all=options.pull_threshold_for_all,
        )
        self._admit = Admission(self._hooks, self.group, self._namespace)
        self._consume_hooks = ConsumeHooks(self._hooks, self.group, self._namespace, math.inf)
        self._poll_timeout_ms = options.poll_timeout_ms
        self._wanted: list[MessageQueue] | None = None

    # Which queues

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        """Share the queues of `topic` with the group. Raises ClientStateError after `assign`.

        PushConsumer.subscribe explains the selection.
        """
        if self._wanted is not None:
            raise ClientStateError(f"{self._name()} has assigned queues; it cannot subscribe too")
        self._subscribe(topic, tags, sql, predicate)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Consume exactly these queues. Replaces an earlier assignment; queues in both go on.

        Call it before the start or while the consumer runs. Raises ClientStateError after
        `subscribe`.
        """
        if self._subscriptions:
            raise ClientStateError(
                f"{self._name()} has subscriptions; it cannot be assigned queues"
            )
        wanted = sorted(self._wrapped(queues))
        if not wanted:
            raise IllegalArgumentError("no queue is given to assign")
        for queue in wanted:
            check_topic(queue.topic)
        if not self._unstarted:
            self._running_member().assign(wanted)
        self._wanted = wanted

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of `topic`. Raises RouteNotFoundError, RemotingError."""
        check_topic(topic)
        topic = self._namespace.wrap(topic)
        routes = self._running().routes
        await routes.refresh(topic)
        route = routes.route(topic)
        queues = route.subscribe_queues(topic) if route is not None else []
        return [self._namespace.unwrap_queue(queue) for queue in queues]

    # Messages

    async def poll(self, timeout_ms: Duration | None = None) -> list[MessageExt]:
        """Return the next messages of one queue, at most `pull_batch_size`, or an empty list when
        none come within `timeout_ms` (default: the consumer's `poll_timeout_ms`).

        Raises DamagedMessageError with `on_damaged` STOP.
        """
        wait_ms = self._poll_timeout_ms if timeout_ms is None else milliseconds(timeout_ms)
        check_range("timeout_ms", wait_ms, 0, 24 * 3600 * 1000)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        messages = await self._running_member().poll(wait_ms / 1000)
        if self._payloads is not None:
            messages = await self._fitting(messages, deadline)
        if messages and self._consume_hooks:
            first = messages[0]
            self._consume_hooks.polled(
                MessageQueue(first.topic, first.broker_name, first.queue_id), messages
            )
        return messages

    def __aiter__(self) -> Iteration:
        """Return one message after the other; the iteration ends when the consumer is closed.

        Raises DamagedMessageError with `on_damaged` STOP.
        """
        return Iteration(self._running_member, self._consume_hooks, self._payloads)

    if not TYPE_CHECKING:
        __iter__ = refuses("for", BLOCKING_FOR)

    async def pull(
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
        """Read a queue at `offset` without regard to assignments and positions (Java:
        DefaultMQPullConsumer). The broker waits up to `suspend_ms` for a first message.

        Raises RemotingError, RemoteError, RouteNotFoundError; with `on_damaged` STOP it raises
        DamagedMessageError if the message at `offset` is damaged.
        """
        check_range("max_messages", max_messages, 1, 1024)
        suspend_ms = milliseconds(suspend_ms)
        check_range("suspend_ms", suspend_ms, 0, SUSPEND_LITE_MS)
        check_range("offset", offset, 0, 2**63 - 1)
        check_queue(queue)
        selector = message_selector(queue.topic, tags, sql, predicate)
        queue = self._namespace.wrap_queue(queue)
        pulled = await pull_once(
            self._running(),
            self._group,
            queue,
            offset,
            max_messages,
            build_subscription(queue.topic, *selector),
            suspend_ms,
            PULL_TIMEOUT_S,
            self._on_damaged,
        )
        return replace(pulled, messages=self._admit(queue, pulled.messages))

    # Offsets

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True
    ) -> None:
        """Commit the offsets behind the messages that polls returned, or the `offsets` given.

        The queues must be assigned. Without `wait` the offsets are only sent: a failure is logged,
        and the next commit mends it.
        """
        if offsets is not None:
            if not isinstance(offsets, Mapping):
                raise IllegalArgumentError(
                    f"the offsets {offsets!r:.80} are a {type(offsets).__name__}; pass a dict from "
                    "MessageQueue to offset"
                )
            for offset in offsets.values():
                check_range("offset", offset, 0, 2**63 - 1)
            offsets = {self._own(queue)[0]: at for queue, at in offsets.items()}
        await self._running_member().commit(offsets, wait=wait)

    # Inside

    async def _fitting(self, messages: list[MessageExt], deadline: float) -> list[MessageExt]:
        """Return the messages that the user gets. If none is left, poll again until the deadline."""
        assert self._payloads is not None, "asked before"
        member = self._running_member()
        if self._on_undecodable_retries:
            member.follow_retries()
        while True:
            fitting = await self._payloads.admit(messages, member.return_undecodable)
            left_s = deadline - asyncio.get_running_loop().time()
            if fitting or not messages or left_s <= 0:
                return fitting
            messages = await member.poll(left_s)

    async def _open(self, instance: ClientInstance) -> None:
        self._member = LitePullMember(
            instance, self._group, self._subscriptions, self._wanted, self._options
        )
        await self._member.start()

    async def _wind_down(self) -> None:
        await self._running_member().drain()

    async def _shut(self, _instance: ClientInstance) -> None:
        assert self._member is not None, "set by start"
        await self._member.close()
