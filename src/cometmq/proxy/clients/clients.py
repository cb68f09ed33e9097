"""Keep the settings and the Telemetry streams of clients (Java: GrpcClientSettingsManager, ClientActivity)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import grpc

from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError, IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.logs.loggers import get_logger
from cometmq.metrics.limit_hits import LimitHits
from cometmq.model.subscription import (
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    ConsumerData,
    SubscriptionData,
)
from cometmq.proxy.calls import Caller, Calls, Context
from cometmq.proxy.clients.questions import InspectedGroup, Questions
from cometmq.proxy.clients.settings import merged
from cometmq.proxy.configuration.config import (
    MAX_CLIENTS,
    MAX_STREAMS_PER_CLIENT,
    MAX_TOPICS_OF_CLIENT,
)
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.parsing import parsed
from cometmq.proxy.wire.statuses import RefusedError, ok
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# How many commands may wait in a stream for the client to read them.
MAX_WAITING_COMMANDS: Final = 256
# Clients open a stream that ended again after 1 s (Java, Node) or within their next few calls.
_REOPENED_S: Final = 5.0
# The most characters to remember of a text that a client sends about itself.
_LONGEST_TEXT: Final = 128
_CONSUMERS: Final = (wire.PUSH_CONSUMER, wire.SIMPLE_CONSUMER, wire.PULL_CONSUMER)
_LITE: Final = (wire.LITE_PUSH_CONSUMER, wire.LITE_SIMPLE_CONSUMER)


class Stream:
    """Holds the commands of one open Telemetry stream. The command None ends the stream."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[wire.TelemetryCommand | CometMQError | None] = asyncio.Queue(
            MAX_WAITING_COMMANDS
        )

    def send(self, command: wire.TelemetryCommand | CometMQError | None) -> bool:
        """Queue a command for the client; return False if too many wait already."""
        if self.commands.full():
            return False
        self.commands.put_nowait(command)
        return True


class Agent(NamedTuple):
    """Holds a client's report of itself, and its address."""

    language: str = ""
    version: str = ""
    host_name: str = ""
    ip: str = ""

    @classmethod
    def of(cls, caller: Caller, given: wire.UA) -> Agent:
        known = given.language in wire.Language.values()
        language = wire.Language.Name(given.language) if known else str(given.language)
        version = given.version or caller.version
        return cls(language, version[:_LONGEST_TEXT], given.hostname[:_LONGEST_TEXT], caller.ip)


class Client:
    """A client by its id, which belongs to the user `account` as long as the client is known."""

    def __init__(self, client_id: str, account: str) -> None:
        self.client_id = client_id
        self.account = account
        self.kind: wire.ClientType = wire.CLIENT_TYPE_UNSPECIFIED
        self.agent = Agent()
        self.group: str | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.published: frozenset[str] = frozenset()
        self.streams: list[Stream] = []
        # When the last stream ended.
        self.left_s = asyncio.get_running_loop().time()
        self.seen_s = asyncio.get_running_loop().time()


class _Member:
    """Represents all of the proxy's clients of a group as one member of it at brokers."""

    def __init__(self, group: str, clients: Callable[[str], list[Client]]) -> None:
        self.group = group
        self._clients = clients

    def consumer_data(self) -> ConsumerData:
        subscriptions: dict[str, SubscriptionData] = {}
        for client in self._clients(self.group):
            subscriptions.update(client.subscriptions)
        return ConsumerData(
            self.group, "CONSUME_POP", subscription_data_set=list(subscriptions.values())
        )

    def rebalance_soon(self) -> None:
        """Do nothing: members share all queues."""


