"""Pages never say "none" where a broker did not answer: they say what is not known, and why."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.console.running import Answer, Visitor, running_console
from tests.console.stopped import (
    BILLING,
    KEY,
    ORDERS,
    PARKED,
    POPPERS,
    READERS,
    SHARED_KEY,
    Held,
    broker_process,
    stopped_cluster,
)
from tests.waits import eventually

from cometmq import AdminClient, ConsumeFromWhere, ConsumeResult, Message, Producer, PushConsumer
from cometmq.console.app import PAGES
from cometmq.console.views import rendering
from cometmq.testing import Cluster

pytestmark = pytest.mark.timeout(300)
# How long a page waits for a broker that says nothing, once.
WAIT_S: Final = 0.5
# Pages that show nothing of a broker, so that one that does not answer leaves them whole.
OF_NO_BROKER: Final = {
    "/healthz", "/metrics", "/login", "/events", "/messages/tail", "/name-server", "/name-servers",
    "/topics/new", "/groups/new", "/schemas", "/reports", "/reports/page", "/audit",
    "/audit/export", "/why", "/find", "/propose", "/propose/messages",
}  # fmt: skip
# Phrases of errors about a broker that does not answer, or is no longer registered.
CAUSES: Final = (
    "has answered nothing for",
    "does not answer at",
    "did not answer within",
    "no name server knows broker-b",
    "was lost",
    "no name server knows a master of broker broker-b",
    "no name server knows a broker 'broker-b'",
    "which this cluster does not have",
    # In the list of brokers.
    "broker-b 127.0.0.1",
)
# The views of pages: a path, and the values in the address.
Views = list[tuple[str, Mapping[str, object]]]


def views_of(held: Held) -> Views:
    """Return all views of what lies at the stopped broker alone, or there, too."""
    broker: Views = [
        ("/broker", {"address": held.address, "part": part})
        for part in (None, "files", "replication", "settings", "values")
    ]
    topics: Views = [
        ("/topic", {"name": name, "tab": tab})
        for name in (ORDERS, PARKED)
        for tab in ("queues", "brokers", "groups", "producers")
    ]
    groups: Views = [
        ("/group", {"name": name, "view": view})
        for name in (BILLING, READERS)
        for view in ("progress", "members", "offsets", "configuration")
    ]
    messages: Views = [
        (
            "/messages",
            {"topic": topic, "by": by, "key": SHARED_KEY if by == "key" else None, **given},
        )
        for topic in (ORDERS, PARKED)
        for by in ("time", "tail", "key")
        for given in ({}, {"text": "nowhere"})
    ]
    return [
        ("/", {}),
        ("/brokers", {}),
        *broker,
        ("/topics", {}),
        ("/topics", {"kind": "delayed", "q": "nowhere"}),
        *topics,
        ("/topic/change", {"name": PARKED}),
        ("/topic/send", {"name": PARKED}),
        ("/groups", {}),
        ("/groups", {"q": "nowhere"}),
        ("/groups", {"kind": "conflict"}),
        *groups,
        ("/group", {"name": READERS, "view": "offsets", "topic": PARKED}),
        ("/group", {"name": POPPERS, "view": "progress"}),
        ("/member", {"group": READERS, "client": held.member}),
        ("/producers", {}),
        ("/producers", {"q": "nowhere"}),
        ("/producers", {"topic": PARKED}),
        ("/producers", {"topic": PARKED, "group": "shop"}),
        *messages,
        ("/messages", {"topic": PARKED, "by": "key", "key": KEY}),
        ("/message", {"topic": ORDERS, "id": held.answered_id, "as": "text"}),
        ("/message", {"topic": PARKED, "id": held.unique_id}),
        ("/message", {"topic": ORDERS, "id": held.unique_id}),
        ("/message", {"id": held.offset_id}),
        ("/message", {"topic": PARKED, "broker": "broker-b", "queue": 0, "offset": 0}),
        ("/message/body", {"topic": PARKED, "id": held.unique_id}),
        ("/letters", {}),
        ("/letters", {"group": BILLING}),
        ("/letters", {"group": BILLING, "key": "nowhere"}),
        ("/letters/export", {"group": BILLING}),
        ("/delayed", {}),
        ("/delayed", {"q": "nowhere"}),
        ("/delayed", {"broker": "broker-b", "level": 18}),
        ("/transactions", {}),
        ("/transactions", {"q": "nowhere"}),
        ("/transactions", {"kind": "given-up"}),
        ("/trace", {"id": KEY}),
        ("/why/group", {"name": READERS}),
        ("/why/group", {"name": BILLING}),
        ("/why/group", {"name": POPPERS}),
        ("/why/message", {"id": held.unique_id, "topic": PARKED}),
        ("/why/message", {"id": held.unique_id, "topic": PARKED, "group": POPPERS}),
        ("/why/write", {"topic": PARKED}),
        ("/why/disk", {}),
        ("/why/restart", {}),
    ]


def name_of(path: str, query: Mapping[str, object]) -> str:
    """Return a name of a view that is the same in every run."""
    own = ("id", "client", "address")
    return " ".join(
        (path, *(str(value) for name, value in query.items() if value and name not in own))
    )


NAMES: Final = [
    f"{name_of(path, query)} #{number}"
    for number, (path, query) in enumerate(views_of(Held("address", "id", "id", "client", "id")))
]
# After the broker has gone name servers know nothing of it, and explanations ask those they know. A
# message is found without it.
NAMES_OF_GONE: Final = [
    name
    for name in NAMES
    if not name.startswith(("/why/", "/message/body", "/letters/export", "/message orders text"))
]


class Visited(NamedTuple):
    """Is who visits the console, and what it said of each view: while the broker was stopped, and
    after it was gone. `seconds` has how long each answer of the first kind took.
    """

    visitor: Visitor
    held: Held
    of_stopped: dict[str, Answer]
    of_gone: dict[str, Answer]
    seconds: dict[str, float]


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    directory = tmp_path_factory.mktemp("stopped")
    with (
        stopped_cluster(directory) as at,
        running_console(
            at.namesrv, directory / "console", timeout_ms=60_000, wait_s=WAIT_S
        ) as served,
    ):
        visitor = Visitor(served)

        seconds: dict[str, float] = {}

        def visit(name: str, view: tuple[str, Mapping[str, object]]) -> Answer:
            began = time.perf_counter()
            said = visitor.get(view[0], **view[1])
            seconds.setdefault(name, time.perf_counter() - began)
            return said

        def all_views() -> dict[str, Answer]:
            with ThreadPoolExecutor(4) as pool:
                got = pool.map(visit, NAMES, views_of(at.held))
                return dict(zip(NAMES, got, strict=True))

        see(visitor, "does not answer")
        # At once, since name servers forget a silent broker after two minutes.
        of_stopped = all_views()
        at.stopped.process.kill()
        see(visitor, "unregistered")
        yield Visited(visitor, at.held, of_stopped, all_views(), seconds)


def see(visitor: Visitor, wanted: str) -> None:
    eventually(lambda: visitor.get("/brokers").text, lambda text: wanted in text)


def figures(html: str) -> dict[str, str]:
    """The figures of a page, but for those that say themselves how much was looked at."""
    found = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>(?!\s*<dd class=.part)", html, re.DOTALL)
    return {name: re.sub(r"<[^>]*>", "", value).strip() for name, value in found}


def check(said: Answer, held: Held) -> None:
    assert said.status in (200, 404, 502), said.text
    empty = re.findall(r'class="empty">(.*?)<', said.html)
    assert [text for text in empty if "is under way" not in text] == []
    assert held.address in said.text or "broker-b" in said.text
    assert [cause for cause in CAUSES if cause in said.text], said.text
    if "Evidence" in said.text:
        return  # its figures are of the answers that it names
    # A number would be that of the other broker alone.
    whole = {n: v for n, v in figures(said.html).items() if re.fullmatch(r"[\d,.]+( %)?", v)}
    assert whole == {}


def test_every_page_that_asks_brokers_has_a_view_here() -> None:
    paths = {
        route.path
        for module in PAGES
        for route in module.routes.routes
        if "GET" in (route.methods or ())
    }
    seen = {path for path, _ in views_of(Held("", "", "", "", ""))}
    assert paths - OF_NO_BROKER == seen


@pytest.mark.parametrize("view", NAMES)
def test_no_page_takes_what_a_stopped_broker_does_not_say_for_none(
    visited: Visited, view: str
) -> None:
    check(visited.of_stopped[view], visited.held)


@pytest.mark.parametrize("view", NAMES_OF_GONE)
def test_no_page_takes_what_a_broker_that_is_gone_had_for_none(visited: Visited, view: str) -> None:
    check(visited.of_gone[view], visited.held)


@pytest.mark.parametrize("view", [name for name in NAMES if name.startswith("/group ")])
def test_a_group_has_one_bar_for_one_broker(visited: Visited, view: str) -> None:
    bars = re.findall('class="unknown".*?</p>', visited.of_stopped[view].html, re.DOTALL)
    # On a busy machine the other broker may miss the page's time, too, and then has a bar of its own.
    brokers = [address for bar in bars for address in re.findall(r"127\.0\.0\.1:\d+", bar)]
    assert visited.held.address in brokers, bars
    assert len(set(brokers)) == len(brokers), bars


@pytest.mark.parametrize("view", [name for name in NAMES if POPPERS in name])
def test_a_group_that_pops_is_not_known_in_time(visited: Visited, view: str) -> None:
    """The console's calls may take a minute (`timeout_ms`), its pages wait half a second (`wait_s`)."""
    assert visited.seconds[view] < 30
    said = visited.of_stopped[view].text
    assert "ot known" in said or "did not answer" in said, said
    assert "in flight" not in said.replace("in flight or not popped yet", "")


