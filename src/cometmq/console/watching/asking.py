"""Ask the cluster for many things at once, within bounds of number and time.

A page that shows fifty topics asks for each of them. A server that is away must not hold that page up,
so all questions of a page have one deadline (`for_a_page`). Facts that are not known by then are
shown as unknown, and come with a later refresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.admin.silence import in_haste
from cometmq.console.refusals import Refused
from cometmq.console.watching.recent import Known, known
from cometmq.errors import (
    CometMQError,
    RequestTimeoutError,
    RouteNotFoundError,
    ServersFailedError,
)
from cometmq.model.route import MASTER_ID

if TYPE_CHECKING:
    from cometmq.admin.servers import BrokerAddress
    from cometmq.console.state import Console

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
# How long an action waits for the facts of its preview. A page has `ConsoleConfig.wait_s`.
WAIT_S: Final = 2.5
AT_ONCE: Final = 64
_BROKERS_AGE_S: Final = 3.0
# A silent server is given up a bit before the page's time ends, so that the page has the answers of the
# others.
_SILENT_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True)
class _Deadline:
    """Says how long answers may take, and when that ends by the loop's clock.

    `turn` returns when the page may go on with them.
    """

    wait_s: float
    end_s: float
    turn: Callable[[], Awaitable[None]] | None = None


_PAGE: Final[ContextVar[_Deadline | None]] = ContextVar("cometmq.console.page", default=None)


@contextmanager
def for_a_page(wait_s: float, turn: Callable[[], Awaitable[None]] | None = None) -> Iterator[None]:
    """Have all questions in this block end within `wait_s` together, unless they say otherwise.

    The block goes on when `turn` returns: many pages may have waited for the same answers, and each
    takes some milliseconds to be made.
    """
    deadline = _Deadline(wait_s, asyncio.get_running_loop().time() + wait_s, turn)
    token = _PAGE.set(deadline)
    try:
        with in_haste(_SILENT_SHARE * wait_s):
            yield
    finally:
        _PAGE.reset(token)


def _deadline(wait_s: float | None) -> _Deadline:
    page = _PAGE.get()
    if wait_s is None and page is not None:
        return page
    given_s = WAIT_S if wait_s is None else wait_s
    return _Deadline(given_s, asyncio.get_running_loop().time() + given_s)


async def _turn() -> None:
    page = _PAGE.get()
    if page is not None and page.turn is not None:
        await page.turn()


async def ask_each(
    names: Iterable[K],
    ask: Callable[[K], Awaitable[T]],
    *,
    wait_s: float | None = None,
    at_once: int = AT_ONCE,
) -> dict[K, Known[T]]:
    """Return what `ask` gives for each name, or why it gives nothing.

    All of them have `wait_s` together, or the time that is left to the page. Let `ask` go through
    `Recent.get`: an answer that comes too late for this page is then there for the next one.
    `at_once` bounds what large answers take.
    """
    turns = asyncio.Semaphore(at_once)
    deadline = _deadline(wait_s)

    async def one(name: K) -> Known[T]:
        try:
            async with asyncio.timeout_at(deadline.end_s), turns:
                return await known(ask(name))
        except TimeoutError:
            return Known(None, _late(deadline.wait_s))

    asked = list(dict.fromkeys(names))
    found = dict(zip(asked, await asyncio.gather(*map(one, asked)), strict=True))
    await _turn()
    return found


async def in_time(
    asked: Awaitable[T],
    join: Callable[[Mapping[str, Any]], T] | None = None,
    *,
    wait_s: float | None = None,
    who: str = "the cluster",
    address: str | None = None,
) -> Known[T]:
    """Return what `asked` gives within `wait_s`, or within the page's time, or why it gives
    nothing.

    If the time runs out, the error names `who` as the one that did not answer. For a single server give
    `address` instead: all errors about this server then have its address, and a page shows them as one
    (`watching.causes`).

    If some of several servers failed, the value is what `join` makes of the others' answers, and the
    error is kept, too.
    """
    found = await _in_time(asked, join, _deadline(wait_s), who, address)
    await _turn()
    return found


async def _in_time(
    asked: Awaitable[T],
    join: Callable[[Mapping[str, Any]], T] | None,
    deadline: _Deadline,
    who: str,
    address: str | None,
) -> Known[T]:
    try:
        async with asyncio.timeout_at(deadline.end_s):
            return Known(await asked)
    except ServersFailedError as error:
        return Known(join(error.results) if join is not None and error.results else None, error)
    except CometMQError as error:
        return Known(None, error)
    except TimeoutError:
        return Known(None, _late(deadline.wait_s, address or who, address))


async def brokers_of(console: Console) -> list[BrokerAddress]:
    """Return all brokers of all clusters, slaves too, sorted by cluster, name and id."""
    return await console.recent.get("brokers", _BROKERS_AGE_S, console.admin.brokers.addresses)


async def masters_of(console: Console) -> list[BrokerAddress]:
    """Return the masters of all clusters, sorted by cluster and name."""
    return [at for at in await brokers_of(console) if at.broker_id == MASTER_ID]


async def lost_masters(console: Console) -> dict[str, CometMQError]:
    """Return why expected masters cannot be asked, by broker name: only slaves of the name are
    registered, or its master was registered within the last hour.
    """
    brokers = await brokers_of(console)
    masters = {at.broker_name for at in brokers if at.broker_id == MASTER_ID}
    lost: dict[str, CometMQError] = {
        at.broker_name: RouteNotFoundError(Refused.UNKNOWN_MASTER(name=at.broker_name))
        for at in brokers
    }
    lost.update(gone_masters(console))
    return {name: error for name, error in sorted(lost.items()) if name not in masters}


def gone_masters(console: Console, clusters: Collection[str] = ()) -> dict[str, CometMQError]:
    """Return why masters that were registered within the last hour cannot be asked, by broker name:
    in these clusters, or in all. No name server knows any more which topics they had.
    """
    return {
        state.at.broker_name: state.error
        for state in console.watch.brokers
        if state.gone_ms
        and state.is_master
        and state.error is not None
        and (not clusters or state.at.cluster in clusters)
    }


async def each_cluster(
    clusters: Iterable[str], act: Callable[[str], Awaitable[Collection[str]]]
) -> list[Any]:
    """Act on one cluster after another, and return what `act` gives for each, by its servers.

    A failure of one does not keep the others from it. Raises the error of the only cluster; of
    several a ServersFailedError, which names the servers of all of them.
    """
    done: list[Any] = []
    errors: dict[str, CometMQError] = {}
    results: dict[str, Any] = {}
    names = list(clusters)
    for cluster in names:
        try:
            done.append(await act(cluster))
            results.update(dict.fromkeys(done[-1]))
        except ServersFailedError as error:
            errors.update(error.errors)
            results.update(error.results)
        except CometMQError as error:
            if len(names) == 1:
                raise
            errors[cluster] = error
    if errors:
        reasons = "; ".join(f"{at}: {error}" for at, error in errors.items())
        raise ServersFailedError(
            Refused.FAILED_IN_PART(
                failed=len(errors), all=len(errors) + len(results), reasons=reasons
            ),
            results=results,
            errors=errors,
        )
    return done


def _late(wait_s: float, who: str | None = None, address: str | None = None) -> RequestTimeoutError:
    late = Refused.LATE(server=who or Refused.THE_CLUSTER(), seconds=wait_s)
    return RequestTimeoutError(late, address=address)
