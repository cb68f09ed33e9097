"""Helpers for tests of single parts in simulated time: a clock, workers and a network in memory.

The loop and the worker are those of `cometmq.testing.virtual`. A test of several processes takes a
`World` or a `Cluster` of `cometmq.testing` instead.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar

from cometmq.runtime.sockets.arrivals import Arrival
from cometmq.testing import virtual
from cometmq.testing.virtual.clock import EPOCH_MS
from cometmq.testing.virtual.workers import VirtualWorker

__all__ = ["EPOCH_MS", "LoopClock", "MemoryNetwork", "SimulatedWorkers", "in_simulated_time"]

P = TypeVar("P", bound=asyncio.Protocol)
Q = ParamSpec("Q")


def in_simulated_time(test: Callable[Q, Coroutine[Any, Any, None]]) -> Callable[Q, None]:
    """Make a test of a coroutine function: no timer ends while it works, however long that takes."""

    @functools.wraps(test)
    def run(*args: Q.args, **kwargs: Q.kwargs) -> None:
        virtual.run(test(*args, **kwargs))

    return run


class LoopClock:
    """The running loop's time, also as the wall's."""

    def __init__(self) -> None:
        self.monotonic = asyncio.get_running_loop().time

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.monotonic() * 1000)

    def sleep(self, seconds: float, /) -> None:
        """Hold up nobody: there is one thread."""


class SimulatedWorkers:
    """Workers whose pieces of work take as long as the test says. `history` has the simulated time
    and the worker of each piece of work, in the order in which they were done.
    """

    def __init__(self, delay_s: Callable[[], float] = lambda: 0.001) -> None:
        self._delay_s = delay_s
        self.history: list[tuple[float, str]] = []

    def worker(self, name: str) -> VirtualWorker:
        return VirtualWorker(name, self._delay_s, self._done)

    def _done(self, name: str) -> None:
        self.history.append((asyncio.get_running_loop().time(), name))


class _MemoryTransport(asyncio.Transport):
    """One end of a connection; what it writes reaches the other end in a later turn of the loop."""

    def __init__(self, protocol: asyncio.Protocol, own: int, far: int) -> None:
        super().__init__({"sockname": ("127.0.0.1", own), "peername": ("127.0.0.1", far)})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._far: _MemoryTransport | None = None
        self._closing = False
        self._reading = True
        self._unread: list[bytes] = []

    def join(self, far: _MemoryTransport) -> None:
        self._far, far._far = far, self

    def made(self) -> None:
        self._protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing and self._far is not None:
            self._loop.call_soon(self._far._arrives, bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        unread, self._unread = self._unread, []
        for data in unread:
            self._arrives(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything that is written is taken at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.call_soon(self._protocol.connection_lost, None)
        if self._far is not None:
            self._loop.call_soon(self._far.close)

    abort = close

    def _arrives(self, data: bytes) -> None:
        if self._closing:
            return
        if self._reading:
            self._protocol.data_received(data)
        else:
            self._unread.append(data)


class _MemoryListener:
    def __init__(self, network: MemoryNetwork, port: int, new: Callable[[], asyncio.Protocol]):
        self._network = network
        self.port = port
        self.new_protocol = new
        self.accepts = False

    async def start(self) -> None:
        self.accepts = True

    def close(self) -> None:
        self._network.listeners.pop(self.port, None)

    async def wait_closed(self) -> None:
        pass


class MemoryNetwork:
    """Lies in memory; the host of an address is not looked at."""

    def __init__(self) -> None:
        self.listeners: dict[int, _MemoryListener] = {}
        self._next_port = 50_000

    def own_address(self, host: str, port: int) -> str:
        return "127.0.0.1"

    async def resolve(self, host: str) -> str:
        return host

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: object
    ) -> P:
        assert tls is None
        await asyncio.sleep(0)
        listener = self.listeners.get(port)
        if listener is None or not listener.accepts:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        protocol, own = new_protocol(), self._free_port()
        near = _MemoryTransport(protocol, own, port)
        far = _MemoryTransport(listener.new_protocol(), port, own)
        near.join(far)
        far.made()
        near.made()
        return protocol

    async def accept(
        self, on_arrival: Callable[[Arrival], None], host: str, port: int, *, backlog: int
    ) -> _MemoryListener:
        raise AssertionError("connections in memory are not encrypted")

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
    ) -> _MemoryListener:
        port = port or self._free_port()
        if port in self.listeners:
            raise OSError(f"{host}:{port} is taken")
        listener = self.listeners[port] = _MemoryListener(self, port, new_protocol)
        return listener

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port
