"""Helpers for tests of networks: protocols that remember, and both ends of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tests.waits import until

from cometmq.runtime.sockets.network import Listener, Network

P = TypeVar("P", bound=asyncio.Protocol)


class Remembers(asyncio.Protocol):
    """Keeps what it reads, and in `said` the names of its other calls."""

    stays_open_at_eof = False

    def __init__(self) -> None:
        self.data = bytearray()
        self.sizes: list[int] = []
        self.said: list[str] = []
        self.error: Exception | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.said.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.sizes.append(len(data))

    def eof_received(self) -> bool:
        self.said.append("eof")
        return self.stays_open_at_eof

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append("lost")
        self.error = exc

    @property
    def is_lost(self) -> bool:
        return "lost" in self.said


class StaysOpen(Remembers):
    stays_open_at_eof = True


async def listen(
    network: Network,
    new_protocol: Callable[[], asyncio.Protocol],
    host: str = "127.0.0.1",
    port: int = 0,
    **options: Any,
) -> Listener:
    """Return a listener that accepts connections."""
    given = {"backlog": 100, **options}
    listener = await network.listen(new_protocol, host, port, **given)
    await listener.start()
    return listener


async def ends(
    near: Network,
    far: Network,
    host: str,
    *,
    new_near: Callable[[], P],
    new_far: Callable[[], P],
) -> tuple[P, P]:
    """Connect `near` with a listener on `host`, which is `far`'s; return both protocol objects."""
    accepted: list[P] = []

    def accept() -> P:
        accepted.append(new_far())
        return accepted[-1]

    listener = await listen(far, accept, host)
    protocol = await near.connect(new_near, host, listener.port, tls=None)
    await until(lambda: accepted and hasattr(accepted[0], "transport"))
    listener.close()
    return protocol, accepted[0]
