"""Group unknown facts by their cause: a silent server is named once, not for each question.

A page asks a server for several things. If it does not answer, the page has one bar, which names the
server, the reason and all that is missing because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cometmq.console.refusals import Refused
from cometmq.errors import CometMQError, RemotingError, ServersFailedError

# The limit matters when most of a cluster is away.
MOST_CAUSES: Final = 5


@dataclass(slots=True)
class Cause:
    """Holds a reason and the things that are unknown because of it, in the order of the page."""

    error: BaseException
    what: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Causes:
    """Holds the first causes of a page; `more` counts the others."""

    first: tuple[Cause, ...]
    more: int


def by_cause(missing: Iterable[tuple[BaseException | None, str]]) -> Causes:
    """Join errors with the facts that each leaves unknown. Pairs without an error are left out."""
    found: dict[str, Cause] = {}
    for error, what in missing:
        for each in _parts(error):
            cause = found.setdefault(_key(each), Cause(each))
            if what not in cause.what:
                cause.what.append(what)
    causes = tuple(found.values())
    return Causes(causes[:MOST_CAUSES], max(0, len(causes) - MOST_CAUSES))


def joined(errors: Iterable[tuple[str, CometMQError]], asked: int) -> CometMQError | None:
    """Return the errors of servers, by address, as one error; None if there is none. `asked` is the
    number of all servers.
    """
    found = dict(errors)
    if len(found) <= 1:
        return next(iter(found.values()), None)
    reasons = "; ".join(f"{address}: {error}" for address, error in found.items())
    return ServersFailedError(
        Refused.FAILED_IN_PART(failed=len(found), all=asked, reasons=reasons),
        results={},
        errors=found,
    )


def _parts(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the errors of single servers."""
    if isinstance(error, ServersFailedError) and error.errors:
        for each in error.errors.values():
            yield from _parts(each)
    elif error is not None:
        yield error


def _key(error: BaseException) -> str:
    """Return what errors of one cause have in common: the server that does not answer."""
    if isinstance(error, RemotingError) and error.address:
        return error.address
    return str(error)