def test_what_the_other_broker_has_is_shown(visited: Visited) -> None:
    said = {name.rpartition(" #")[0]: answer.text for name, answer in visited.of_stopped.items()}
    assert SHARED_KEY in said["/messages orders time"]
    assert BILLING in said["/topic orders groups"]
    assert "orders broker-a 0" in said[f"/group {BILLING} progress"]


def test_a_message_that_one_broker_has_is_shown_though_another_may_have_it_too(
    visited: Visited,
) -> None:
    said = {name.rpartition(" #")[0]: answer.text for name, answer in visited.of_stopped.items()}
    for view in (f"/messages orders key {SHARED_KEY}", "/message orders text"):
        assert "Not known: further messages with this" in said[view]
        assert said[view].count(SHARED_KEY) > (1 if "messages" in view else 0)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        *[("/group", {"name": "nobody", "view": view}) for view in ("progress", "offsets")],
        ("/letters", {"group": "nobody"}),
        ("/topic", {"name": "nothing"}),
        ("/topic/send", {"name": "nothing"}),
        ("/topic/change", {"name": "nothing"}),
        ("/messages", {"topic": "nothing"}),
        ("/messages", {"topic": "nothing", "by": "key", "key": "k"}),
    ],
)
def test_a_name_that_nobody_knows_gets_no_page_as_if_it_were_there(
    visited: Visited, path: str, query: dict[str, str]
) -> None:
    said = visited.visitor.get(path, **query)
    assert said.status == 404
    check(said, visited.held)
    shown = said.html.partition("<main")[2].partition("<dialog")[0]
    assert [tag for tag in ("<dl", "<table", 'method="post"') if tag in shown] == []
    assert "Not known: whether " in said.text


