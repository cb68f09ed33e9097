"""Hand replies to the clients that asked: codes 324 and 325, and 326 towards the client.

Java: ReplyMessageProcessor, Broker2Client.callClient.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.groups.questions import call_in_turn
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.sends.first_sends import SendRequest
from cometmq.broker.sends.send import SendHandler
from cometmq.errors import CometMQError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.java.hashing import java_hash
from cometmq.model.sysflag import TRANSACTION_MASK
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.headers import (
    ReplyMessageRequestHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)
from cometmq.protocol.messages.ids import encode_offset_id, unpack_host
from cometmq.protocol.messages.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    encode_properties,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

log = get_logger(__name__)

_PUSH_TIMEOUT_S: Final = 10.0


class ReplyHandler:
    """Serves replies. For the loop's thread only."""

    def __init__(self, parts: Parts, send: SendHandler) -> None:
        self._config = parts.config
        self._store = parts.store
        self._send = send
        self._clients = parts.clients
        self._clock = parts.clock
        self._packed_host = parts.packed_host
        self._long_answers = parts.long_answers

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.SEND_REPLY_MESSAGE, self.reply)
        handlers.register(requests.SEND_REPLY_MESSAGE_V2, self.reply)

    async def reply(self, connection: Connection, call: SendRequest) -> RemotingCommand:
        """Push the reply to the client that its properties name, store it, and say whether the
        client took it.
        """
        header = call.header
        queue_id = await self._send.queue_for(header)
        body = bytes(call.frame.body)
        text = header.properties or ""
        if len(text) > MAX_PROPERTIES_LENGTH:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the reply's properties take {len(text)} bytes, the limit MAX_PROPERTIES_LENGTH is "
                f"{MAX_PROPERTIES_LENGTH}; move large values into the body",
                limit="MAX_PROPERTIES_LENGTH",
            )
        properties = decode_properties(text)
        properties[p.MSG_REGION] = self._config.region_id
        properties[p.TRACE_SWITCH] = "true" if self._config.trace_on else "false"
        failure: Refused | None = None
        try:
            await self._push(connection, header, dict(properties), body)
        except Refused as error:
            failure = error
        stored = self._store_reply(connection, header, queue_id, properties, body)
        if failure is not None:
            raise failure
        msg_id, queue_offset = stored or ("0", 0)
        return response(
            ResponseCode.SUCCESS,
            header=SendMessageResponseHeader(
                msg_id=msg_id, queue_id=queue_id, queue_offset=queue_offset
            ),
            ext={name: properties[name] for name in (p.MSG_REGION, p.TRACE_SWITCH)},
        )

    async def _push(
        self,
        connection: Connection,
        header: SendMessageHeader,
        properties: dict[str, str],
        body: bytes,
    ) -> None:
        """Push the reply to its client. Raises Refused if the client did not take it."""
        client_id = properties.get(p.REPLY_TO_CLIENT)
        if client_id is None:
            raise _failed(
                f"reply message properties[{p.REPLY_TO_CLIENT}] is null: it names the client id "
                "of the request's sender"
            )
        client = self._clients.producer_of(client_id)
        if client is None or client.connection.closed:
            raise _failed(
                f"push reply message fail, channel of <{client_id}> not found: the client is not "
                "connected to this broker as a producer"
            )
        now_ms = self._clock.now_ms()
        properties[p.PUSH_REPLY_TIME] = str(now_ms)
        push = requests.PUSH_REPLY_MESSAGE_TO_CLIENT.command(
            ReplyMessageRequestHeader(
                producer_group=header.producer_group,
                topic=header.topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=header.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                properties=encode_properties(properties),
                reconsume_times=header.reconsume_times,
                unit_mode=bool(header.unit_mode),
                born_host=connection.peer,
                store_host=unpack_host(self._packed_host),
                store_timestamp=now_ms,
            ),
            body,
        )
        try:
            answer = await self._call(connection, client.connection, push)
        except CometMQError as error:
            raise _failed(f"push reply message to {client_id} fail: {error}") from error
        if answer.code != ResponseCode.SUCCESS:
            raise _failed(
                f"push reply message to {client_id} fail: it answered {answer.code} {answer.remark}"
            )

    async def _call(
        self, replier: Connection, asker: Connection, push: RemotingCommand
    ) -> RemotingCommand:
        """Hand a reply over. Replies to a client that does not read wait for their turn: anybody may
        send large ones by the dozen to a client of their own.
        """
        if asker.congested:
            return await call_in_turn(self._long_answers, replier, asker, push, _PUSH_TIMEOUT_S)
        return await asker.call(push, _PUSH_TIMEOUT_S)

    def _store_reply(
        self,
        connection: Connection,
        header: SendMessageHeader,
        queue_id: int,
        properties: dict[str, str],
        body: bytes,
    ) -> tuple[str, int] | None:
        """Store the reply; return its offset message id and queue offset, None if it is not stored.

        The answer to the sender says only whether the reply was pushed. If the store refuses the reply,
        that is only logged, as in Java.
        """
        if not self._config.store_reply_message_enable:
            return None
        tags = properties.get(p.TAGS)
        try:
            queue_offset, physical_offset = self._store.append(
                self._store.queue(header.topic, queue_id),
                body,
                encode_properties(properties).encode(),
                java_hash(tags) if tags else 0,
                header.born_timestamp,
                connection.packed_peer,
                flag=header.flag,
                sys_flag=header.sys_flag & ~TRANSACTION_MASK,
                reconsume_times=header.reconsume_times or 0,
            )
        except StoreError as error:
            log.warning("reply not stored", topic=header.topic, reason=str(error))
            return None
        return encode_offset_id(self._packed_host, physical_offset), queue_offset


def _failed(reason: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, reason)
