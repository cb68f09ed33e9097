"""Provide the base of the asyncio consumers: what they subscribe to, and their member of the group."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from cometmq.client.consuming.consumer_options import GroupOptions
from cometmq.client.consuming.listeners.undecodable import payloads_of
from cometmq.client.hooks import ConsumeMessageHook, FilterMessageHook, Hook
from cometmq.client.instance import ClientInstance
from cometmq.client.limits import check_queue, check_range
from cometmq.client.membership.membership import MemberOptions, Membership
from cometmq.client.membership.positions import lag_of, max_offset, min_offset, offset_at
from cometmq.client.membership.subscribing import message_selector
from cometmq.client.pulling.gates import Chosen, Gates
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.client.pulling.puller import PullOptions
from cometmq.client.tracing.consume_trace import ConsumeTrace
from cometmq.client.tracing.dispatcher import TraceDispatcher
from cometmq.client.tracing.traced_client import TracedClient
from cometmq.errors import ClientStateError, IllegalArgumentError
from cometmq.model.durations import Moment, epoch_ms
from cometmq.model.names import check_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import DamageCounts, DamagedMessage, MessageModel, QueueLag
from cometmq.model.subscription import MessageSelector


class _Member(Protocol):
    @property
    def membership(self) -> Membership: ...

    def all_assigned(self) -> Collection[MessageQueue]: ...

    def damage_counts(self) -> DamageCounts: ...

    def process_queues(self) -> list[ProcessQueue]: ...

    @property
    def gates(self) -> Gates: ...

    def assigned(self) -> Collection[MessageQueue]:
        """Return the queues that this member pulls."""

    def consumed_queues(self) -> Collection[MessageQueue]:
        """Return the queues that this member gets messages of, with those of others that it pops."""

    async def go_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin queues again at these offsets. Passes over queues that this member does not pull."""


MemberT = TypeVar("MemberT", bound=_Member)