class Clients:
    """Holds the clients by id. `add_producer` is called with a topic to which a client publishes."""

    def __init__(
        self,
        instance: ClientInstance,
        metadata: Metadata,
        tasks: TaskOwner,
        add_producer: Callable[[str], None],
        settings: ProxySettings,
        calls: Calls,
    ) -> None:
        self._instance = instance
        self._calls = calls
        self._metadata = metadata
        self._tasks = tasks
        self._add_producer = add_producer
        self._settings = settings
        self._by_id: dict[str, Client] = {}
        self._groups: dict[str, dict[str, Client]] = {}
        self.questions = Questions(partial(instance.randomness.token_hex, 16))
        self.is_draining = False
        # How many Telemetry streams are open.
        self.stream_count = 0

    @property
    def limit_hits(self) -> LimitHits:
        return self._calls.hits

    def __len__(self) -> int:
        return len(self._by_id)

    def known(self, caller: Caller) -> Client:
        """Return the client that calls. Raises RefusedError if it is unknown, or another user's."""
        client = self._by_id.get(caller.client_id)
        if client is None:
            raise RefusedError(
                wire.UNRECOGNIZED_CLIENT_TYPE,
                f"client {caller.client_id} is unknown here; send its settings over Telemetry first",
            )
        _check_owner(client, caller)
        return client

    def members_of(self, group: str) -> list[Client]:
        """Return the clients of a group that this proxy knows."""
        return list(self._groups.get(group, {}).values())

    def member(self, group: str, client_id: str) -> Client | None:
        """Return a client of a group, None if this proxy does not know it."""
        return self._groups.get(group, {}).get(client_id)

    def count_by_role(self) -> tuple[int, int]:
        """Return how many producers and how many consumers are known."""
        producers = sum(client.kind == wire.PRODUCER for client in self._by_id.values())
        return producers, len(self._by_id) - producers

    def check_owner(self, caller: Caller) -> None:
        """Raise RefusedError if another user has introduced this client here."""
        client = self._by_id.get(caller.client_id)
        if client is not None:
            _check_owner(client, caller)

    def is_gone(self, client_id: str) -> bool:
        """Say whether a client has no stream here, and does not open one again as clients do.

        While the proxy stops, clients are on their way to another one.
        """
        client = self._by_id.get(client_id)
        if self.is_draining or (client is not None and client.streams):
            return False
        return client is None or asyncio.get_running_loop().time() - client.left_s > _REOPENED_S

    def publisher(self, topic: str) -> Stream | None:
        """Return a stream of a client that publishes to `topic`, of several clients in turn."""
        for client_id, client in self._by_id.items():
            if topic in client.published and client.streams:
                self._by_id[client_id] = self._by_id.pop(client_id)
                return client.streams[-1]
        return None

    def drain(self) -> None:
        """Have all clients reconnect, and end their streams."""
        self.is_draining = True
        for client in self._by_id.values():
            for stream in client.streams:
                stream.send(
                    wire.TelemetryCommand(
                        status=ok(),
                        reconnect_endpoints_command=wire.ReconnectEndpointsCommand(nonce="drain"),
                    )
                )
                stream.send(None)

    async def expire(self) -> None:
        """Forget clients that have no stream and have sent no heartbeat for a while."""
        oldest_s = asyncio.get_running_loop().time() - self._settings.channel_expired_timeout / 1000
        for client in list(self._by_id.values()):
            if not client.streams and client.seen_s < oldest_s:
                await self._forget(client)

    # Calls

    async def heartbeat(
        self, caller: Caller, _request: wire.HeartbeatRequest
    ) -> wire.HeartbeatResponse:
        self.known(caller).seen_s = asyncio.get_running_loop().time()
        return wire.HeartbeatResponse(status=ok())

    async def terminate(
        self, caller: Caller, _request: wire.NotifyClientTerminationRequest
    ) -> wire.NotifyClientTerminationResponse:
        await self._forget(self.known(caller))
        return wire.NotifyClientTerminationResponse(status=ok())

    async def telemetry(self, requests: object, context: Context) -> None:
        """Serve a stream until the client or the proxy ends it."""
        del requests  # _read reads the requests from the context
        try:
            caller = await self._calls.caller(context)
            if self.is_draining:
                raise RefusedError(
                    wire.TOO_MANY_REQUESTS, "this proxy is stopping; connect to another one"
                )
        except RefusedError as error:
            self._calls.refused(error)
            self._calls.count("Telemetry", error.status_code)
            await context.abort(_grpc_code(error.status_code), str(error))
        await context.send_initial_metadata(())
        stream = Stream()
        self.stream_count += 1
        reader = self._tasks.spawn(self._read(caller, context, stream), "telemetry")
        try:
            while (command := await stream.commands.get()) is not None:
                if isinstance(command, CometMQError):
                    refusal = self._calls.refused(command)
                    self._calls.count("Telemetry", refusal.code)
                    await context.abort(_grpc_code(refusal.code), refusal.message)
                await context.write(command)
            self._calls.count("Telemetry", wire.OK)
        finally:
            self.stream_count -= 1
            reader.cancel()
            client = self._by_id.get(caller.client_id)
            if client is not None and stream in client.streams:
                client.streams.remove(stream)
                client.left_s = client.seen_s = asyncio.get_running_loop().time()

    # Inside

    async def _read(self, caller: Caller, context: Context, stream: Stream) -> None:
        try:
            while (raw := await context.read()) is not grpc.aio.EOF:
                command = parsed(wire.TelemetryCommand, raw)
                if command.WhichOneof("command") != "settings":
                    if not self.questions.answered(caller.client_id, command):
                        log.info(
                            "an answer is dropped: it is too late, or nobody asked",
                            client=caller.client_id,
                        )
                    continue
                with self._calls.under_way(len(raw)):
                    await self._calls.authorise(caller, "Telemetry", command.settings)
                    settings = await self._take(caller, command.settings, stream)
                stream.send(wire.TelemetryCommand(status=ok(), settings=settings))
            end: CometMQError | None = None
        except CometMQError as error:
            end = error
        if not stream.send(end):
            stream.commands.get_nowait()
            stream.send(end)

    async def _take(self, caller: Caller, settings: wire.Settings, stream: Stream) -> wire.Settings:
        """Register a client with its settings, and return the merged ones. Raises RefusedError and errors of brokers."""
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise RefusedError(
                wire.BAD_REQUEST, "settings name neither publishing nor subscription"
            )
        client = self._by_id.get(caller.client_id)
        if client is None:
            if len(self._by_id) >= MAX_CLIENTS:
                raise RefusedError(
                    wire.TOO_MANY_REQUESTS,
                    f"{len(self._by_id)} clients are known, the limit MAX_CLIENTS is {MAX_CLIENTS}; "
                    "start another proxy",
                    "MAX_CLIENTS",
                )
            client = self._by_id[caller.client_id] = Client(caller.client_id, caller.account)
        _check_owner(client, caller)
        if stream not in client.streams:
            if len(client.streams) >= MAX_STREAMS_PER_CLIENT:
                raise RefusedError(
                    wire.TOO_MANY_REQUESTS,
                    f"client {caller.client_id} has {len(client.streams)} Telemetry streams, the limit "
                    f"MAX_STREAMS_PER_CLIENT is {MAX_STREAMS_PER_CLIENT}; close some",
                    "MAX_STREAMS_PER_CLIENT",
                )
            client.streams.append(stream)
        client.kind = settings.client_type
        client.agent = Agent.of(caller, settings.user_agent)
        if kind == "publishing":
            await self._publish(client, settings.publishing)
            return merged(settings, None, self._settings)
        group = await self._subscribe(client, settings)
        topic = next(iter(client.subscriptions), None)
        return merged(settings, await self._metadata.group(group, topic), self._settings)

    async def _publish(self, client: Client, publishing: wire.Publishing) -> None:
        _check_count(len(publishing.topics))
        client.published = frozenset(map(topic_of, publishing.topics))
        for topic in sorted(client.published):
            if await self._metadata.topic_type(topic) in ("TRANSACTION", "MIXED"):
                self._add_producer(topic)

    async def _subscribe(self, client: Client, settings: wire.Settings) -> str:
        if settings.client_type in _LITE:
            raise RefusedError(
                wire.UNSUPPORTED,
                f"clients of type {wire.ClientType.Name(settings.client_type)} need lite topics, which this "
                "proxy does not serve; use a push or simple consumer",
            )
        if settings.client_type not in _CONSUMERS:
            raise RefusedError(
                wire.UNRECOGNIZED_CLIENT_TYPE,
                "only a push, simple or pull consumer may send a subscription",
            )
        entries = settings.subscription.subscriptions
        _check_count(len(entries))
        group = group_of(settings.subscription.group)
        subscriptions = {}
        for entry in entries:
            topic = topic_of(entry.topic)
            subscriptions[topic] = subscription_of(topic, entry.expression)
        if client.group not in (None, group):
            await self._leave(client)
        is_new = (client.group, client.subscriptions) != (group, subscriptions)
        client.group, client.subscriptions = group, subscriptions
        members = self._groups.setdefault(group, {})
        if not members:
            now_ms = self._instance.clock.now_ms()
            inspected = InspectedGroup(group, self.members_of, self.questions, now_ms)
            self._instance.add_consumer(_Member(group, self.members_of), inspected)
        members[client.client_id] = client
        for topic in subscriptions:
            await self._metadata.route(topic)
        if is_new:
            self._instance.heartbeats.beat_soon()
        return group

    async def _forget(self, client: Client) -> None:
        self._by_id.pop(client.client_id, None)
        for stream in client.streams:
            stream.send(None)
        await self._leave(client)

    async def _leave(self, client: Client) -> None:
        members = self._groups.get(client.group or "")
        if members is None or members.pop(client.client_id, None) is None or members:
            return
        assert client.group is not None, "it was a member"
        del self._groups[client.group]
        await self._instance.remove_consumer(client.group)


def _grpc_code(code: int) -> grpc.StatusCode:
    """Return the gRPC error with which Telemetry ends (Java: ClientActivity)."""
    if 40000 <= code < 50000:
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.INTERNAL


def subscription_of(topic: str, expression: wire.FilterExpression) -> SubscriptionData:
    """Return a subscription to `topic`. Raises RefusedError for an invalid expression."""
    kind = EXPRESSION_SQL92 if expression.type == wire.SQL else EXPRESSION_TAG
    try:
        return build_subscription(topic, expression.expression, kind)
    except IllegalArgumentError as error:
        raise RefusedError(wire.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def _check_owner(client: Client, caller: Caller) -> None:
    if client.account != caller.account:
        raise RefusedError(
            wire.FORBIDDEN,
            f"the id {caller.client_id} is that of a client of another user than User:{caller.account}; "
            "use an id of its own",
        )


def _check_count(count: int) -> None:
    if count > MAX_TOPICS_OF_CLIENT:
        raise RefusedError(
            wire.BAD_REQUEST,
            f"settings name {count} topics, the limit MAX_TOPICS_OF_CLIENT is {MAX_TOPICS_OF_CLIENT}; "
            "divide them among clients",
            "MAX_TOPICS_OF_CLIENT",
        )
