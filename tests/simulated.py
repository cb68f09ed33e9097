"""One process in simulated time: a loop whose clock jumps, and a network that lies in memory."""

from __future__ import annotations

import asyncio
import selectors
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.Protocol)

EPOCH_MS: Final = 1_700_000_000_000


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the time on where a selector of real files would wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits, and no timer is set"
            self.now_s += max(timeout, 0.0)
        return ready


class SimulatedLoop(BaseSelectorEventLoop):
    """Goes to the time of the next timer as soon as nothing else is to be done.

    Work for threads is done at once, and the network of the machine is out of reach.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]  # typeshed's variadic generics say the same
        self, _executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it reaches whoever awaits the future
            done.set_exception(error)
        return done

    async def create_connection(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("a connection of the machine in a simulation")

    async def create_server(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("a listener of the machine in a simulation")


def simulate(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)


class LoopClock:
    """The simulated loop's time, also as the wall's."""

    def __init__(self) -> None:
        self.monotonic = asyncio.get_running_loop().time

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.monotonic() * 1000)


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

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        tls: object,
        handshake_timeout_s: float,
    ) -> _MemoryListener:
        assert tls is None
        port = port or self._free_port()
        if port in self.listeners:
            raise OSError(f"{host}:{port} is taken")
        listener = self.listeners[port] = _MemoryListener(self, port, new_protocol)
        return listener

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port
