"""One process in simulated time: a loop whose clock jumps, and a network that lies in memory."""

from __future__ import annotations

import asyncio
import functools
import selectors
from asyncio.selector_events import BaseSelectorEventLoop
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.Protocol)
Q = ParamSpec("Q")

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

    Work for the loop's own threads is done at once, work for a worker when that is driven to it. The
    network of the machine is out of reach.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]  # typeshed's variadic generics say the same
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
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


def in_simulated_time(test: Callable[Q, Coroutine[Any, Any, None]]) -> Callable[Q, None]:
    """Make a test of a coroutine function: no timer ends while it works, however long that takes."""

    @functools.wraps(test)
    def run(*args: Q.args, **kwargs: Q.kwargs) -> None:
        simulate(test(*args, **kwargs))

    return run


class LoopClock:
    """The simulated loop's time, also as the wall's."""

    def __init__(self) -> None:
        self.monotonic = asyncio.get_running_loop().time

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.monotonic() * 1000)

    def sleep(self, seconds: float, /) -> None:
        """Hold up nobody: there is one thread."""


class _Work(Future[Any]):
    """What a worker has to do. Who blocks on it has the worker do all that it has left."""

    def __init__(self, worker: SimulatedWorker) -> None:
        super().__init__()
        self._worker = worker

    def result(self, timeout: float | None = None) -> Any:
        self._finish()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._finish()
        return super().exception(timeout)

    def _finish(self) -> None:
        if not self.done():
            self._worker.finish()


class SimulatedWorker(Executor):
    """Does its work in the loop's thread, in order, each piece when `delay_s()` has passed since
    the former one was done; `on_done` is called with its name after each.
    """

    def __init__(
        self, name: str, delay_s: Callable[[], float], on_done: Callable[[str], None]
    ) -> None:
        self._name = name
        self._delay_s = delay_s
        self._on_done = on_done
        self._waiting: deque[tuple[_Work, Callable[[], Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_shut_down:
            raise RuntimeError(f"the worker {self._name} is shut down")
        work = _Work(self)
        self._waiting.append((work, partial(fn, *args, **kwargs)))
        self._arm()
        return work

    def finish(self) -> None:
        """Do at once all that is left."""
        while self._waiting:
            self._do_one()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        assert wait, "a worker that nobody waits for would outlive its server"
        assert not cancel_futures
        self._is_shut_down = True
        self.finish()

    def _arm(self) -> None:
        if self._waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay_s(), self._driven)

    def _driven(self) -> None:
        self._timer = None
        self._do_one()
        self._arm()

    def _do_one(self) -> None:
        work, call = self._waiting.popleft()
        if not work.set_running_or_notify_cancel():
            return
        try:
            work.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it reaches whoever waits for the work
            work.set_exception(error)
        self._on_done(self._name)


class SimulatedWorkers:
    """Workers without threads. `history` has the simulated time and the worker of each piece of
    work, in the order in which they were done.
    """

    def __init__(self, delay_s: Callable[[], float] = lambda: 0.001) -> None:
        self._delay_s = delay_s
        self.history: list[tuple[float, str]] = []

    def worker(self, name: str) -> SimulatedWorker:
        return SimulatedWorker(name, self._delay_s, self._done)

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
