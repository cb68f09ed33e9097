"""Match replies with the requests that wait for them.

A request is an ordinary message with a correlation id and the id of the client that waits for the
reply. The consumer of the request sends a reply message to the cluster's reply topic. The broker
that gets the reply pushes it to the waiting client (code 326).

Java: RequestFutureHolder, MessageUtil, ClientRemotingProcessor.
"""

from __future__ import annotations

import asyncio

from cometmq.client.producing.encoding import REPLY
from cometmq.client.pulling.received import decompress_body
from cometmq.errors import IllegalArgumentError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.names import REPLY_TOPIC_POSTFIX
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.headers import ReplyMessageRequestHeader
from cometmq.protocol.messages.properties import decode_properties
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness

log = get_logger(__name__)


def reply_topic(cluster: str) -> str:
    """Return the topic of the replies to requests that were sent to brokers of `cluster`."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def create_reply_message(request: Message, body: bytes) -> Message:
    """Make the reply to a request that a listener got. Send it with any producer's `send`.

    Raises IllegalArgumentError for a message that asks for no reply.
    """
    known = request.properties
    missing = [
        name for name in (p.CLUSTER, p.CORRELATION_ID, p.REPLY_TO_CLIENT) if not known.get(name)
    ]
    if missing:
        raise IllegalArgumentError(
            f"the message lacks {', '.join(missing)}, so it is no request that was received; only "
            "what Producer.request sent is replied to"
        )
    properties = {
        p.MESSAGE_TYPE: REPLY,
        p.CORRELATION_ID: known[p.CORRELATION_ID],
        p.REPLY_TO_CLIENT: known[p.REPLY_TO_CLIENT],
    }
    if p.MESSAGE_TTL in known:
        properties[p.MESSAGE_TTL] = known[p.MESSAGE_TTL]
    return Message(reply_topic(known[p.CLUSTER]), body, properties=properties)


class Replies:
    """Holds the requests of one client instance that wait for replies. For the instance's loop."""

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, randomness: Randomness = SYSTEM_RANDOMNESS
    ) -> None:
        self._now_ms = clock.now_ms
        self._randomness = randomness
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def expect(self) -> tuple[str, asyncio.Future[MessageExt]]:
        """Return a new correlation id and the future of its reply. Call `forget` in the end."""
        correlation_id = str(self._randomness.uuid4())
        future: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return correlation_id, future

    def forget(self, correlation_id: str) -> None:
        """Forget a request: nobody waits for its reply any more."""
        self._waiting.pop(correlation_id, None)

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def _on_reply(
        self, connection: Connection, call: Request[ReplyMessageRequestHeader]
    ) -> RemotingCommand:
        message = _reply(call.header, bytes(call.body), self._now_ms())
        correlation_id = message.properties.get(p.CORRELATION_ID, "")
        future = self._waiting.pop(correlation_id, None)
        if future is not None and not future.done():
            future.set_result(message)
        else:
            # The answer is success all the same, as in Java: the broker has done its part.
            log.warning(
                "a reply came that nobody waits for",
                correlation_id=correlation_id,
                broker=connection.peer,
                from_host=message.born_host,
            )
        return response(ResponseCode.SUCCESS)


def _reply(header: ReplyMessageRequestHeader, body: bytes, arrived_ms: int) -> MessageExt:
    properties = decode_properties(header.properties or "")
    properties[p.REPLY_ARRIVE_TIME] = str(arrived_ms)
    message = MessageExt(
        header.topic,
        body,
        properties=properties,
        flag=header.flag,
        msg_id=properties.get(p.UNIQ_CLIENT_MESSAGE_ID, ""),
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp,
        born_host=header.born_host,
        store_timestamp_ms=header.store_timestamp,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times or 0,
    )
    if message.sys_flag & COMPRESSED:
        decompress_body(message)
    return message
