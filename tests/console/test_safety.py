"""Limit who may call the console, from where, and how a browser may use its answers.

The rules for pages and actions are tested for each one that the console has.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from starlette.routing import Route
from tests.certificates import Authority
from tests.console.running import Served, Visitor, running_console

from cometmq.console.app import PAGES
from cometmq.console.config import ConsoleConfig
from cometmq.console.users.accounts import Account, Accounts, made_accounts
from cometmq.console.users.logins import NAME_FAULTS, Logins, TooManyLoginsError
from cometmq.console.web.guard import POLICY
from cometmq.errors import ConfigError
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.testing import Cluster

ROUTES = [route for module in PAGES for route in module.routes.routes]
STREAMS = sorted(set[str]().union(*(module.routes.streams for module in PAGES)))
CALLED = {path: what for module in PAGES for path, what in module.routes.actions.items()}
OPEN = ("/login", "/healthz", "/metrics")
# What each session may do, readers, too.
OF_READERS = ("/login", "/logout", "/choices")


def paths(method: str, *but: str) -> list[str]:
    found = {route.path for route in ROUTES if method in (route.methods or ())}
    return sorted(found.difference(but))


PAGE_PATHS = paths("GET", *STREAMS)
ACTION_PATHS = paths("POST", *OF_READERS)
each_page = pytest.mark.parametrize("path", PAGE_PATHS)
each_action = pytest.mark.parametrize("path", ACTION_PATHS)


def log_of(served: Served) -> str:
    return (served.root / "audit.jsonl").read_text()


def test_every_address_is_a_page_or_an_action() -> None:
    """A route that is registered beside `Routes` would have neither token nor role nor audit log."""
    assert all(isinstance(route, Route) for route in ROUTES)
    by_hand = {(path, "POST") for path in OF_READERS}
    for route in ROUTES:
        methods = set(route.methods or ()) - {"HEAD"}
        assert len(methods) == 1, route
        if methods == {"POST"} and (route.path, "POST") not in by_hand:
            assert route.endpoint.__qualname__.startswith("Routes.action"), route.path


# Logins


def test_a_wrong_password_is_refused_as_a_wrong_name_is(served: Served) -> None:
    visitor = Visitor(served, None)
    wrong = visitor.log_in("operator", "guess")
    unknown = visitor.log_in("hunter2-typed-as-name", "guess")
    assert (wrong.status, unknown.status) == (401, 401)
    assert "The name or the password is wrong." in wrong.text
    assert wrong.text.replace("operator", "") == unknown.text.replace("hunter2-typed-as-name", "")
    assert not visitor.cookies
    assert visitor.get("/").status == 303
    log = log_of(served)
    assert '"who": "operator"' in log
    # It may be a password that was typed in the wrong place.
    assert "hunter2" not in log


def test_guessing_is_slowed_down(cluster: Cluster, tmp_path: Path) -> None:
    with running_console(cluster.namesrv, tmp_path) as served:
        visitor = Visitor(served, None)
        answers = [visitor.log_in("operator", f"guess {number}") for number in range(6)]
        assert [answer.status for answer in answers] == [401] * 5 + [429]
        assert "try again in" in answers[-1].text
        # The right password has to wait, too, or guesses would go on; other names do not.
        assert visitor.log_in("operator", served.passwords["operator"]).status == 429
        assert visitor.log_in("reader", served.passwords["reader"]).status == 303


def test_guesses_that_come_at_once_are_slowed_down_like_those_that_come_one_by_one() -> None:
    """All that waited for their check had been let in before the first of them failed."""
    accounts, passwords = made_accounts()
    checked: list[str] = []

    class Counting(Accounts):
        def verify(self, name: str, password: str) -> Account | None:
            checked.append(password)
            return accounts.verify(name, password)

    async def guess() -> list[object]:
        logins = Logins(Counting(()), SYSTEM_CLOCK)
        guesses = (logins.check("operator", f"guess {number}", "10.0.0.1") for number in range(30))
        found = await asyncio.gather(*guesses, return_exceptions=True)
        # Of another name, and from elsewhere, a password is still looked at.
        for name, address in (("reader", "10.0.0.1"), ("operator", "10.0.0.2")):
            assert await logins.check(name, passwords[name], address) is not None
        return list(found)

    # In a thread: the browser of other tests keeps a loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(asyncio.run, guess()).result()
    assert len(checked) - 2 == NAME_FAULTS
    assert sum(isinstance(one, TooManyLoginsError) for one in found) == 30 - NAME_FAULTS


def test_a_session_ends_when_it_is_not_used(cluster: Cluster, tmp_path: Path) -> None:
    with running_console(cluster.namesrv, tmp_path, idle_s=0.0) as served:
        visitor = Visitor(served)
        page = visitor.get("/topics", q="a b")
        assert page.status == 303
        assert page.headers["location"] == "/login?next=%2Ftopics%3Fq%3Da%2Bb"
        refreshed = visitor.send("GET", "/topics", headers={"HX-Request": "true"})
        assert refreshed.headers["hx-refresh"] == "true"
        assert "Your session has ended" in visitor.get("/login", next="/topics").text
        assert "Your session has ended" not in Visitor(served, None).get("/login").text


def test_a_session_ends_with_its_time_however_much_it_is_used(
    cluster: Cluster, tmp_path: Path
) -> None:
    with running_console(cluster.namesrv, tmp_path, session_s=0.0) as served:
        assert Visitor(served).get("/").status == 303


def test_logging_out_ends_the_session_of_a_copied_cookie(served: Served) -> None:
    visitor, thief = Visitor(served), Visitor(served, None)
    thief.cookies.update(visitor.cookies)
    assert thief.get("/").status == 200
    out = visitor.post("/logout")
    assert out.status == 303
    assert thief.get("/").status == 303
    # Who has logged out knows it.
    visitor.cookies = {name: value for name, value in visitor.cookies.items() if value != '""'}
    login = visitor.get("/login").text
    assert "Your session has ended" not in login
    assert "The console printed its passwords" in login


def test_logging_in_again_ends_the_session_before(served: Served) -> None:
    visitor, before = Visitor(served), Visitor(served, None)
    before.cookies.update(visitor.cookies)
    visitor.log_in("reader", served.passwords["reader"])
    assert before.get("/").status == 303


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/",
        "/\\evil.example/",
        "https://evil.example/",
        "javascript:alert(1)",
        "/\t/evil.example",
        "\\\\evil.example",
        "//[",
        "evil.example",
        "",
    ],
)
def test_a_login_leads_to_a_page_of_this_console(served: Served, path: str) -> None:
    visitor = Visitor(served, None)
    fields = {"name": "reader", "password": served.passwords["reader"]}
    answer = visitor.send("POST", f"/login?next={quote(path, safe='')}", fields)
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize("path", ["//evil.example/x", "/%5Cevil.example", "///evil.example"])
def test_the_way_to_the_login_names_no_other_host(served: Served, path: str) -> None:
    answer = Visitor(served, None).send("GET", path)
    assert answer.status == 303
    assert re.match(r"/login\?next=%2F[^%2F\\]", answer.headers["location"])
    shown = Visitor(served).send("GET", path)
    assert 'href="//' not in shown.html


# Cookies


def test_scripts_and_other_sites_do_not_get_the_cookie(served: Served) -> None:
    answer = Visitor(served, None).log_in("reader", served.passwords["reader"])
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert f"cometmq-session-{served.port}=" in cookie


# Roles and tokens


@each_page
def test_a_page_wants_a_login(served: Served, path: str) -> None:
    answer = Visitor(served, None).get(path)
    if path in OPEN:
        assert answer.status == 200
    else:
        assert answer.status == 303
        assert answer.headers["location"].startswith("/login?next=")


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_wants_a_login(served: Served, path: str) -> None:
    assert Visitor(served, None).get(path).status == 401


@each_action
def test_an_action_wants_a_login(served: Served, path: str) -> None:
    assert Visitor(served, None).send("POST", path, {"name": "x"}).status == 401


@each_action
def test_a_reader_may_not_act(served: Served, reader: Visitor, path: str) -> None:
    answer = reader.post(path, name="x", confirm="x")
    assert answer.status == 403
    assert "only operators may do this" in answer.text
    assert f'"what": "{CALLED[path]}"' in log_of(served)


@each_action
@pytest.mark.parametrize("token", [None, "", "0" * 64, "ü"])
def test_an_action_wants_the_token_of_its_session(
    served: Served, operator: Visitor, path: str, token: str | None
) -> None:
    before = log_of(served)
    fields = {"name": "x", "confirm": "x"} | ({} if token is None else {"csrf": token})
    answer = operator.send("POST", path, fields)
    assert answer.status == 403
    assert "no valid token" in answer.text
    assert log_of(served) == before


@pytest.mark.parametrize("path", ["/logout", "/choices"])
def test_what_readers_may_do_wants_a_token_too(reader: Visitor, path: str) -> None:
    assert reader.send("POST", path, {"theme": "dark"}).status == 403
    assert reader.get("/").status == 200


def test_a_token_of_another_session_does_not_fit(served: Served, operator: Visitor) -> None:
    other = Visitor(served).token()
    assert operator.send("POST", "/topics/delete", {"csrf": other, "name": "x"}).status == 403


@each_action
def test_an_action_without_its_fields_says_so(operator: Visitor, path: str) -> None:
    """A form that a stranger made up is the caller's fault, and never the console's."""
    answer = operator.post(path)
    assert answer.status < 500 or answer.status == 502, answer.text


# Names and origins


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
    ],
)
def test_an_unknown_name_of_the_console_is_refused(served: Served, host: str) -> None:
    """So another site's page cannot have its own name lead here (DNS rebinding)."""
    answer = Visitor(served, None).send("GET", "/login", headers={"Host": host})
    assert answer.status == 421
    assert "--allow-host" in answer.body.decode()


