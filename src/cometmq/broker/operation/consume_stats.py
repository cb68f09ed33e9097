"""Say how far groups are: codes 208, 303 and 317 (Java: AdminBrokerProcessor).

A group may consume fifty thousand topics, and a broker have five thousand groups. So an answer is
put together in slices of a few milliseconds, and the loop does other work in between. An answer
that is too long for a client is refused as soon as it gets too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.operation.broker_stats import BrokerStats
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.traffic import Traffic
from cometmq.model.measures.lag import waiting_from
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import MessageQueueBean
from cometmq.protocol.bodies.inspection import OffsetWrapper, QueueTimeSpan
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.fastjson.queue_table import queue_key
from cometmq.protocol.headers import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from cometmq.protocol.limits import listed_names
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

_TOPIC_SEPARATOR: Final = ";"


class ConsumeStatsHandlers:
    """Serves questions about how far groups are. `popped` says by group, topic and queue id up to where a queue was
    popped, -1 if it never was. For the loop's thread only.
    """

    def __init__(
        self,
        parts: Parts,
        traffic: Traffic,
        stats: BrokerStats,
        popped: Callable[[str, str, int], int],
    ) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._traffic = traffic
        self._popped = popped
        self._stats = stats
        self._long_answers = parts.long_answers
        self._address = parts.address

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_CONSUME_STATS, self.consume_stats)
        handlers.register(requests.GET_BROKER_CONSUME_STATS, self.of_all_groups)
        handlers.register(requests.QUERY_CONSUME_TIME_SPAN, self.time_spans)

    async def consume_stats(
        self, connection: Connection, call: Request[GetConsumeStatsRequestHeader]
    ) -> RemotingCommand:
        """Return how far a group is in each queue of its topics, and its messages per second."""
        header = call.header
        group = header.consumer_group
        async with self._long_answers.turn(connection):
            answer = self._answer("name a topic")
            rate = 0.0
            for name in self._topics_to_report(header):
                topic = self._topics.get(name)
                if topic is None:
                    await answer.breathe()
                    continue
                offsets = self._offsets.queues(group, name)
                for queue_id in range(topic.read_queue_nums):
                    progress = self._progress(group, name, queue_id, offsets)
                    await answer.add_of_queue(self._queue(name, queue_id), progress)
                rate += self._stats.group_get_tps(group, name)
            body = await answer.body(b'{"offsetTable":{', b'},"consumeTps":%b}' % encode_body(rate))
            return response(ResponseCode.SUCCESS, body=body)

    async def of_all_groups(
        self, connection: Connection, call: Request[GetConsumeStatsInBrokerHeader]
    ) -> RemotingCommand:
        """Return for each group the same as `consume_stats`, by topic, and the sums of all."""
        async with self._long_answers.turn(connection):
            answer = self._answer("ask for the groups one by one, code 208")
            behind = in_flight = 0
            comma = b""
            for group in [config.group_name for config in self._groups.all()]:
                await answer.write(b"%b{%b:[" % (comma, encode_body(group)))
                comma = b","
                between = b""
                of_group = self._topics_of(group, call.header.with_subscribed)
                for topic in self._subscribed(group, of_group):
                    config = self._topics.get(topic)
                    if config is None or (call.header.is_order and not config.order):
                        await answer.breathe()
                        continue
                    await answer.write(b'%b{"offsetTable":{' % between)
                    between = b","
                    offsets = self._offsets.queues(group, topic)
                    for queue_id in range(config.write_queue_nums):
                        progress = self._progress(group, topic, queue_id, offsets)
                        behind += progress.broker_offset - progress.consumer_offset
                        in_flight += progress.pull_offset - progress.consumer_offset
                        key = queue_key(self._queue(topic, queue_id))
                        entry = b"%b:%b" % (key, encode_body(progress))
                        await answer.write(b"," + entry if queue_id else entry)
                    rate = self._stats.group_get_tps(group, topic)
                    await answer.write(b'},"consumeTps":%b}' % encode_body(rate))
                await answer.write(b"]}")
            body = await answer.body(
                b'{"brokerAddr":%b,"consumeStatsList":[' % encode_body(self._address),
                b'],"totalDiff":%d,"totalInflightDiff":%d}' % (behind, in_flight),
            )
            return response(ResponseCode.SUCCESS, body=body)

    async def time_spans(
        self, connection: Connection, call: Request[QueryConsumeTimeSpanRequestHeader]
    ) -> RemotingCommand:
        """Return from when to when the messages of each queue are, and up to when a group is."""
        name, group = call.header.topic, call.header.group
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        async with self._long_answers.turn(connection):
            answer = self._answer("ask for the queues one by one, codes 14, 30 and 32")
            for queue_id in range(topic.write_queue_nums):
                span = encode_body(self._time_span(group, name, queue_id))
                await answer.write(b"," + span if queue_id else span)
            body = await answer.body(b'{"consumeTimeSpanSet":[', b"]}")
            return response(ResponseCode.SUCCESS, body=body)

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        first_ms = store.earliest_store_time(topic, queue_id)
        end = store.max_offset(topic, queue_id)
        last_ms = store.store_timestamp(topic, queue_id, end - 1) if end else -1
        consumed = self._offsets.query(group, topic, queue_id)
        consumed_ms = first_ms
        if consumed > 0:
            consumed_ms = store.store_timestamp(topic, queue_id, consumed - 1)
        delay_ms = 0
        # Messages that have left the log can no longer be consumed.
        following = max(consumed, store.min_offset(topic, queue_id), 0)
        if following < end:
            next_ms = store.store_timestamp(topic, queue_id, following)
            delay_ms = max(0, self._clock.now_ms() - next_ms) if next_ms >= 0 else 0
        queue = MessageQueueBean(self._config.broker_name, queue_id, topic)
        return QueueTimeSpan(queue, first_ms, last_ms, consumed_ms, delay_ms)

    def _topics_to_report(self, header: GetConsumeStatsRequestHeader) -> list[str]:
        if listed := listed_names(header.topic_list or "", _TOPIC_SEPARATOR):
            return listed
        if header.topic and not header.topic.isspace():
            topics = [header.topic]
        else:
            topics = self._topics_of(header.consumer_group, header.with_subscribed)
        return self._subscribed(header.consumer_group, topics)

    def _topics_of(self, group: str, with_subscribed: bool | None) -> list[str]:
        """Return the topics in which a group has offsets, and if wanted those that it subscribes to."""
        topics = self._offsets.topics_of(group)
        online = self._clients.consumer_group(group)
        if with_subscribed and online is not None:
            topics.update(online.subscriptions)
        return sorted(topics)

    def _subscribed(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return those of `topics` to report. Of an online group these are the topics that it
        subscribes to now, not earlier ones.
        """
        online = self._clients.consumer_group(group)
        if online is not None and online.subscriptions:
            return [topic for topic in topics if topic in online.subscriptions]
        return list(topics)

    def _progress(
        self, group: str, topic: str, queue_id: int, offsets: Mapping[int, int]
    ) -> OffsetWrapper:
        store = self._store
        end = store.max_offset(topic, queue_id)
        committed = offsets.get(queue_id)
        consumed = committed or 0
        pulled = max(
            self._traffic.pulled_offset(group, topic, queue_id),
            self._popped(group, topic, queue_id),
        )
        stored_ms = store.store_timestamp(topic, queue_id, consumed - 1) if consumed else 0
        waiting = waiting_from(
            committed,
            store.min_offset(topic, queue_id),
            end,
            from_beginning=bool(offsets) or is_retry_topic(topic),
        )
        return OffsetWrapper(
            end,
            consumed,
            max(0, stored_ms),
            max(consumed, min(end, pulled)),
            committed is not None,
            -1 if waiting is None else waiting,
        )

    def _answer(self, remedy: str) -> LongAnswer:
        return LongAnswer(self._clock, self._config.max_frame_length, remedy)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._config.broker_name, queue_id)
