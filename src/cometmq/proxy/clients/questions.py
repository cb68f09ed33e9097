"""Pass questions of operators on to gRPC clients: the stacks of their threads, and the run of one message.

Java: ProxyClientRemotingProcessor, ProxyChannel. Brokers know the proxy as one member of a group. `mqadmin
consumerStatus` asks this member, and gets the stacks of the clients behind it; `mqadmin queryMsgById -d` and the
console have one of them consume a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.consumers import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.messages import to_wire
from cometmq.proxy.wire.statuses import RefusedError, ok

if TYPE_CHECKING:
    from cometmq.proxy.clients.clients import Client

# Brokers wait for 10 s.
ANSWER_S: Final = 8.0
# More clients of a group than this are not asked at a time.
MOST_ASKED: Final = 32
_MOST_TEXT: Final = 1024 * 1024
# Other clients throw.
_RESULTS: Final = {
    wire.OK: "CR_SUCCESS",
    wire.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    wire.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


class Questions:
    """Sends commands to clients and waits for their answers. For the loop's thread only.

    `new_nonce` makes the nonces by which answers find their questions.
    """

    def __init__(self, new_nonce: Callable[[], str]) -> None:
        self._new_nonce = new_nonce
        # By client id and nonce, so that no client answers for another one.
        self._asked: dict[tuple[str, str], asyncio.Future[wire.TelemetryCommand]] = {}

    def answered(self, client_id: str, command: wire.TelemetryCommand) -> bool:
        """Take what a client sent; return whether it answers a question."""
        kind = command.WhichOneof("command")
        if kind not in ("thread_stack_trace", "verify_message_result"):
            return False
        asked = self._asked.get((client_id, getattr(command, kind).nonce))
        if asked is None or asked.done():
            return False
        asked.set_result(command)
        return True

    async def stacks(self, client: Client) -> str:
        """Return the stacks of a client's threads, or why they are unknown."""
        try:
            return await self.known_stacks(client)
        except RefusedError as error:
            return f"unknown: {error}"

    async def known_stacks(self, client: Client) -> str:
        """Return the stacks of a client's threads. Raises RefusedError if the client shows none."""
        command = wire.TelemetryCommand(status=ok())
        nonce = command.print_thread_stack_trace_command.nonce = self._new_nonce()
        answer = await self._ask(client, nonce, command)
        if answer.HasField("thread_stack_trace") and answer.thread_stack_trace.thread_stack_trace:
            text: str = answer.thread_stack_trace.thread_stack_trace
            return text
        raise RefusedError(wire.UNSUPPORTED, f"the client answered {_said(answer.status)}")

    async def consumed(self, client: Client, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Have a client's listener consume a message, and report the outcome to a broker."""
        began_s = asyncio.get_running_loop().time()
        try:
            verdict = await self.verdict(client, message)
        except RefusedError as error:
            result, remark = "CR_THROW_EXCEPTION", str(error)
        else:
            result = _RESULTS.get(verdict.code, "CR_THROW_EXCEPTION")
            remark = "" if result == "CR_SUCCESS" else _said(verdict)
        return ConsumeMessageDirectlyResult(
            consume_result=result,
            order=False,
            auto_commit=True,
            spent_time_mills=round((asyncio.get_running_loop().time() - began_s) * 1000),
            remark=f"gRPC client {client.client_id}: {remark}" if remark else None,
        )

    async def verdict(self, client: Client, message: MessageExt) -> wire.Status:
        """Have a client's listener consume a message, and return the client's verdict. Raises RefusedError if it
        does not answer.
        """
        command = wire.TelemetryCommand(status=ok())
        verify = command.verify_message_command
        nonce = verify.nonce = self._new_nonce()
        verify.message.CopyFrom(to_wire(message, wire.Resource(name=message.topic), None))
        return (await self._ask(client, nonce, command)).status

    # Inside

    async def _ask(
        self, client: Client, nonce: str, command: wire.TelemetryCommand
    ) -> wire.TelemetryCommand:
        """Return the client's answer. Raises RefusedError if there is none."""
        if not client.streams:
            raise _silent("the client has no Telemetry stream at the moment")
        if not client.streams[-1].send(command):
            raise _silent("the client does not read its commands")
        key = client.client_id, nonce
        asked = self._asked[key] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S):
                answer: wire.TelemetryCommand = await asked
                return answer
        except TimeoutError as error:
            raise _silent(f"the client did not answer within {ANSWER_S:g} s") from error
        finally:
            del self._asked[key]


class InspectedGroup:
    """Answers brokers' questions about a group's gRPC clients at this proxy.

    `clients` returns these clients; the first one came at `since_ms`.
    """

    def __init__(
        self, group: str, clients: Callable[[str], list[Client]], asks: Questions, since_ms: int
    ) -> None:
        self._group = group
        self._since_ms = since_ms
        self._clients = clients
        self._asks = asks

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the clients pop, and brokers keep their offsets."""

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:  # noqa: ARG002 - as of the protocol
        """Return no offsets: the clients know none."""
        return {}

    def running_info(self) -> ConsumerRunningInfo:
        clients = self._clients(self._group)
        subscriptions: dict[str, SubscriptionData] = {}
        for client in clients:
            subscriptions.update(client.subscriptions)
        named = ";".join(client.client_id for client in clients[:MOST_ASKED])
        properties = {
            "PROP_CONSUME_TYPE": "CONSUME_POP",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._since_ms),
            "consumerGroup": self._group,
            "grpcClients": f"{len(clients)}: {named}",
        }
        return ConsumerRunningInfo(
            properties=properties, subscription_set=list(subscriptions.values())
        )

    async def stacks(self) -> str:
        """Return the stacks of all clients, each under its id."""
        clients = self._clients(self._group)
        asked = clients[:MOST_ASKED]
        texts = await asyncio.gather(*(self._asks.stacks(client) for client in asked))
        parts = [
            f"gRPC client {client.client_id}:\n{text}\n"
            for client, text in zip(asked, texts, strict=True)
        ]
        if len(clients) > len(asked):
            parts.append(
                f"{len(clients) - len(asked)} more clients were not asked, the limit is {MOST_ASKED}\n"
            )
        return "\n".join(parts)[:_MOST_TEXT]

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult | None:
        """Have a client that subscribes to the topic consume a message. Return None if there is none."""
        for client in self._clients(self._group):
            if client.streams and message.topic in client.subscriptions:
                return await self._asks.consumed(client, message)
        return None


def _silent(why: str) -> RefusedError:
    return RefusedError(wire.PROXY_TIMEOUT, why)


def _said(status: wire.Status) -> str:
    known = status.code in wire.Code.values()
    name = wire.Code.Name(status.code) if known else str(status.code)
    return f"{name} {status.message[:1024]}".strip()
