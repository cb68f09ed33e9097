"""Show the audit log of the console: each action with its account, target, time, reason and
outcome.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.limits import LimitMetError
from cometmq.console.pages.exports import Export, ended_by_session, last_line
from cometmq.console.refusals import Refused
from cometmq.console.routes import Routes, account_of, console_of
from cometmq.console.users.audit import SHOWN, Entry, ended
from cometmq.console.views.paging import page_of
from cometmq.console.views.rendering import render
from cometmq.console.views.times import time_ms

routes: Final = Routes()
OUTCOMES: Final = ("done", "failed", "refused", "begun")
_MAX_FILTER: Final = 200
# Each export reads all files, and keeps them open for as long as its browser takes.
MAX_AUDIT_EXPORTS: Final = 4
# A browser that reads a little now and then would occupy one of these places.
MAX_AUDIT_EXPORT_S: Final = 30 * 60.0


@dataclass(frozen=True, slots=True)
class _Filter:
    """Holds the filter in the address; empty values select everything."""

    who: str
    what: str
    outcome: str
    q: str
    since: str
    until: str

    @classmethod
    def of(cls, request: Request) -> _Filter:
        def given(name: str) -> str:
            return request.query_params.get(name, "")[:_MAX_FILTER]

        outcome = given("outcome")
        return cls(
            given("who"),
            given("what"),
            outcome if outcome in OUTCOMES else "",
            given("q"),
            given("since").strip(),
            given("until").strip(),
        )

    def takes(self, now_ms: int) -> Callable[[Entry], bool]:
        """Return a test for the entries that are wanted. Raises IllegalArgumentError for a text
        that is no time.
        """
        since_ms = time_ms(self.since, now_ms) if self.since else None
        until_ms = time_ms(self.until, now_ms) if self.until else None
        text = self.q.lower()

        def takes(entry: Entry) -> bool:
            return (
                self.who in ("", entry.who)
                and self.what in ("", entry.what)
                and self.outcome in ("", entry.outcome)
                and (since_ms is None or entry.at_ms >= since_ms)
                and (until_ms is None or entry.at_ms < until_ms)
                and (not text or text in _text(entry).lower())
            )

        return takes


@routes.page("/audit")
async def listing(request: Request) -> Response:
    """Show the newest actions first, and for an action that has ended only the line with its
    outcome.
    """
    console = console_of(request)
    entries = ended(console.audit.entries)
    asked = _Filter.of(request)
    takes = asked.takes(console.clock.now_ms())
    rows = page_of(
        request,
        [(number, entry) for number, entry in enumerate(entries) if takes(entry)],
        text=lambda row: _text(row[1]),
        key=lambda row: -row[0],
    )
    values = {
        "rows": rows,
        "asked": asked,
        "people": sorted({entry.who for entry in entries}),
        "actions": sorted({entry.what for entry in entries}),
        "outcomes": OUTCOMES,
        "shown": SHOWN,
        "is_full": len(console.audit.entries) >= SHOWN,
    }
    return render(request, "audit.html", values)


@routes.page("/audit/export")
async def export(request: Request) -> Response:
    """Send all lines of the filtered actions as JSON lines, their beginnings too."""
    console = console_of(request)
    places, account = console.audit_exports, account_of(request)
    takes = _Filter.of(request).takes(console.clock.now_ms())
    under_way = Refused.EXPORTS(count=places.count)
    places.check(account, under_way, "MAX_AUDIT_EXPORTS", MAX_AUDIT_EXPORTS)
    found = console.audit.lines(takes)
    places.take(account)
    try:
        first = await anext(found, b"")
    except BaseException:
        places.give_back(account)
        raise
    end_s = console.clock.monotonic() + MAX_AUDIT_EXPORT_S

    async def lines() -> AsyncGenerator[bytes]:
        async with aclosing(found):
            yield first
            async for some in found:
                if ended_by := ended_by_session(request):
                    yield ended_by
                    return
                if console.clock.monotonic() >= end_s:
                    yield last_line(
                        request,
                        LimitMetError(
                            429,
                            Refused.EXPORT_LATE(),
                            "MAX_AUDIT_EXPORT_S",
                            int(MAX_AUDIT_EXPORT_S),
                            Refused.TAKE_OTHERS_BY_TIME(),
                        ),
                    )
                    return
                yield some

    return Export(
        lines(),
        places,
        account,
        "application/jsonl",
        {"content-disposition": 'attachment; filename="cometmq-audit.jsonl"'},
    )


def _text(entry: Entry) -> str:
    """Return the text in which a search looks."""
    parts = (entry.who, entry.what, entry.target, entry.why, entry.said, entry.address)
    return " ".join(parts)
