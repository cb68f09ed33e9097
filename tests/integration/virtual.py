"""Drive a virtual cluster from a test that is an ordinary function.

Whatever such a test waits for has the cluster's loop run meanwhile, in the thread of the test: an
answer, a pause, a listener's message. So a scenario that is written for real sockets runs in virtual
time as it is, with the asyncio face of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.integration.raw_client import connecting_by
from tests.waits import CLOCK

from cometmq.testing import Cluster

T = TypeVar("T")

# The node whose clients a test makes.
TESTER = "app-1"


class Driver:
    """Runs coroutines of a node of a virtual cluster until they are done; has the node's time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = cluster.node(TESTER)
        surroundings = self.node.surroundings
        self.network = surroundings.network
        self.now_ms = surroundings.clock.now_ms
        self.monotonic = surroundings.clock.monotonic

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        # The cluster's `run` would be the same, and costs more than most of what tests wait for: it
        # sets the handler of a signal.
        return self.cluster.world.loop.run_until_complete(self.node.run_in(work))

    def sleep(self, seconds: float, /) -> None:
        self.call(asyncio.sleep(seconds))

    def connect(self, address: tuple[str, int], timeout_s: float) -> VirtualSocket:
        return VirtualSocket(self, address, timeout_s)


class VirtualSocket(asyncio.Protocol):
    """Acts as the socket of a `RawClient`: whoever waits for bytes has the cluster run."""

    def __init__(self, driver: Driver, address: tuple[str, int], timeout_s: float) -> None:
        self._driver = driver
        self._timeout_s: float | None = timeout_s
        self._received = bytearray()
        self._error: Exception | None = None
        self._is_ended = False
        self._changed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        driver.call(driver.network.connect(lambda: self, *address, tls=None))

    # -- what a raw client asks of its socket --

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def getsockname(self) -> tuple[str, int]:
        address: tuple[str, int] = self._open().get_extra_info("sockname")[:2]
        return address

    def getpeername(self) -> tuple[str, int]:
        address: tuple[str, int] = self._open().get_extra_info("peername")[:2]
        return address

    def sendall(self, data: bytes) -> None:
        if self._is_ended:
            raise BrokenPipeError("the peer closed the connection")
        self._open().write(data)

    def recv(self, size: int) -> bytes:
        if not self.waits_readable(self._timeout_s):
            raise TimeoutError("timed out")
        if self._received:
            data = bytes(self._received[:size])
            del self._received[:size]
            return data
        if self._error is not None:
            raise ConnectionResetError(str(self._error)) from self._error
        return b""

    def waits_readable(self, timeout_s: float | None) -> bool:
        """Say whether bytes or the end come within `timeout_s`."""
        if not self._received and not self._is_ended:
            self._changed.clear()
            self._driver.call(self._wait(timeout_s))
        return bool(self._received) or self._is_ended

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            # One turn, in which the loop tells the peer.
            self._driver.sleep(0)

    def _open(self) -> asyncio.Transport:
        assert self._transport is not None, "the connection is not made yet"
        return self._transport

    async def _wait(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    # -- what the loop tells --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc
        self._is_ended = True
        self._changed.set()


@contextmanager
def driven(cluster: Cluster) -> Iterator[Driver]:
    """Run `cluster`, whose time is the test's meanwhile, and in which its raw clients connect."""
    with cluster:
        driver = Driver(cluster)
        with CLOCK.of(driver), connecting_by(driver.connect):
            yield driver
