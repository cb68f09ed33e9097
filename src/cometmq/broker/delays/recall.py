"""Recall timed messages before they are delivered: code 370.

Java: RecallMessageProcessor. The sender of a timed message gets a handle, see
`protocol.messages.recall_handle`.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.put import MessagePut
from cometmq.broker.delays.timer import recall_key
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.broker.topics.topics import TopicManager
from cometmq.errors import ProtocolError
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.sysflag import PERM_WRITE
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from cometmq.protocol.messages.recall_handle import RecallHandle
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


def recall_handle(message: IncomingMessage, broker_name: str) -> str | None:
    """Return the handle of a message that was just put; None if the message cannot be recalled."""
    slot = message.properties.get(p.TIMER_OUT_MS)
    topic = message.properties.get(p.REAL_TOPIC)
    if message.topic != names.TIMER_TOPIC or slot is None or topic is None:
        return None
    if names.is_retry_topic(topic):
        return None
    unique_id = message.properties[p.UNIQ_CLIENT_MESSAGE_ID]
    # When the handle comes back, this time is rounded to the same slot again.
    return RecallHandle(topic, broker_name, int(slot) + 1, unique_id).encode()


class RecallHandler:
    """Serves recalls. For the loop's thread only."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, topics: TopicManager, put: MessagePut
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._put = put

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.RECALL_MESSAGE, self.recall)

    def recall(
        self, connection: Connection, call: Request[RecallMessageRequestHeader]
    ) -> RemotingCommand:
        """Store an order not to deliver a message; succeed even if there is no such message."""
        header = call.header
        self._check_service(header.topic)
        handle = _decoded(header.recall_handle)
        if handle.topic != header.topic:
            raise _illegal(f"topic not match: the handle is for {handle.topic}")
        if handle.broker_name != self._config.broker_name:
            raise _illegal(f"broker service not available: ask broker {handle.broker_name}")
        left_ms = handle.time_ms - self._clock.now_ms()
        if not 0 < left_ms < self._config.timer_max_delay_sec * 1000:
            raise _illegal(
                f"timestamp invalid: {left_ms}ms are left to deliver the message, at least 1 is "
                f"needed and fewer than timerMaxDelaySec={self._config.timer_max_delay_sec} seconds"
            )
        self._put.put(self._order(connection, header, handle))
        return response(
            ResponseCode.SUCCESS,
            header=RecallMessageResponseHeader(msg_id=handle.unique_id),
            ext={p.MSG_REGION: self._config.region_id},
        )

    def _check_service(self, topic: str) -> None:
        if not self._config.recall_message_enable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false",
            )
        if not self._config.broker_permission & PERM_WRITE:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "recall failed, broker service not available: brokerPermission is "
                f"{self._config.broker_permission}",
            )
        if self._topics.get(topic) is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist"
            )

    def _order(
        self, connection: Connection, header: RecallMessageRequestHeader, handle: RecallHandle
    ) -> IncomingMessage:
        now_ms = self._clock.now_ms()
        key = handle.unique_id
        if self._config.append_topic_for_timer_delete_key:
            key = recall_key(handle.topic, key)
        properties = {
            p.TIMER_DEL_UNIQKEY: key,
            p.UNIQ_CLIENT_MESSAGE_ID: handle.unique_id,
            p.TIMER_DELIVER_MS: str(handle.time_ms),
            p.TAGS: _TAG,
        }
        if header.producer_group:
            properties[p.PRODUCER_GROUP] = header.producer_group
        return IncomingMessage(handle.topic, 0, _BODY, properties, now_ms, connection.packed_peer)


def _decoded(handle: str) -> RecallHandle:
    try:
        return RecallHandle.decode(handle)
    except ProtocolError as error:
        raise _illegal(str(error)) from error


def _illegal(reason: str) -> Refused:
    return Refused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {reason}")