@pytest.mark.parametrize("host", ["user@127.0.0.1", "[", "", "a b"])
def test_a_request_that_names_no_host_is_refused(served: Served, host: str) -> None:
    answer = Visitor(served, None).send("GET", "/login", headers={"Host": host})
    assert answer.status == 421
    assert "does not say by which name" in answer.body.decode()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:99", "10.1.2.3", "LOCALHOST"])
def test_addresses_and_loopback_are_names_of_the_console(served: Served, host: str) -> None:
    assert Visitor(served, None).send("GET", "/login", headers={"Host": host}).status == 200


def test_a_proxy_has_its_name_allowed(cluster: Cluster, tmp_path: Path) -> None:
    with running_console(cluster.namesrv, tmp_path, hosts=("Queues.Example",)) as served:
        visitor = Visitor(served, None)
        assert visitor.send("GET", "/login", headers={"Host": "queues.example"}).status == 200
        # The proxy speaks TLS, the console does not know that.
        headers = {"Host": "queues.example", "Origin": "https://queues.example"}
        fields = {"name": "reader", "password": served.passwords["reader"]}
        assert visitor.send("POST", "/login", fields, headers).status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_forms_of_other_sites_are_refused(
    served: Served, operator: Visitor, headers: dict[str, str]
) -> None:
    fields = {"csrf": operator.token(), "theme": "dark"}
    assert operator.send("POST", "/choices", fields, headers).status == 403
    login = {"name": "reader", "password": served.passwords["reader"]}
    assert Visitor(served, None).send("POST", "/login", login, headers).status == 403


