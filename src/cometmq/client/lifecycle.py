"""Provide the base of producers and consumers, and the options that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, NamedTuple

from cometmq.client.access import access_of
from cometmq.client.hooks import Hook, HookList
from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.instance import ClientInstance, acquire_instance, release_instance
from cometmq.client.limits import check_client_group, check_name, namesrv_addresses
from cometmq.client.namespaces import Namespace, namespace_of
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.client.running import Lifecycle
from cometmq.model.names import check_group
from cometmq.model.queue import MessageQueue
from cometmq.remoting.credentials import Credentials
from cometmq.remoting.hooks import RpcHook
from cometmq.runtime.clock import Clock
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.sockets.network import Network
from cometmq.tls.contexts import Tls


class Cached(NamedTuple):
    """Counts what a consumer has of a topic: queues, messages not consumed yet, and their bytes."""

    queues: int = 0
    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Says what a client of `group` holds at a moment.

    `connections` are the servers that its connections lead to, which clients of the same
    `instance_name` share. `pending_sends` are the sends of `send_async` that are under way, with
    bodies of `pending_bytes`. `cached` has an entry for each topic that a consumer pulls, and `lag` the
    number of its messages that wait for the consumer, None if the client does not know that of each queue.
    """

    group: str
    connections: frozenset[str] = frozenset()
    pending_sends: int = 0
    pending_bytes: int = 0
    cached: Mapping[str, Cached] = field(default_factory=dict)
    lag: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(repr=False)
class ClientOptions:
    """Holds the options of every client; AsyncClient explains them.

    Raises IllegalArgumentError for a value that breaks a rule.
    """

    group: str
    _: KW_ONLY
    namesrv: str | Sequence[str] | None = None
    instance_name: str = DEFAULT_INSTANCE_NAME
    unit_name: str | None = None
    namespace: str | None = None
    credentials: Credentials | None = None
    tls: bool | Tls | None = None
    # These are no options, but simulations pass them by name, as they do to servers. See `takes`.
    surroundings: ClassVar = frozenset({"clock", "randomness", "network"})
    clock: ClassVar[Clock]
    randomness: ClassVar[Randomness]
    network: ClassVar[Network]

    def __post_init__(self) -> None:
        check_client_group(self.group)
        check_name("instance_name", self.instance_name)
        if self.unit_name:
            check_name("unit_name", self.unit_name)

    def addresses(self) -> list[str]:
        """Return the addresses of the name servers given, else those in the environment."""
        return namesrv_addresses(self.namesrv)