def test_the_palette_does_not_say_that_nothing_has_the_name(visited: Visited) -> None:
    assert visited.visitor.get("/find", q="only-at-the-other").status == 503
    assert visited.visitor.get("/find", q=ORDERS).status == 200


# Templates whose empty states depend on no broker: what a form needs, what was typed, what a file has,
# what one answer holds, what is under way.
OF_NO_ANSWER: Final = {
    "broker_files.html", "broker_replication.html", "broker_settings.html", "broker_unknown.html",
    "broker_values.html", "brokers.html", "audit.html", "group_new.html", "letters_of_group.html",
    "member.html", "message.html", "messages.html", "name_server.html",
    "name_server_entries.html", "overview.html", "reports.html", "schemas.html",
    "topic_change.html", "topic_new.html", "topic_send.html", "trace.html", "why_answer.html",
}  # fmt: skip


def test_every_empty_state_says_what_it_depends_on() -> None:
    templates = Path(rendering.__file__).parents[1] / "templates"
    found = {
        at.name
        for at in templates.glob("*.html")
        for line in at.read_text("utf-8").splitlines()
        if "m.empty(" in line and "unless=" not in line
    }
    assert found == OF_NO_ANSWER


# A broker of another cluster


@pytest.fixture
def two_clusters(tmp_path: Path) -> Iterator[Visitor]:
    """Run a cluster, and beside it one whose only broker is gone."""
    with Cluster() as east, AdminClient(east.namesrv) as admin:
        admin.topics.create("eastern")
        with Producer("east-shop", namesrv=east.namesrv) as producer:
            producer.send(Message("eastern", b"x"))
        with (
            PushConsumer(
                "east-readers",
                lambda _: ConsumeResult.SUCCESS,
                namesrv=east.namesrv,
                consume_from=ConsumeFromWhere.FIRST_OFFSET,
            ) as consumer,
            running_console(east.namesrv, tmp_path / "console", wait_s=WAIT_S) as served,
        ):
            consumer.subscribe("eastern")
            visitor = Visitor(served)
            with broker_process(tmp_path, east.namesrv, "west", "broker-w"):
                admin.groups.create("west-readers", broker="broker-w")
                eventually(
                    lambda: visitor.get("/groups").text,
                    lambda text: "west-readers" in text and "east-readers" in text,
                )
            see(visitor, "unregistered")
            yield visitor


def test_a_gone_broker_of_another_cluster_leaves_groups_known(two_clusters: Visitor) -> None:
    text = eventually(lambda: two_clusters.get("/groups").text, lambda text: "broker-w" in text)
    assert text.count("Not known: ") == 1, "the list is of all clusters"
    assert "east-readers online" in text
    for view in ("progress", "members", "offsets", "configuration"):
        said = two_clusters.get("/group", name="east-readers", view=view)
        assert said.status == 200
        assert "Not known" not in said.text
    for path, query in (
        ("/topic", {"name": "eastern"}),
        ("/topic", {"name": "eastern", "tab": "groups"}),
        ("/messages", {"topic": "eastern"}),
        ("/letters", {"group": "east-readers"}),
    ):
        said = two_clusters.get(path, **query)
        assert said.status == 200
        assert "Not known" not in said.text, path
    gone = two_clusters.get("/group", name="west-readers")
    assert gone.text.count("Not known: ") == 1
    assert "no name server knows broker-w" in gone.text
    # Nor do pages about everything have more than a bar for it.
    for path in ("/", "/topics", "/letters", "/producers", "/delayed", "/transactions"):
        assert two_clusters.get(path).status == 200
        assert two_clusters.get(path).text.count("Not known: ") <= 1, path
