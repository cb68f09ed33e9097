"""Find how far groups are behind: for `/metrics`, and for the page that autoscalers ask.

How many messages a group is behind is the difference of two integers for each queue. How old the
oldest of them is takes a look into the consume queue and the log, about ten microseconds where the
page cache has them. The result is kept until the group's offset moves, so that a group that stands
still costs no further look, however cold its messages are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final, NamedTuple

from cometmq.broker.parts import Parts
from cometmq.broker.traffic import Traffic
from cometmq.model.measures.lag import waiting_from
from cometmq.model.names import is_retry_topic
from cometmq.remoting.http.http_server import HttpAnswer, HttpRequest, json_answer, text
from cometmq.runtime.slices import run_slices

# How long autoscalers that ask for the same group share an answer, and for how many of them.
_SHARED_FOR_S: Final = 1.0
_MAX_SHARED: Final = 1_000
# For so many queues of groups the time of the oldest message is remembered.
_MAX_REMEMBERED: Final = 100_000
# An answer spends so much time on looks into the log, some of whose pages may be on disk only.
_LOOK_FOR_S: Final = 1.0
_NOTHING_COMMITTED: Final = (
    "the group has committed no offset in some queue that has messages, so it is not known how "
    "many of these messages wait for it: that depends on where its members begin"
)


class QueueLag(NamedTuple):
    """How far a group is behind in one queue. `oldest_ms` is the store timestamp of the oldest
    message that it has not committed, -1 if there is none or it was not looked for.
    """

    queue_id: int
    messages: int
    oldest_ms: int


class Lag:
    """Sums up how far a group is behind, over queues. Times are store timestamps, -1 without one:
    of the oldest message that is not committed, and of the oldest that was not handed out.

    In `unknown_count` queues the group has committed no offset and this broker cannot know where it
    begins, so the sums are meaningless.
    """

    __slots__ = (
        "inflight",
        "messages",
        "oldest_ms",
        "queue_count",
        "ready",
        "ready_oldest_ms",
        "unknown_count",
    )

    def __init__(self) -> None:
        self.messages = 0
        self.inflight = 0
        self.ready = 0
        self.queue_count = 0
        self.unknown_count = 0
        self.oldest_ms = -1
        self.ready_oldest_ms = -1

    def note_oldest(self, oldest_ms: int, ready_oldest_ms: int) -> None:
        self.oldest_ms = _older(self.oldest_ms, oldest_ms)
        self.ready_oldest_ms = _older(self.ready_oldest_ms, ready_oldest_ms)

    def add(self, other: Lag) -> None:
        self.messages += other.messages
        self.inflight += other.inflight
        self.ready += other.ready
        self.queue_count += other.queue_count
        self.unknown_count += other.unknown_count
        self.note_oldest(other.oldest_ms, other.ready_oldest_ms)


class Lags:
    """Looks at offsets, queues and the log. For the loop's thread only."""

    def __init__(self, parts: Parts, traffic: Traffic) -> None:
        self._parts = parts
        self._traffic = traffic
        self._monotonic = parts.clock.monotonic
        # By group, topic, queue and which of the two: the offset and what is stored there. The entries
        # asked for longest ago come first.
        self._remembered: OrderedDict[tuple[str, str, int, bool], tuple[int, int]] = OrderedDict()
        self._looks_left = 0
        self._left_s = 0.0
        self.unlooked = 0

    def begin(self, looks: int, within_s: float) -> None:
        """Allow so many looks into the log until the next call, and so much time for all of them,
        because each may wait for a disk; `unlooked` counts those beyond.
        """
        self._looks_left = looks
        self._left_s = within_s
        self.unlooked = 0

    def groups(self) -> dict[str, None]:
        """Return the groups that have offsets or members."""
        found = dict.fromkeys(self._parts.offsets.groups())
        found.update(dict.fromkeys(self._parts.clients.consumer_groups()))
        return found

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group consumes: of a group that is online those that it
        subscribes to, else those that it has offsets for.
        """
        online = self._parts.clients.consumer_group(group)
        if online is not None and online.subscriptions:
            names = list(online.subscriptions)
        else:
            names = list(self._parts.offsets.topics_of(group))
        return [name for name in names if self._parts.topics.get(name) is not None]

    def look(
        self, group: str, topic: str, lag: Lag, each: Callable[[QueueLag], None] | None = None
    ) -> Iterator[None]:
        """Add to `lag` how far a group is behind in a topic, one queue at each step; call `each`
        with every queue that has messages for the group.
        """
        config = self._parts.topics.get(topic)
        if config is None:
            return
        committed = self._parts.offsets.queues(group, topic)
        taken = self._traffic.taken.get(group, {}).get(topic)
        pulled = {} if taken is None else taken.next_offsets
        begins = bool(committed) or is_retry_topic(topic)
        find = self._parts.store.queues.find
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            queue = find(topic, queue_id)
            end = 0 if queue is None else queue.next_offset
            first = end if queue is None else queue.min_offset
            offset = waiting_from(committed.get(queue_id), first, end, from_beginning=begins)
            lag.queue_count += 1
            if offset is None:
                lag.unknown_count += 1
            elif offset < end:
                handed_out = min(end, max(offset, pulled.get(queue_id, -1)))
                lag.messages += end - offset
                lag.inflight += handed_out - offset
                lag.ready += end - handed_out
                oldest = self._time_of(group, topic, queue_id, offset)
                ready_oldest = -1
                if handed_out == offset:
                    ready_oldest = oldest
                elif handed_out < end:
                    ready_oldest = self._time_of(group, topic, queue_id, handed_out, ready=True)
                lag.note_oldest(oldest, ready_oldest)
                if each is not None:
                    each(QueueLag(queue_id, end - offset, oldest))
            yield

    def _time_of(
        self, group: str, topic: str, queue_id: int, offset: int, *, ready: bool = False
    ) -> int:
        """Return the store timestamp of a message, or of one before it if no look is left."""
        key = (group, topic, queue_id, ready)
        known = self._remembered.get(key)
        if known is not None and known[0] == offset:
            self._remembered.move_to_end(key)
            return known[1]
        if self._looks_left <= 0 or self._left_s <= 0:
            self.unlooked += 1
            return -1 if known is None else known[1]
        self._looks_left -= 1
        began_s = self._monotonic()
        found = self._parts.store.store_timestamp(topic, queue_id, offset)
        self._left_s -= self._monotonic() - began_s
        self._remembered[key] = (offset, found)
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return found


class LagPage:
    """Answers `/lag/GROUP` and `/lag/GROUP?topic=TOPIC`, which autoscalers ask (KEDA's metrics-api)."""

    def __init__(self, parts: Parts, traffic: Traffic) -> None:
        self._parts = parts
        self._lags = Lags(parts, traffic)
        # One at a time, so that a hundred autoscalers take as much of the loop as one.
        self._turn = asyncio.Lock()
        self._shared: dict[tuple[str, str], tuple[float, HttpAnswer]] = {}

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        group, topic = request.rest, request.query.get("topic", "")
        if not group:
            return text("name a group, as in /lag/GROUP", HTTPStatus.NOT_FOUND)
        if not self._is_known(group):
            return text(
                f"this broker knows no consumer group {group[:255]!r}; a group is known once it has "
                "consumed here, or was made by updateSubGroup",
                HTTPStatus.NOT_FOUND,
            )
        if topic and self._parts.topics.get(topic) is None:
            return text(f"this broker has no topic {topic[:255]!r}", HTTPStatus.NOT_FOUND)
        async with self._turn:
            now_s = self._parts.clock.monotonic()
            shared = self._shared.get((group, topic))
            if shared is not None and now_s - shared[0] < _SHARED_FOR_S:
                return shared[1]
            answer = await self._find(group, topic)
            if len(self._shared) >= _MAX_SHARED:
                self._shared.clear()
            self._shared[group, topic] = (now_s, answer)
            return answer

    def _is_known(self, group: str) -> bool:
        parts = self._parts
        return (
            parts.groups.get(group) is not None
            or parts.clients.consumer_group(group) is not None
            or bool(parts.offsets.topics_of(group))
        )

    async def _find(self, group: str, topic: str) -> HttpAnswer:
        topics = [topic] if topic else self._lags.topics_of(group)
        lag = Lag()
        # A queue takes two looks at most, and as many queues as there are can be asked for. Queues for
        # which there is no time are looked at for the next answer.
        self._lags.begin(_MAX_REMEMBERED, _LOOK_FOR_S)

        def steps() -> Iterator[None]:
            for name in topics:
                yield from self._lags.look(group, name, lag)
                yield

        await run_slices(steps())
        now_ms = self._parts.clock.now_ms()
        is_known = not lag.unknown_count and lag.queue_count > 0
        known: dict[str, object] = {
            "lag": lag.messages,
            "oldestAgeMillis": age_ms(lag.oldest_ms, now_ms),
            "inflight": lag.inflight,
            "ready": lag.ready,
        }
        return json_answer(
            {
                "group": group,
                "topic": topic or None,
                **(known if is_known else dict.fromkeys(known)),
                "remark": "" if is_known else _NOTHING_COMMITTED,
                "topics": len(topics),
                "queues": lag.queue_count,
                "members": len(self._parts.clients.consumer_ids(group)),
            }
        )


def age_ms(stored_ms: int, now_ms: int) -> int:
    """Return the age of a message by its store timestamp; 0 where there is none."""
    return max(0, now_ms - stored_ms) if stored_ms >= 0 else 0


def _older(one_ms: int, other_ms: int) -> int:
    if one_ms < 0 or other_ms < 0:
        return max(one_ms, other_ms)
    return min(one_ms, other_ms)
