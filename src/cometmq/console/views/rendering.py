"""Render pages: the templates, what they may call, and the two languages.

All values are escaped. Templates have no inline script or style, because the content security policy
of the console refuses both; sizes are drawn by `<meter>`, `<progress>` and SVG.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from cometmq._version import __version__
from cometmq.console.languages import LANGUAGES, said_in, texts_of
from cometmq.console.watching.causes import by_cause
from cometmq.console.web.cookies import cookies_of
from cometmq.errors import ServersFailedError, SilentServerError

HERE: Final = Path(__file__).parents[1]
LANGUAGE_COOKIE: Final = "cometmq-language"
THEME_COOKIE: Final = "cometmq-theme"
THEMES: Final = ("auto", "light", "dark")
# The pages in the menu: path, name, and the key that opens it after "g".
MENU: Final = (
    ("/", "Overview", "o"),
    ("/brokers", "Brokers", "b"),
    ("/topics", "Topics", "t"),
    ("/groups", "Groups", "c"),
    ("/producers", "Producers", "p"),
    ("/messages", "Messages", "m"),
    ("/letters", "Dead letters", "d"),
    ("/delayed", "Delayed", "y"),
    ("/transactions", "Transactions", "x"),
    ("/trace", "Trace", "r"),
    ("/why", "Why?", "w"),
    ("/reports", "Reports", "s"),
    ("/audit", "Audit log", "a"),
)
# Gives a text in the reader's language; see `words`.
Say = Callable[..., str]
# Values of texts that are sentences themselves, not names or numbers.
_REASONS: Final = ("error", "found", "reason", "why")
_SPAN_UNITS: Final = {
    "en": ("d", "h", "min", "s", "ms"),
    "zh": ("天", "小时", "分", "秒", "毫秒"),
}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def language_of(request: Request) -> str:
    """Return the language that the user has chosen, else the first one known of the browser's."""
    chosen = cookies_of(request).get(LANGUAGE_COOKIE, "")
    if chosen in LANGUAGES:
        return chosen
    for wanted in request.headers.get("accept-language", "").split(",")[:10]:
        short = wanted.strip()[:2].lower()
        if short in LANGUAGES:
            return short
    return "en"


def translated(language: str, text: str, values: Mapping[str, Any] | None = None) -> str:
    """Return a text of the console in a language; a text that the catalogue lacks stays English.

    `values` fill its places, written as in `%(name)s`. Values that are reasons are translated, too.
    If a value is an element, such as a `moment`, the text is HTML, in which all other values are
    escaped.
    """
    found = texts_of(language).get(text, text)
    if not values:
        return found
    reasons = {
        name: said_in(language, value)
        for name, value in values.items()
        if name in _REASONS or isinstance(value, Exception)
    }
    spans = {
        name: duration(value, language) for name, value in values.items() if isinstance(value, Span)
    }
    given = {**values, **reasons, **spans}
    if any(isinstance(value, Markup) for value in given.values()):
        return Markup(found) % given  # noqa: S704 - the text is the console's own
    return found % given


def localized(request: Request, reason: object) -> str:
    """Return a text of a room below, such as an error, in the language of a request."""
    return said_in(language_of(request), reason)


def words(request: Request) -> Say:
    """Return the function that pages call `_`: it gives a text in the language of a request."""
    language = language_of(request)

    def say(text: str, /, **values: Any) -> str:
        return translated(language, text, values)

    return say


@jinja2.pass_context
def _translate(context: jinja2.runtime.Context, text: str, /, **values: Any) -> str:
    return translated(context["language"], text, values)


@jinja2.pass_context
def _localized(context: jinja2.runtime.Context, reason: object) -> str:
    return said_in(context["language"], reason)


def opened(sentence: str) -> str:
    """Return a sentence with a capital letter at its beginning."""
    return sentence[:1].upper() + sentence[1:]


def url(path: str, /, **query: object) -> str:
    """Return the address of a page; None and empty values are left out."""
    given = [(name, str(value)) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(given)}" if given else path


