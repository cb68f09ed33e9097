"""The life of a client object: new, running on one loop, closed."""

from __future__ import annotations

import asyncio
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Self

from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.instance import ClientInstance, acquire_instance, release_instance
from cometmq.client.limits import check_client_group, parse_addresses
from cometmq.client.logs import use_standard_logging
from cometmq.errors import ClientStateError, IllegalArgumentError

NAMESRV_VARIABLE = "NAMESRV_ADDR"


class _State(Enum):
    NEW = "is not started; call start() or use it in a with statement"
    STARTING = "is being started"
    RUNNING = "is running"
    CLOSED = "is closed; create a new one"


class AsyncClient(ABC):
    """Base of the asyncio producers and consumers.

    A client belongs to the loop on which it was started. `start` may be tried again after it
    failed; a closed client stays closed. `close` is idempotent.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        unit_name: str | None = None,
    ) -> None:
        self._state = _State.NEW  # first, for __del__ of an object whose arguments are refused
        self._unique_client_id = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._instance: ClientInstance | None = None
        check_client_group(group)
        self._group = group
        addresses = namesrv if namesrv is not None else os.environ.get(NAMESRV_VARIABLE)
        if addresses is None:
            raise IllegalArgumentError(
                "no name-server address given; pass namesrv='host:9876' or set the environment "
                f"variable {NAMESRV_VARIABLE}"
            )
        self._namesrv = parse_addresses(addresses)
        self._instance_name = instance_name
        self._unit_name = unit_name

    @property
    def group(self) -> str:
        return self._group

    @property
    def client_id(self) -> str:
        """The id brokers know this client by, `ip@instance`. Raises ClientStateError unless running."""
        return self.check_started().client_id

    async def start(self) -> None:
        """Join the cluster. Does not need a name server or broker to be up already.

        Raises ClientStateError when started before.
        """
        if self._state is not _State.NEW:
            raise ClientStateError(f"{self._name()} {self._state.value}; it can be started once")
        self._check_ready()
        use_standard_logging()
        self._state = _State.STARTING
        try:
            instance = acquire_instance(
                self._namesrv,
                self._instance_name,
                self._unit_name,
                unique=self._unique_client_id,
            )
            try:
                await self._open(instance)
            except BaseException:
                await release_instance(instance)
                raise
        except BaseException:
            self._state = _State.NEW
            raise
        self._loop = asyncio.get_running_loop()
        self._instance = instance
        self._state = _State.RUNNING

    async def close(self) -> None:
        """Leave the cluster. Idempotent; raises ClientStateError on another loop than start's."""
        if self._state in (_State.NEW, _State.CLOSED):
            self.close_unstarted()
            return
        instance = self._running()
        self._state = _State.CLOSED
        self._instance = None
        try:
            await self._shut(instance)
        finally:
            await release_instance(instance)

    def close_unstarted(self) -> None:
        """Close a client that was never started; without effect on a closed one."""
        assert self._instance is None, "a running client is closed by close()"
        self._state = _State.CLOSED

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._state is _State.RUNNING:
            warnings.warn(
                f"unclosed {self._name()}; call close() or use it in a with statement",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def check_started(self) -> ClientInstance:
        """The shared instance. Raises ClientStateError unless started and not closed."""
        if self._instance is None:
            raise ClientStateError(f"{self._name()} {self._state.value}")
        return self._instance

    def _check_ready(self) -> None:  # noqa: B027 - most need nothing more
        """Raise when something needed for the start is missing."""

    @abstractmethod
    async def _open(self, instance: ClientInstance) -> None:
        """Begin to work over the shared instance."""

    @abstractmethod
    async def _shut(self, instance: ClientInstance) -> None:
        """End what `_open` began; the instance is released afterwards."""

    def _running(self) -> ClientInstance:
        """The instance, for a call on the right loop between start and close."""
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
        group = getattr(self, "_group", "?")
        return f"{type(self).__name__}({group!r})"


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
