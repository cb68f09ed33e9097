"""Serve SendMessage and RecallMessage (Java: SendMessageActivity, ProducerProcessor)."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.producing.encoding import MessageEncoder, Outgoing
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import CometMQError, IllegalArgumentError
from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus
from cometmq.model.sysflag import COMPRESSED, TRANSACTION_PREPARED
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.messages.properties import encode_properties
from cometmq.proxy.calls import Caller
from cometmq.proxy.configuration.config import MAX_ENTRIES
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.metadata import MIXED, Metadata
from cometmq.proxy.methods.consistent_hash import bucket_of
from cometmq.proxy.methods.transactions import Half, Transactions
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.messages import BORN_HOST, body_of, is_packed, properties_of, type_of
from cometmq.proxy.wire.names import topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok, status

_TIMEOUT_S: Final = 3.0
_RECALL_TIMEOUT_S: Final = 2.0
_STATUSES: Final = {
    SendStatus.FLUSH_DISK_TIMEOUT: wire.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: wire.SLAVE_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: wire.HA_NOT_AVAILABLE,
}


class Sends:
    def __init__(
        self,
        instance: ClientInstance,
        metadata: Metadata,
        transactions: Transactions,
        settings: ProxySettings,
    ) -> None:
        self._instance = instance
        self._metadata = metadata
        self._transactions = transactions
        self._settings = settings
        # Clients retry a failed send, so the proxy does not.
        self._sender = Sender(instance, SendLimits(retry_times=0))
        self._encoder = MessageEncoder("", instance.unique_ids, clock=instance.clock)

    async def send(
        self, caller: Caller, request: wire.SendMessageRequest
    ) -> wire.SendMessageResponse:
        """Send one message, or several of one topic as a batch."""
        given = request.messages
        if not given or len({topic_of(each.topic) for each in given}) > 1:
            raise RefusedError(
                wire.MESSAGE_CORRUPTED,
                "a request needs at least one message, all of one topic; send one request for each topic",
            )
        if len(given) > MAX_ENTRIES:
            raise RefusedError(
                wire.MESSAGE_CORRUPTED,
                f"the request has {len(given)} messages, the limit MAX_ENTRIES is {MAX_ENTRIES}; divide them "
                "among several requests",
                "MAX_ENTRIES",
            )
        topic = topic_of(given[0].topic)
        if len(given) > 1 and any(map(is_packed, given)):
            raise RefusedError(
                wire.MESSAGE_CORRUPTED,
                "a batch has a body that names the encoding GZIP and is not GZIP data; send it plain, in GZIP, or by itself",
            )
        messages = [self._message(each, topic, caller.peer) for each in given]
        await self._check_types(messages, topic)
        left_s = _TIMEOUT_S if caller.left_s is None else min(caller.left_s, _TIMEOUT_S)
        deadline = asyncio.get_running_loop().time() + left_s
        flag = COMPRESSED if is_packed(given[0]) else 0
        result = await self._send(messages, topic, deadline, flag)
        entries = [self._entry(result, message) for message in messages]
        return wire.SendMessageResponse(status=entries[0].status, entries=entries)

    async def recall(
        self, _caller: Caller, request: wire.RecallMessageRequest
    ) -> wire.RecallMessageResponse:
        """Recall a delayed message before it is delivered."""
        topic = topic_of(request.topic)
        found = await self._metadata.topic_type(topic)
        if self._settings.enable_topic_message_type_check and found not in ("DELAY", MIXED):
            raise _conflict("a recalled message", "DELAY", topic, found)
        try:
            unique_id = await self._sender.recall(
                topic, topic, request.recall_handle, _RECALL_TIMEOUT_S
            )
        except IllegalArgumentError as error:
            # Java's code for an invalid handle.
            raise RefusedError(wire.INTERNAL_SERVER_ERROR, str(error)) from error
        return wire.RecallMessageResponse(status=ok(), message_id=unique_id)

    # Inside

    def _message(self, given: wire.Message, topic: str, peer: str) -> Message:
        properties = properties_of(given, topic, self._instance.clock.now_ms(), self._settings)
        properties.setdefault(BORN_HOST, peer)
        return Message(topic, body_of(given, self._settings), properties=properties)

    async def _check_types(self, messages: list[Message], topic: str) -> None:
        wanted = await self._metadata.topic_type(topic)
        if not self._settings.enable_topic_message_type_check:
            wanted = MIXED
        for message in messages:
            kind = type_of(message.properties)
            if wanted not in (kind, MIXED):
                raise _conflict(f"a message of type {kind}", kind, topic, wanted)
            if len(messages) > 1 and kind not in ("NORMAL", "FIFO"):
                raise RefusedError(
                    wire.MESSAGE_CORRUPTED,
                    f"a batch has a message of type {kind}; send that message by itself",
                )

    async def _send(
        self, messages: list[Message], topic: str, deadline: float, flag: int
    ) -> SendResult:
        route = self._instance.routes.publish_route(topic)
        if route is None:
            raise RefusedError(wire.FORBIDDEN, f"topic {topic} has no writable queue")
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        if len(messages) > 1:
            outgoing = self._encoder.encode_batch(messages)
            outgoing.ext["a"] = topic
            groups = {message.properties.get(p.SHARDING_KEY) for message in messages}
            if groups != {None}:
                if len(groups) > 1:
                    raise RefusedError(
                        wire.MESSAGE_CORRUPTED,
                        "a batch has messages of several message groups; send one batch for each",
                    )
                return await self._sender.send_fixed(outgoing, self._queue(messages[0]), deadline)
            return await self._sender.send(outgoing, left_s)
        message = messages[0]
        outgoing = self._outgoing(message, topic, flag)
        if p.SHARDING_KEY in message.properties:
            return await self._sender.send_fixed(outgoing, self._queue(message), deadline)
        return await self._sender.send(outgoing, left_s)

    def _outgoing(self, message: Message, topic: str, flag: int) -> Outgoing:
        properties = message.properties
        is_half = properties.get(p.TRANSACTION_PREPARED) == "true"
        if is_half:
            flag |= TRANSACTION_PREPARED
        text = encode_properties(properties)
        outgoing = self._encoder.encode_ready(topic, message.body, text, 0, flag)
        outgoing.ext["a"] = topic
        outgoing.unique_id = properties[p.UNIQ_CLIENT_MESSAGE_ID]
        outgoing.messages = (message,)
        return outgoing

    def _queue(self, message: Message) -> MessageQueue:
        """Return the queue of a message group, the same that Java's proxy chooses."""
        route = self._instance.routes.publish_route(message.topic)
        assert route is not None, "looked at just now"
        return route.queues[bucket_of(message.properties[p.SHARDING_KEY], len(route.queues))]

    def _entry(self, result: SendResult, message: Message) -> wire.SendResultEntry:
        if result.status is not SendStatus.SEND_OK:
            text = f"the broker stored the message, but answered {result.status.value}"
            return wire.SendResultEntry(status=status(_STATUSES[result.status], text))
        unique_id = message.properties[p.UNIQ_CLIENT_MESSAGE_ID]
        entry = wire.SendResultEntry(
            status=ok(),
            message_id=unique_id,
            offset=result.queue_offset,
            recall_handle=result.recall_handle or "",
        )
        if message.properties.get(p.TRANSACTION_PREPARED) == "true":
            self._transactions.add_producer(message.topic)
            try:
                place = parse_offset_id(result.offset_msg_id).commit_log_offset
            except CometMQError:
                return entry
            entry.transaction_id = Half(
                result.transaction_id or unique_id,
                result.queue.broker_name,
                result.queue_offset,
                place,
            ).encode()
        return entry


def _conflict(what: str, kind: str, topic: str, found: str) -> RefusedError:
    return RefusedError(
        wire.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"topic {topic} of type {found} does not take {what}; create a topic with the attribute "
        f"message.type={kind}",
    )
