"""Asks the cluster for many things at once, within bounds of number and time.

A page that shows fifty topics asks for each of them. A server that is away must not hold that page up,
so what is not answered in time is told as unknown, and comes with a later refresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.console.recent import Known, known
from cometmq.errors import CometMQError, RequestTimeoutError, ServersFailedError
from cometmq.model.route import MASTER_ID

if TYPE_CHECKING:
    from cometmq.admin.servers import BrokerAddress
    from cometmq.console.state import Console

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
# How long a page waits for the answers that it shows.
WAIT_S: Final = 2.5
AT_ONCE: Final = 64
_BROKERS_AGE_S: Final = 3.0


async def ask_each(
    names: Iterable[K],
    ask: Callable[[K], Awaitable[T]],
    *,
    wait_s: float = WAIT_S,
    at_once: int = AT_ONCE,
) -> dict[K, Known[T]]:
    """Return what `ask` gives for each name, or why it gives nothing.

    All of them have `wait_s` together. Let `ask` go through `Recent.get`: an answer that comes too
    late for this page is then there for the next one. `at_once` bounds what large answers take.
    """
    turns = asyncio.Semaphore(at_once)
    end_s = asyncio.get_running_loop().time() + wait_s

    async def one(name: K) -> Known[T]:
        try:
            async with asyncio.timeout_at(end_s), turns:
                return await known(ask(name))
        except TimeoutError:
            return Known(None, _late(wait_s))

    asked = list(dict.fromkeys(names))
    return dict(zip(asked, await asyncio.gather(*map(one, asked)), strict=True))


async def in_time(
    asked: Awaitable[T],
    join: Callable[[Mapping[str, Any]], T] | None = None,
    *,
    wait_s: float = WAIT_S,
    who: str = "the cluster",
) -> Known[T]:
    """Return what `asked` gives within `wait_s`, or why it gives nothing.

    If some of several servers failed, the value is what `join` makes of the others' answers, and the
    error is kept, too.
    """
    try:
        async with asyncio.timeout(wait_s):
            return Known(await asked)
    except ServersFailedError as error:
        return Known(join(error.results) if join is not None and error.results else None, error)
    except CometMQError as error:
        return Known(None, error)
    except TimeoutError:
        return Known(None, _late(wait_s, who))


async def brokers_of(console: Console) -> list[BrokerAddress]:
    """Return all brokers of all clusters, slaves too, sorted by cluster, name and id."""
    return await console.recent.get("brokers", _BROKERS_AGE_S, console.admin.brokers.addresses)


async def masters_of(console: Console) -> list[BrokerAddress]:
    """Return the masters of all clusters, sorted by cluster and name."""
    return [at for at in await brokers_of(console) if at.broker_id == MASTER_ID]


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
            f"failed at {len(errors)} of {len(errors) + len(results)} servers: {reasons}",
            results=results,
            errors=errors,
        )
    return done


def _late(wait_s: float, who: str = "the cluster") -> RequestTimeoutError:
    return RequestTimeoutError(
        f"{who} did not answer within {wait_s:g} s, and this page does not wait for longer"
    )
