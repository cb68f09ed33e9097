"""Send a message for operators: a new one, or one that was stored, again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cometmq.admin.room import Room
from cometmq.admin.routed import master_of
from cometmq.client.limits import MessageChecks, check_properties, check_properties_text
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.names import AUTO_CREATE_TOPIC, CLOSED_TOPICS
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus
from cometmq.model.route import TopicRouteData
from cometmq.model.sysflag import COMPRESSED, COMPRESSION_MASK
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import SendMessageRequestHeaderV2
from cometmq.protocol.messages.ids import UniqueIdGenerator, pack_host
from cometmq.protocol.messages.properties import encode_properties
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.runtime.sockets.addresses import own_address

_SEND_GROUP: Final = "cometmq-admin"
# As in Java's tools.
_RESEND_GROUP: Final = "ReSendMsgById"
# Brokers take these for orders of the sender: TRAN_MSG would make a half message of a message whose
# transaction was committed, a delay would hold it back. The copy lies in the same topic, so it keeps
# the properties in which a retried message or a dead letter names its origin.
_NOT_RESENT: Final = (p.RESERVED | p.OF_ONE_SENDING) - {
    p.UNIQ_CLIENT_MESSAGE_ID,
    p.RETRY_TOPIC,
    p.ORIGIN_MESSAGE_ID,
}
_SENT: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class _Sending:
    """Says how a message is sent: for which group, with which properties, born when."""

    group: str
    properties: Mapping[str, str]
    born_ms: int
    sys_flag: int = 0


class SentMessages(Room):
    """Sends messages. A message goes to one queue, once: no other broker is tried."""

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message to its topic, which has to exist; every group of the topic gets it.

        It goes to `queue`, or else to any queue that takes messages. A message without a unique id
        gets one. Raises IllegalArgumentError for a message that no producer may send and for a queue
        that the topic does not have, RemoteError (NO_PERMISSION) if it takes no messages.
        """
        _check_open(message.topic)
        MessageChecks().check(message)
        check_properties(message.properties)
        route = await self._servers.route(message.topic)
        queues = _queues(route, message.topic)
        if queue is not None and queue not in queues:
            raise IllegalArgumentError(
                f"topic {message.topic} takes no messages in queue {queue.queue_id} of "
                f"{queue.broker_name!r:.80}; it does in {_listed(queues)}"
            )
        if queue is None:
            number = int.from_bytes(SYSTEM_RANDOMNESS.randbytes(8), "big")
            queue = queues[number % len(queues)]
        message.properties.setdefault(p.UNIQ_CLIENT_MESSAGE_ID, self._unique_ids.next())
        how = _Sending(_SEND_GROUP, message.properties, SYSTEM_CLOCK.now_ms())
        return await self._store(
            message, message.properties[p.UNIQ_CLIENT_MESSAGE_ID], route, queue, how
        )

    async def resend(self, message: MessageExt) -> SendResult:
        """Send a message that was stored again, at once, under its unique id.

        The copy goes to the message's own queue, or to the first queue if that queue takes no
        more messages. Every group of the topic gets the message once more. Raises IllegalArgumentError for a
        message that waits in a topic of the broker's own.
        """
        _check_open(message.topic)
        route = await self._servers.route(message.topic)
        queues = _queues(route, message.topic)
        own = MessageQueue(message.topic, message.broker_name, message.queue_id)
        properties = {k: v for k, v in message.properties.items() if k not in _NOT_RESENT}
        # Only a body that could not be decompressed still has the flag: see `message_of`.
        compressed = message.sys_flag & COMPRESSED
        sys_flag = message.sys_flag & (COMPRESSED | COMPRESSION_MASK) if compressed else 0
        how = _Sending(_RESEND_GROUP, properties, message.born_timestamp_ms, sys_flag)
        return await self._store(
            message, message.msg_id, route, own if own in queues else queues[0], how
        )

    @cached_property
    def _unique_ids(self) -> UniqueIdGenerator:
        return UniqueIdGenerator(
            pack_host(own_address(), 0)[:-4],
            now_ms=SYSTEM_CLOCK.now_ms,
            randbytes=SYSTEM_RANDOMNESS.randbytes,
        )

    async def _store(
        self,
        message: Message,
        msg_id: str,
        route: TopicRouteData,
        queue: MessageQueue,
        how: _Sending,
    ) -> SendResult:
        properties = encode_properties(how.properties)
        check_properties_text(properties, message.topic)
        answer = await self._servers.ask(
            master_of(route, message.topic, queue.broker_name),
            requests.SEND_MESSAGE_V2,
            SendMessageRequestHeaderV2(
                producer_group=how.group,
                topic=message.topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=4,
                queue_id=queue.queue_id,
                sys_flag=how.sys_flag,
                born_timestamp=how.born_ms,
                flag=message.flag,
                properties=properties,
                reconsume_times=0,
                unit_mode=False,
                batch=False,
            ),
            message.body,
            what=f"sending message {msg_id}",
            also=_SENT,
        )
        sent = answer.header
        return SendResult(
            _SENT[ResponseCode(answer.code)],
            msg_id,
            sent.msg_id,
            queue._replace(queue_id=sent.queue_id),
            sent.queue_offset,
        )


def _check_open(topic: str) -> None:
    # Java's brokers take messages for their timer's topic, and then stop at one that has no time.
    if topic in CLOSED_TOPICS:
        raise IllegalArgumentError(f"topic {topic} is the broker's own, nobody may send to it")


def _queues(route: TopicRouteData, topic: str) -> list[MessageQueue]:
    """Return the queues that take messages. Raises RemoteError if there are none."""
    queues = route.publish_queues(topic)
    if not queues:
        raise RemoteError(
            f"no broker takes messages of topic {topic}; give it the permission to write by "
            "topics.update(permission=6)",
            code=ResponseCode.NO_PERMISSION,
        )
    return queues


def _listed(queues: list[MessageQueue]) -> str:
    last = {queue.broker_name: queue.queue_id for queue in sorted(queues)}
    return ", ".join(f"0 to {number} of {name}" for name, number in last.items())
