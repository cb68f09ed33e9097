"""The first page: what needs attention, the state of the clusters, and which groups are behind.

Also finds names for the palette.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cometmq.console.routes import Routes, console_of
from cometmq.console.views.names import group_names, topic_names
from cometmq.console.views.paging import MAX_QUERY
from cometmq.console.views.rendering import render, url, words
from cometmq.console.watching.asking import gone_masters, in_time
from cometmq.console.watching.concerns import GROWTH_SPAN_MS, broker_url, concerns_of
from cometmq.console.watching.recent import Known
from cometmq.console.watching.watch import Watch

routes: Final = Routes()
_MOST_CONCERNS: Final = 20
_MOST_BROKERS: Final = 20
_MOST_GROUPS: Final = 10
MOST_FOUND: Final = 20


@routes.page("/")
async def overview(request: Request) -> Response:
    """Show all clusters, or one of them."""
    watch = console_of(request).watch
    clusters = sorted({state.at.cluster for state in watch.brokers})
    cluster = request.query_params.get("cluster", "")
    cluster = cluster if cluster in clusters else ""
    brokers = [state for state in watch.brokers if cluster in ("", state.at.cluster)]
    addresses = [state.at.address for state in brokers]
    concerns = concerns_of(watch)
    behind = [each for each in watch.lags.of_users if each.least > 0] if watch.lags else []
    behind.sort(key=lambda each: (-each.least, each.group))
    values = {
        "watch": watch,
        "clusters": clusters,
        "cluster": cluster,
        "brokers": brokers[:_MOST_BROKERS],
        "all_brokers": len(brokers),
        "answering": sum(not state.is_silent for state in brokers),
        "fullest": max((state.disk_ratio or 0.0 for state in brokers), default=0.0),
        "rates": watch.samples[-1].total(addresses) if watch.samples else (None, None),
        "trend": watch.trend(addresses),
        "lag_trend": watch.lag_trend(),
        "concerns": concerns[:_MOST_CONCERNS],
        "more_concerns": max(len(concerns) - _MOST_CONCERNS, 0),
        "behind": [_group(watch, each.group) for each in behind[:_MOST_GROUPS]],
        "all_behind": len(behind),
        "gone": gone_masters(console_of(request)),
        # Why rates and disks are incomplete.
        "silent": next((state.error for state in brokers if state.is_silent), None),
    }
    return render(request, "overview.html", values)


@routes.page("/find")
async def find(request: Request) -> Response:
    """Return the topics, groups and brokers whose names contain `q`, the best ones first."""
    console = console_of(request)
    wanted = request.query_params.get("q", "")[:MAX_QUERY].strip().lower()
    if not wanted:
        return JSONResponse([])
    topics, groups = await asyncio.gather(
        in_time(topic_names(console)), in_time(group_names(console))
    )
    names = groups.value or Known(None, groups.error)
    brokers = {f"{s.at.broker_name} {s.at.address}": s.at.address for s in console.watch.brokers}
    hits = [
        *_hits(wanted, topics.value or (), "Topic"),
        *_hits(wanted, names.value or (), "Group"),
        *_hits(wanted, brokers, "Broker"),
    ]
    if not hits and (topics.error or names.error or gone_masters(console)):
        # An empty list would say that no topic or group has such a name.
        return JSONResponse([], 503)
    _ = words(request)
    pages: dict[str, Callable[[str], str]] = {
        "Topic": lambda name: url("/topic", name=name),
        "Group": lambda name: url("/group", name=name),
        "Broker": lambda name: broker_url(brokers[name]),
    }
    found = [
        {"name": f"{_(kind)}: {name}", "url": pages[kind](name)}
        for *_rank, kind, name in nsmallest(MOST_FOUND, hits)
    ]
    return JSONResponse(found)


def _hits(wanted: str, names: Iterable[str], kind: str) -> Iterator[tuple[int, int, str, str, str]]:
    """Yield the names that contain the wanted text, each with a rank of how well it fits."""
    for name in names:
        lower = name.lower()
        if wanted in lower:
            rank = 0 if lower == wanted else 1 if lower.startswith(wanted) else 2
            yield rank, len(name), lower, kind, name


def _group(watch: Watch, name: str) -> dict[str, object]:
    assert watch.lags is not None
    return {"lag": watch.lags.groups[name], "change": watch.lag_change(name, GROWTH_SPAN_MS)}