class AsyncClient(Lifecycle[ClientInstance]):
    """Is the base of the asyncio producers and consumers.

    A client belongs to the loop and to the process that started it. In a forked child its methods
    raise ForkedClientError, except `close`, which leaves the parent's connections alone. `start`
    may be tried again after it failed; a closed client stays closed. `close` is idempotent.

    With a `namespace`, topics and groups have other names on the wire than for the user.
    Name-server addresses of hosted instances (`MQ_INST_….`) bring their namespace along. Allocation
    strategies see the names on the wire, as in Java.

    With `credentials`, a `Credentials(access_key, secret_key)`, the client signs every request to
    name servers and brokers. A request that they refuse because of the account raises
    AccessDeniedError. For servers that talk TLS, `tls` is True, or a `Tls` that says which
    certificates count.
    """

    _hook_kinds: ClassVar[tuple[type, ...]] = ()

    def __init__(self, options: ClientOptions) -> None:
        super().__init__()
        self._unique_client_id = True
        self._visible_group = options.group
        self._namesrv = options.addresses()
        self._namespace = Namespace(options.namespace or namespace_of(self._namesrv))
        self._visible_group = self._namespace.unwrap(options.group)
        self._group = self._namespace.wrap(options.group)  # as brokers know it
        check_group(self._group)
        self._access = access_of(options.credentials, options.tls)
        self._hooks = HookList(*self._hook_kinds)
        self._instance_name = options.instance_name
        self._unit_name = options.unit_name
        self._clock = options.clock
        self._randomness = options.randomness
        self._network = options.network

    @property
    def group(self) -> str:
        """The name of the group, without its namespace."""
        return self._visible_group

    @property
    def client_id(self) -> str:
        """The id brokers know this client by, `ip@instance`. Raises ClientStateError unless running."""
        return self.check_started().client_id

    async def _enter(self) -> ClientInstance:
        instance = self._acquire(
            self._instance_name, self._unit_name, unique=self._unique_client_id
        )
        try:
            self._add_rpc_hooks(instance)
            self._begin_trace()
            await self._open(instance)
        except BaseException:
            await self._leave(instance)
            raise
        return instance

    async def _depart(self, instance: ClientInstance) -> None:
        try:
            await self._shut(instance)
        finally:
            await self._leave(instance)

    def add_hook(self, hook: Hook) -> None:
        """Have `hook` called from now on; see `cometmq.client.hooks` for the kinds.

        Raises IllegalArgumentError for an object that is no hook of a kind that this client calls.
        """
        if not self._unstarted:
            instance = self._running()
            if isinstance(hook, RpcHook):
                instance.remoting.rpc_hooks.add(hook)
        self._hooks.add(hook)

    def load(self) -> ClientLoad:
        """Return what the client holds at the moment: nothing unless it runs. For any thread."""
        instance = self._instance
        if instance is None:
            return ClientLoad(self._visible_group)
        cached: dict[str, Cached] = {}
        lags: dict[str, int | None] = {}
        now_ms = self._clock.now_ms()
        queues: set[MessageQueue] = set()  # popped batches of one queue are several process queues
        for process_queue in self._process_queues():
            topic = self._namespace.unwrap(process_queue.queue.topic)
            known = cached.get(topic, Cached())
            cached[topic] = Cached(
                known.queues + (process_queue.queue not in queues),
                known.messages + len(process_queue),
                known.size_bytes + process_queue.size_bytes,
            )
            queues.add(process_queue.queue)
            before, lag = lags.get(topic, 0), process_queue.lag(now_ms)
            lags[topic] = None if before is None or lag is None else before + lag
        sends, sends_bytes = self._pending_sends()
        return ClientLoad(
            self._visible_group, instance.remoting.addresses(), sends, sends_bytes, cached, lags
        )

    def _process_queues(self) -> list[ProcessQueue]:
        """Return the queues that a consumer pulls. For any thread."""
        return []

    def _pending_sends(self) -> tuple[int, int]:
        """Return the sends that a producer has under way, and their bytes. For any thread."""
        return 0, 0

    @abstractmethod
    async def _open(self, instance: ClientInstance) -> None:
        """Begin to work over the shared instance."""

    @abstractmethod
    async def _shut(self, instance: ClientInstance) -> None:
        """End what `_open` began; the instance is released afterwards."""

    def _acquire(
        self, instance_name: str, unit_name: str | None, *, unique: bool = True
    ) -> ClientInstance:
        return acquire_instance(
            self._namesrv,
            instance_name,
            unit_name,
            unique=unique,
            access=self._access,
            clock=self._clock,
            randomness=self._randomness,
            network=self._network,
        )

    def _begin_trace(self) -> None:
        """Begin to trace; a plain client has no traces, see TracedClient."""

    async def _end_trace(self) -> None:
        """End what `_begin_trace` began."""

    def _add_rpc_hooks(self, instance: ClientInstance) -> None:
        for hook in self._hooks.rpc:
            instance.remoting.rpc_hooks.add(hook)

    async def _leave(self, instance: ClientInstance) -> None:
        """Undo what `start` did beside `_open`."""
        try:
            await self._end_trace()
        finally:
            for hook in self._hooks.rpc:
                instance.remoting.rpc_hooks.remove(hook)
            await release_instance(instance)

    def _name(self) -> str:
        group = getattr(self, "_visible_group", "?")
        return f"{type(self).__name__}({group!r})"
