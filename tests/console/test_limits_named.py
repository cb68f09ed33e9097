"""Every limit of the console's catalogue is hit once: the refusal says which it is, its value and what
to do, in both languages, and `/metrics` counts it.

Constants are patched to small values where the real ones would take long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from tests.console import test_outside
from tests.console.actors import Actors
from tests.console.running import Served, Visitor, running_console
from tests.console.test_limits import FORM, connected, rest_of
from tests.waits import eventually

from cometmq.console.limit_catalogue import CONSOLE_LIMITS
from cometmq.console.pages import (
    audit,
    letters,
    letters_export,
    messages,
    reports,
)
from cometmq.console.schemas import store as schemas
from cometmq.console.users import logins, sessions
from cometmq.console.web import connections, guard
from cometmq.console.web.connections import Connection
from cometmq.testing import Cluster

AVRO: Final = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
BURIED: Final = "limits-named"
# Handshakes need certificates.
HIT_ELSEWHERE: Final = dict.fromkeys(
    ("MAX_TLS_HANDSHAKES", "MAX_TLS_HANDSHAKES_PER_SECOND", "HANDSHAKE_S"), test_outside.__file__
)
Act = Callable[[Served, Visitor], str]


@dataclass(frozen=True)
class Case:
    """How to exceed a limit: `act` returns what is said of it, and with `silent` nothing is.

    `value` is what it has been patched to, in `module`, None if it keeps its own.
    """

    act: Act
    module: ModuleType | None = None
    value: int | None = None
    silent: bool = False


CASES: Final[dict[str, Case]] = {}


def case(
    name: str, module: ModuleType | None = None, value: int | None = None, *, silent: bool = False
) -> Callable[[Act], Act]:
    def take(act: Act) -> Act:
        assert name not in CASES
        CASES[name] = Case(act, module, value, silent)
        return act

    return take


def getting(path: str, **query: object) -> Act:
    return lambda _, visitor: visitor.get(path, **query).text


def posting(path: str, **given: object) -> Act:
    return lambda _, visitor: visitor.post(path, **given).text


def acting(path: str, **given: object) -> Act:
    return lambda _, visitor: visitor.act(path, **given).text


def sending(path: str, body: str) -> Act:
    return lambda _, visitor: visitor.send_body(path, body, FORM).text


def saying(head: bytes) -> Act:
    def act(served: Served, visitor: Visitor) -> str:
        with connected(served) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head)
            return rest_of(sock).decode()

    return act


def patched(name: str, module: ModuleType, value: int, act: Act, *, silent: bool = False) -> None:
    case(name, module, value, silent=silent)(act)


def wrong_passwords(served: Served, visitor: Visitor) -> str:
    for _ in range(3):
        stranger = Visitor(served, None)
        stranger.cookies.update(visitor.cookies)
        answer = stranger.log_in("nobody-here", "wrong")
    return answer.text


def many_sessions(served: Served, visitor: Visitor) -> str:
    Visitor(served, "reader")
    Visitor(served, "reader")
    return ""


def slow_request(served: Served, visitor: Visitor) -> str:
    with connected(served) as sock:
        sock.sendall(b"GET /login HTTP/1.1\r\nHost: local")
        rest_of(sock)
    return ""


def unread_answers(served: Served, visitor: Visitor) -> str:
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    request = f"GET /why HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode()
    with connected(served, receives=1024) as sock:
        sock.setblocking(False)

        def is_given_up() -> bool:
            try:
                with suppress(BlockingIOError):
                    sock.send(request * 20)
            except (ConnectionResetError, BrokenPipeError):
                return True
            return False

        eventually(is_given_up)
    return ""


def body_by_schema(served: Served, visitor: Visitor) -> str:
    page = visitor.get("/messages", topic=f"{BURIED}-topic")
    link = re.search(r'href="/message\?([^"]+)"', page.html)
    assert link is not None
    shown = visitor.get(f"/message?{link[1].replace('&amp;', '&')}&as=schema&schema=named")
    return shown.text


def long_audit(served: Served, visitor: Visitor) -> str:
    for _ in range(3):  # each login is an entry
        Visitor(served)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cometmq.console.users.audit._LINES_AT_ONCE", 1)
        return visitor.get("/audit/export").html


case("MAX_CONNECTIONS", connections, 0)(getting("/healthz"))
case("MAX_OF_ADDRESS", connections, 0)(getting("/healthz"))
case("REQUEST_S", silent=True)(slow_request)
case("CHECK_S", silent=True)(unread_answers)
case("MAX_HEADERS")(saying(b"a:\r\n" * 300))
case("MAX_HEADER_BYTES")(saying(b"X: " + b"x" * 100_000))
case("MAX_PATH_BYTES")(getting("/static" + "/a" * 1000))
case("MAX_QUERY_BYTES")(getting("/topics", q="x" * 9000))
case("MAX_REQUESTS_OF_ACCOUNT", guard, 0)(getting("/"))
case("MAX_STREAMS_OF_ACCOUNT", guard, 0)(getting("/events"))
case("MAX_STREAMS", guard, 0)(getting("/events"))
case("NAME_FAULTS", logins, 2)(wrong_passwords)
case("ADDRESS_FAULTS", logins, 2)(wrong_passwords)
case("MAX_LOGINS_WAITING", logins, 0)(wrong_passwords)
case("MAX_SESSIONS_OF_ACCOUNT", sessions, 1, silent=True)(many_sessions)
case("MAX_SESSIONS", sessions, 1, silent=True)(many_sessions)
case("MAX_FORM_BYTES")(sending("/topics/delete", "a=" + "x" * (1 << 20)))
case("MAX_LOGIN_BYTES")(sending("/login", "name=" + "x" * 20_000))
case("MAX_FORM_FIELDS")(sending("/topics/delete", "&".join(f"f{n}=1" for n in range(2001))))
case("MAX_FIELD_NAME")(sending("/topics/delete", "f" * 256 + "=1"))
case("MAX_FIELD")(posting("/topics/delete", name="x" * 200_000))
case("MAX_WHY")(posting("/topics/delete", name="x", why="y" * 501))
case("MAX_NAME")(getting("/topic", name="x" * 256))
case("MAX_LINES")(posting("/topic/send", name="t", body="b", properties="a=b\n" * 201))
case("MAX_LINES_TEXT")(posting("/topic/send", name="t", body="b", properties="a=" + "b" * 33_000))
case("MAX_TAG_OR_KEYS")(posting("/topic/send", name="t", body="b", tag="x" * 33_000))
case("MAX_ID")(getting("/trace", id="x" * 256))
case("MAX_SETTING")(
    posting("/name-server/set", address="a", key="logLevel", was="", value="x" * 1001)
)
case("MAX_ENTRY_NAME")(
    posting("/name-servers/put", namespace="n" * 513, key="k", was="", value="v")
)
case("MAX_ENTRY_VALUE")(
    posting("/name-servers/put", namespace="n", key="k", was="", value="v" * 65_537)
)
case("MAX_SCHEMA_NAME")(acting("/schemas/give", name="n" * 101, kind="avro", text=AVRO))
case("MAX_SCHEMA")(acting("/schemas/give", name="long", kind="avro", text=AVRO + " " * 262_144))
case("MAX_SCHEMAS", schemas, 1)(acting("/schemas/give", name="second", kind="avro", text=AVRO))
case("MAX_DECODINGS", schemas, 0)(body_by_schema)
case("MAX_TAILS", messages, 0)(getting("/messages/tail", topic="t"))
case("MAX_READS", reports, 0)(getting("/reports", name="archive"))
case("MAX_AUDIT_EXPORTS", audit, 0)(getting("/audit/export"))
case("MAX_AUDIT_EXPORT_S", audit, 0)(long_audit)
case("MAX_EACH", letters, 0)(posting("/letters/redrive", group=BURIED, which="chosen", id="A" * 32))
case("MAX_DRY_RUN_LETTERS", letters, 1)(
    posting("/letters/redrive", group=BURIED, which="all", key="none")
)
case("MAX_DRY_RUN_BYTES", letters, 1)(
    posting("/letters/redrive", group=BURIED, which="all", key="none")
)
case("MAX_LETTER_EXPORTS", letters_export, 0)(getting("/letters/export", group=BURIED))
for _limit in ("MAX_EXPORTED", "MAX_LOOKED_AT", "MAX_EXPORTED_BYTES", "MAX_EXPORT_S"):
    case(_limit, letters_export, 0)(getting("/letters/export", group=BURIED))


@pytest.fixture(scope="module")
def bounded(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A console that waits less long, with reports, a schema, and a group with dead letters."""
    root = tmp_path_factory.mktemp("bounded")
    (root / "reports").mkdir()
    with (
        Actors(cluster.namesrv) as actors,
        pytest.MonkeyPatch.context() as patch,
        running_console(cluster.namesrv, root / "console", reports=root / "reports") as served,
    ):
        patch.setattr(Connection, "check_s", 0.1)
        patch.setattr(Connection, "request_s", 1.0)
        actors.bury(BURIED, f"{BURIED}-topic", [b"1" * 10, b"2" * 10, b"3" * 10])
        given = Visitor(served).act("/schemas/give", name="named", kind="avro", text=AVRO)
        assert "kept" in given.text
        yield served


