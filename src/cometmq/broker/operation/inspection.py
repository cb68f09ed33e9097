"""Answer operators' questions about topics, groups and their clients: codes 202, 203, 204, 300,
343, 345 and 351 (Java: AdminBrokerProcessor).
"""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.broker.groups.clients import Member
from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.operation.broker_stats import BrokerStats
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import GroupList, TopicList
from cometmq.protocol.bodies.inspection import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    QuerySubscriptionResponseBody,
    TopicOffset,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


class InspectionHandlers:
    """Serves questions about topics, groups and clients. For the loop's thread only."""

    def __init__(self, parts: Parts, stats: BrokerStats) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._store = parts.store
        self._topics = parts.topics
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._stats = stats
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
        async with self._long_answers.turn(connection):
            remedy = "ask for the queues one by one, codes 30 and 31"
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
                end = self._store.max_offset(header.topic, queue_id)
                stored_ms = (
                    self._store.store_timestamp(header.topic, queue_id, end - 1) if end else 0
                )
                low = self._store.min_offset(header.topic, queue_id)
                offset = TopicOffset(stored_ms, end, max(0, low))
                queue = MessageQueue(header.topic, self._config.broker_name, queue_id)
                await answer.add_of_queue(queue, offset)
            rate = self._stats.topic_put_tps(header.topic)
            behind = b'},"topicPutTps":%b}' % encode_body(rate)
            body = await answer.body(b'{"offsetTable":{', behind)
            return response(ResponseCode.SUCCESS, body=body)

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
        return response(ResponseCode.SUCCESS, body=encode_body(GroupList(sorted(groups))))

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
        topics = sorted(self._offsets.topics_of(header.group))
        return response(ResponseCode.SUCCESS, body=encode_body(TopicList(self._address, topics)))

    def subscription(
        self, _connection: Connection, call: Request[QuerySubscriptionByConsumerRequestHeader]
    ) -> RemotingCommand:
        """Return a group's selection of a topic: that of its members, or else that of its last pop."""
        header = call.header
        group = self._clients.consumer_group(header.group)
        data = group.subscriptions.get(header.topic) if group is not None else None
        if data is None:
            data = self._clients.pops.find(header.group, header.topic)
        answer = QuerySubscriptionResponseBody(header.group, header.topic, data)
        return response(ResponseCode.SUCCESS, body=encode_body(answer))

    def _topic(self, name: str, unknown: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, unknown)
        return topic


def _connections(members: Iterable[Member]) -> list[ClientConnection]:
    return [
        ClientConnection(
            member.connection.peer,
            member.client_id,
            member.language,
            member.version,
        )
        for member in members
    ]
