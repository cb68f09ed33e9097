"""Lies in memory (a first form, whose faults have signatures only)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from typing import TypeVar

from cometmq.runtime.randomness import Randomness

P = TypeVar("P", bound=asyncio.Protocol)


class _MemoryTransport(asyncio.Transport):
    """One end of a connection; what it writes reaches the other end in a later turn of the loop."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        own: tuple[str, int],
        far: tuple[str, int],
        context: Context,
    ) -> None:
        super().__init__({"sockname": own, "peername": far})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._context = context
        self._far: _MemoryTransport | None = None
        self._closing = False
        self._reading = True
        self._unread: list[bytes] = []

    def join(self, far: _MemoryTransport) -> None:
        self._far, far._far = far, self

    def made(self) -> None:
        self._context.copy().run(self._protocol.connection_made, self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing and self._far is not None:
            self._loop.call_soon(self._far._arrives, bytes(data), context=self._far._context.copy())

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
        self._loop.call_soon(self._protocol.connection_lost, None, context=self._context.copy())
        if self._far is not None:
            self._loop.call_soon(self._far.close, context=self._far._context.copy())

    abort = close

    def _arrives(self, data: bytes) -> None:
        if self._closing:
            return
        if self._reading:
            self._protocol.data_received(data)
        else:
            self._unread.append(data)


class _MemoryListener:
    def __init__(
        self,
        network: VirtualNetwork,
        address: tuple[str, int],
        new: Callable[[], asyncio.Protocol],
    ):
        self._network = network
        self.address = address
        self.port = address[1]
        self.new_protocol = new
        self.context = copy_context()
        self.accepts = False

    async def start(self) -> None:
        self.accepts = True

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)

    async def wait_closed(self) -> None:
        pass


class VirtualNetwork:
    """Joins the networks of all nodes."""

    def __init__(
        self,
        randomness: Randomness,
        *,
        latency_s: tuple[float, float] = (0.0001, 0.002),
        split_chance: float = 0.1,
        record: Callable[[str, str], None] = lambda _node, _event: None,
    ) -> None:
        self.listeners: dict[tuple[str, int], _MemoryListener] = {}
        self._next_port = 50_000

    def of(self, host: str) -> HostNetwork:
        """Return the network of the node whose address is `host`."""
        return HostNetwork(self, host)

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def add(self, name: str, host: str) -> None:
        """Give the host with the IP address `host` a name, which connections and faults may use."""
        raise NotImplementedError

    # Faults. `a`, `b` and `node` are names or IP addresses. Those of a link work both ways unless
    # `one_way` says that only what goes from `a` to `b` is concerned.

    def cut(self, a: str, b: str) -> None:
        """Reset all connections between two nodes and refuse new ones."""
        raise NotImplementedError

    def blackhole(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Let whatever is sent vanish without a word.

        Connections hang and new ones are not answered. Bytes wait until TCP sends them again, which
        it does ever more rarely; after 15 minutes it gives the connection up. A reset is not sent
        again, so an end that closes meanwhile leaves the other one half-open.
        """
        raise NotImplementedError

    def delay(self, a: str, b: str, min_s: float, max_s: float, *, one_way: bool = False) -> None:
        """Draw a further delay for all that is sent; so connections overtake each other."""
        raise NotImplementedError

    def slow(self, a: str, b: str, bytes_per_s: float, *, one_way: bool = False) -> None:
        """Let all connections of a link together carry no more than this many bytes a second."""
        raise NotImplementedError

    def partition(self, *groups: Sequence[str]) -> None:
        """Let all vanish that is sent between nodes of different groups."""
        raise NotImplementedError

    def heal(self, a: str, b: str) -> None:
        """Undo all faults of the link between two nodes, in both directions."""
        raise NotImplementedError

    def heal_all(self) -> None:
        """Undo the faults of all links. A machine that is off stays off."""
        raise NotImplementedError

    def reset_connections(self, a: str, b: str) -> None:
        """Reset all connections between two nodes; new ones can be made at once."""
        raise NotImplementedError

    def kill(self, node: str) -> None:
        """End the process of a node: its listeners vanish, and its peers see a reset."""
        raise NotImplementedError

    def power_off(self, node: str) -> None:
        """Take the machine of a node off the network: its peers are told nothing.

        Whoever sends it something is told only when it is on again, and knows nothing of him.
        """
        raise NotImplementedError

    def power_on(self, node: str) -> None:
        """Put a machine back on the network, without any of its former connections."""
        raise NotImplementedError

    def open_connections(self) -> list[str]:
        """Return a line for each open connection and listener: what, of which node, made where."""
        raise NotImplementedError


class HostNetwork:
    def __init__(self, whole: VirtualNetwork, host: str) -> None:
        self._whole = whole
        self._host = host

    def own_address(self, host: str, port: int) -> str:
        return self._host

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: object
    ) -> P:
        assert tls is None
        await asyncio.sleep(0)
        address = (self._host if host in {"127.0.0.1", "localhost"} else host, port)
        listener = self._whole.listeners.get(address)
        if listener is None or not listener.accepts:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        protocol, own = new_protocol(), (self._host, self._whole.free_port())
        near = _MemoryTransport(protocol, own, address, copy_context())
        accepted = listener.context.copy().run(listener.new_protocol)
        far = _MemoryTransport(accepted, address, own, listener.context)
        near.join(far)
        far.made()
        protocol.connection_made(near)
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
        address = (self._host, port or self._whole.free_port())
        if address in self._whole.listeners:
            raise OSError(f"{self._host}:{port} is taken")
        listener = _MemoryListener(self._whole, address, new_protocol)
        self._whole.listeners[address] = listener
        return listener
