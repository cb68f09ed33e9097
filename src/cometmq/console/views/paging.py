"""Cut long lists into pages at the server, after search and sorting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from starlette.requests import Request

T = TypeVar("T")
PAGE_ROWS: Final = 50
MAX_PAGE_ROWS: Final = 500
MAX_QUERY: Final = 200


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """Is one page of a list: its rows, and where they lie. Pages count from 1."""

    rows: Sequence[T]
    total: int
    page: int
    pages: int
    first: int
    query: str


@dataclass(frozen=True, slots=True)
class Order:
    """Holds the order of a list: the column, and whether the greatest come first."""

    by: str
    is_down: bool


def order_of(request: Request, columns: Collection[str], default: str) -> Order:
    """Return the order that the address names by `sort` and `desc`."""
    by = request.query_params.get("sort", default)
    return Order(by if by in columns else default, request.query_params.get("desc") == "1")


def page_of(
    request: Request,
    items: Iterable[T],
    *,
    text: Callable[[T], str],
    key: Callable[[T], Any],
    most: int = MAX_PAGE_ROWS,
) -> Slice[T]:
    """Return the page that the address names: `q` searches in `text`, `page` and `rows` cut.

    Rows are sorted by `key`; `desc=1` turns the order. A page has at most `most` rows.
    """
    query = request.query_params.get("q", "")[:MAX_QUERY]
    wanted = query.lower()
    found = [item for item in items if not wanted or wanted in text(item).lower()]
    found.sort(key=key, reverse=request.query_params.get("desc") == "1")
    rows = min(max(whole(request, "rows", PAGE_ROWS), 1), most)
    pages = max(1, -(-len(found) // rows))
    page = min(max(whole(request, "page", 1), 1), pages)
    first = (page - 1) * rows
    return Slice(found[first : first + rows], len(found), page, pages, first, query)


def whole(request: Request, name: str, default: int) -> int:
    """Return a whole number of the address; the default for a text that is none."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default