def test_other_sites_may_link_here_but_not_load_parts(operator: Visitor) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert (
        operator.send("GET", "/why", headers={**elsewhere, "Sec-Fetch-Mode": "navigate"}).status
        == 200
    )
    assert (
        operator.send("GET", "/why", headers={**elsewhere, "Sec-Fetch-Mode": "no-cors"}).status
        == 403
    )


# What browsers may do with the answers


def is_guarded(headers: object) -> None:
    assert isinstance(headers, dict)
    assert headers["content-security-policy"].startswith("default-src 'none'; ")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert "server" not in headers


def test_the_policy_lets_no_inline_script_run() -> None:
    assert "unsafe" not in POLICY
    assert "*" not in POLICY


@each_page
def test_every_page_has_the_policy(operator: Visitor, path: str) -> None:
    answer = operator.get(path)
    is_guarded(answer.headers)
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/no-such-page", 404),
        ("GET", "/static/no-such-file", 404),
        ("GET", "/static/console.css", 200),
        ("GET", "/static/../app.py", 404),
        ("GET", "/static/%2e%2e/app.py", 404),
        ("GET", "/topics/delete", 405),
        ("TRACE", "/", 405),
        ("PUT", "/", 405),
        ("POST", "/login", 415),
    ],
)
def test_refusals_have_the_policy(operator: Visitor, method: str, path: str, status: int) -> None:
    answer = operator.send(method, path)
    assert answer.status == status
    is_guarded(answer.headers)