class GroupConsumer(TracedClient, Generic[MemberT]):
    """Consumes as a member of a group. The member is there from the start on."""

    _hook_kinds = (ConsumeMessageHook, FilterMessageHook)
    _trace_kind = "CONSUME"

    def __init__(self, options: GroupOptions) -> None:
        super().__init__(options)
        # A broadcasting consumer finds its offset file by its client id, which must stay the same.
        self._unique_client_id = options.message_model is MessageModel.CLUSTERING
        self._payloads = payloads_of(
            options.codecs, options.on_undecodable, self.group, self._namespace
        )
        self._subscriptions: dict[str, MessageSelector] = {}
        self._member: MemberT | None = None

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to `topic`; without one, nothing happens."""
        topic = self._namespace.wrap(topic)
        if not self._unstarted:
            self._running_member().membership.unsubscribe(topic)
        self._subscriptions.pop(topic, None)

    def assigned_queues(self) -> list[MessageQueue]:
        """Return this member's queues at present. A push consumer's include those of its group's
        retry topic. A popped queue has the id -1 if it stands for all queues of its broker.
        """
        return sorted(map(self._namespace.unwrap_queue, self._running_member().all_assigned()))

    def damage_counts(self) -> DamageCounts:
        """Return what became of damaged messages since the start, and which queues are stopped."""
        return self._running_member().damage_counts()

    # Pauses

    def pause(self, queues: Iterable[MessageQueue] | str | None = None) -> None:
        """Stop pulling from these queues, from a topic, or from all queues, until `resume`.

        Messages that were pulled before are still consumed, and the queues stay with this consumer. A pause
        also covers queues that it gets later. The pause of a topic does not cover retries of its messages:
        they come by the group's topic `%RETRY%GROUP`. With mode="pop", single queues cannot be paused.
        """
        self._running_member().gates.pause(self._chosen(queues))

    def resume(self, queues: Iterable[MessageQueue] | str | None = None) -> None:
        """End the pause of these queues, or of a topic; without an argument, end every pause.

        A queue goes on when no pause covers it any more.
        """
        self._running_member().gates.resume(self._chosen(queues))

    def paused_queues(self) -> list[MessageQueue]:
        """Return the queues that were paused one by one, and this consumer's queues that any pause covers."""
        member = self._running_member()
        paused = member.gates.paused_queues(member.all_assigned())
        return sorted(map(self._namespace.unwrap_queue, paused))

    # Positions

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset` of the queue. Messages of it that are being consumed may come again or not.

        A push consumer that is `orderly` first waits for the listener that has messages of the queue. If
        that listener itself waits for the seek, it gets a ClientStateError. Raises ClientStateError, too, if
        the queue is not assigned to this consumer, and IllegalArgumentError for an offset below the queue's
        `min_offset` or above its `max_offset`.
        """
        check_range("offset", offset, 0, 2**63 - 1)
        check_queue(queue)
        [wrapped] = self._own(queue)
        instance = self._running()
        low, high = await asyncio.gather(
            min_offset(instance, wrapped), max_offset(instance, wrapped)
        )
        if not low <= offset <= high:
            raise IllegalArgumentError(
                f"the offset {offset} is none of {queue}, which holds {low} to {high}"
            )
        await self._go_to({wrapped: offset})

    async def seek_to_begin(self, queue: MessageQueue | str) -> None:
        """Go on at the oldest message that the broker still has, in a queue or in this consumer's queues of a topic."""
        await self._seek(queue, min_offset)

    async def seek_to_end(self, queue: MessageQueue | str) -> None:
        """Go on behind the newest message, in a queue or in this consumer's queues of a topic."""
        await self._seek(queue, max_offset)

    async def seek_to_time(self, queue: MessageQueue | str, timestamp_ms: Moment) -> None:
        """Go on at the first message that was stored at or after a time.

        `queue` is a queue, or a topic for all its queues that this consumer has. `timestamp_ms` is a
        datetime with a time zone, or milliseconds since the epoch.
        """
        at_ms = _checked_moment(timestamp_ms)
        await self._seek(queue, functools.partial(offset_at, timestamp_ms=at_ms))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: Moment) -> int:
        """Return the first offset whose message was stored at or after `timestamp_ms`."""
        return await offset_at(self._running(), self._wrap(queue), _checked_moment(timestamp_ms))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest offset whose message the broker still has."""
        return await min_offset(self._running(), self._wrap(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        return await max_offset(self._running(), self._wrap(queue))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of the queue, or None if there is none.

        For a queue of this consumer it is the offset that it commits next.
        """
        return await self._running_member().membership.committed(self._wrap(queue))

    async def lag(self) -> dict[MessageQueue, QueueLag]:
        """Return, for each queue of this consumer, how far the group is behind: `max_offset - committed`.

        With mode="pop" it returns all queues of the topics, since no queue belongs to a member. If no broker
        answers for a queue, or nothing of it was committed yet, its lag is None and `unknown` has the reason.
        """
        member = self._running_member()
        lags = await lag_of(
            self._running(), set(member.consumed_queues()), member.membership.committed
        )
        return {self._namespace.unwrap_queue(queue): lag for queue, lag in lags.items()}

    # Inside

    def _member_options(
        self, options: GroupOptions, on_damaged: DamagedMessage, pull: PullOptions
    ) -> MemberOptions:
        return MemberOptions(
            message_model=options.message_model,
            offset_directory=options.offset_directory,
            consume_from=options.consume_from,
            consume_timestamp_ms=options.timestamp_ms,
            allocation=options.allocation,
            pull=pull,
            on_damaged=on_damaged,
            namespace=self._namespace,
            hooks=self._hooks,
            note_failures=options.note_failures,
            on_assigned=options.on_assigned,
            on_revoked=options.on_revoked,
            callback_timeout_s=options.rebalance_callback_timeout_ms / 1000,
        )

    def _running_now(self) -> None:
        self._running_member().membership.callbacks.open()

    async def _seek(
        self,
        queue: MessageQueue | str,
        offset_of: Callable[[ClientInstance, MessageQueue], Awaitable[int]],
    ) -> None:
        queues, instance = self._own(queue), self._running()
        offsets = await asyncio.gather(*(offset_of(instance, each) for each in queues))
        await self._go_to(dict(zip(queues, offsets, strict=True)))

    async def _go_to(self, offsets: dict[MessageQueue, int]) -> None:
        for queue in offsets:  # another member may have got them meanwhile
            self._own(self._namespace.unwrap_queue(queue))
        await self._running_member().go_to(offsets)

    def _own(self, queue: MessageQueue | str) -> list[MessageQueue]:
        """Return a queue, or all of a topic, that this member pulls, named as on the wire.

        Raises ClientStateError if there is none.
        """
        member = self._running_member()
        self._check_own_queues()
        if isinstance(queue, str):
            topic = self._namespace.wrap(queue)
            owned = sorted(each for each in member.assigned() if each.topic == topic)
            what = f"no queue of topic {queue}"
        else:
            wrapped = self._wrap(queue)
            owned = [wrapped] if wrapped in member.assigned() else []
            what = str(queue)
        if not owned:
            raise ClientStateError(
                f"{what} is {'' if isinstance(queue, str) else 'not '}assigned to this consumer of group "
                f"{self.group}"
                + ("" if member.membership.manual else "; another member may have it")
            )
        return owned

    def _check_own_queues(self) -> None:
        """Raise ClientStateError if this consumer has no queues of its own."""

    def _chosen(self, queues: Iterable[MessageQueue] | str | None) -> Chosen:
        if queues is None:
            return None
        if isinstance(queues, str):
            check_topic(queues)
            return self._namespace.wrap(queues)
        self._check_own_queues()
        return self._wrapped(queues)

    def _wrapped(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        if isinstance(queues, MessageQueue) or not isinstance(queues, Iterable):
            raise IllegalArgumentError(
                f"the queues {queues!r:.80} are a {type(queues).__name__}; pass a list of "
                "MessageQueues"
            )
        return {self._wrap(queue) for queue in queues}

    def _wrap(self, queue: MessageQueue) -> MessageQueue:
        check_queue(queue)
        return self._namespace.wrap_queue(queue)

    def _subscribe(self, topic: str, tags: str, sql: str | None, predicate: str | None) -> None:
        selector = message_selector(topic, tags, sql, predicate)
        topic = self._namespace.wrap(topic)
        if not self._unstarted:
            self._running_member().membership.subscribe(topic, selector)
        self._subscriptions[topic] = selector

    def _running_member(self) -> MemberT:
        self._running()
        assert self._member is not None, "set by start"
        return self._member

    def _trace(self, dispatcher: TraceDispatcher) -> Hook:
        return ConsumeTrace(dispatcher)

    def _process_queues(self) -> list[ProcessQueue]:
        return [] if self._member is None else self._member.process_queues()


def _checked_moment(timestamp_ms: Moment) -> int:
    at_ms = epoch_ms("timestamp_ms", timestamp_ms)
    check_range("timestamp_ms", at_ms, 0, 2**63 - 1)
    return at_ms
