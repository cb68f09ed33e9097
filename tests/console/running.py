"""Runs a console beside a cluster, and visits it: by plain requests, and with Chromium."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, sync_playwright
from tests.waits import WAIT_S

from cometmq.admin.client import AdminClient
from cometmq.console.config import ConsoleConfig
from cometmq.console.state import COOKIE
from cometmq.console.users.accounts import made_accounts
from cometmq.console.web.serving import ConsoleServer
from cometmq.runtime.portal import LoopThread

CHROMIUM: Final = "/usr/bin/chromium"
# Without these Chromium calls Google's hosts at its start, which a machine without them refuses.
_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Served(NamedTuple):
    """A console that runs, and the passwords of its two accounts, `operator` and `reader`."""

    url: str
    port: int
    passwords: Mapping[str, str]
    root: Path


@contextmanager
def running_console(namesrv: str, root: Path, **options: Any) -> Iterator[Served]:
    """Run a console for the cluster of these name servers, on a loop of its own.

    `options` are those of ConsoleConfig, and `timeout_ms` of its client; without a `port` it is a
    free one.
    """
    accounts, passwords = made_accounts()
    admin = AdminClient(namesrv, timeout_ms=options.pop("timeout_ms", 5000))
    # A busy machine may be slower than a user should have to wait.
    options = {"accounts": accounts, "port": 0, "wait_s": 5.0, **options}
    thread = LoopThread("console")
    thread.start()
    try:
        config = ConsoleConfig(admin=admin, root=root, **options)
        server = ConsoleServer(config)
        thread.call(server.start())
        try:
            yield Served(server.url, server.port, passwords, root)
        finally:
            thread.call(server.close())
    finally:
        thread.stop()


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The text that a reader sees, without tags, with single spaces."""
        parser = _Texts()
        parser.feed(self.body.decode().replace("<wbr>", ""))
        return " ".join(" ".join(parser.texts).split())

    @property
    def html(self) -> str:
        return self.body.decode()


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class Visitor:
    """Calls a console as a browser does, without scripts: cookies, forms and their tokens."""

    def __init__(self, served: Served, account: str | None = "operator") -> None:
        self.served = served
        self.cookies: dict[str, str] = {}
        # By session: a token stays as long as its session.
        self._tokens: dict[str | None, str] = {}
        if account is not None:
            answer = self.log_in(account, served.passwords[account])
            assert answer.status == 303, answer

    def log_in(self, name: str, password: str) -> Answer:
        return self.send("POST", "/login", {"name": name, "password": password})

    def get(self, path: str, /, **query: object) -> Answer:
        given = {name: value for name, value in query.items() if value is not None}
        return self.send("GET", f"{path}?{urlencode(given)}" if given else path)

    def token(self) -> str:
        """The token that this session's forms carry."""
        session = self.cookies.get(f"{COOKIE}-{self.served.port}")
        if session not in self._tokens:
            found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.get("/audit").html)
            assert found is not None, "a page has a form"
            self._tokens[session] = found[1]
        return self._tokens[session]

    def post(self, path: str, /, **fields: object) -> Answer:
        """Post a form with the session's token; `confirm` and `why` are fields like others."""
        return self.send("POST", path, {"csrf": self.token(), **fields})

    def act(self, path: str, /, **fields: object) -> Answer:
        """Post a form, follow it to the page behind it, and return that page."""
        answer = self.post(path, **fields)
        assert answer.status == 303, answer.text
        return self.send("GET", answer.headers["location"])

    def send(
        self,
        method: str,
        path: str,
        fields: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        body = None if fields is None else urlencode(fields, doseq=True)
        kind = {} if fields is None else {"Content-Type": "application/x-www-form-urlencoded"}
        return self._send(method, path, body, {**kind, **(headers or {})})

    def send_body(self, path: str, body: str | bytes, kind: str) -> Answer:
        """Post a body as it is."""
        return self._send("POST", path, body, {"Content-Type": kind})

    def _send(
        self, method: str, path: str, body: str | bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=WAIT_S)
        try:
            sent = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
            connection.request(method, path, body, {**sent, **headers})
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("set-cookie") or []:
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies[name] = value
            got = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, got, answer.read())
        finally:
            connection.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def logged_in(
    browser: Browser, served: Served, account: str = "operator", *, at: str = "/", **options: Any
) -> Page:
    """Return a page of a new context that is logged in and `at` an address, blank without one.

    The session is one that a plain request began: a form is filled in by `logged_in_by_form` alone.
    `options` are those of the context.
    """
    context = browser.new_context(base_url=served.url, **options)
    context.set_default_timeout(WAIT_S * 1_000)
    cookies = Visitor(served, account).cookies
    context.add_cookies(
        [{"name": name, "value": value, "url": served.url} for name, value in cookies.items()]
    )
    page = context.new_page()
    if at:
        page.goto(at)
    return page


def logged_in_by_form(browser: Browser, served: Served, account: str = "operator") -> Page:
    """Return a page of a new context where somebody logged in as people do."""
    page = browser.new_context(base_url=served.url).new_page()
    page.set_default_timeout(WAIT_S * 1_000)
    page.goto("/login")
    page.fill("[name=name]", account)
    page.fill("[name=password]", served.passwords[account])
    page.click("main button")
    page.wait_for_url("**/")
    return page
