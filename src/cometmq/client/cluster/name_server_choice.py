"""Choose which name server to ask, and pass over those that fail.

Java: NettyRemotingClient.getAndCreateNameserverChannel. Name servers know nothing of each other, so
any of them answers. Clients keep to one that answers; a failing one costs its timeout once, because
it is asked again only when the others fail, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from cometmq.errors import (
    CometMQError,
    ProtocolError,
    RemoteError,
    RemotingError,
)
from cometmq.protocol.codes import ResponseCode

T = TypeVar("T")

# The errors that a failing name server raises, or a server of another kind.
FAILURES: Final = (RemotingError, RemoteError, ProtocolError)


class NameServerChoice:
    """Knows which name server answered last, and which have failed since they last answered.

    Begins with the server of the index `first`. For one loop's thread.
    """

    def __init__(self, addresses: Sequence[str], first: int = 0) -> None:
        self.addresses = list(addresses)
        self._current = first
        self._failed: dict[str, int] = {}
        self._count = itertools.count()

    async def ask(self, question: Callable[[str], Awaitable[T]]) -> tuple[str, T]:
        """Ask one name server after the other until one answers; return its address and answer.

        If all fail, raises the error of one of them: a RemotingError if there is one. It names the
        reason of each.
        """
        errors: dict[str, CometMQError] = {}
        while (address := self._next(errors)) is not None:
            try:
                answer = await question(address)
            except FAILURES as error:
                errors[address] = _explained(error, address)
                self.failed(address)
            else:
                self._failed.pop(address, None)
                self._current = self.addresses.index(address)
                return address, answer
        raise _of_all(list(errors.values()))

    def failed(self, address: str) -> None:
        """Ask this server only when the others have failed, too."""
        self._failed[address] = next(self._count)

    def others(self, address: str) -> list[str]:
        """Return the servers besides this one that have not failed."""
        return [a for a in self.addresses if a != address and a not in self._failed]

    def _next(self, tried: dict[str, CometMQError]) -> str | None:
        """Return the server to try next: one that has not failed, else the one whose failure is longest ago.

        Calls at the same time may have changed both meanwhile.
        """
        count = len(self.addresses)
        turn = (self.addresses[(self._current + i) % count] for i in range(count))
        return min(
            (address for address in turn if address not in tried),
            key=lambda address: self._failed.get(address, -1),
            default=None,
        )


def _explained(error: CometMQError, address: str) -> CometMQError:
    if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return error
    return RemoteError(
        f"{address} is no name server: it does not know the request ({error.remark}); check the "
        "address and the port of namesrv",
        code=error.code,
        remark=error.remark,
        address=address,
    )


def _of_all(errors: list[CometMQError]) -> CometMQError:
    chosen = next((e for e in reversed(errors) if isinstance(e, RemotingError)), errors[-1])
    if len(errors) == 1:
        return chosen
    reasons = "; ".join(map(str, errors))
    return type(chosen)(
        f"none of {len(errors)} name servers answered: {reasons}",
        code=chosen.code,
        remark=chosen.remark,
        address=chosen.address,
    )
