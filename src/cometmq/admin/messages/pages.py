"""Read the messages of a topic a page at a time, from all of its queues in the order of time.

A queue is only in order by itself, so a page merges the queues. Its cursor is the place in each queue
at which the next page goes on, which holds no state at any server. The work for one page is bounded:
a filter that selects little gives short pages that say how far they have come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from cometmq.admin.messages.reading import MessageReader, check_queue, message_of
from cometmq.admin.room import Room
from cometmq.admin.routed import master_of, reader_of
from cometmq.admin.servers import Servers
from cometmq.errors import (
    CometMQError,
    IllegalArgumentError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import TIMER_TOPIC
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL
from cometmq.protocol import requests
from cometmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    RecallMessageRequestHeader,
    SearchOffsetRequestHeader,
)
from cometmq.protocol.messages.recall_handle import RecallHandle
from cometmq.protocol.messages.record import StoredRecord
from cometmq.protocol.redrive import NO_END_MS

MAX_PAGE: Final = 500
MAX_QUEUES: Final = 512
_MAX_CURSOR: Final = 16 * 1024
# The bounds of one page, beyond the first pull of each queue.
_MAX_LOOKED_AT: Final = 5000
_MAX_LOOKED_BYTES: Final = 64 * 1024 * 1024
_MAX_PULLS: Final = 200
# A larger compressed body is listed as it is stored.
_LISTED_BODY_BYTES: Final = 1024 * 1024
_PULLS_AT_ONCE: Final = 16
# A pull brings so many messages at most. Backwards, while a selection by tags finds nothing, a step
# spans more offsets each time.
_PULLED: Final = 32
_LARGEST_STEP: Final = 4096
_MAX_OFFSET: Final = 2**63 - 1
# The place in a queue of a broker that did not answer.
_UNKNOWN: Final = -1

Matches = Callable[[MessageExt], bool]


class Order(Enum):
    """Says from which end of time pages begin."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """Is a message of a page. Its body may be cut; `body_bytes` is the size of the whole one."""

    message: MessageExt
    body_bytes: int


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Is a page of messages, in the order that was asked for.

    `begin` is the cursor at which this page began, so that it can be had again; `next` the one at
    which the next page goes on, None if there is no more. `newest` is the end of the topic, from
    which Order.OLDEST reads what comes later. `looked_at` counts the messages that were read, and
    `reached_ms` is the store time up to which the page is complete; None if it has all. `errors`
    has the reasons why messages of brokers are missing, by broker name.
    """

    messages: tuple[ListedMessage, ...]
    begin: str
    next: str | None
    newest: str
    looked_at: int
    reached_ms: int | None
    errors: Mapping[str, CometMQError]


