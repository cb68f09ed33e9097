"""Send with retries (Java: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl).

Longer than 500 lines: all modes of sending share the choice of a queue and the report of a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cometmq.client.cluster.latency_faults import LatencyFaults
from cometmq.client.cluster.routes import PublishRoute
from cometmq.client.hooks import CommunicationMode, HookList, SendContext
from cometmq.client.instance import ClientInstance
from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES
from cometmq.client.namespaces import NO_NAMESPACE, Namespace
from cometmq.client.producing.answers import Attempt, result_of
from cometmq.client.producing.encoding import Outgoing
from cometmq.client.producing.verdicts import failure_of, of_both, saying
from cometmq.errors import (
    CometMQError,
    IllegalArgumentError,
    ProtocolError,
    RemoteError,
    RemotingError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendForbiddenError,
    Stored,
    TooManyRequestsError,
)
from cometmq.model import properties as p
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.messages.recall_handle import RecallHandle
from cometmq.remoting.client import split_address
from cometmq.remoting.connection import Connection
from cometmq.runtime.back_off import BackOff

_AN_ATTEMPT_FAILED: Final = (RemotingError, RemoteError, RouteNotFoundError, SendForbiddenError)
_VIP_PORT_OFFSET: Final = -2
_ROUTE_WITHIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SendLimits:
    """Holds the limits that Producer explains. `retry_times` does not count the first attempt."""

    retry_times: int = 2
    default_topic_queue_nums: int = 4
    retry_times_async: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    vip_channel: bool = False
    max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES
    # How long an attempt may take that is not the last one, in s; None: as long as the send.
    attempt_timeout_s: float | None = None


class Sender:
    """Delivers encoded messages to brokers, for one producer. For the loop of its instance.

    Topics and queues are named as on the wire; hooks and results get the user's names. `on_left` is called
    when the message of an asynchronous send is on its way.
    """

    def __init__(
        self,
        instance: ClientInstance,
        limits: SendLimits,
        *,
        group: str = "",
        namespace: Namespace = NO_NAMESPACE,
        hooks: HookList | None = None,
        faults: LatencyFaults | None = None,
        on_left: Callable[[], object] | None = None,
    ) -> None:
        self._instance = instance
        self._on_left = on_left
        self._limits = limits
        self._group = group
        self._namespace = namespace
        self._namespaced = bool(namespace)  # kept, because it is read for every message
        self._hooks = hooks or HookList()
        self._faults = faults
        self._loop = asyncio.get_running_loop()

    async def route(self, topic: str, deadline: float) -> PublishRoute:
        """Return the queues to send to. Raises what RouteCache raises, and RequestTimeoutError
        after `deadline`.
        """
        known = self._instance.routes.publish_route(topic)
        if known is not None:
            return known
        try:
            async with asyncio.timeout_at(deadline):
                return await self._instance.routes.need_publish_route(
                    topic, self._limits.default_topic_queue_nums
                )
        except RequestTimeoutError:
            raise
        except TimeoutError as error:
            late = RequestTimeoutError(f"no name server gave the route of topic {topic} in time")
            late.stored = Stored.NO
            raise late from error

    def known_queue(self, topic: str) -> MessageQueue | None:
        """Return the next queue in turn, None if the topic's route is not known yet."""
        route = self._instance.routes.publish_route(topic)
        return None if route is None else self._choose(route, None)

    async def next_queue(self, topic: str, deadline: float) -> MessageQueue:
        """Return the next queue in turn. Raises what `route` raises."""
        return self.known_queue(topic) or self._choose(await self.route(topic, deadline), None)

    def _choose(self, route: PublishRoute, avoid: str | None) -> MessageQueue:
        if self._faults is not None:
            return self._faults.choose(route, avoid)
        instance = self._instance
        if instance.heartbeats.all_reached:
            return route.choose(avoid)
        return (
            route.find(lambda name: name != avoid and instance.reaches_master(name))
            or route.find(instance.reaches_master)
            or route.choose(avoid)
        )

    async def _choose_anew(
        self, topic: str, queue: MessageQueue, avoid: str | None, deadline: float
    ) -> MessageQueue:
        """Ask for the route before a send to a master that heartbeats do not reach: another broker may
        have taken its place since. If there is none, keep the queue.
        """
        if self._instance.reaches_master(queue.broker_name):
            return queue
        address = self._instance.routes.master_address(queue.broker_name)
        until = min(deadline, self._loop.time() + _ROUTE_WITHIN_S)
        try:
            async with asyncio.timeout_at(until):
                await self._instance.routes.refresh(topic)
        except (TimeoutError, CometMQError):
            return queue
        route = self._instance.routes.publish_route(topic)
        if route is None or self._instance.routes.master_address(queue.broker_name) == address:
            return queue
        return self._choose(route, avoid)

    async def _is_gone(
        self, error: CometMQError, topic: str, queue: MessageQueue, deadline: float
    ) -> bool:
        """Say whether an attempt failed because the topic has lost the queue, and refresh the route
        then.

        Such an attempt does not count: the next one goes to a queue that the route still has.
        """
        if not _names_no_queue(error):
            return False
        routes = self._instance.routes
        route = routes.publish_route(topic)
        # Unless another send has asked meanwhile.
        if route is not None and queue in route.queues:
            until = min(deadline, self._loop.time() + _ROUTE_WITHIN_S)
            try:
                async with asyncio.timeout_at(until):
                    await routes.refresh(topic)
            except (TimeoutError, CometMQError):
                return False
            route = routes.publish_route(topic)
        return route is not None and queue not in route.queues

    async def keyed_queues(self, topic: str, deadline: float) -> list[MessageQueue]:
        """Return the queues among which a key chooses. Raises what `route` raises."""
        await self.route(topic, deadline)
        return self._instance.routes.keyed_queues(topic)

    async def send_to(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        deadline: float,
        mode: CommunicationMode = CommunicationMode.SYNC,
        attempt: int = 1,
    ) -> SendResult:
        """Make one attempt at one queue. Reports a failure, so that the route is renewed."""
        address, context = None, None
        began_at = self._loop.time()
        try:
            address = self._address(queue.broker_name, outgoing.topic)
            timeout_s = deadline - began_at
            if timeout_s <= 0:
                late = RequestTimeoutError("no time was left to send", address=address)
                late.stored = Stored.NO
                raise late
            if self._hooks.around_sends:
                context = self._before(outgoing, queue, address, mode, attempt)
            remoting = self._instance.remoting
            begun = remoting.begin_call(address, outgoing.command(queue), timeout_s)
            if mode is CommunicationMode.ASYNC and begun is not None and self._on_left is not None:
                self._on_left()
            answer = await (begun or remoting.call(address, outgoing.command(queue), timeout_s))
            result = self.result(answer, queue, outgoing, address)
        except BaseException as error:
            self._after(context, None, error)
            self._on_failure(error, outgoing.topic, queue.broker_name, address, began_at)
            raise
        if context is not None:
            self._after(context, result, None)
        if self._faults is not None:
            took_s = self._loop.time() - began_at
            self._faults.note(queue.broker_name, took_s, failed=False, reachable=True)
        route = self._instance.routes.publish_route(outgoing.topic)
        if route is not None and route.created_on_demand:
            # The broker has just created the topic, so it has a route of its own now.
            self._instance.routes.refresh_soon(outgoing.topic)
        return result

    def result(
        self, answer: RemotingCommand, queue: MessageQueue, outgoing: Outgoing, address: str
    ) -> SendResult:
        """Return the result that an answer gives for a send to `queue`. Raises RemoteError, ProtocolError."""
        result = result_of(answer, queue, outgoing.unique_id, address)
        if self._namespaced:
            return replace(result, queue=self._namespace.unwrap_queue(result.queue))
        return result

    def begin(self, outgoing: Outgoing, timeout_s: float) -> Attempt | None:
        """Send a request at once, or return None if `send` would wait first, or has to note more than the answer.

        Pass the attempt on to `send` if it fails, else its answer to `result`.
        """
        instance = self._instance
        if (
            self._hooks.around_sends
            or self._faults is not None
            or self._limits.vip_channel
            or self._limits.attempt_timeout_s is not None
            or not instance.heartbeats.all_reached
        ):
            return None
        route = instance.routes.publish_route(outgoing.topic)
        if route is None or route.created_on_demand:
            return None
        queue = route.choose()
        address = instance.routes.master_address(queue.broker_name)
        if address is None:
            return None
        began_at = self._loop.time()
        try:
            answer = instance.remoting.begin_call(address, outgoing.command(queue), timeout_s)
        except CometMQError:  # `send` gets the same error, and may have another broker
            return None
        return None if answer is None else Attempt(queue, address, began_at, timeout_s, answer)

    async def _end(self, outgoing: Outgoing, begun: Attempt) -> SendResult:
        """Return the result of an attempt that `begin` began. Reports a failure as `send_to` does."""
        try:
            return self.result(await begun.answer, begun.queue, outgoing, begun.address)
        except BaseException as error:
            broker_name = begun.queue.broker_name
            self._on_failure(error, outgoing.topic, broker_name, begun.address, begun.began_at)
            raise

    async def send(  # noqa: C901, PLR0912 - the attempts of a send are read in one go
        self,
        outgoing: Outgoing,
        timeout_s: float,
        mode: CommunicationMode = CommunicationMode.SYNC,
        begun: Attempt | None = None,
    ) -> SendResult:
        """Make up to 1 + `retry_times` (ASYNC: 1 + `retry_times_async`) attempts within
        `timeout_s`.

        Each attempt goes to another broker than the one before, if there is another, and to none
        that heartbeats do not reach while they reach another. Raises the
        last attempt's error, with the brokers that were tried. Its `stored` speaks of all attempts.
        The first attempt may have `begun` before this call.
        """
        deadline = timeout_s + (self._loop.time() if begun is None else begun.began_at)
        back_off: BackOff | None = None  # made when needed: thousands of sends may wait at once
        tried: tuple[str, ...] = ()
        stored: SendResult | None = None
        doubt = Stored.NO
        while True:
            avoid = tried[-1] if tried else None
            route = self._instance.routes.publish_route(outgoing.topic)
            first, begun = begun, None
            if first is not None:
                queue = first.queue  # it counts even if the topic has lost its route meanwhile
            else:
                if route is None:
                    try:
                        route = await self.route(outgoing.topic, deadline)
                    except CometMQError as error:
                        if stored is not None:
                            return stored
                        # An answer of a name server says nothing of the message.
                        raise saying(error, doubt) from error.__cause__
                queue = self._choose(route, avoid)
                if not self._instance.heartbeats.all_reached:
                    queue = await self._choose_anew(outgoing.topic, queue, avoid, deadline)
            try:
                until = self._end_of_attempt(deadline, len(tried), mode)
                result = await (
                    self.send_to(outgoing, queue, until, mode, len(tried) + 1)
                    if first is None
                    else self._end(outgoing, first)
                )
            except _AN_ATTEMPT_FAILED as error:
                if await self._is_gone(error, outgoing.topic, queue, deadline):
                    continue
                tried += (queue.broker_name,)
                doubt = of_both(doubt, error.stored)
                if not self._worth_retrying(error, tried, deadline, mode):
                    if stored is not None:
                        return stored
                    raise failure_of(error, outgoing, tried, timeout_s, doubt) from error
                # If there is another broker, the next attempt goes there and need not wait.
                if route is not None and not route.has_other_broker(queue.broker_name):
                    back_off = back_off or BackOff()
                    await back_off.wait(deadline)
            except CometMQError as error:
                raise saying(error, of_both(doubt, error.stored)) from error.__cause__
            else:
                tried += (queue.broker_name,)
                stored, doubt = result, Stored.YES
                if (
                    result.status is SendStatus.SEND_OK
                    or not self._wants_another(mode)
                    or not self._may_retry(tried, deadline, mode)
                ):
                    return result

    async def send_fixed(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        deadline: float,
        mode: CommunicationMode = CommunicationMode.SYNC,
    ) -> SendResult:
        """Send to this queue only: once, or 1 + `retry_times_async` times while no answer comes."""
        back_off: BackOff | None = None
        tried: tuple[str, ...] = ()
        doubt = Stored.NO
        while True:
            try:
                return await self.send_to(outgoing, queue, deadline, mode, len(tried) + 1)
            except CometMQError as error:
                tried += (queue.broker_name,)
                doubt = of_both(doubt, error.stored)
                if (
                    mode is CommunicationMode.SYNC
                    or not isinstance(error, RemotingError | RouteNotFoundError)
                    or not self._worth_retrying(error, tried, deadline, mode)
                ):
                    raise saying(error, doubt) from error.__cause__
            back_off = back_off or BackOff()
            await back_off.wait(deadline)

    def is_open(self, topic: str) -> bool:
        """Say whether `send_oneway_now` is likely to send. For any thread."""
        instance = self._instance
        route = instance.routes.publish_route(topic)
        if (
            route is None
            or self._hooks.around_sends
            or instance.remoting.rpc_hooks.see_answers  # a hook that fails is the caller's error
            or self._limits.vip_channel
            or not instance.heartbeats.all_reached
        ):
            return False
        for name in route.broker_names:
            address = instance.routes.master_address(name)
            connection = None if address is None else instance.remoting.connected(address)
            if connection is None or connection.congested:
                return False
        return True

    def send_oneway_now(self, outgoing: Outgoing) -> tuple[Connection, int] | None:
        """Do as `send_oneway` does with the next queue in turn, or return None if that would wait or fail."""
        queue = self.known_queue(outgoing.topic)
        if queue is None or self._hooks.around_sends:
            return None
        try:
            address = self._address(queue.broker_name, outgoing.topic)
            return self._instance.remoting.send_oneway_now(address, outgoing.command(queue))
        except CometMQError:
            return None

    async def send_oneway(
        self, outgoing: Outgoing, queue: MessageQueue, deadline: float
    ) -> tuple[Connection, int]:
        """Hand the bytes to the connection when it has room. Return the connection and the number
        of bytes.

        Makes one attempt, and raises when there is no route, connection or room.
        """
        address, context = None, None
        began_at = self._loop.time()
        try:
            address = self._address(queue.broker_name, outgoing.topic)
            if self._hooks.around_sends:
                context = self._before(outgoing, queue, address, CommunicationMode.ONEWAY)
            command = outgoing.command(queue)
            remoting = self._instance.remoting
            queued = remoting.send_oneway_now(address, command)
            if queued is None:
                timeout_s = max(0.0, deadline - began_at)
                queued = await remoting.send_oneway_bounded(address, command, timeout_s)
        except BaseException as error:
            self._after(context, None, error)
            self._on_failure(error, outgoing.topic, queue.broker_name, address, began_at)
            raise
        self._after(context, None, None)
        return queued

    async def recall(self, group: str, topic: str, handle: str, timeout_s: float) -> str:
        """Ask the broker that the handle names, once, to recall a timed message. Return the
        message's unique id.
        """
        deadline = self._loop.time() + timeout_s
        try:
            found = RecallHandle.decode(handle)
        except ProtocolError as error:
            raise IllegalArgumentError(str(error)) from error
        if found.topic != topic:
            raise IllegalArgumentError(
                f"the recall handle is for a message of topic {found.topic}, not of {topic}"
            )
        await self.route(topic, deadline)
        address = None
        try:
            address = self._instance.need_master(found.broker_name, topic)
            timeout_s = max(0.0, deadline - self._loop.time())
            return await self._instance.brokers.recall(address, group, topic, handle, timeout_s)
        except (RemotingError, RouteNotFoundError) as error:
            self._instance.report_failure(error, topic, address)
            raise

    def _address(self, broker_name: str, topic: str) -> str:
        address = self._instance.need_master(broker_name, topic)
        return vip_address(address) if self._limits.vip_channel else address

    def _before(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        address: str,
        mode: CommunicationMode,
        attempt: int = 1,
    ) -> SendContext:
        message = outgoing.messages[0]
        context = SendContext(
            self._group,
            outgoing.messages,
            self._namespace.unwrap_queue(queue),
            address,
            mode,
            sum(len(message.body) for message in outgoing.messages),
            self._namespace.name,
            half=message.properties.get(p.TRANSACTION_PREPARED) == "true",
            attempt=attempt,
        )
        self._hooks.before_send(context)
        outgoing.renew_properties(self._limits.max_message_size_bytes)
        return context

    def _after(
        self, context: SendContext | None, result: SendResult | None, error: BaseException | None
    ) -> None:
        if context is not None:
            context.result, context.error = result, error
            self._hooks.after_send(context)

    def _on_failure(
        self,
        error: BaseException,
        topic: str,
        broker_name: str,
        address: str | None,
        began_at: float,
    ) -> None:
        if isinstance(error, CometMQError):
            self._instance.report_failure(error, topic, address)
            if _names_no_queue(error):
                self._instance.routes.refresh_soon(topic)
                return
        if self._faults is None or isinstance(error, TooManyRequestsError):
            return
        if isinstance(error, (RemotingError, RemoteError)):
            took_s = self._loop.time() - began_at
            refused = isinstance(error, RemoteError)
            self._faults.note(broker_name, took_s, failed=True, reachable=not refused)

    def _may_retry(self, tried: Sequence[str], deadline: float, mode: CommunicationMode) -> bool:
        return len(tried) <= self._retries(mode) and self._loop.time() < deadline

    def _retries(self, mode: CommunicationMode) -> int:
        limits = self._limits
        return limits.retry_times_async if mode is CommunicationMode.ASYNC else limits.retry_times

    def _end_of_attempt(self, deadline: float, tried: int, mode: CommunicationMode) -> float:
        """Return the time at which the next attempt is given up (Java 5: canRetryAgain)."""
        timeout_s = self._limits.attempt_timeout_s
        if timeout_s is None or tried >= self._retries(mode):
            return deadline
        return min(deadline, self._loop.time() + timeout_s)

    def _worth_retrying(
        self, error: CometMQError, tried: Sequence[str], deadline: float, mode: CommunicationMode
    ) -> bool:
        if not self._may_retry(tried, deadline, mode):
            return False
        if mode is CommunicationMode.ASYNC:
            # As in Java, a broker's answer is final. So is a limit of this client.
            return not isinstance(error, (RemoteError, SendForbiddenError, TooManyRequestsError))
        return error.retriable or error.refresh_route

    def _wants_another(self, mode: CommunicationMode) -> bool:
        return (
            self._limits.retry_another_broker_when_not_store_ok and mode is CommunicationMode.SYNC
        )


def _names_no_queue(error: CometMQError) -> bool:
    """Say whether a broker may have refused a message because its topic has no such queue."""
    return isinstance(error, RemoteError) and error.code == ResponseCode.INVALID_PARAMETER


def vip_address(address: str) -> str:
    """Return the address of a broker's second port (Java: MixAll.brokerVIPChannel)."""
    host, _, _ = address.rpartition(":")
    return f"{host}:{split_address(address)[1] + _VIP_PORT_OFFSET}"
