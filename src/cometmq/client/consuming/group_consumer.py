"""Provides the base of the asyncio consumers: what they subscribe to, and their member of the group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

from cometmq.client.consuming.consumer_options import GroupOptions
from cometmq.client.consuming.undecodable import payloads_of
from cometmq.client.hooks import ConsumeMessageHook, FilterMessageHook, Hook
from cometmq.client.membership.membership import Membership
from cometmq.client.membership.subscribing import message_selector
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.client.tracing.dispatcher import TraceDispatcher
from cometmq.client.tracing.hooks import ConsumeTrace
from cometmq.client.tracing.traced_client import TracedClient
from cometmq.model.queue import MessageQueue
from cometmq.model.results import DamageCounts, MessageModel
from cometmq.model.subscription import MessageSelector


class _Member(Protocol):
    @property
    def membership(self) -> Membership: ...

    def all_assigned(self) -> Collection[MessageQueue]: ...

    def damage_counts(self) -> DamageCounts: ...

    def process_queues(self) -> list[ProcessQueue]: ...


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
        """Return this member's queues at present. A push consumer has those of its group's retry
        topic, too. One that it pops has the number -1 if it stands for all of its broker.
        """
        return sorted(map(self._namespace.unwrap_queue, self._running_member().all_assigned()))

    def damage_counts(self) -> DamageCounts:
        """Return what became of damaged messages since the start, and which queues are stopped."""
        return self._running_member().damage_counts()

    # Inside

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