def test_a_page_that_fails_tells_nothing_and_has_the_policy(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret-of-the-inside")

    monkeypatch.setattr("cometmq.console.pages.why.render", fail)
    answer = operator.get("/why")
    assert answer.status == 500
    assert "The console has failed" in answer.text
    assert "secret" not in answer.html
    is_guarded(answer.headers)


HOSTILE = "'\"><img src=x onerror=alert(1)><script>{{7*191}}"
NAMES = (
    "q", "name", "topic", "group", "id", "key", "address", "broker", "cluster", "kind", "page", "rows",
    "desc", "since", "until", "from", "to", "at", "who", "what", "outcome", "size", "queue", "offset",
    "unique", "tab", "schema", "form", "report", "path", "client", "why", "next", "sort", "by", "view",
)  # fmt: skip


@each_page
def test_what_an_address_says_is_only_text_in_a_page(operator: Visitor, path: str) -> None:
    answer = operator.get(path, **dict.fromkeys(NAMES, HOSTILE))
    assert answer.status < 500 or answer.status == 502, answer.text
    assert "<img src=x" not in answer.html
    assert "<script>" not in answer.html
    assert "1337" not in answer.html
    is_guarded(answer.headers)


ODD = (
    "\0",
    "²",
    "9" * 100,
    "-1",
    "\ud7ff\U0010ffff",
    "%",
    "a\r\nb: c",
    " ",
    "../../etc/passwd",
    "[",
)


@each_page
def test_odd_values_in_an_address_break_no_page(operator: Visitor, path: str) -> None:
    for value in ODD:
        answer = operator.get(path, **dict.fromkeys(NAMES, value))
        assert answer.status < 500 or answer.status == 502, (value, answer.text)


# Without a login


def test_a_console_without_a_login_serves_its_own_machine(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "10.1.2.3", "queues.example"):
        with pytest.raises(ConfigError, match="without a login"):
            ConsoleConfig(admin=None, root=tmp_path, accounts=None, host=host)  # type: ignore[arg-type]  # it is refused first


def test_everybody_is_an_operator_without_a_login_and_needs_a_token_all_the_same(
    cluster: Cluster, tmp_path: Path
) -> None:
    with running_console(cluster.namesrv, tmp_path, accounts=None) as served:
        visitor = Visitor(served, None)
        assert visitor.send("POST", "/topics/delete", {"name": "x"}).status == 403
        assert visitor.get("/why").status == 303
        assert visitor.get("/why").status == 200
        assert visitor.send("POST", "/topics/delete", {"name": "x"}).status == 403
        assert visitor.post("/topics/delete", name="x").status == 200


def test_the_cookie_stays_on_tls(cluster: Cluster, tmp_path: Path) -> None:
    pair = Authority(tmp_path / "tls").sign("console", "IP:127.0.0.1")
    with running_console(
        cluster.namesrv, tmp_path, certificate=pair.certificate, certificate_key=pair.key
    ) as served:
        assert served.url.startswith("https://")
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", served.port, context=context)
        form = urlencode({"name": "reader", "password": served.passwords["reader"]})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/login", form, kind)
        answer = connection.getresponse()
        connection.close()
        assert "secure" in answer.headers["set-cookie"].lower()


# Addresses that somebody gives


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A port that is no server of the cluster."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def test_the_console_connects_to_no_address_that_somebody_gives(
    reader: Visitor, operator: Visitor, stranger: socket.socket
) -> None:
    """It signs what it asks, so a stranger would get signed requests to repeat at a broker."""
    address = f"127.0.0.1:{stranger.getsockname()[1]}"
    given = dict.fromkeys(("address", "broker", "client", "where", "namesrv"), address)
    called: list[str] = []

    def look(path: str) -> None:
        with suppress(BlockingIOError):
            while True:
                stranger.accept()[0].close()
                called.append(path)

    for path in PAGE_PATHS:
        reader.get(path, **given, name="x", topic="x", group="x", id="x")
        look(path)
    for path in ACTION_PATHS:
        fields = {**dict.fromkeys(NAMES, "x"), **given, "kind": "files", "key": "brokerPermission"}
        operator.post(path, **fields)
        look(path)
    assert not called


def test_an_id_of_a_message_leads_to_no_stranger(reader: Visitor, stranger: socket.socket) -> None:
    """An offset id holds the address of a broker."""
    port = stranger.getsockname()[1]
    offset_id = f"7F000001{port:08X}{0:016X}"
    for path in PAGE_PATHS:
        for name in ("id", "key", "q", "unique"):
            reader.get(path, **{name: offset_id}, topic="x", way="id", by="id")
    with pytest.raises(BlockingIOError):
        stranger.accept()
