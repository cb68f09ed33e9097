"""Hand out messages to members of a group that pop: code 200050, and the questions around it: 200052, 200054, 200055.

Java: PopMessageProcessor, PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor, PopLongPollingService. A
pop is served in one turn of the loop, so it needs no locks of queues.

Longer than 500 lines: all of them read the same queues, and wait in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cometmq.broker.filters.message_filter import EVERYTHING, MessageFilter
from cometmq.broker.parts import Parts
from cometmq.broker.pop import changes as c
from cometmq.broker.pop.changes import Key, runs_of
from cometmq.broker.pop.checks import MAX_POPPED, PopChecks
from cometmq.broker.pop.found import Found, split
from cometmq.broker.pop.holders import Holders
from cometmq.broker.pop.ordered import Ordered
from cometmq.broker.pop.state import PopState, wake_place
from cometmq.broker.pulls.waiter import ANY_QUEUE, Reason, State, Waiter
from cometmq.broker.storage.group_commit import GroupCommit
from cometmq.broker.traffic import Traffic
from cometmq.filtering.sql92 import compile_steps
from cometmq.filtering.tags import TagMatcher
from cometmq.model.attributes import MESSAGE_TYPE, PRIORITY, PRIORITY_FACTOR
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, encode_answer, response
from cometmq.protocol.pop.handle import ORDER_QUEUE, pop_retry_topic, pop_retry_topic_v2
from cometmq.protocol.pop.headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.slices import run_slices
from cometmq.store.get import GetResult, GetStatus

PopRequest = Request[PopMessageRequestHeader]

# A pop that comes so much later than its client gave up is not served, and one whose time is nearly over
# does not wait (Java: PopLongPollingService).
_LATE_MS: Final = 500
_SPARE_MS: Final = 50
# A tags code that no message has: it wakes a request whatever that selects.
WAKE_UP: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
# How often a pop waits for the disk, see pulls.
_MOST_READS: Final = 3
_MOVED: Final = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.MESSAGE_WAS_REMOVING,
    }
)


_Serve = Callable[[Connection, Any, Waiter | None, Reason | None], RemotingCommand | None]


class PopHandler:
    """Serves pops. With `group_commit` an answer waits until the disk, or slaves, know what it has popped."""

    def __init__(
        self,
        parts: Parts,
        state: PopState,
        checks: PopChecks,
        holders: Holders,
        traffic: Traffic,
        group_commit: GroupCommit | None,
    ) -> None:
        self._parts = parts
        self._config = parts.config
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._clock = parts.clock
        self._randomness = parts.randomness
        self._waiting = parts.waiting
        self._work = parts.filter_work
        self._handlers = parts.handlers
        self._state = state
        self._checks = checks
        self._holders = holders
        self._traffic = traffic
        self._group_commit = group_commit
        self._serve_by_code: Final[Mapping[int, _Serve]] = {
            requests.POP_MESSAGE.code: self._serve,
            requests.NOTIFICATION.code: self._notify,
            requests.PEEK_MESSAGE.code: self._peek,
        }

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.POP_MESSAGE, self.pop)
        handlers.register(requests.NOTIFICATION, self.notification)
        handlers.register(requests.POLLING_INFO, self.polling_info)
        handlers.register(requests.PEEK_MESSAGE, self.peek)

    def pop(self, connection: Connection, request: PopRequest) -> RemotingCommand | None:
        """Answer with messages, or let the pop wait for some."""
        header = request.header
        now_ms = self._clock.now_ms()
        if header.born_time and now_ms - header.born_time - header.poll_time > _LATE_MS:
            return _empty(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self._config.broker_ip1}] pop message is timeout too much: it was born "
                f"{now_ms - header.born_time} ms ago and polls for {header.poll_time}",
            )
        if not header.born_time:
            header.born_time = now_ms
        if not self._state.is_ready or self._checks.compiles_long(header):
            connection.reply_when(request, self._prepare(connection, request))
            return None
        return self._serve(connection, request, None, None)

    async def _prepare(self, connection: Connection, request: PopRequest) -> RemotingCommand | None:
        """Serve a pop when the disk has the topic of the log and its expression is compiled."""
        await self._state.ready()
        if self._checks.compiles_long(request.header):
            await run_slices(compile_steps(request.header.exp or ""))
        return self._serve(connection, request, None, None)

    def _resume(self, waiter: Waiter, reason: Reason) -> None:
        """Serve a pop that has waited. It may wait again."""
        connection, request = waiter.connection, waiter.request
        try:
            if waiter.waits_for is State.MESSAGES:
                if self._handlers.checks_resources:
                    row = self._handlers.request_types[request.code]
                    self._handlers.check_again(row, connection, request)
            elif reason is Reason.READ:
                if waiter.error is not None:
                    raise waiter.error
                waiter.reads += 1
            answer = self._serve_by_code[request.code](connection, request, waiter, reason)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request, as in a connection
            connection.reply_failure(request, error)
            return
        if answer is not None:
            connection.reply(request, answer)

    def _serve(
        self,
        connection: Connection,
        request: PopRequest,
        waiter: Waiter | None,
        reason: Reason | None,
    ) -> RemotingCommand | None:
        header = request.header
        self._checks.readable("pop")
        self._checks.count(header.max_msg_nums)
        topic = self._checks.topic(header.topic, "popping")
        self._checks.queue(header.queue_id, topic, header.consumer_group)
        self._checks.group(header.consumer_group)
        self._checks.invisible_time(header.invisible_time)
        wanted = self._checks.filter(header)
        self._parts.clients.pops.note(
            header.consumer_group, header.topic, header.exp_type, header.exp
        )
        if wanted is not EVERYTHING and self._work.left <= 0:
            self._wait(connection, request, waiter, State.FILTERS)
            return None
        is_order = bool(header.order)
        found = Found(
            self._clock.now_ms(),
            header.invisible_time,
            ORDER_QUEUE if is_order else 0,
            self._config.broker_name,
            keeps_topic=self._config.pop_response_return_actual_retry_topic,
        )
        may_block = waiter is not None and waiter.reads >= _MOST_READS
        for name, queue_id in self._queues(
            header.consumer_group, topic, header.queue_id, is_order=is_order
        ):
            self._read(header, (header.consumer_group, name, queue_id), wanted, found, may_block)
        end = self._state.write(*found.changes) if found.changes else 0
        if found.count:
            for key, last_offset in found.ends:
                self._holders.note(key, found.popped_ms, last_offset, connection.peer)
            self._send_found(connection, request, found, end)
            if found.rest:
                self._wake(header.consumer_group, header.topic)
            return None
        self._traffic.missed()
        if found.absent:
            self._wait(connection, request, waiter, State.DISK, found.absent)
            return None
        if found.is_cut:
            self._wait(connection, request, waiter, State.FILTERS)
            return None
        if self._may_wait(header, reason):
            if self._hold(connection, request, waiter, wanted):
                return None
            return _empty(ResponseCode.POLLING_FULL, self._full(header.topic), found)
        return _empty(ResponseCode.POLLING_TIMEOUT, GetStatus.NO_MESSAGE_IN_QUEUE.value, found)

    def _send_found(
        self, connection: Connection, request: PopRequest, found: Found, end: int
    ) -> None:
        ext = found.ext_json(is_order=bool(request.header.order))
        head = encode_answer(request.opaque, ext, body_length=found.byte_count, remark=b"FOUND")
        if self._group_commit is None:
            connection.reply_encoded(request, head, found.slices)
        else:
            answer = partial(connection.reply_encoded, request, head, found.slices)
            self._group_commit.call_when_safe(end, connection, request, answer)

    # Queues

    def _queues(
        self, group: str, topic: TopicConfig, queue_id: int, *, is_order: bool
    ) -> list[tuple[str, int]]:
        """Return topic and queue id of the queues that a pop reads, in their order."""
        config = self._config
        draw = self._randomness.randrange(100)
        # Priorities are numbers of queues (Java: PopMessageProcessor).
        by_priority = not is_order and _is_by_priority(topic, self._groups.get(group), draw)
        begin, ascending = 0 if by_priority else draw, not config.priority_order_asc
        if queue_id >= 0:
            queues = [(topic.topic_name, queue_id)]
        else:
            queues = _all_queues(topic, begin, ascending)
        if is_order:
            return queues
        retries: list[tuple[str, int]] = []
        for of_retries in (pop_retry_topic, pop_retry_topic_v2):
            retry = self._topics.get(of_retries(group, topic.topic_name))
            if retry is not None:
                retries += _all_queues(retry, begin, ascending)
        retries_first = (
            config.pop_from_retry_probability_for_priority
            if by_priority
            else config.pop_from_retry_probability
        )
        return retries + queues if draw < retries_first else queues + retries

    def _read(
        self,
        header: PopMessageRequestHeader,
        key: Key,
        wanted: MessageFilter,
        found: Found,
        may_block: bool,
    ) -> None:
        """Add what a pop takes of one queue."""
        position = self._state.position(key, header.init_mode, is_order=bool(header.order))
        state = self._state.table.get(key)
        order: Ordered | None = None
        if header.order:
            order = Ordered() if state is None else state.batch()
            if order.is_blocked(found.popped_ms, header.attempt_id or ""):
                return
        end = self._store.max_offset(key[1], key[2])
        if position == end:
            return  # as in most queues of a topic that has thousands
        left = header.max_msg_nums - found.count
        if left <= 0 or found.is_cut:
            found.rest += max(end - position, 0)
            return
        began_s = self._traffic.monotonic()
        result = self._get(key, position, left, wanted, may_block)
        if result.status in _MOVED and result.next_begin_offset != position:
            result = self._get(key, result.next_begin_offset, left, wanted, may_block)
        if result.absent:
            found.absent += result.absent
        found.is_cut = found.is_cut or result.is_cut
        if result.status is GetStatus.FOUND:
            self._take(header, key, order, result, found)
            self._traffic.took(
                key[0],
                key[1],
                key[2],
                result.next_begin_offset,
                result.message_count,
                result.byte_count,
                began_s,
            )
        elif result.status is not GetStatus.NOT_IN_MEMORY and result.next_begin_offset != position:
            # Nothing that the group wants, but the next pop need not look at it again.
            now_ms, next_offset = found.popped_ms, result.next_begin_offset
            found.changes.append(
                c.Popped(key, now_ms, now_ms, next_offset, [])
                if order is None
                else c.OrderPopped(key, now_ms, now_ms, next_offset, [], [], "")
            )
        found.rest += max(result.max_offset - result.next_begin_offset, 0)

    def _get(
        self, key: Key, position: int, left: int, wanted: MessageFilter, may_block: bool
    ) -> GetResult:
        result = self._store.get(
            key[1],
            key[2],
            position,
            left,
            matches=wanted.matches,
            matches_ext=wanted.ext_matcher(self._work),
            matches_record=wanted.record_matcher(self._work),
            may_block=may_block,
        )
        if wanted is not EVERYTHING and result.next_begin_offset > position:
            self._work.spend((result.next_begin_offset - position) * 100)
        return result

    def _take(
        self,
        header: PopMessageRequestHeader,
        key: Key,
        order: Ordered | None,
        result: GetResult,
        found: Found,
    ) -> None:
        slices = result.slices
        offsets = [offset for offset, _ in split(slices)]
        if order is None:
            found.changes.append(
                c.Popped(
                    key, found.popped_ms, found.until_ms, result.next_begin_offset, runs_of(offsets)
                )
            )
        else:
            attempt_id = header.attempt_id or ""
            counts = order.counts_of(offsets, attempt_id)
            found.changes.append(
                c.OrderPopped(
                    key,
                    found.popped_ms,
                    found.until_ms,
                    result.next_begin_offset,
                    offsets,
                    counts,
                    attempt_id,
                )
            )
            found.add_counts(key, offsets, counts)
        found.add(key, header.topic, offsets, slices)

    # Waiting

    def _may_wait(
        self, header: PopMessageRequestHeader | NotificationRequestHeader, reason: Reason | None
    ) -> bool:
        """Say whether a request that found nothing has time left."""
        return (
            header.poll_time > 0
            and reason not in (Reason.DEADLINE, Reason.RELEASED)
            and header.born_time + header.poll_time - _SPARE_MS > self._clock.now_ms()
        )

    def _hold(
        self,
        connection: Connection,
        request: Request[Any],
        waiter: Waiter | None,
        wanted: MessageFilter,
    ) -> bool:
        """Let a pop wait for messages. Return False if too many wait."""
        header = request.header
        if waiter is None:
            waiter = Waiter(connection, request, self._resume)
        group, topic = header.consumer_group, header.topic
        left_ms = header.born_time + header.poll_time - self._clock.now_ms()
        waiter.reads = 0
        waiter.size = wanted.weight
        waiter.deadline = asyncio.get_running_loop().time() + left_ms / 1000
        queue_id = header.queue_id if header.queue_id >= 0 else ANY_QUEUE
        places = [(topic, queue_id), wake_place(group, topic)]
        if not header.order:
            places.append((pop_retry_topic(group, topic), ANY_QUEUE))
            places.append((pop_retry_topic_v2(group, topic), ANY_QUEUE))
        waiter.places = tuple(places)
        # One in order waits for acknowledgements, too; one that selects by properties looks itself.
        waiter.matches = None
        if wanted.matches is not None and not header.order:
            waiter.matches = partial(_matches_or_wakes, wanted.matches)
        share = _share(group, topic, queue_id)
        # A message wakes a pop, and a question as well.
        waiter.share = share if request.code == requests.POP_MESSAGE.code else f"{share}?"
        waiter.max_share = self._config.pop_polling_size
        return self._waiting.wait(waiter, State.MESSAGES)

    def _wait(
        self,
        connection: Connection,
        request: Request[Any],
        waiter: Waiter | None,
        state: State,
        absent: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Let a pop go on when filters have work left, or when a thread has brought `absent` into memory."""
        if waiter is None:
            waiter = Waiter(connection, request, self._resume)
        waiter.absent = absent
        self._waiting.wait(waiter, state)

    def _wake(self, group: str, topic: str) -> None:
        """Have one of the pops that wait look again."""
        self._waiting.arrived(*wake_place(group, topic), _INT64_MAX, WAKE_UP)

    def became_visible(self, group: str, topic: str) -> None:
        """Have a pop look again, because messages in order are free to be popped."""
        self._wake(group, topic)

    def _full(self, topic: str) -> str:
        return (
            f"too many pops of {topic} wait; the limits are popPollingSize={self._config.pop_polling_size}, "
            f"maxHeldPulls={self._config.max_held_pulls} and "
            f"maxHeldPullsPerConnection={self._config.max_held_pulls_per_connection}; pop again in some seconds"
        )

    # The small requests

    def notification(
        self, connection: Connection, request: Request[NotificationRequestHeader]
    ) -> RemotingCommand | None:
        """Say whether there is something to pop, at once or when there is."""
        if not request.header.born_time:
            request.header.born_time = self._clock.now_ms()
        return self._notify(connection, request, None, None)

    def _notify(
        self,
        connection: Connection,
        request: Request[NotificationRequestHeader],
        waiter: Waiter | None,
        reason: Reason | None,
    ) -> RemotingCommand | None:
        header = request.header
        self._checks.readable("notification")
        topic = self._checks.topic(header.topic, "notifying")
        self._checks.queue(header.queue_id, topic, header.consumer_group)
        self._checks.group(header.consumer_group)
        now_ms = self._clock.now_ms()
        has_msg = any(
            self._has_message(header, (header.consumer_group, name, queue_id), now_ms)
            for name, queue_id in self._queues(
                header.consumer_group, topic, header.queue_id, is_order=bool(header.order)
            )
        )
        full = not has_msg and self._may_wait(header, reason)
        if full and self._hold(connection, request, waiter, EVERYTHING):
            return None
        return response(
            ResponseCode.SUCCESS,
            header=NotificationResponseHeader(has_msg=has_msg, polling_full=full),
        )

    def _has_message(self, header: NotificationRequestHeader, key: Key, now_ms: int) -> bool:
        state = self._state.table.get(key)
        if (
            header.order
            and state is not None
            and state.batch().is_blocked(now_ms, header.attempt_id or "")
        ):
            return False
        position = self._state.known_position(key, is_order=bool(header.order))
        if position is None:
            position = self._store.min_offset(key[1], key[2])
        return position < self._store.max_offset(key[1], key[2])

    def peek(
        self, connection: Connection, request: Request[PeekMessageRequestHeader]
    ) -> RemotingCommand | None:
        """Answer with messages that a pop would take, and take none of them."""
        return self._peek(connection, request, None, None)

    def _peek(
        self,
        connection: Connection,
        request: Request[PeekMessageRequestHeader],
        waiter: Waiter | None,
        _reason: Reason | None,
    ) -> RemotingCommand | None:
        header = request.header
        self._checks.readable("peek")
        topic = self._checks.topic(header.topic, "peeking")
        self._checks.queue(header.queue_id, topic, header.consumer_group)
        self._checks.group(header.consumer_group)
        may_block = waiter is not None and waiter.reads >= _MOST_READS
        slices: list[memoryview] = []
        absent: list[Callable[[], None]] = []
        count = byte_count = rest = 0
        for name, queue_id in self._queues(
            header.consumer_group, topic, header.queue_id, is_order=False
        ):
            position = self._state.known_position((header.consumer_group, name, queue_id))
            if position is None:
                position = self._store.min_offset(name, queue_id)
            end = self._store.max_offset(name, queue_id)
            # The messages that a peek shows are among the rest, since it takes none.
            rest += max(end - position, 0)
            left = min(header.max_msg_nums, MAX_POPPED) - count
            if left <= 0 or position == end:
                continue
            result = self._store.get(name, queue_id, position, left, may_block=may_block)
            slices += result.slices
            absent += result.absent or ()
            count += result.message_count
            byte_count += result.byte_count
        if not count and absent:
            self._wait(connection, request, waiter, State.DISK, absent)
            return None
        if not count:
            return response(ResponseCode.PULL_NOT_FOUND, GetStatus.NO_MESSAGE_IN_QUEUE.value)
        ext = b'"invisibleTime":"0","popTime":"0","restNum":"%d","reviveQid":"0"' % rest
        head = encode_answer(request.opaque, ext, body_length=byte_count, remark=b"FOUND")
        connection.reply_encoded(request, head, slices)
        return None

    def polling_info(
        self, _connection: Connection, request: Request[PollingInfoRequestHeader]
    ) -> RemotingCommand:
        """Return how many pops of a group wait for a queue."""
        header = request.header
        self._checks.readable("polling")
        topic = self._checks.topic(header.topic, "polling")
        self._checks.queue(header.queue_id, topic, header.consumer_group)
        self._checks.group(header.consumer_group)
        queue_id = header.queue_id if header.queue_id >= 0 else ANY_QUEUE
        share = _share(header.consumer_group, header.topic, queue_id)
        count = self._waiting.count_of_share(share)
        return response(ResponseCode.SUCCESS, header=PollingInfoResponseHeader(count))


