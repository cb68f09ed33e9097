"""Starts and closes client objects: a client is new, then runs on one loop, then is closed."""

from __future__ import annotations

import asyncio
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import ClassVar, Self

from cometmq.client.access import access_of
from cometmq.client.hooks import Hook, HookList
from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.instance import ClientInstance, acquire_instance, release_instance
from cometmq.client.limits import check_client_group, check_name, parse_addresses
from cometmq.client.logs import use_standard_logging
from cometmq.client.namespaces import Namespace, namespace_of
from cometmq.client.options import NamesOptions
from cometmq.errors import ClientStateError, ForkedClientError, IllegalArgumentError
from cometmq.model.names import check_group
from cometmq.remoting.credentials import Credentials
from cometmq.remoting.hooks import RpcHook
from cometmq.remoting.tls import Tls
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.forks import PROCESS
from cometmq.runtime.network import TCP_NETWORK, Network
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness

NAMESRV_VARIABLE = "NAMESRV_ADDR"


class _State(Enum):
    NEW = "is not started; call start() or use it in a with statement"
    STARTING = "is being started"
    RUNNING = "is running"
    CLOSED = "is closed; create a new one"


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
    clock: ClassVar[Clock] = SYSTEM_CLOCK
    randomness: ClassVar[Randomness] = SYSTEM_RANDOMNESS
    network: ClassVar[Network] = TCP_NETWORK

    def __post_init__(self) -> None:
        check_client_group(self.group)
        check_name("instance_name", self.instance_name)
        if self.unit_name:
            check_name("unit_name", self.unit_name)

    def addresses(self) -> list[str]:
        """Return the addresses of the name servers given, else those in the environment."""
        given = self.namesrv if self.namesrv is not None else os.environ.get(NAMESRV_VARIABLE)
        if given is None:
            raise IllegalArgumentError(
                "no name-server address given; pass namesrv='host:9876' or set the environment "
                f"variable {NAMESRV_VARIABLE}"
            )
        return parse_addresses(given)


class AsyncClient(NamesOptions, ABC):
    """Is the base of the asyncio producers and consumers.

    A client belongs to the loop and to the process that started it. In a forked child its methods
    raise ForkedClientError, except `close`, which leaves the parent's connections alone. `start`
    may be tried again after it failed; a closed client stays closed. `close` is idempotent.

    With a `namespace`, topics and groups have other names on the wire than for the user.
    Name-server addresses of hosted instances (`MQ_INST_….`) bring their namespace along. Allocation
    strategies see the names on the wire, as in Java.

    With `credentials`, a `Credentials(access_key, secret_key)`, the client signs every request to
    name servers and brokers. A request that they refuse because of who asks raises
    AccessDeniedError. For servers that talk TLS, `tls` is True, or a `Tls` that says which
    certificates count.
    """

    _hook_kinds: ClassVar[tuple[type, ...]] = ()
    _state = _State.NEW  # on the class: __del__ reads it even when the constructor raised

    def __init__(self, options: ClientOptions) -> None:
        self._unique_client_id = True
        self._generation = PROCESS.generation
        self._loop: asyncio.AbstractEventLoop | None = None
        self._instance: ClientInstance | None = None
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

    async def start(self) -> None:
        """Join the cluster. No name server or broker needs to be up already.

        Raises ClientStateError when started before.
        """
        self._check_process()
        if self._state is not _State.NEW:
            raise ClientStateError(f"{self._name()} {self._state.value}; it can be started once")
        self._check_ready()
        use_standard_logging()
        self._state = _State.STARTING
        try:
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
        except BaseException:
            self._state = _State.NEW
            raise
        self._loop = asyncio.get_running_loop()
        self._generation = PROCESS.generation
        self._instance = instance
        self._state = _State.RUNNING

    async def close(self) -> None:
        """Leave the cluster. Idempotent; raises ClientStateError on another loop than start's."""
        if self._inherited or self._state in (_State.NEW, _State.CLOSED):
            self.close_unstarted()
            return
        instance = self._running()
        self._state = _State.CLOSED
        self._instance = None
        try:
            await self._shut(instance)
        finally:
            await self._leave(instance)

    def add_hook(self, hook: Hook) -> None:
        """Have `hook` called from now on; see `cometmq.client.hooks` for the kinds.

        Raises IllegalArgumentError for an object that is no hook of a kind that this client calls.
        """
        if self._state is not _State.NEW:
            instance = self._running()
            if isinstance(hook, RpcHook):
                instance.remoting.rpc_hooks.add(hook)
        self._hooks.add(hook)

    @property
    def _inherited(self) -> bool:
        """True when the parent started the client, before this process was forked."""
        return (
            self._state in (_State.STARTING, _State.RUNNING)
            and self._generation != PROCESS.generation
        )

    def _abandon(self) -> None:
        """Forget, in a forked child, the instance and the loop that the parent goes on with."""
        PROCESS.keep((self._instance, self._loop))
        self._instance = None
        self._state = _State.CLOSED

    def close_unstarted(self) -> None:
        """Close a client that does not run in this process: it was never started, or the parent
        process started it. Does nothing to a closed client."""
        if self._inherited:
            self._abandon()
            return
        assert self._instance is None, "a running client is closed by close()"
        self._state = _State.CLOSED

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._state is _State.RUNNING and not self._inherited:
            warnings.warn(
                f"unclosed {self._name()}; call close() or use it in a with statement",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def check_started(self) -> ClientInstance:
        """Return the shared instance. Raises ClientStateError unless started and not closed."""
        if self._generation != PROCESS.generation:
            self._check_process()
        if self._instance is None:
            raise ClientStateError(f"{self._name()} {self._state.value}")
        return self._instance

    def _check_process(self) -> None:
        if self._inherited:
            raise ForkedClientError(
                f"{self._name()} was started before the fork and belongs to the parent process; "
                "create and start a client in the child (os.fork, multiprocessing: in the worker)"
            )

    def _check_ready(self) -> None:
        """Raise when something needed for the start is missing."""

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

    def _running(self) -> ClientInstance:
        """Return the instance. Raises ClientStateError unless started, not closed, and on the loop
        that started the client."""
        instance = self.check_started()
        if _current_loop() is not self._loop:
            raise ClientStateError(
                f"{self._name()} was started on another event loop; a client is used on the loop "
                "that started it: create one per loop, or use the blocking cometmq.Producer and "
                "cometmq.PushConsumer, which any thread may call"
            )
        return instance

    @property
    def _unstarted(self) -> bool:
        return self._state in (_State.NEW, _State.STARTING)

    def _name(self) -> str:
        group = getattr(self, "_visible_group", "?")
        return f"{type(self).__name__}({group!r})"


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
