"""Answer operators' questions about topics, groups and their clients: codes 202, 203, 204, 208,
300, 343, 345 and 351 (Java: AdminBrokerProcessor).

A group may consume fifty thousand topics. So an answer about many queues is put together in slices
of a few milliseconds, and the loop does other work in between. An answer that is too long for a
client is refused as soon as it gets too long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cometmq.broker.groups.clients import Member
from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.traffic import Traffic
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies import GroupList, MessageQueueBean, TopicList
from cometmq.protocol.codes import LanguageCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from cometmq.protocol.inspection_bodies import (
    ClientConnection,
    ConsumerConnection,
    OffsetWrapper,
    ProducerConnection,
    QuerySubscriptionResponseBody,
    TopicOffset,
)
from cometmq.protocol.json_dialect import encode_body
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

# Only messages stored within this time count for a topic's rate, as in Java.
_RATE_SPAN_MS: Final = 60_000
_TOPIC_SEPARATOR: Final = ";"
_LANGUAGES: Final = frozenset(code.name for code in LanguageCode)


class InspectionHandlers:
    """Serves questions about topics, groups and clients. For the loop's thread only."""

    def __init__(self, parts: Parts, traffic: Traffic) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._store = parts.store
        self._topics = parts.topics
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._traffic = traffic
        self._long_answers = parts.long_answers
        self._address = parts.address

    def register(self, handlers: Handlers) -> None:
        add = handlers.register
        add(requests.GET_TOPIC_STATS_INFO, self.topic_stats)
        add(requests.GET_TOPIC_CONFIG, self.topic_config)
        add(
            requests.GET_CONSUMER_CONNECTION_LIST,
            self.consumer_connections,
        )
        add(
            requests.GET_PRODUCER_CONNECTION_LIST,
            self.producer_connections,
        )
        add(requests.GET_CONSUME_STATS, self.consume_stats)
        add(
            requests.QUERY_TOPIC_CONSUME_BY_WHO,
            self.groups_of_topic,
        )
        add(requests.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group)
        add(
            requests.QUERY_SUBSCRIPTION_BY_CONSUMER,
            self.subscription,
        )

    # -- topics --

    async def topic_stats(
        self, connection: Connection, call: Request[GetTopicStatsInfoRequestHeader]
    ) -> RemotingCommand:
        """Return both ends of each queue, and the messages per second of the last minute."""
        header = call.header
        topic = self._topic(header.topic, f"topic[{header.topic}] not exist")
        since_ms = self._clock.now_ms() - _RATE_SPAN_MS
        async with self._long_answers.turn(connection):
            answer = self._answer("ask for the queues one by one, codes 30 and 31")
            young = 0
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
                end = self._store.max_offset(header.topic, queue_id)
                stored_ms = (
                    self._store.store_timestamp(header.topic, queue_id, end - 1) if end else 0
                )
                low = self._store.min_offset(header.topic, queue_id)
                if stored_ms >= since_ms:
                    young += self._store.stored_since(header.topic, queue_id, since_ms)
                offset = TopicOffset(stored_ms, end, max(0, low))
                await answer.add(self._key(header.topic, queue_id), offset)
            return _by_queue(answer, "topicPutTps", young * 1000 / _RATE_SPAN_MS)

    def topic_config(
        self, _connection: Connection, call: Request[GetTopicConfigRequestHeader]
    ) -> RemotingCommand:
        """Return a topic's configuration. There are no static topics, unlike in Java."""
        header = call.header
        topic = self._topic(header.topic, f"No topic in this broker. topic: {header.topic}")
        return response(ResponseCode.SUCCESS, body=encode_body(topic))

    def groups_of_topic(
        self, _connection: Connection, call: Request[QueryTopicConsumeByWhoRequestHeader]
    ) -> RemotingCommand:
        """Return the groups that subscribe to a topic now or have an offset in it."""
        header = call.header
        groups = self._clients.groups_of(header.topic) | self._offsets.groups_of(header.topic)
        return response(ResponseCode.SUCCESS, body=encode_body(GroupList(list(groups))))

    # -- groups --

    def consumer_connections(
        self, _connection: Connection, call: Request[GetConsumerConnectionListRequestHeader]
    ) -> RemotingCommand:
        """Return the members of a consumer group, and what the group subscribes to."""
        header = call.header
        group = self._clients.consumer_group(header.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{header.consumer_group}] not online",
            )
        answer = ConsumerConnection(
            group.consume_from_where,
            group.consume_type,
            group.message_model,
            _connections(group.members.values()),
            group.subscriptions,
        )
        return response(ResponseCode.SUCCESS, body=encode_body(answer))

    def producer_connections(
        self, _connection: Connection, call: Request[GetProducerConnectionListRequestHeader]
    ) -> RemotingCommand:
        """Return the members of a producer group."""
        header = call.header
        members = self._clients.producers(header.producer_group)
        if not members:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the producer group[{header.producer_group}] not exist",
            )
        answer = ProducerConnection(_connections(members))
        return response(ResponseCode.SUCCESS, body=encode_body(answer))

    def topics_of_group(
        self, _connection: Connection, call: Request[QueryTopicsByConsumerRequestHeader]
    ) -> RemotingCommand:
        """Return the topics in which a group has an offset."""
        header = call.header
        topics = list(self._offsets.topics_of(header.group))
        return response(ResponseCode.SUCCESS, body=encode_body(TopicList(self._address, topics)))

    def subscription(
        self, _connection: Connection, call: Request[QuerySubscriptionByConsumerRequestHeader]
    ) -> RemotingCommand:
        """Return what a group that is online selects of a topic."""
        header = call.header
        group = self._clients.consumer_group(header.group)
        data = group.subscriptions.get(header.topic) if group is not None else None
        answer = QuerySubscriptionResponseBody(header.group, header.topic, data)
        return response(ResponseCode.SUCCESS, body=encode_body(answer))

    async def consume_stats(
        self, connection: Connection, call: Request[GetConsumeStatsRequestHeader]
    ) -> RemotingCommand:
        """Return how far a group is in each queue of its topics, and its messages per second."""
        header = call.header
        group = header.consumer_group
        async with self._long_answers.turn(connection):
            answer = self._answer("name a topic")
            rate = 0.0
            for name in self._topics_to_tell(header):
                topic = self._topics.get(name)
                if topic is None:
                    await answer.breathe()
                    continue
                for queue_id in range(topic.read_queue_nums):
                    progress = self._progress(group, name, queue_id)
                    await answer.add(self._key(name, queue_id), progress)
                rate += self._traffic.group_tps(group, name)
            return _by_queue(answer, "consumeTps", rate)

    def _topics_to_tell(self, header: GetConsumeStatsRequestHeader) -> list[str]:
        listed = [name for name in (header.topic_list or "").split(_TOPIC_SEPARATOR) if name]
        if listed:
            return list(dict.fromkeys(listed))
        if header.topic and not header.topic.isspace():
            topics = [header.topic]
        else:
            topics = list(self._offsets.topics_of(header.consumer_group))
        # For an online group only the topics that it subscribes to now are shown, not earlier ones.
        online = self._clients.consumer_group(header.consumer_group)
        if online is not None and online.subscriptions:
            topics = [topic for topic in topics if topic in online.subscriptions]
        return topics

    def _progress(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        store = self._store
        end = store.max_offset(topic, queue_id)
        consumed = max(0, self._offsets.query(group, topic, queue_id))
        pulled = min(end, self._traffic.pulled_offset(group, topic, queue_id))
        stored_ms = store.store_timestamp(topic, queue_id, consumed - 1) if consumed else 0
        return OffsetWrapper(end, consumed, max(0, stored_ms), max(consumed, pulled))

    def _topic(self, name: str, unknown: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, unknown)
        return topic

    def _answer(self, remedy: str) -> LongAnswer:
        return LongAnswer(self._clock, self._config.max_frame_length, remedy)

    def _key(self, topic: str, queue_id: int) -> str:
        queue = MessageQueue(topic, self._config.broker_name, queue_id)
        return encode_body(MessageQueueBean.of(queue)).decode()


def _by_queue(answer: LongAnswer, rate_name: str, rate: float) -> RemotingCommand:
    """Return the entries, which are by message queue, beside a rate."""
    body = b'{"offsetTable":%b,"%b":%b}' % (
        answer.entries(),
        rate_name.encode(),
        encode_body(rate),
    )
    return response(ResponseCode.SUCCESS, body=body)


def _connections(members: Iterable[Member]) -> list[ClientConnection]:
    return [
        ClientConnection(
            member.connection.peer,
            member.client_id,
            member.language if member.language in _LANGUAGES else LanguageCode.OTHER.name,
            member.version,
        )
        for member in members
    ]
