"""Make connections and listeners.

Servers and clients take a `Network` as a parameter, so a test can pass one that lies in memory.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from cometmq.runtime.sockets.addresses import bare_host, own_address, resolve
from cometmq.runtime.sockets.arrivals import Arrival, ArrivalListener, bound_sockets

# How long one address of a name may take before the next one is tried, too (RFC 8305).
_NEXT_ADDRESS_S: Final = 0.25

P = TypeVar("P", bound=asyncio.Protocol)
Attempt = Callable[[], Coroutine[Any, Any, tuple[asyncio.Transport, P]]]


class Listener(Protocol):
    """A port that clients can connect to."""

    @property
    def port(self) -> int:
        """Return the number of the port, also after `close`."""

    async def start(self) -> None:
        """Begin to accept connections."""

    def close(self) -> None:
        """Release the port. Connections that were accepted stay open. Idempotent."""

    async def wait_closed(self) -> None:
        """Wait until a closed listener has released its port."""


class Network(Protocol):
    """Makes connections and listeners on the running loop. All failures are OSErrors.

    Each connection gets a protocol object of its own, which `new_protocol` makes.
    """

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> P:
        """Connect to `host:port` and return the protocol object of the connection."""

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
    ) -> Listener:
        """Take a port, a free one for 0; its listener accepts connections once it is started.

        The host `::` stands for all addresses of the machine, IPv4 and IPv6.
        """

    async def accept(
        self, on_arrival: Callable[[Arrival], None], host: str, port: int, *, backlog: int
    ) -> Listener:
        """Take a port as `listen` does; each connection is passed on before anything is read."""

    async def resolve(self, host: str) -> str:
        """Return the IP address of `host`."""

    def own_address(self, host: str, port: int) -> str:
        """Return the IP address from which `host:port` would be reached, loopback if it cannot be."""


class TcpNetwork:
    """The network of the operating system."""

    own_address = staticmethod(own_address)
    resolve = staticmethod(resolve)

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> P:
        """Connect to the first address of a name that answers, or to an IP address."""
        loop = asyncio.get_running_loop()

        async def attempt(address: str) -> tuple[asyncio.Transport, P]:
            name = host if tls is not None else None
            return await loop.create_connection(
                new_protocol, address, port, ssl=tls, server_hostname=name
            )

        host = bare_host(host)
        addresses = await _addresses_of(host)
        if len(addresses) == 1:
            _, protocol = await attempt(addresses[0])
        else:
            _, protocol = await _first_of([partial(attempt, address) for address in addresses])
        return protocol

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
    ) -> Listener:
        sockets = await bound_sockets(bare_host(host), port)
        return _ServingListener(sockets, new_protocol, backlog)

    async def accept(
        self, on_arrival: Callable[[Arrival], None], host: str, port: int, *, backlog: int
    ) -> Listener:
        sockets = await bound_sockets(bare_host(host), port)
        return ArrivalListener(sockets, on_arrival, backlog)


class _ServingListener(ArrivalListener):
    """Makes a protocol object for each connection that it accepts.

    The loop does not accept by itself: uvloop takes one connection in each of its turns, so that a new
    connection would wait for as many turns as others came before it.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        new_protocol: Callable[[], asyncio.Protocol],
        backlog: int,
    ) -> None:
        super().__init__(sockets, self._serve, backlog)
        self._new_protocol = new_protocol
        self._connecting: dict[asyncio.Task[None], Arrival] = {}

    def close(self) -> None:
        super().close()
        # Code that closes the connections of a server knows only those that have a protocol object.
        for task, arrival in self._connecting.items():
            if not arrival.is_made:
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the connections that were about to be served are closed."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _serve(self, arrival: Arrival) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(arrival))
        self._connecting[task] = arrival

        def ended(task: asyncio.Task[None]) -> None:
            del self._connecting[task]
            arrival.close()  # a task that is cancelled before it begins has not done so

        task.add_done_callback(ended)

    async def _connect(self, arrival: Arrival) -> None:
        with suppress(OSError):  # the peer has left
            await arrival.connect(self._new_protocol())


async def _look_up(host: str) -> list[Any]:
    loop = asyncio.get_running_loop()
    try:
        return list(await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except UnicodeError as error:  # a label of the name is empty or too long
        raise OSError(errno.EINVAL, f"{host!r} is not a host name") from error


async def _addresses_of(host: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:  # a name, or an address with a zone
        found = await _look_up(host)
        return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _first_of(attempts: list[Attempt[P]]) -> tuple[asyncio.Transport, P]:
    """Return what the attempt returns that succeeds first; begin the next after a failure,
    and also when one takes long: IPv6 may lead nowhere on a network where IPv4 works (RFC 8305).
    """
    waiting = iter(attempts)
    running: set[asyncio.Future[tuple[asyncio.Transport, P]]] = set()
    failure: BaseException | None = None
    try:
        while True:
            attempt = next(waiting, None)
            if attempt is not None:
                running.add(asyncio.ensure_future(attempt()))
            elif not running:
                assert failure is not None, "there is at least one attempt"
                raise failure
            pause_s = _NEXT_ADDRESS_S if attempt is not None else None
            done, running = await asyncio.wait(
                running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                failure = each.exception()
                if failure is None:
                    done.discard(each)
                    running |= done  # of two that came together one is too many
                    return each.result()
    finally:
        for each in running:
            each.add_done_callback(_drop)
            each.cancel()


def _drop(attempt: asyncio.Future[tuple[asyncio.Transport, Any]]) -> None:
    """Close a connection that came although another one had come before."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result()[0].abort()


TCP_NETWORK = TcpNetwork()
