"""Take acknowledgements of popped messages, and hide messages for longer: codes 200051, 200151 and 200053.

Java: AckMessageProcessor, ChangeInvisibleTimeProcessor. A message is acknowledged by its offset and the time at which
it was popped; any client with its handle may do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cometmq.broker.parts import Parts
from cometmq.broker.pop import changes as c
from cometmq.broker.pop.changes import AnyChange, Key
from cometmq.broker.pop.checks import PopChecks
from cometmq.broker.pop.holders import Holders
from cometmq.broker.pop.ordered import Acknowledged
from cometmq.broker.pop.state import PopState
from cometmq.broker.refusal import Refused
from cometmq.broker.storage.group_commit import GroupCommit
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.header import Header, NoHeader, header_to_ext
from cometmq.protocol.pop.bodies import BatchAck
from cometmq.protocol.pop.handle import ORDER_QUEUE, PopHandle, real_topic
from cometmq.protocol.pop.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


class AckHandler:
    """Serves acknowledgements. `became_visible` is called with group and topic when messages in order are free.

    With `group_commit` the answer waits until the acknowledgement is safe. For the loop's thread only.
    """

    def __init__(
        self,
        parts: Parts,
        state: PopState,
        checks: PopChecks,
        holders: Holders,
        became_visible: Callable[[str, str], None],
        group_commit: GroupCommit | None,
    ) -> None:
        self._store = parts.store
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._state = state
        self._checks = checks
        self._holders = holders
        self._became_visible = became_visible
        self._group_commit = group_commit

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.ACK_MESSAGE, self.ack)
        handlers.register(requests.BATCH_ACK_MESSAGE, self.batch_ack)
        handlers.register(requests.CHANGE_MESSAGE_INVISIBLETIME, self.change)

    def ack(
        self, connection: Connection, request: Request[AckMessageRequestHeader]
    ) -> RemotingCommand | None:
        """Note that a message is done. One that is not in flight, or was handed out again, stays as it is."""
        header = request.header
        self._check_queue(header.topic, header.queue_id)
        low, high = self._range(header.topic, header.queue_id)
        if not low <= header.offset <= high:
            raise _outside(header, low, high)
        handle = PopHandle.decode(header.extra_info)
        key = (header.consumer_group, header.topic, header.queue_id)
        acknowledge = self._order_ack if handle.is_ordered else self._ack
        change = acknowledge(key, handle.pop_time, [header.offset])
        return self._answer(connection, request, [] if change is None else [change])

    def batch_ack(
        self, connection: Connection, request: Request[NoHeader]
    ) -> RemotingCommand | None:
        """Note that messages are done. Pass over messages of queues that are not there."""
        body = requests.BATCH_ACK_MESSAGE.typed_body(request) if request.body else None
        if body is None or not body.acks:
            raise Refused(ResponseCode.NO_MESSAGE, "the batch of acknowledgements is empty")
        changes = [change for entry in body.acks if (change := self._of_batch(entry)) is not None]
        return self._answer(connection, request, changes)

    def change(
        self, connection: Connection, request: Request[ChangeInvisibleTimeRequestHeader]
    ) -> RemotingCommand | None:
        """Hide a message for `invisible_time` ms from now on. The handle changes, unless `keep_handle` is set."""
        header = request.header
        if header.suspend:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "suspend=true, which is for lite topics, asks the broker not to count the next delivery; "
                "this broker has no lite topics and counts each delivery: leave suspend out",
            )
        self._check_queue(header.topic, header.queue_id)
        self._checks.invisible_time(header.invisible_time)
        low, high = self._range(header.topic, header.queue_id)
        if not low <= header.offset < high:
            raise _outside(header, low, high)
        handle = PopHandle.decode(header.extra_info)
        key = (header.consumer_group, header.topic, header.queue_id)
        now_ms = self._clock.now_ms()
        until_ms = now_ms + header.invisible_time
        state = self._state.table.get(key)
        if handle.is_ordered:
            order = None if state is None else state.order
            if (
                order is None
                or order.check(header.offset, handle.pop_time) is not Acknowledged.DONE
            ):
                # Java: nothing is done, and popTime and invisibleTime are unset.
                return response(
                    ResponseCode.SUCCESS,
                    header=ChangeInvisibleTimeResponseHeader(revive_qid=ORDER_QUEUE),
                )
            answer = ChangeInvisibleTimeResponseHeader(
                handle.pop_time, until_ms - handle.pop_time, ORDER_QUEUE
            )
            return self._answer(
                connection, request, [c.OrderHidden(key, header.offset, until_ms)], answer
            )
        known = None if state is None else state.hidden.get(header.offset)
        if known is None or known.popped_ms != handle.pop_time:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"the message at offset {header.offset} of {header.topic}, queue {header.queue_id}, is not in "
                "flight by this handle: it was acknowledged, or its time was over and it is delivered again",
            )
        # Two handles of a message must not have the same time.
        until_ms = max(now_ms, known.popped_ms + 1) + header.invisible_time
        since_ms = known.popped_ms if header.keep_handle else until_ms - header.invisible_time
        change = c.Hidden(key, header.offset, known.popped_ms, since_ms, until_ms)
        answer = ChangeInvisibleTimeResponseHeader(since_ms, until_ms - since_ms, handle.revive_qid)
        made = self._answer(connection, request, [change], answer)
        if not header.keep_handle:
            self._holders.note(key, since_ms, header.offset, connection.peer)
        return made

    def _of_batch(self, entry: BatchAck) -> AnyChange | None:
        topic = real_topic(entry.topic, entry.consumer_group, entry.retry)
        config = self._topics.get(topic)
        if config is None or not 0 <= entry.queue_id < config.read_queue_nums:
            return None
        low, high = self._range(topic, entry.queue_id)
        offsets = [offset for offset in entry.offsets() if low <= offset <= high]
        key = (entry.consumer_group, topic, entry.queue_id)
        if entry.revive_queue_id == ORDER_QUEUE:
            return self._order_ack(key, entry.pop_time, offsets)
        return self._ack(key, entry.pop_time, offsets)

    def _ack(self, key: Key, pop_time: int, offsets: list[int]) -> AnyChange | None:
        """Return the change that an acknowledgement makes, None if it makes none."""
        state = self._state.table.get(key)
        if state is None:
            return None
        known = [
            offset
            for offset in offsets
            if (hidden := state.hidden.get(offset)) is not None and hidden.popped_ms == pop_time
        ]
        return c.Acknowledged(key, pop_time, known) if known else None

    def _order_ack(self, key: Key, pop_time: int, offsets: list[int]) -> AnyChange | None:
        state = self._state.table.get(key)
        if state is not None and state.order is None:
            return self._ack(key, pop_time, offsets)  # the group pops without order since
        committed = self._offsets.query(*key) if state is None else state.position
        known: list[int] = []
        for offset in offsets:
            if offset < committed:
                continue
            order = None if state is None else state.order
            found = Acknowledged.NOT_IN_FLIGHT if order is None else order.check(offset, pop_time)
            if found is Acknowledged.NOT_IN_FLIGHT:
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"offset is illegal, key:{key[1]}@{key[0]}@{key[2]}, offset:{offset} is not in flight; the "
                    f"first one that is not acknowledged is {committed}",
                )
            if found is Acknowledged.DONE:
                known.append(offset)
        return c.OrderAcknowledged(key, known) if known else None

    def _answer(
        self,
        connection: Connection,
        request: Request[Any],
        changes: list[AnyChange],
        header: Header | None = None,
    ) -> RemotingCommand | None:
        """Make the changes, and answer when they are safe, and when those that were asked for before are: a
        client whose answer was lost asks again, and nothing is left to be changed.
        """
        if changes:
            self._state.write(*changes)
            for change in changes:
                if isinstance(change, c.OrderAcknowledged | c.OrderHidden):
                    self._say_if_free(change.key)
        if self._group_commit is None:
            return response(ResponseCode.SUCCESS, header=header)
        ext = {} if header is None else header_to_ext(header)
        text = ",".join(f'"{name}":"{value}"' for name, value in ext.items())
        end = self._store.commit_log.end
        self._group_commit.answer_when_safe(end, connection, request, text.encode())
        return None

    def _say_if_free(self, key: Key) -> None:
        state = self._state.table.get(key)
        if state is not None and not state.batch().is_blocked(self._clock.now_ms(), ""):
            self._became_visible(key[0], key[1])

    def _check_queue(self, name: str, queue_id: int) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        return topic

    def _range(self, topic: str, queue_id: int) -> tuple[int, int]:
        store = self._store
        return store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)


def _outside(
    header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, low: int, high: int
) -> Refused:
    return Refused(
        ResponseCode.NO_MESSAGE,
        f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
        f"store:{low}~{high}",
    )
