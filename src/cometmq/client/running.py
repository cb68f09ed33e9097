"""Start and close clients: each is new, then runs on one loop, then is closed."""

from __future__ import annotations

import asyncio
import threading
import warnings
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from cometmq.client.faces import BLOCKING_WITH, refuses
from cometmq.client.options import NamesOptions
from cometmq.errors import ClientStateError, ForkedClientError
from cometmq.forks import PROCESS
from cometmq.runtime.surroundings import current

RunningT = TypeVar("RunningT")


class _State(Enum):
    NEW = "is not started; call start() or use it in a with statement"
    STARTING = "is being started"
    RUNNING = "is running"
    CLOSING = "is being closed"
    CLOSED = "is closed; create a new one"


class Lifecycle(NamesOptions, ABC, Generic[RunningT]):
    """Is the base of clients. `RunningT` is the type of a client's working parts, from its start to
    its end.

    A client belongs to the loop and to the process that started it. In a forked child its methods
    raise ForkedClientError, except `close`, which leaves the parent's connections alone. `start`
    may be tried again after it failed; a closed client stays closed. `close` is idempotent.
    """

    _state = _State.NEW  # on the class: __del__ reads it even when the constructor raised

    def __init__(self) -> None:
        self._generation = PROCESS.generation
        self._is_killed = current().is_killed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._instance: RunningT | None = None

    @abstractmethod
    def _name(self) -> str:
        """Return the name of this client in errors and warnings."""

    @abstractmethod
    async def _enter(self) -> RunningT:
        """Begin to work. A failure here leaves nothing behind."""

    @abstractmethod
    async def _depart(self, instance: RunningT) -> None:
        """End what `_enter` began."""

    def _running_now(self) -> None:
        """Do the work that needs a running client, right after its start."""

    async def _wind_down(self) -> None:
        """Do the work that needs a running client, right before `_depart`."""

    def _check_ready(self) -> None:
        """Raise when something needed for the start is missing."""

    async def start(self) -> None:
        """Join the cluster. No name server or broker needs to be up already.

        Raises ClientStateError when started before.
        """
        self._check_process()
        if self._state is not _State.NEW:
            raise ClientStateError(f"{self._name()} {self._state.value}; it can be started once")
        self._check_ready()
        self._state = _State.STARTING
        try:
            instance = await self._enter()
        except BaseException:
            self._state = _State.NEW
            raise
        self._loop = asyncio.get_running_loop()
        self._generation = PROCESS.generation
        self._instance = instance
        self._state = _State.RUNNING
        self._running_now()

    async def close(self) -> None:
        """Leave the cluster. Idempotent; raises ClientStateError on another loop than start's."""
        if self._inherited or self._state in (_State.NEW, _State.CLOSED):
            self.close_unstarted()
            return
        instance = self._running()
        if self._state is _State.CLOSING:
            return
        self._state = _State.CLOSING
        try:
            await self._wind_down()
        finally:
            self._state = _State.CLOSED
            self._instance = None
            await self._depart(instance)

    @property
    def _inherited(self) -> bool:
        """True when the parent started the client, before this process was forked."""
        return (
            self._state in (_State.STARTING, _State.RUNNING, _State.CLOSING)
            and self._generation != PROCESS.generation
        )

    def _abandon(self) -> None:
        """Forget the instance and the loop, which has ended or, in a forked child, is the parent's."""
        PROCESS.keep((self._instance, self._loop))
        self._instance = None
        self._state = _State.CLOSED

    def close_unstarted(self) -> None:
        """Close a client that does not run in this process: it was never started, the parent process
        started it, or its loop has ended. Does nothing to a closed client."""
        if self._inherited or (self._loop is not None and self._loop.is_closed()):
            self._abandon()
            return
        assert self._instance is None, "a running client is closed by close()"
        self._state = _State.CLOSED

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refuses("with", BLOCKING_WITH)

    def __del__(self) -> None:
        if self._state is _State.RUNNING and not self._inherited and not self._is_killed():
            warnings.warn(
                f"unclosed {self._name()}; call close() or use it in a with statement",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def check_started(self) -> RunningT:
        """Return the client's working parts. Raises ClientStateError unless started and not
        closed.
        """
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

    def _running(self) -> RunningT:
        """Return the instance. Raises ClientStateError unless started, not closed, and on the loop
        that started the client."""
        instance = self.check_started()
        if _current_loop() is not self._loop:
            raise ClientStateError(
                f"{self._name()} was started on another event loop; a client is used on the loop "
                "that started it: create one per loop, or use the blocking class of this name in "
                "cometmq, which any thread may call"
            )
        return instance

    @property
    def _unstarted(self) -> bool:
        return self._state in (_State.NEW, _State.STARTING)


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def check_main_thread(name: str) -> None:
    """Raise ClientStateError in a thread that gets no signals."""
    if threading.current_thread() is not threading.main_thread():
        raise ClientStateError(
            f"{name} runs until a signal comes, which only the main thread gets; call run() there, or "
            "start() and close() here"
        )
