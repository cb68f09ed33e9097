"""Deliver again what a consumer could not handle: code 36, and messages sent to a retry topic.

Java: AbstractSendMessageProcessor.consumerSendMsgBack, SendMessageProcessor.handleRetryAndDLQ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.put import MessagePut
from cometmq.broker.found_messages import check_found
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.broker.retries.budget import RetryBudget
from cometmq.broker.retries.max_reconsume import RetryLimits
from cometmq.broker.topics.topics import TopicManager
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.failure import Failure, note_failure
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.sysflag import PERM_WRITE
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from cometmq.protocol.messages import fitting
from cometmq.protocol.messages.ids import encode_offset_id
from cometmq.protocol.messages.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    find_batch_id,
    property_finder,
)
from cometmq.protocol.messages.record import StoredRecord, body_is_intact
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.randomness import Randomness
from cometmq.store.store import MessageStore

log = get_logger(__name__)

# Clients before 3.4.9 do not say how often a message may be delivered again.
_VERSION_WITH_MAX_TIMES: Final = 121
_FIRST_RETRY_LEVEL: Final = 3
_DLQ_QUEUES: Final = 1
# Bytes that the real place of a delayed message adds to its properties, without the topic's name:
# REAL_TOPIC, REAL_QID, DELAY, and TIMER_OUT_MS if it has to wait for longer than its file.
_PLACE_LENGTH: Final = 96
# A unique id or an offset id, with an IPv4 or IPv6 address.
_ID: Final = re.compile(r"[0-9A-F]{32}|[0-9A-F]{56}")
_find_unique_id: Final = property_finder(p.UNIQ_CLIENT_MESSAGE_ID)
_find_origin: Final = property_finder(p.ORIGIN_MESSAGE_ID)


class RetryHandler:
    """Serves messages that consumers send back, or send to a retry topic.

    `holds_queue_locks(group)` says whether members of a group consume in order, with live locks of
    queues; `limits` says how often a group wants a message, `budget` how many bytes it may have
    stored by code 36. `on_sent_back` is called with the group and the topic of each message that
    was sent back. For the loop's thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        put: MessagePut,
        holds_queue_locks: Callable[[str], bool],
        limits: RetryLimits,
        randomness: Randomness,
        on_sent_back: Callable[[str, str], None],
        budget: RetryBudget,
    ) -> None:
        self._budget = budget
        self._config = config
        self._store = store
        # The requests that `register` gives; none check anything before.
        self._handlers = Handlers()
        self._topics = topics
        self._groups = groups
        self._put = put
        self._holds_queue_locks = holds_queue_locks
        self._limits = limits
        self._randomness = randomness
        self._on_sent_back = on_sent_back
        self.sent_back_count = 0

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.CONSUMER_SEND_MSG_BACK, self.send_back)

    def send_back(
        self, connection: Connection, call: Request[ConsumerSendMsgBackRequestHeader]
    ) -> RemotingCommand | None:
        """Let a group get a message again later, or put it among the group's dead letters."""
        header = call.header
        group = self._groups.find(header.group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._groups.unknown(header.group)
            )
        if not self._config.broker_permission & PERM_WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending message is forbidden: "
                f"brokerPermission is {self._config.broker_permission}",
            )
        if group.retry_queue_nums > 0:
            max_times = self._max_times(group, header.max_reconsume_times, call.version, connection)
            message = self._retried(connection, call, group, max_times)
            if not self._topics.is_written(message.topic):
                connection.reply_when(call, self._put_when_written(group.group_name, message))
                return None
            self._put_back(group.group_name, message)
        return response(ResponseCode.SUCCESS)

    def redirect(
        self, message: IncomingMessage, max_reconsume_times: int | None, version: int
    ) -> str | None:
        """Turn a message sent to a retry topic into a dead letter if it was delivered often enough.

        If the disk does not have the topic of dead letters yet, does nothing and returns that
        topic. The group of the retry topic exists: a topic is opened for sending only then.
        """
        group = self._groups.find(message.topic.removeprefix(names.RETRY_PREFIX))
        if group is None:
            return None
        max_times = self._max_times(group, max_reconsume_times, version, None)
        if (
            message.reconsume_times > max_times
            or self._holds_queue_locks(group.group_name)
            or not _may_wait(message)
        ):
            topic = self._dead_letter_topic(group.group_name)
            if not self._topics.is_written(topic):
                return topic
            self._bury(message, group.group_name)
            message.properties[p.DELAY_TIME_LEVEL] = "-1"
        return None

    async def _put_when_written(self, group: str, message: IncomingMessage) -> RemotingCommand:
        await self._topics.written()
        self._put_back(group, message)
        return response(ResponseCode.SUCCESS)

    def _put_back(self, group: str, message: IncomingMessage) -> None:
        topic = message.properties[p.RETRY_TOPIC]
        self._put.put(message)
        # The property may name anything, and the group may have been deleted meanwhile. Only of a
        # topic and a group that are there the count can be forgotten with them.
        if self._topics.get(topic) is not None and self._groups.get(group) is not None:
            self._on_sent_back(group, topic)

    def _retried(
        self,
        connection: Connection,
        call: Request[ConsumerSendMsgBackRequestHeader],
        group: SubscriptionGroupConfig,
        max_times: int,
    ) -> IncomingMessage:
        header = call.header
        topic = self._topics.create_for_group(
            names.retry_topic(header.group), group.retry_queue_nums
        )
        if not topic.perm & PERM_WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.topic_name}] sending message is forbidden: perm is {topic.perm}",
            )
        record = self._record_at(header.offset, header.origin_msg_id)
        # Otherwise a group could have any message sent to its own retry topic.
        check_found(self._handlers, requests.CONSUMER_SEND_MSG_BACK, connection, call, record)
        message = self._once_more(record)
        note_failure(message.properties, _failure(header))
        properties = message.properties
        self._budget.spend(
            group.group_name,
            properties.get(p.UNIQ_CLIENT_MESSAGE_ID) or properties[p.ORIGIN_MESSAGE_ID],
            len(record.body) + len(record.properties),
        )
        message.topic = topic.topic_name
        # The topic keeps the queues that it was made with, whatever the group has got since.
        count = min(group.retry_queue_nums, topic.write_queue_nums)
        message.queue_id = self._randomness.randrange(max(count, 1))
        level = header.delay_level
        if record.reconsume_times >= max_times or level < 0 or not _may_wait(message):
            self._bury(message, header.group)
        else:
            level = level or _FIRST_RETRY_LEVEL + record.reconsume_times
            message.properties[p.DELAY_TIME_LEVEL] = str(level)
            self.sent_back_count += 1
        return message

    def _record_at(self, offset: int, msg_id: str | None) -> StoredRecord:
        """Return the message that begins at `offset`. Raises Refused if it is not the one that the
        consumer means.

        After a switch to a slave that lacked messages the log may have another message there.
        Java's broker would deliver that one again, and the consumer's would be lost.
        """
        record = self._store.stored_record(offset)
        if record is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {offset}: no message begins there in the log, "
                f"which holds {self._store.commit_log.min_offset} to {self._store.commit_log.end}",
            )
        if not body_is_intact(record):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the body of the message at {offset} of the log contradicts its CRC: it was damaged on "
                "the disk and is not stored again",
            )
        if msg_id and _names_another(msg_id.upper(), record):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"another message than {msg_id} begins at {offset} in the log: this broker lacks "
                "messages of the former master; send it to the group's retry topic",
            )
        return record

    def _once_more(self, record: StoredRecord) -> IncomingMessage:
        properties = decode_properties(record.properties)
        properties.setdefault(p.RETRY_TOPIC, record.topic)
        properties.setdefault(
            p.ORIGIN_MESSAGE_ID, encode_offset_id(record.store_host, record.physical_offset)
        )
        properties[p.WAIT_STORE_MSG_OK] = "false"
        message = IncomingMessage.again(record, properties)
        message.reconsume_times += 1
        return message

    def _bury(self, message: IncomingMessage, group: str) -> None:
        message.topic = self._dead_letter_topic(group)
        message.queue_id = 0
        message.properties[p.DELAY_TIME_LEVEL] = "0"
        left_out = fitting.cut(message.properties)
        log.info(
            "message given up",
            group=group,
            topic=message.properties.get(p.RETRY_TOPIC),
            msg_id=message.properties.get(p.UNIQ_CLIENT_MESSAGE_ID),
        )
        if left_out:
            log.warning(
                "a dead letter is stored without some properties: with those that retries add, "
                "they exceed the limit",
                group=group,
                msg_id=message.properties.get(p.UNIQ_CLIENT_MESSAGE_ID),
                left_out=message.properties[fitting.LEFT_OUT],
                limit=f"MAX_PROPERTIES_LENGTH={MAX_PROPERTIES_LENGTH}",
                remedy="send large values in the body",
            )

    def _dead_letter_topic(self, group: str) -> str:
        return self._topics.create_for_group(names.dlq_topic(group), _DLQ_QUEUES).topic_name

    def _max_times(
        self,
        group: SubscriptionGroupConfig,
        wanted: int | None,
        version: int,
        connection: Connection | None,
    ) -> int:
        """Return how often a message is delivered again.

        The consumers' number counts before the group's.
        """
        if version < _VERSION_WITH_MAX_TIMES:
            return group.retry_max_times
        return self._limits.named(group.group_name, connection, wanted, group.retry_max_times)


def _failure(header: ConsumerSendMsgBackRequestHeader) -> Failure | None:
    if not header.failure_type:
        return None
    text, member = header.failure_text or "", header.failure_member or ""
    return Failure(header.failure_type, text, member)


def _may_wait(message: IncomingMessage) -> bool:
    """Make room for the properties that the wait for a retry adds; say whether there is enough."""
    room = MAX_PROPERTIES_LENGTH - _PLACE_LENGTH - len(message.topic.encode())
    return fitting.drop_spare(message.properties, room)


def _names_another(msg_id: str, record: StoredRecord) -> bool:
    """Say whether an id is that of another message. Of two messages without unique ids, at the same
    offset of two logs, nobody can say, since clients differ in how they write the host.
    """
    # A Java consumer gives the id of the batch, where a Java master has stored one.
    finders = _find_unique_id, _find_origin, find_batch_id
    known = (find(record.properties) or "" for find in finders)
    return (
        _ID.fullmatch(msg_id) is not None
        and not msg_id.endswith(f"{record.physical_offset:016X}")
        and all(msg_id != each.upper() for each in known)
    )