@pytest.fixture
def alone(cluster: Cluster, tmp_path: Path) -> Iterator[Served]:
    """A console whose address has to wait after wrong passwords, or whose sessions end."""
    with running_console(cluster.namesrv, tmp_path) as served:
        yield served


def hits(served: Served) -> dict[str, int]:
    """Return how often each limit was hit, as a scraper reads it without a login."""
    answer = Visitor(served, None).get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'node_type="console"' in answer.html
    found = re.findall(
        r'^cometmq_limit_hits_total{.*limit="(\w+)"} (\d+)$', answer.html, re.MULTILINE
    )
    return {name: int(count) for name, count in found}


def value_of(name: str) -> int:
    module, _, constant = CONSOLE_LIMITS[name].at.partition(":")
    return int(getattr(__import__(module, fromlist=[constant]), constant))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", [*CASES])
def test_a_limit_is_named_with_its_value_and_counted(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, language: str
) -> None:
    given = CASES[name]
    is_alone = given.module in (logins, sessions)
    served: Served = request.getfixturevalue("alone" if is_alone else "bounded")
    visitor = Visitor(served)
    visitor.cookies["cometmq-language"] = language
    before = hits(served)[name]
    value = value_of(name) if given.value is None else given.value
    if given.module is not None:
        monkeypatch.setattr(given.module, name, given.value)

    said = given.act(served, visitor)
    monkeypatch.undo()
    eventually(lambda: hits(served)[name] > before)
    if given.silent:
        assert said == ""
        return
    english = f"the limit {name} is {value}; "
    chinese = f"上限 {name} 为 {value}；"  # noqa: RUF001 - Chinese has a punctuation of its own
    assert (english if language == "en" else chinese) in said
    if language == "zh":
        remedy = said.partition(chinese)[2]
        assert re.match(r"[^ a-z]", remedy), "the remedy is told, too"


def test_few_open_files_are_counted(bounded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hits(bounded)["RLIMIT_NOFILE"]
    monkeypatch.setattr(connections, "descriptors_for_connections", lambda: (0, 64))
    assert "(RLIMIT_NOFILE)" in Visitor(bounded, None).get("/healthz").html
    monkeypatch.undo()
    assert hits(bounded)["RLIMIT_NOFILE"] == before + 1


def test_every_limit_is_hit_and_exposed_from_zero_on(bounded: Served) -> None:
    """Alerts tell the first hit by its difference from 0."""
    assert CASES.keys() | HIT_ELSEWHERE.keys() | {"RLIMIT_NOFILE"} == CONSOLE_LIMITS.keys()
    assert hits(bounded).keys() == CONSOLE_LIMITS.keys()
    for name, file in HIT_ELSEWHERE.items():
        assert f'"{name}"' in Path(file).read_text()
