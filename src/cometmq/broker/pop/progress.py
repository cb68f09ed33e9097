"""Report the messages that a group has in flight, and the state of one message: code 30005 (Java
has none).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.broker.parts import Parts
from cometmq.broker.pop.changes import Key
from cometmq.broker.pop.holders import Holders
from cometmq.broker.pop.state import PopState
from cometmq.broker.pop.table import QueueState
from cometmq.broker.refusal import Refused
from cometmq.model.names import is_retry_topic
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.pop.bodies import PoppedMessage, PopProgress, PopTopic
from cometmq.protocol.pop.handle import asked_topic, pop_retry_topic, pop_retry_topic_v2
from cometmq.protocol.pop.headers import PopProgressRequestHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

# How many queues are read in one turn of the loop.
_QUEUES_AT_ONCE: Final = 2_000


class PopQuestions:
    """Answers operators' questions about pops. `mode_of(topic, group)` returns PULL or POP, and a number of members.

    For the loop's thread only.
    """

    def __init__(
        self,
        parts: Parts,
        state: PopState,
        holders: Holders,
        mode_of: Callable[[str, str], tuple[str, int]],
    ) -> None:
        self._store = parts.store
        self._now_ms = parts.clock.now_ms
        self._topics = parts.topics
        self._clients = parts.clients
        self._state = state
        self._holders = holders
        self._mode_of = mode_of

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_POP_PROGRESS, self.progress)

    async def progress(
        self, _connection: Connection, request: Request[PopProgressRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        group = header.consumer_group
        if header.offset >= 0:
            # Proxies ask this about many messages, so only one queue is searched.
            message = self._message(header)
            return response(
                ResponseCode.SUCCESS,
                body=encode_body(PopProgress(self._now_ms(), message=message)),
            )
        found: dict[str, PopTopic] = {}
        # The keys are copied, because pops change the table between two turns.
        for count, key in enumerate(list(self._state.table.states), 1):
            if count % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
            state = self._state.table.get(key)
            topic = asked_topic(key[1], group) if key[0] == group else ""
            if state is not None and topic and header.topic in ("", topic):
                _add(found.setdefault(topic, PopTopic(topic)), state)
        if header.topic and self._mode_of(header.topic, group)[0] != PopTopic("").mode:
            found.setdefault(header.topic, PopTopic(header.topic))
        for topic, each in found.items():
            each.mode = self._mode_of(topic, group)[0]
            each.retry_count = self._retries(group, topic)
        return response(
            ResponseCode.SUCCESS,
            body=encode_body(PopProgress(self._now_ms(), list(found.values()))),
        )

    def _retries(self, group: str, topic: str) -> int:
        """Return how many messages of the retry topics wait to be popped."""
        count = 0
        for name in (pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic)):
            config = self._topics.get(name)
            for queue_id in range(0 if config is None else config.read_queue_nums):
                begin = self._next((group, name, queue_id))
                count += max(self._store.max_offset(name, queue_id) - begin, 0)
        return count

    def _next(self, key: Key) -> int:
        """Return where the next pop of a queue begins to read."""
        known = self._state.known_position(key)
        low = self._store.min_offset(key[1], key[2])
        return low if known is None else max(known, low)

    def _message(self, header: PopProgressRequestHeader) -> PoppedMessage | None:
        topic, queue_id, offset = header.topic, header.queue_id, header.offset
        config = self._topics.get(topic)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic[:255]!r} has no queue {queue_id} at this broker; ask for one that it has",
            )
        group = header.consumer_group
        key = (group, topic, queue_id)
        if not self._pops(group, topic, config.read_queue_nums):
            return None
        state = self._state.table.get(key)
        committed = max(self._state.committed_offset(key), 0 if state is None else state.committed)
        found = PoppedMessage("UNPOPPED", first_offset=committed)
        if state is not None:
            self._describe(found, state, offset)
        if found.state == "UNPOPPED":
            begin = self._next(key)
            if offset < committed:
                found.state = "DONE"
            elif offset < begin:
                found.state = "ACKNOWLEDGED"
            else:
                found.before = offset - begin
        return found

    def _pops(self, group: str, topic: str, queues: int) -> bool:
        """Return whether a group has popped a queue of a topic, or is set to pop it. A retry topic of pops always counts."""
        asked = asked_topic(topic, group)
        return (
            asked != topic
            or self._mode_of(topic, group)[0] != PopTopic("").mode
            or any(self._state.table.get((group, topic, at)) for at in range(queues))
        )

    def _describe(self, found: PoppedMessage, state: QueueState, offset: int) -> None:
        """Note until when a message is hidden, if it is in flight."""
        hidden = state.hidden.get(offset)
        order = state.order
        if hidden is not None:
            found.popped_ms, found.until_ms = hidden.popped_ms, hidden.until_ms
        elif order is not None and offset in order.pending:
            at = order.offsets.index(offset)
            found.popped_ms, found.until_ms = order.popped_ms, order.until[at]
            found.delivered = order.counts[at] + 1
        else:
            return
        found.state = "HIDDEN"
        found.address = self._holders.find(state.key, found.popped_ms, offset)
        members = self._clients.consumers(state.key[0]) if found.address else []
        found.client_id = next(
            (each.client_id for each in members if each.connection.peer == found.address), ""
        )


def _add(found: PopTopic, state: QueueState) -> None:
    found.in_flight += state.count
    found.revived_count += state.revived_count
    if is_retry_topic(state.key[1]):
        found.again_count += len(state.hidden)
    if state.order is not None:
        counts = dict(zip(state.order.offsets, state.order.counts, strict=True))
        found.again_count += sum(counts[offset] > 0 for offset in state.order.pending)
    if not state.count:
        return
    popped_ms = state.first_popped_ms
    if popped_ms and (not found.oldest_popped_ms or popped_ms < found.oldest_popped_ms):
        found.oldest_popped_ms = popped_ms
    visible_ms = state.due_ms
    if state.order is not None and state.order.pending:
        visible_ms = min(visible_ms, state.order.blocked_until_ms())
    if not found.next_visible_ms or visible_ms < found.next_visible_ms:
        found.next_visible_ms = visible_ms