@jinja2.pass_context
def _here(context: jinja2.runtime.Context, /, **changes: object) -> str:
    """Return the address of this page with some of its values changed.

    An action has no page of its own: there it is the page that the form was on.
    """
    request: Request = context["request"]
    if request.method == "POST":
        return _form_page(request)
    # Two slashes at the beginning would name another host.
    path = "/" + request.url.path.lstrip("/")
    return url(path, **{**dict(request.query_params), **changes})


def _form_page(request: Request) -> str:
    try:
        came_from = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return "/"
    is_page = came_from.netloc == request.headers.get("host") and came_from.path != request.url.path
    # Two slashes would name another host.
    path = "/" + came_from.path.lstrip("/\\") if is_page else "/"
    return f"{path}?{came_from.query}" if is_page and came_from.query else path


def number(value: float | None) -> str:
    """Return a number with thin groups of digits, a dash for None."""
    if value is None:
        return "–"
    if 0 < value < 0.05:
        return "< 0.1"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def size(count: float | None) -> str:
    """Return a number of bytes, such as 1.5 MiB."""
    if count is None:
        return "–"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes all")


class Span(float):
    """Holds a time span in ms that a text shows in the text's language."""

    __slots__ = ()

    def __str__(self) -> str:
        return duration(self)


def duration(ms: float | None, language: str = "en") -> str:
    """Return a time span by its two largest units, such as 3 min 20 s."""
    if ms is None:
        return "–"
    days, hours, minutes, seconds, short = _SPAN_UNITS[language]
    if ms < 1000:
        return f"{max(ms, 0):.0f} {short}"
    whole = int(ms // 1000)
    parts = [(whole // 86400, days), (whole // 3600 % 24, hours), (whole // 60 % 60, minutes)]
    parts.append((whole % 60, seconds))
    first = next((index for index, (value, _) in enumerate(parts) if value), 3)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2] if value)


@jinja2.pass_context
def _duration(context: jinja2.runtime.Context, ms: float | None) -> str:
    return duration(ms, context["language"])


def moment(ms: float | None) -> Markup:
    """Return a time as an element: UTC as text, shown in the browser's own time zone."""
    if not ms or ms < 0:
        return Markup("–")
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return Markup("{} ms").format(ms)
    iso = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, iso, shown)


def silent_ms(error: object) -> int:
    """Return since when the server of an error is silent, in ms since the epoch; 0 if it is not."""
    if isinstance(error, ServersFailedError):
        return min(filter(None, map(silent_ms, error.errors.values())), default=0)
    return error.since_ms if isinstance(error, SilentServerError) else 0


def breakable(name: str) -> Markup:
    """Return a name that, in a narrow column, breaks where its parts meet and not within them."""
    return Markup("<wbr>").join(re.split(r"(?<=.[@%#:])", name))


@cache
def environment() -> jinja2.Environment:
    """Return the environment of all templates. An unknown name in a template is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        _=_translate, url=url, here=_here, menu=MENU, languages=LANGUAGES, version=__version__
    )
    made.filters.update(
        breakable=breakable,
        by_cause=by_cause,
        number=number,
        size=size,
        duration=_duration,
        moment=moment,
        opened=opened,
        silent_ms=silent_ms,
        localized=_localized,
    )
    return made


def render(
    request: Request, template: str, values: Mapping[str, Any] | None = None, *, status: int = 200
) -> HTMLResponse:
    """Return a page. Its session's notes are shown once."""
    session = request.state.session
    language = language_of(request)
    theme = cookies_of(request).get(THEME_COOKIE, "auto")
    # A page that refreshes itself swaps only its live part, which has no notes.
    whole = "hx-request" not in request.headers
    text = (
        environment()
        .get_template(template)
        .render(
            request=request,
            session=session,
            notes=session.take_notes() if session is not None and whole else [],
            language=language,
            theme=theme if theme in THEMES else "auto",
            **(values or {}),
        )
    )
    return HTMLResponse(text, status)


def fragment(request: Request, template: str, values: Mapping[str, Any]) -> str:
    """Return a part of a page, for one that is open already."""
    found = environment().get_template(template)
    return found.render(request=request, language=language_of(request), **values)