class PagedMessages(Room):
    """Lists the messages of a topic by time, and takes delayed ones back."""

    async def page(
        self,
        topic: str,
        *,
        order: Order = Order.NEWEST,
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
        tags: str = SUB_ALL,
        matches: Matches | None = None,
        queue: tuple[str, int] | None = None,
        cursor: str | None = None,
        count: int = 50,
        body_bytes: int | None = None,
        wait_s: float | None = None,
    ) -> MessagePage:
        """Return a page of up to `count` messages that were stored from `begin_ms` to `end_ms`.

        `tags` selects at the broker (`TagA || TagB`), `matches` here; `queue` is a broker's name and
        a queue's number. `cursor` is that of an earlier page of the same topic. `body_bytes` cuts the
        bodies, which are otherwise whole, but for compressed ones of more than 1 MiB: those keep
        their flag and are as they are stored. A broker that takes longer than `wait_s` for a step
        is left out.

        Raises IllegalArgumentError for a cursor that no page gave, or a topic of more than
        MAX_QUEUES queues if `queue` is None; RouteNotFoundError if there is no such topic or queue.
        """
        if not 0 < count <= MAX_PAGE:
            raise IllegalArgumentError(f"count is {count!r:.80}; give 1 to {MAX_PAGE}")
        places = _places(cursor)
        route = await self._servers.route(topic)
        queues = route.subscribe_queues(topic)
        if queue is not None:
            wanted = MessageQueue(topic, *queue)
            check_queue(route, wanted)
            queues = [wanted]
        if len(queues) > MAX_QUEUES:
            raise IllegalArgumentError(
                f"topic {topic} has {len(queues)} queues, and a page merges {MAX_QUEUES} at most; "
                "choose one queue"
            )
        merge = _Merge(self._servers, order, begin_ms, end_ms, tags, matches, count, body_bytes)
        merge.wait_s = wait_s
        step = max(2, min(_PULLED, -(-2 * count // max(len(queues), 1))))
        if queue is None:
            merge.errors.update(self._servers.missing_of(route))
        for each in queues:
            place = places.get((each.broker_name, each.queue_id))
            merge.ends.append(end := _End(each, "", place, step))
            try:
                end.address = reader_of(route, topic, each.broker_name)
            except RouteNotFoundError as error:
                merge.fail(end, error)
        return await merge.page()

    async def recall(self, message: MessageExt) -> str:
        """Keep a broker from delivering a delayed message; return the message's unique id.

        `message` is the one that waits: it lies in the topic of the broker's timer. Brokers before
        5.4 cannot do it, and none can for messages delayed by a level. Raises IllegalArgumentError
        for another message, RemoteError if its time has come or the broker refuses.
        """
        topic, due = (
            message.properties.get(p.REAL_TOPIC),
            message.properties.get(p.TIMER_OUT_MS, ""),
        )
        if message.topic != TIMER_TOPIC or not topic or not _is_whole(due):
            raise IllegalArgumentError(
                f"message {message.msg_id} does not wait for its time: only messages of topic "
                f"{TIMER_TOPIC} can be recalled"
            )
        handle = RecallHandle(topic, message.broker_name, int(due) + 1, message.unique_id or "")
        route = await self._servers.route(topic)
        answer = await self._servers.ask(
            master_of(route, topic, message.broker_name),
            requests.RECALL_MESSAGE,
            RecallMessageRequestHeader(topic=topic, recall_handle=handle.encode()),
            what=f"the recall of message {message.msg_id}",
        )
        return answer.header.msg_id or message.msg_id


@dataclass(slots=True)
class _End:
    """Is the end of a queue at which a merge reads: what is left is in [low, high)."""

    queue: MessageQueue
    address: str
    place: int | None
    step: int
    low: int = 0
    high: int = 0
    # -1 until the broker has answered.
    max_offset: int = -1
    # Messages that were read and not given out yet, in the order of the page.
    found: deque[ListedMessage] = field(default_factory=deque)
    # The store time of what was read last; None before the first read.
    frontier_ms: int | None = None
    failed: bool = False

    @property
    def has_range(self) -> bool:
        return self.max_offset >= 0

    @property
    def asked(self) -> int:
        """The place that the page was to begin at."""
        return _UNKNOWN if self.place is None else self.place

    @property
    def has_more(self) -> bool:
        return bool(self.found) or self.low < self.high


@dataclass(slots=True)
class _Merge:
    """Merges the queues of a topic until a page is full, or the work for one page is done."""

    servers: Servers
    order: Order
    begin_ms: int
    end_ms: int
    tags: str
    matches: Matches | None
    count: int
    body_bytes: int | None
    wait_s: float | None = None
    ends: list[_End] = field(default_factory=list)
    errors: dict[str, CometMQError] = field(default_factory=dict)
    looked_at: int = 0
    # Bytes of decompressed bodies.
    looked_bytes: int = 0
    pulls: int = 0
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PULLS_AT_ONCE))

    @property
    def is_newest(self) -> bool:
        return self.order is Order.NEWEST

    async def page(self) -> MessagePage:
        await self._each(self.ends, self._find_range)
        begin = self._cursor()
        most_pulls = len(self.ends) + _MAX_PULLS
        page: list[ListedMessage] = []
        reached_ms: int | None = None
        while len(page) < self.count:
            left = [end for end in self.ends if end.has_more and not end.failed]
            if not left:
                break
            first = max(left, key=self._rank)
            if first.found:
                page.append(first.found.popleft())
                continue
            if self._is_done(most_pulls):
                reached_ms = first.frontier_ms
                break
            # All queues that may have a message which comes before those that were read.
            heads = [self._rank(end) for end in left if end.found]
            least = max(heads, default=self._rank(first))
            await self._each(
                [end for end in left if not end.found and self._rank(end) >= least], self._read
            )
        more = any(end.has_more for end in self.ends)
        if page and more and reached_ms is None:
            reached_ms = page[-1].message.store_timestamp_ms
        newest = {_key(end): end.max_offset if end.has_range else end.asked for end in self.ends}
        return MessagePage(
            tuple(page),
            begin,
            self._cursor() if more else None,
            _written(newest),
            self.looked_at,
            reached_ms if more else None,
            self.errors,
        )

    def _is_done(self, most_pulls: int) -> bool:
        """Say whether this page has been work enough."""
        return (
            self.pulls >= most_pulls
            or self.looked_at >= _MAX_LOOKED_AT
            or self.looked_bytes >= _MAX_LOOKED_BYTES
        )

    def fail(self, end: _End, error: CometMQError) -> None:
        """Leave out a queue, and the others of its broker that are not read yet."""
        end.failed = True
        self.errors.setdefault(end.queue.broker_name, error)

    def _rank(self, end: _End) -> tuple[float, bool, int]:
        """Return what the queue that comes next has the largest of.

        A queue that has to be read comes before one whose message is of the same time. Among messages
        of one time the commit log has the order, if they are of one broker.
        """
        place = 0
        if end.found:
            head = end.found[0].message
            time_ms: float = head.store_timestamp_ms
            place = head.commit_log_offset
        elif end.frontier_ms is not None:
            time_ms = end.frontier_ms
        else:
            time_ms = float("inf") if self.is_newest else float("-inf")
        sign = 1 if self.is_newest else -1
        return sign * time_ms, not end.found, sign * place

    async def _each(self, ends: list[_End], do: Callable[[_End], Awaitable[None]]) -> None:
        async def one(end: _End) -> None:
            async with self._turns:
                if (failed := self.errors.get(end.queue.broker_name)) is not None:
                    self.fail(end, failed)
                    return
                try:
                    async with asyncio.timeout(self.wait_s):
                        await do(end)
                except CometMQError as error:
                    self.fail(end, error)
                except TimeoutError:
                    text = f"broker {end.queue.broker_name} took longer than {self.wait_s:g} s"
                    self.fail(end, RequestTimeoutError(text))

        await asyncio.gather(*map(one, ends))

    async def _find_range(self, end: _End) -> None:
        """Find what the page may read of a queue.

        Brokers before 5.0 answer a search by time with the nearest message, so that the range has a
        message more at either end, and `_take` looks at the times.
        """
        header = GetMaxOffsetRequestHeader(topic=end.queue.topic, queue_id=end.queue.queue_id)
        what = f"the max offset of {end.queue}"
        top = await self.servers.ask(end.address, requests.GET_MAX_OFFSET, header, what=what)
        high = top.header.offset
        low = await self._first(end)
        if self.end_ms < NO_END_MS:
            high = min(high, await self._at_time(end, self.end_ms + 1) + 1)
        place = end.place
        if place == _UNKNOWN:
            # Nobody knows where the earlier page would have begun here.
            place = low if self.is_newest else high
        if place is not None:
            low, high = (low, min(high, place)) if self.is_newest else (max(low, place), high)
        end.low, end.high, end.max_offset = low, max(low, high), top.header.offset

    async def _first(self, end: _End) -> int:
        """Return the first offset that a page may read."""
        if self.begin_ms > 0:
            return await self._at_time(end, self.begin_ms - 1)
        if not self.is_newest and end.place not in (None, _UNKNOWN):
            return 0  # the page begins at its place
        header = GetMinOffsetRequestHeader(topic=end.queue.topic, queue_id=end.queue.queue_id)
        what = f"the min offset of {end.queue}"
        answer = await self.servers.ask(end.address, requests.GET_MIN_OFFSET, header, what=what)
        return answer.header.offset

    async def _at_time(self, end: _End, timestamp_ms: int) -> int:
        header = SearchOffsetRequestHeader(
            topic=end.queue.topic, queue_id=end.queue.queue_id, timestamp=timestamp_ms
        )
        what = f"the offset of {end.queue} at {timestamp_ms}"
        answer = await self.servers.ask(
            end.address, requests.SEARCH_OFFSET_BY_TIMESTAMP, header, what=what
        )
        return max(0, answer.header.offset)

    async def _read(self, end: _End) -> None:
        """Read on at the end of a queue; what fits is in `found` then."""
        low, high = end.low, end.high
        offset = max(low, high - end.step) if self.is_newest else low
        times_ms: list[int] = []
        taken: list[ListedMessage] = []
        begin = offset
        while offset < high:
            self.pulls += 1
            read, offset = await MessageReader(self.servers).pull(
                end.address, end.queue, offset, self.tags, min(end.step, _PULLED)
            )
            records = [record for record in read if begin <= record.queue_offset < high]
            times_ms += [record.store_timestamp for record in records]
            # Now, while they are few: a step of 32 may have 128 MiB of bodies.
            taken += self._take(end, records)
            if not self.is_newest:
                break
        self.looked_at += len(times_ms)
        if self.is_newest:
            times_ms.reverse()
            taken.reverse()
            end.high = begin
        else:
            end.low = min(offset, high)
        if times_ms:
            end.frontier_ms = times_ms[-1]
        end.found.extend(taken)
        if not end.found:
            most = _PULLED if self.tags == SUB_ALL else _LARGEST_STEP
            end.step = min(end.step * 2, most)

    def _take(self, end: _End, records: Iterable[StoredRecord]) -> Iterator[ListedMessage]:
        wanted = {tag.strip() for tag in self.tags.split("||")} - {""}
        for record in records:
            if not self.begin_ms <= record.store_timestamp <= self.end_ms:
                continue
            message = message_of(record, end.queue.broker_name, max_body_bytes=_LISTED_BODY_BYTES)
            self.looked_bytes += len(message.body)
            # A broker selects by the hash codes of tags.
            if wanted and SUB_ALL not in wanted and message.tags not in wanted:
                continue
            if self.matches is not None and not self.matches(message):
                continue
            size = len(message.body)
            if self.body_bytes is not None:
                message.body = message.body[: self.body_bytes]
            yield ListedMessage(message, size)

    def _cursor(self) -> str:
        return _written({_key(end): self._place(end) for end in self.ends})

    def _place(self, end: _End) -> int:
        """Return where the next page goes on in a queue."""
        if end.failed and not end.has_range:
            return end.asked
        if self.is_newest:
            return end.found[0].message.queue_offset + 1 if end.found else end.high
        return end.found[0].message.queue_offset if end.found else end.low


def _key(end: _End) -> tuple[str, int]:
    return end.queue.broker_name, end.queue.queue_id


def _written(places: Mapping[tuple[str, int], int]) -> str:
    """Return a cursor: `broker=0.17.x;…`, the offsets in the order of the queues."""
    by_broker: dict[str, dict[int, int]] = {}
    for (broker, queue_id), place in places.items():
        by_broker.setdefault(broker, {})[queue_id] = place
    return ";".join(
        f"{quote(broker, safe='')}="
        + ".".join(_text(queues.get(queue_id)) for queue_id in range(max(queues) + 1))
        for broker, queues in sorted(by_broker.items())
    )


def _text(place: int | None) -> str:
    if place is None:
        return ""
    return "x" if place == _UNKNOWN else str(place)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _MAX_OFFSET


def _places(cursor: str | None) -> dict[tuple[str, int], int]:
    """Return the places of a cursor by broker name and queue. Raises IllegalArgumentError."""
    if not cursor:
        return {}
    if len(cursor) > _MAX_CURSOR:
        raise IllegalArgumentError(f"the cursor has more than {_MAX_CURSOR} characters")
    places = {}
    for part in cursor.split(";"):
        broker, equals, offsets = part.partition("=")
        for queue_id, text in enumerate(offsets.split(".")):
            if text == "x":
                places[unquote(broker), queue_id] = _UNKNOWN
            elif equals and _is_whole(text):
                places[unquote(broker), queue_id] = int(text)
            elif text or not equals or not broker:
                raise IllegalArgumentError(
                    f"{cursor!r:.80} is no cursor; pass on the one of an earlier page"
                )
    return places
