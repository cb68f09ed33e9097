"""Sending with retries (Java: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from cometmq.client.broker_api import refusal
from cometmq.client.encoding import Outgoing
from cometmq.client.instance import ClientInstance
from cometmq.client.routes import PublishRoute
from cometmq.errors import (
    CometMQError,
    ProtocolError,
    RemoteError,
    RemotingError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand

# Answers after which another broker is worth an attempt (5.x: retryResponseCodes).
RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
_STATUS: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
# Before the same broker is tried again; with another broker at hand there is no wait.
RETRY_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class SendLimits:
    """`retry_times` counts the attempts after the first."""

    retry_times: int = 2
    default_topic_queue_nums: int = 4


class Sender:
    """Delivers encoded messages to brokers. For the loop of its instance."""

    def __init__(self, instance: ClientInstance, limits: SendLimits) -> None:
        self._instance = instance
        self._limits = limits
        self._loop = asyncio.get_running_loop()

    async def route(self, topic: str, deadline: float) -> PublishRoute:
        """The queues to send to. Raises as RouteCache, RequestTimeoutError after `deadline`."""
        known = self._instance.routes.publish_route(topic)
        if known is not None:
            return known
        try:
            async with asyncio.timeout_at(deadline):
                return await self._instance.routes.need_publish_route(
                    topic, self._limits.default_topic_queue_nums
                )
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no name server told the route of topic {topic} in time"
            ) from error

    async def send_to(self, outgoing: Outgoing, queue: MessageQueue, deadline: float) -> SendResult:
        """One attempt at one queue; a failure is reported so that the route is renewed."""
        address = None
        try:
            address = self._instance.need_master(queue.broker_name, outgoing.topic)
            timeout_s = deadline - self._loop.time()
            if timeout_s <= 0:
                raise RequestTimeoutError("no time was left to send", address=address)
            answer = await self._instance.remoting.call(address, outgoing.command(queue), timeout_s)
            result = _result(answer, queue, outgoing.unique_id, address)
        except (RemotingError, RouteNotFoundError) as error:
            self._instance.report_failure(error, outgoing.topic, address)
            raise
        except RemoteError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                self._instance.routes.refresh_soon(outgoing.topic)
            raise
        route = self._instance.routes.publish_route(outgoing.topic)
        if route is not None and route.created_on_demand:
            # The broker has just created the topic, so it has a route of its own now.
            self._instance.routes.refresh_soon(outgoing.topic)
        return result

    async def send(self, outgoing: Outgoing, timeout_s: float) -> SendResult:
        """Up to 1 + `retry_times` attempts within `timeout_s`, on another broker where there is one.

        Raises the last attempt's error, with the brokers that were tried.
        """
        deadline = self._loop.time() + timeout_s
        tried: list[str] = []
        while True:
            avoid = tried[-1] if tried else None
            route = self._instance.routes.publish_route(outgoing.topic)
            if route is None:
                route = await self.route(outgoing.topic, deadline)
            queue = route.choose(avoid)
            try:
                return await self.send_to(outgoing, queue, deadline)
            except (RemotingError, RemoteError, RouteNotFoundError) as error:
                tried.append(queue.broker_name)
                if not self._worth_retrying(error, tried, deadline):
                    raise _failure(error, outgoing, tried, timeout_s) from error
                if not route.has_other_broker(queue.broker_name):
                    await asyncio.sleep(min(RETRY_PAUSE_S, max(0.0, deadline - self._loop.time())))

    async def send_oneway(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        """Hand the bytes to the connection. Raises when there is no route or connection."""
        address = None
        try:
            address = self._instance.need_master(queue.broker_name, outgoing.topic)
            await self._instance.remoting.send_oneway(address, outgoing.command(queue))
        except (RemotingError, RouteNotFoundError) as error:
            self._instance.report_failure(error, outgoing.topic, address)
            raise

    def _worth_retrying(self, error: CometMQError, tried: list[str], deadline: float) -> bool:
        if len(tried) > self._limits.retry_times or self._loop.time() >= deadline:
            return False
        return not isinstance(error, RemoteError) or error.code in RETRIED_CODES


def _result(
    answer: RemotingCommand, queue: MessageQueue, unique_id: str, address: str
) -> SendResult:
    status = _STATUS.get(answer.code)
    if status is None:
        raise refusal(answer, address, f"a message to {queue}")
    ext = answer.ext
    try:
        return SendResult(
            status,
            unique_id,
            ext["msgId"],
            MessageQueue(queue.topic, queue.broker_name, int(ext["queueId"])),
            int(ext["queueOffset"]),
            ext.get("transactionId"),
            ext.get("MSG_REGION") or "DefaultRegion",
            ext.get("TRACE_ON") != "false",
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(
            f"the answer to a send lacks a field or has a wrong one: {error}", address=address
        ) from error


def _failure(
    error: CometMQError, outgoing: Outgoing, tried: list[str], timeout_s: float
) -> CometMQError:
    """The same kind of error, telling how often and where it was tried."""
    return type(error)(
        f"sending to topic {outgoing.topic} failed {len(tried)} times within {timeout_s * 1000:.0f} "
        f"ms, at {', '.join(tried)}; the last time: {error}",
        code=error.code,
        remark=error.remark,
        address=error.address,
    )
