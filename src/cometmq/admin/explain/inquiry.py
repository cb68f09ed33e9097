"""Ask servers for the facts of one explanation, within a deadline and a number of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from cometmq.admin.explain.records import Evidence, Unasked
from cometmq.admin.explain.texts import Said
from cometmq.admin.servers import Servers
from cometmq.errors import CometMQError, ConnectError, IllegalArgumentError
from cometmq.model.reports.keyed_text import text_of
from cometmq.model.route import MASTER_ID
from cometmq.protocol import requests
from cometmq.protocol.request_type import RequestType
from cometmq.runtime.clock import Clock

T = TypeVar("T")

Step = Callable[[str], object]

# An explanation asks no more than this many questions, and this many at the same time.
MAX_QUESTIONS: Final = 2_000
_AT_ONCE: Final = 16
MAX_DEADLINE_S: Final = 3_600.0


def request_text(row: RequestType[Any, Any, Any, Any]) -> str:
    """Return how an explanation names a request."""
    return f"{row.name} ({row.code})"


@dataclass(frozen=True, slots=True)
class Reported(Generic[T]):
    """Holds what a server reported, with the request, the server's address and the time."""

    value: T
    request: str
    address: str
    at_ms: int

    def shows(self, figure: str, value: object) -> Evidence:
        text = value if isinstance(value, str) else str(value)
        return Evidence(figure, text, self.request, self.address, self.at_ms)


@dataclass(frozen=True, slots=True)
class Place:
    """Says where a master is."""

    name: str
    cluster: str
    address: str


class Inquiry:
    """Asks the questions of one explanation and notes which of them stay without an answer.

    `on_step` gets a line about each next question.
    """

    def __init__(
        self, servers: Servers, clock: Clock, deadline_s: float, on_step: Step | None
    ) -> None:
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            raise IllegalArgumentError(
                f"deadline_s is {deadline_s!r:.80}; give seconds above 0, up to {MAX_DEADLINE_S:.0f}"
            )
        self.servers = servers
        self._clock = clock
        self._ends_at = clock.monotonic() + deadline_s
        self._deadline_s = deadline_s
        self._on_step = on_step
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._count = 0
        self._unasked: dict[tuple[str, str], Unasked] = {}

    @property
    def unasked(self) -> tuple[Unasked, ...]:
        return tuple(self._unasked.values())

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def step(self, text: str) -> None:
        if self._on_step is not None:
            self._on_step(text)

    async def ask(
        self,
        row: RequestType[Any, Any, Any, Any],
        address: str,
        question: Callable[[], Awaitable[T]],
        *,
        share: float = 1.0,
    ) -> Reported[T] | None:
        """Return what the server reports, None if it does not answer, which `unasked` then explains.

        `row` is the request by which the question is put. The answer may take the given `share` of
        the time that is left.
        """
        request = request_text(row)
        async with self._turns:
            self._count += 1
            if self._count > MAX_QUESTIONS:
                self.note(request, address, Said.TOO_MANY_QUESTIONS(most=MAX_QUESTIONS))
                return None
            left_s = self._ends_at - self._clock.monotonic()
            try:
                if left_s <= 0:
                    raise TimeoutError
                value = await asyncio.wait_for(question(), left_s * share)
            except CometMQError as error:
                self.note(request, address, text_of(error))
                return None
            except TimeoutError:
                self.note(request, address, Said.TOO_LATE(seconds=self._deadline_s))
                return None
        return Reported(value, request, address, self.now_ms())

    def note(self, request: str, address: str, error: str) -> None:
        """Note that a server could not be asked; of each request the first failure counts."""
        self._unasked.setdefault((request, address), Unasked(request, address, error))

    async def masters(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[Place]:
        """Return the masters of a cluster, or of all clusters, or the one broker that is named.

        Note the expected masters that cannot be asked.
        """
        if broker is None:
            await self._note_missing(cluster, by_slaves=False)
        if broker is not None or cluster is not None:
            found = await self.servers.brokers(cluster=cluster, broker=broker)
            return [Place(at.broker_name or at.address, at.cluster, at.address) for at in found]
        table = (await self.servers.cluster_info()).broker_addr_table
        return [
            Place(name, data.cluster, data.broker_addrs[MASTER_ID])
            for name, data in sorted(table.items())
            if MASTER_ID in data.broker_addrs
        ]

    async def readers(self, *, cluster: str | None = None) -> list[Place]:
        """Return one broker of each name, of a cluster or of all: the master, or a slave if there
        is no master. It knows messages, groups and offsets. Note the brokers that were lost.
        """
        await self._note_missing(cluster, by_slaves=True)
        table = (await self.servers.cluster_info()).broker_addr_table
        found = []
        for name, data in sorted(table.items()):
            address = data.any_address()
            if address is not None and cluster in (None, data.cluster):
                found.append(Place(name, data.cluster, address))
        if cluster is not None and not found:
            return await self.masters(cluster=cluster)  # which says that there is no such cluster
        return found

    async def _note_missing(self, cluster: str | None, *, by_slaves: bool) -> None:
        """Note expected brokers that cannot be asked; with `by_slaves` a slave may answer instead."""
        request = request_text(requests.GET_BROKER_CLUSTER_INFO)

        def denied(name: str, error: CometMQError) -> None:
            self.note(request_text(requests.GET_ROUTEINFO_BY_TOPIC), name, text_of(error))

        missing = await self.servers.missing(cluster=cluster, on_denied=denied)
        for name, error in missing.items():
            if not by_slaves or isinstance(error, ConnectError):
                self.note(request, name, text_of(error))


def number(text: str | None, default: int) -> int:
    """Read a figure that a server or a client reports; `default` if it is none, or longer than any."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else default


def plural(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(items: Sequence[str], most: int = 5) -> str:
    """Join the first items of a list, and say how many more there are."""
    more = len(items) - most
    if more > 0:
        return Said.AND_MORE(items=tuple(items[:most]), more=more)
    return Said.ITEMS(items=tuple(items))
