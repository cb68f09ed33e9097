"""The asyncio push consumer (Java: DefaultMQPushConsumer)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, TypeVar

from cometmq.client.allocation import AllocationStrategy, allocate_averagely
from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.instance import ClientInstance
from cometmq.client.lifecycle import AsyncClient
from cometmq.client.limits import check_range
from cometmq.client.listening import Listener
from cometmq.client.member import ConsumerOptions, GroupMember
from cometmq.client.process_queue import FlowLimits
from cometmq.client.pulling import PullOptions
from cometmq.errors import ClientStateError, IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.model.names import check_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere

CLOSE_TIMEOUT_MS: Final = 10_000
# Java: consumeTimestamp, half an hour before the consumer was made.
DEFAULT_TIMESTAMP_AGE_MS: Final = 30 * 60 * 1000

ListenerT = TypeVar("ListenerT", bound=Listener)


class PushConsumer(AsyncClient):
    """Hands the messages of its topics to a listener, sharing them with the rest of its group.

        consumer = PushConsumer("billing", listener, namesrv="127.0.0.1:9876")
        consumer.subscribe("orders", "paid || refunded")
        async with consumer: ...

    The listener gets a list of messages (one, unless `consume_message_batch_max_size` is larger) and
    returns a ConsumeResult. A function runs in one of up to `concurrency` threads, a coroutine
    function in one of as many tasks on the loop. Whatever is not SUCCESS (RECONSUME_LATER, None, an
    exception) has the broker deliver the messages again later, `max_reconsume_times` times (-1: the
    broker's 16), and then move them to the group's dead-letter topic.

    `consume_from` says where a group begins that has no offset yet; `consume_timestamp_ms` is for
    ConsumeFromWhere.TIMESTAMP (default: half an hour ago). One queue holds at most
    `pull_threshold_for_queue` messages and `pull_threshold_size_for_queue_bytes` waiting to be
    consumed, over at most `consume_max_span` offsets. `close` waits `close_timeout_ms` for running
    listeners.
    """

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        unit_name: str | None = None,
        consume_from: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        concurrency: int = 20,
        consume_message_batch_max_size: int = 1,
        max_reconsume_times: int = -1,
        allocation: AllocationStrategy = allocate_averagely,
        pull_batch_size: int = 32,
        pull_interval_ms: int = 0,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_size_for_queue_bytes: int = 100 * 1024 * 1024,
        consume_max_span: int = 2000,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
    ) -> None:
        super().__init__(group, namesrv=namesrv, instance_name=instance_name, unit_name=unit_name)
        # The ranges of DefaultMQPushConsumerImpl.checkConfig.
        check_range("concurrency", concurrency, 1, 1000)
        check_range("consume_message_batch_max_size", consume_message_batch_max_size, 1, 1024)
        check_range("max_reconsume_times", max_reconsume_times, -1, 2**31 - 1)
        check_range("pull_batch_size", pull_batch_size, 1, 1024)
        check_range("pull_interval_ms", pull_interval_ms, 0, 65535)
        check_range("pull_threshold_for_queue", pull_threshold_for_queue, 1, 65535)
        size_bytes = pull_threshold_size_for_queue_bytes
        check_range("pull_threshold_size_for_queue_bytes", size_bytes, 1, 1024**3)
        check_range("consume_max_span", consume_max_span, 1, 65535)
        check_range("close_timeout_ms", close_timeout_ms, 0, 24 * 3600 * 1000)
        if consume_timestamp_ms is None:
            consume_timestamp_ms = time.time_ns() // 1_000_000 - DEFAULT_TIMESTAMP_AGE_MS
        self._options = ConsumerOptions(
            consume_from=ConsumeFromWhere(consume_from),
            consume_timestamp_ms=consume_timestamp_ms,
            concurrency=concurrency,
            batch_max_size=consume_message_batch_max_size,
            max_reconsume_times=max_reconsume_times,
            allocation=allocation,
            pull=PullOptions(
                pull_batch_size,
                pull_interval_ms,
                FlowLimits(pull_threshold_for_queue, size_bytes, consume_max_span),
            ),
        )
        self._close_timeout_ms = close_timeout_ms
        self._subscriptions: dict[str, str] = {}
        self._listener: Listener | None = None
        self._member: GroupMember | None = None
        if listener is not None:
            self.listen(listener)

    def listen(self, listener: ListenerT) -> ListenerT:
        """Set the listener, before the start; returns it, so it serves as a decorator."""
        if not self._unstarted:
            raise ClientStateError(f"{self._name()} has started; set the listener before")
        if not callable(listener):
            raise IllegalArgumentError(
                f"the listener {listener!r} cannot be called; pass a function or a coroutine "
                "function that takes a list of messages and returns a ConsumeResult"
            )
        self._listener = listener
        return listener

    def subscribe(self, topic: str, tags: str = "*") -> None:
        """Consume `topic`, all of it or the messages with one of `tags` (`TagA || TagB`).

        Replaces an earlier subscription to the topic. All members of a group must subscribe alike.
        While the consumer runs, the change takes effect in the background.
        """
        check_topic(topic)
        build_subscription(topic, tags)  # refuses what is no expression
        if not self._unstarted:
            self._running_member().subscribe(topic, tags)
        self._subscriptions[topic] = tags

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to `topic`; without one, nothing happens."""
        if not self._unstarted:
            self._running_member().unsubscribe(topic)
        self._subscriptions.pop(topic, None)

    def assigned_queues(self) -> list[MessageQueue]:
        """The queues of this member at present, those of the group's retry topic included."""
        return sorted(self._running_member().assigned())

    def _running_member(self) -> GroupMember:
        self._running()
        assert self._member is not None, "set by start"
        return self._member

    def _check_ready(self) -> None:
        if self._listener is None:
            raise ClientStateError(
                f"{self._name()} has no listener; pass one to the constructor or to listen()"
            )

    async def _open(self, instance: ClientInstance) -> None:
        assert self._listener is not None, "checked before"
        self._member = GroupMember(
            instance, self._group, self._subscriptions, self._listener, self._options
        )
        await self._member.start()

    async def _shut(self, _instance: ClientInstance) -> None:
        assert self._member is not None, "set by start"
        await self._member.close(self._close_timeout_ms / 1000)
