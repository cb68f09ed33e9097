"""Follows the links of a console's pages, as a visitor who clicks on everything would."""

from __future__ import annotations

from collections import Counter, deque
from html.parser import HTMLParser
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.console.running import Answer, Visitor

# Forms of the frame that all pages have; they change nothing of the cluster.
FRAME_FORMS: Final = frozenset({"/logout", "/choices"})
# Names in addresses whose values choose a part of a page, so that each value is a page of its own.
_PARTS: Final = frozenset({"by", "kind", "part", "question", "sort", "tab", "view"})


class Visit(NamedTuple):
    """A page, the page whose link leads to it, and the addresses that its forms post to."""

    path: str
    source: str
    answer: Answer
    actions: frozenset[str]


def crawl(visitor: Visitor, *starts: str, alike: int = 3, limit: int = 400) -> list[Visit]:
    """Visit what links lead to from `starts` (by default the first page), once each.

    Of addresses that differ only in the names of their query (`/topic?name=…`) the first `alike` are
    visited, and `limit` in all.
    """
    waiting = deque((start, "") for start in starts or ("/",))
    known = set(starts or ("/",))
    kinds: Counter[tuple[str, frozenset[tuple[str, str]]]] = Counter()
    visits: list[Visit] = []
    while waiting and len(visits) < limit:
        path, source = waiting.popleft()
        parts = urlsplit(path)
        kind = (
            parts.path,
            frozenset(
                (name, value if name in _PARTS else "") for name, value in parse_qsl(parts.query)
            ),
        )
        kinds[kind] += 1
        if kinds[kind] > alike:
            continue
        answer = visitor.send("GET", path)
        links = _Links()
        if answer.headers.get("content-type", "").startswith("text/html"):
            links.feed(answer.html)
        visits.append(Visit(path, source, answer, frozenset(links.actions)))
        for href in links.hrefs:
            target = urlsplit(href)
            if target.scheme or target.netloc or href.startswith("#"):
                continue
            # An address that is only a query stays on its page.
            address = (target.path or parts.path) + (f"?{target.query}" if target.query else "")
            if address not in known:
                known.add(address)
                waiting.append((address, path))
    return visits


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.actions: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and (href := given.get("href")):
            self.hrefs.append(href)
        if tag == "form" and given.get("method") == "post":
            self.actions.append((given.get("action") or "").partition("?")[0])
        if given.get("formaction"):
            self.actions.append((given["formaction"] or "").partition("?")[0])
