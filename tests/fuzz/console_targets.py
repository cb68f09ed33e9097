"""Fuzz targets of the web console: addresses, headers and forms, through its guard and every page.

The first byte of an input says who asks and whether the form has its token; the first line is method
and address, then come headers, an empty line, and the body. Behind the pages is a cluster that
answers nothing. Whatever is asked, the answer is no failure of the console, has the policy, and is a
page in which only our own scripts, addresses and elements are.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any, Final, Never
from urllib.parse import quote_from_bytes, unquote

from tests.fuzz import log_watch
from tests.fuzz.mutation import mutate
from tests.fuzz.target import Target

from cometmq.console.app import PAGES, create_app
from cometmq.console.config import ConsoleConfig
from cometmq.console.state import Console
from cometmq.console.users.accounts import Account, Role
from cometmq.console.users.audit import AuditLog, Entry
from cometmq.console.web.guard import POLICY
from cometmq.errors import RouteNotFoundError
from cometmq.runtime.clock import SYSTEM_CLOCK

_NAMES: Final = [
    "q", "name", "topic", "group", "id", "key", "address", "broker", "cluster", "kind", "page", "rows",
    "desc", "since", "until", "from", "to", "who", "what", "outcome", "size", "queue", "offset", "tab",
    "sort", "next", "confirm", "why", "path", "body", "read_queues", "write_queues",
]  # fmt: skip
_ADDRESSES: Final = ("href", "src", "action", "formaction", "data-url", "poster")
_MOST_HEADERS: Final = 20
# The first byte of an input: the account by its remainder, then a bit for a token, one for a form.
_TOKEN, _FORM = 64, 128
_OPERATOR_WITH_TOKEN: Final = 2 + _TOKEN + _FORM


class _NoCluster:
    """Stands for an administration client whose every question is refused."""

    def __getattr__(self, name: str) -> _NoCluster:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> _NoCluster:
        return self

    def __await__(self) -> Never:
        raise RouteNotFoundError("no cluster is here")

    def __aiter__(self) -> _NoCluster:
        return self

    async def __anext__(self) -> Never:
        raise RouteNotFoundError("no cluster is here")


class _Nobody:
    """Has no account."""

    changes = 0

    def verify(self, name: str, password: str) -> None:
        return None

    def __contains__(self, name: object) -> bool:
        return False


class _Memory(AuditLog):
    """Keeps entries and writes no file."""

    def _append(self, entry: Entry) -> None:
        pass


class _Served:
    """A console in this process, and who may log in to it."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        root = Path(tempfile.gettempdir()) / "cometmq-fuzz-console"
        given: Any = {"admin": _NoCluster(), "accounts": _Nobody(), "root": root}
        self.runner.run(self._make(ConsoleConfig(**given)))

    async def _make(self, config: ConsoleConfig) -> None:
        self.console = Console(config, SYSTEM_CLOCK, 8080)
        self.console.audit = _Memory(config.root, SYSTEM_CLOCK)
        # By the remainder of the first byte.
        self.accounts = [None, *(Account(role.value, role) for role in Role)]
        self.app = create_app(self.console)

    def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        return self.runner.run(self._ask(data))

    async def _ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        flags, rest = (data[0], data[1:]) if data else (0, b"")
        head, _, body = rest.partition(b"\n\n")
        line, *lines = head.split(b"\n")
        method, _, target = line.partition(b" ")
        raw_path, _, query = _sendable(target).partition(b"?")
        path = "/" + unquote(raw_path.decode()).lstrip("/")
        headers = [(b"host", b"localhost")]
        for each in lines[:_MOST_HEADERS]:
            name, _, value = each.partition(b":")
            headers.append((_sendable(name).lower(), bytes(b for b in value if b > 31 or b == 9)))
        # Of its own: an input may log out.
        account = self.accounts[flags % len(self.accounts)]
        cookie = self.console.sessions.begin(account) if account else ""
        headers.append((b"cookie", f"{self.console.cookie_name}={cookie}".encode()))
        session = self.console.sessions.find(cookie)
        if session is not None and flags & _TOKEN:
            headers.append((b"x-csrf-token", session.token.encode()))
        if flags & _FORM:
            headers.append((b"content-type", b"application/x-www-form-urlencoded"))
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 8080),
            "client": ("127.0.0.1", 5),
            "scheme": "http",
            "method": "POST" if method == b"POST" else "GET",
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            "state": {},
        }
        asked = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return asked.pop() if asked else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:])


def _sendable(text: bytes) -> bytes:
    """Return what of a text an HTTP server lets through in an address."""
    return quote_from_bytes(text, safe="".join(map(chr, range(33, 127)))).encode()


class _Current:
    """Holds the console that is asked, made for the first input."""

    served: _Served | None = None


class _Page(HTMLParser):
    """Refuses what is not ours in a page."""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        assert tag not in ("iframe", "object", "embed", "base", "style"), tag
        if tag == "script":
            assert (names.get("src") or "").startswith("/static/"), names
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "srcdoc"), (tag, name)
            if name in _ADDRESSES:
                own = not value or value[0] in "/#?"
                assert own, (tag, name, value)
                assert not (value or "").startswith(("//", "/\\")), (tag, name, value)


def run_console(_: Random, data: bytes) -> object:
    served = _Current.served
    if served is None:
        served = _Current.served = _Served()
    log_watch.faults.clear()
    status, headers, body = served.ask(data)
    log_watch.raise_fault()
    assert status < 500 or status in (502, 503), body
    assert headers["content-security-policy"].startswith(POLICY[:20])
    location = headers.get("location", "/")
    assert location.startswith(("/", "http://localhost/")), location
    assert not location.startswith(("//", "/\\")), location
    if headers.get("content-type", "").startswith("text/html"):
        page = _Page()
        page.feed(body.decode())
        page.close()
    return status


def _inputs() -> list[bytes]:
    """Return a sound request to each page and each action."""
    found = []
    texts, numbers = (
        b"&".join(f"{name}={value}".encode() for name in _NAMES) for value in ("a1", "1")
    )
    streams = set[str]().union(*(module.routes.streams for module in PAGES))
    for module in PAGES:
        for route in module.routes.routes:
            path = route.path.encode()
            if route.path in streams:
                continue
            if "POST" in (route.methods or ()):
                head = bytes([_OPERATOR_WITH_TOKEN]) + b"POST " + path + b"\n\n"
                found += [head + texts, head + numbers]
            else:
                found.append(b"\1GET " + path + b"?" + texts + b"\nhx-request: true\n\n")
    return found


def mutate_request(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Damage a request, most often only behind its path."""
    whole = mutate(random, data, corpus)
    if random.random() < 0.2:
        return whole
    start = min(max(data.find(b"?"), data.find(b"\n")) + 1, len(data))
    return data[:start] + mutate(random, data[start:], corpus)


TARGETS: Final = [Target("console", _inputs(), run_console, mutate_request, cost=4, is_twin=False)]
