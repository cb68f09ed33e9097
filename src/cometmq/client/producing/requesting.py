"""Send a request and wait for its reply (Java: DefaultMQProducerImpl.request)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.errors import RequestTimeoutError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import SendResult

log = get_logger(__name__)

# The share of a request's time in which brokers must get to know the client, to push the reply to
# it.
_INTRODUCTION_SHARE: Final = 0.5


async def request(
    instance: ClientInstance,
    message: Message,
    topic: str,
    timeout_s: float,
    send: Callable[[Message, float], Awaitable[SendResult]],
) -> MessageExt:
    """Send `message` with `send` to `topic` (its name on the wire), and return the reply.

    Raises what `send` raises, and RequestTimeoutError when the message was sent and no reply came.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    asking = message.copy()
    correlation_id, reply = instance.replies.expect()
    asking.properties |= {
        p.CORRELATION_ID: correlation_id,
        p.REPLY_TO_CLIENT: instance.client_id,
        p.MESSAGE_TTL: str(round(timeout_s * 1000)),
    }
    try:
        try:
            async with asyncio.timeout(timeout_s * _INTRODUCTION_SHARE):
                await instance.introduce(topic)
        except RequestTimeoutError:
            raise
        except TimeoutError:
            # The broker that gets the reply may be one of those that did answer.
            log.info("some brokers did not answer a heartbeat in time", topic=topic)
        result = await send(asking, max(0.001, deadline - loop.time()))
        try:
            async with asyncio.timeout_at(deadline):
                return await reply
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"the request {result.msg_id} was sent to {result.queue}, but no reply came within "
                f"{timeout_s * 1000:.0f} ms"
            ) from error
    finally:
        instance.replies.forget(correlation_id)