def _is_by_priority(topic: TopicConfig, group: SubscriptionGroupConfig | None, draw: int) -> bool:
    """Say whether a pop reads the queues of a topic in the order of their priorities."""
    if topic.attributes.get(MESSAGE_TYPE) != PRIORITY:
        return False
    return group is None or draw < int(group.attributes.get(PRIORITY_FACTOR, "100"))


def _all_queues(topic: TopicConfig, begin: int, ascending: bool) -> list[tuple[str, int]]:
    """Return all queues, from the highest one down unless `ascending`."""
    count = topic.read_queue_nums
    order = range(count) if ascending else range(count - 1, -1, -1)
    return [(topic.topic_name, (begin + each) % count) for each in order]


def _share(group: str, topic: str, queue_id: int) -> str:
    return f"{topic}@{group}@{queue_id}"


def _matches_or_wakes(matches: TagMatcher, tags_code: int) -> bool:
    return tags_code == WAKE_UP or matches(tags_code)


def _empty(code: ResponseCode, remark: str, found: Found | None = None) -> RemotingCommand:
    header = PopMessageResponseHeader(start_offset_info="", msg_offset_info="")
    if found is not None:
        header.pop_time, header.invisible_time = found.popped_ms, found.invisible_ms
        header.revive_qid, header.rest_num = found.revive_qid, found.rest
        if found.revive_qid == ORDER_QUEUE:
            header.order_count_info = ""
    return response(code, remark, header=header)
