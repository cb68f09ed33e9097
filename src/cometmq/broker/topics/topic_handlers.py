"""Make, change, list and delete topics: codes 17, 18, 21, 215 and 305 (Java: AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Final

import msgspec

from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.tables import BrokerTables
from cometmq.errors import IllegalArgumentError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.attributes import TOPIC_ATTRIBUTES, changed, parse_changes
from cometmq.model.sysflag import PERM_INHERIT, PERM_RW
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import limits, requests
from cometmq.protocol.bodies.cluster import TopicList
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.store.retention.cleaner import Work

log = get_logger(__name__)

_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})
_PERM_ALL: Final = PERM_RW | PERM_INHERIT


class TopicHandlers:
    """Answers when the change is on disk and name servers know it. For the loop's thread.

    `announced` returns when name servers know all topics; `work_off` does the store's work outside
    the loop; `confirmed` returns when slaves have the topics.
    """

    def __init__(
        self,
        parts: Parts,
        tables: BrokerTables,
        announced: Callable[[], Awaitable[None]],
        work_off: Callable[[Generator[Work, None, None]], Awaitable[None]],
        confirmed: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._store = parts.store
        self._long_answers = parts.long_answers
        self._tables = tables
        self._announced = announced
        self._work_off = work_off
        self._confirmed = confirmed

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.UPDATE_AND_CREATE_TOPIC, self.update)
        handlers.register(requests.UPDATE_AND_CREATE_TOPIC_LIST, self.update_list)
        handlers.register(requests.DELETE_TOPIC_IN_BROKER, self.delete)
        handlers.register(requests.GET_ALL_TOPIC_CONFIG, self.all_topics)
        handlers.register(requests.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics)

    # -- making and changing --

    async def update(
        self, connection: Connection, call: Request[CreateTopicRequestHeader]
    ) -> RemotingCommand:
        """Make a topic, or change it. Attributes that the header leaves out stay."""
        header = call.header
        text = header.attributes or ""
        if len(text) > limits.MAX_ATTRIBUTES_LENGTH:
            raise _illegal(
                f"the changes of attributes have {len(text)} characters, the limit "
                f"MAX_ATTRIBUTES_LENGTH is {limits.MAX_ATTRIBUTES_LENGTH}; change fewer at once",
                limit="MAX_ATTRIBUTES_LENGTH",
            )
        try:
            changes = parse_changes(text)
        except IllegalArgumentError as error:
            raise _illegal(str(error)) from error
        topic = TopicConfig(
            topic_name=header.topic,
            attributes=changes,
            order=header.order,
            perm=header.perm,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
        )
        topic = self._checked(topic)
        log.info("topic set on request", topic=header.topic, peer=connection.peer)
        self._topics.put(topic)
        return await self._settled()

    async def update_list(self, connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Make or change many topics, or none of them if one is refused."""
        listed = requests.UPDATE_AND_CREATE_TOPIC_LIST.typed_body(call).topic_config_list
        if not listed:
            raise limits.nothing_named("topics", "topicConfigList")
        checked = list(map(self._checked, listed))
        log.info("topics set on request", count=len(checked), peer=connection.peer)
        self._topics.put_all(checked)
        return await self._settled()

    def _checked(self, topic: TopicConfig) -> TopicConfig:
        """Return the topic with the attributes that it has after the changes which it names as such.

        Raises Refused for a topic that cannot be.
        """
        name = topic.topic_name
        if fault := names.topic_fault(name):
            raise _illegal(fault)
        self._refuse_system(name)
        for what, count in (("read", topic.read_queue_nums), ("write", topic.write_queue_nums)):
            if not 0 <= count <= limits.MAX_QUEUES_OF_TOPIC:
                raise _illegal(
                    f"topic {name} cannot have {count} {what} queues; the limit MAX_QUEUES_OF_TOPIC "
                    f"is {limits.MAX_QUEUES_OF_TOPIC}; use several topics",
                    limit="MAX_QUEUES_OF_TOPIC" if count > 0 else "",
                )
        if not 0 <= topic.perm <= _PERM_ALL:
            raise _illegal(
                f"perm={topic.perm} of topic {name} is none from 0 to {_PERM_ALL}: the sum of 4 to "
                "read, 2 to write, 1 to be the model of new topics"
            )
        if topic.topic_filter_type not in _FILTER_TYPES:
            allowed = " or ".join(sorted(_FILTER_TYPES))
            raise _illegal(
                f"topicFilterType={topic.topic_filter_type[:40]!r} of topic {name} is not {allowed}"
            )
        known = self._topics.get(name)
        try:
            attributes = changed(
                TOPIC_ATTRIBUTES, None if known is None else known.attributes, topic.attributes
            )
        except IllegalArgumentError as error:
            raise _illegal(f"topic {name}: {error}") from error
        return msgspec.structs.replace(topic, attributes=attributes)

    def _refuse_system(self, name: str) -> None:
        if names.is_system_topic(name) or self._topics.is_system(name):
            raise _illegal(
                f"The topic[{name}] is conflict with system topic. It belongs to the broker itself; "
                "choose another name"
            )

    async def _settled(self) -> RemotingCommand:
        await self._topics.written()
        await self._announced()
        await self._confirmed()
        return response(ResponseCode.SUCCESS)

    # -- deleting --

    async def delete(
        self, connection: Connection, call: Request[DeleteTopicRequestHeader]
    ) -> RemotingCommand:
        """Delete a topic, its queues and the offsets of groups in it. For a topic that does not
        exist this succeeds, too, as in Java.
        """
        name = call.header.topic
        if not name or name.isspace():
            raise _illegal("The specified topic is blank.")
        self._refuse_system(name)
        if names.topic_fault(name) and self._topics.get(name) is None:
            return response(ResponseCode.SUCCESS)  # there never was one
        log.info("topic deleted on request", topic=name, peer=connection.peer)
        await self.remove(name)
        return await self._settled()

    async def remove(self, name: str) -> None:
        """Remove a topic, its queues and the offsets of groups in it. Raises Refused if that cannot
        be written down.
        """
        # A part that keeps a queue of it lets go, and gets it again when it is another.
        self._topics.queues_removed(name)
        await self._work_off(self._store.deletion([name], lambda: self._forget(name)))
        await self._tables.offsets_written()

    def _forget(self, name: str) -> None:
        self._offsets.remove_topic(name)
        if self._topics.remove(name) is None:
            self._topics.queues_removed(name)

    # -- listing --

    async def all_topics(self, connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return every topic as it is set up here; there are no static topics, so no mappings."""
        remedy = "ask for the topics one by one, code 351"
        async with self._long_answers.turn(connection):
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            version = encode_body(self._topics.data_version)
            for topic in list(self._topics.all()):
                await answer.add(topic.topic_name, topic)
            before = b'{"dataVersion":%b,"mappingDataVersion":%b,"topicConfigTable":{' % (
                version,
                encode_body(DataVersion()),
            )
            body = await answer.body(before, b'},"topicQueueMappingDetailMap":{}}')
        return response(ResponseCode.SUCCESS, body=body)

    def system_topics(self, _connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return the topics that belong to brokers themselves."""
        topics = sorted(names.SYSTEM_TOPICS | self._topics.system_topics)
        return response(ResponseCode.SUCCESS, body=encode_body(TopicList(topic_list=topics)))


def _illegal(remark: str, *, limit: str = "") -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark, limit=limit)
