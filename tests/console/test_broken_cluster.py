"""Pages about a broken cluster: they show everything still known, and say what is not known and
why.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.console.broken import silent_broker, strange_broker
from tests.console.running import Answer, Visitor, running_console
from tests.waits import eventually

from cometmq import AdminClient, Message, Producer
from cometmq.console.app import PAGES
from cometmq.testing import Cluster

pytestmark = pytest.mark.timeout(300)
TIMEOUT_MS = 1500
TOPIC, GROUP = "orders", "billing"
# What is no page for people.
NO_PAGES = ("/events", "/find", "/healthz", "/messages/tail", "/metrics", "/login")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made, AdminClient(made.namesrv) as admin:
        admin.topics.create(TOPIC)
        admin.groups.create(GROUP)
        with Producer("shop", namesrv=made.namesrv) as producer:
            made_id = producer.send(Message(TOPIC, b"x", keys="O-1")).msg_id
        assert made_id
        yield made


@pytest.fixture
def visitor(cluster: Cluster, tmp_path: Path) -> Iterator[Visitor]:
    with running_console(cluster.namesrv, tmp_path, timeout_ms=TIMEOUT_MS) as served:
        yield Visitor(served)


def all_pages(visitor: Visitor, broker: str) -> dict[str, Answer]:
    """Return every page's answer for the topic, the group and the broker."""
    query = {"/topic": {"name": TOPIC}, "/group": {"name": GROUP}, "/broker": {"address": broker}}
    paths = [
        route.path
        for module in PAGES
        for route in module.routes.routes
        if "GET" in (route.methods or ()) and route.path not in NO_PAGES
    ]

    def visit(path: str) -> Answer:
        given = query.get(path) or {
            "name": GROUP, "topic": TOPIC, "group": GROUP, "address": broker, "id": "0" * 32,
        }  # fmt: skip
        return visitor.get(path, **given)

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(paths, pool.map(visit, paths), strict=True))


def see(visitor: Visitor, path: str, wanted: str) -> None:
    """Wait until a page says it: what the console has seen of a cluster is some seconds old."""
    eventually(lambda: visitor.get(path).text, lambda text: wanted in text, wait_s=30)


def failed(answers: dict[str, Answer]) -> dict[str, str]:
    """The pages on which the console itself has failed."""
    return {path: got.text for path, got in answers.items() if got.status in (500, 501, 503)}


def test_without_a_name_server_pages_say_so(cluster: Cluster, visitor: Visitor) -> None:
    broker = cluster.brokers[0].address
    cluster.call("stop_name_server")
    answers = all_pages(visitor, broker)
    assert failed(answers) == {}
    assert answers["/audit"].status == 200
    for path in ("/", "/topics", "/brokers"):
        # Answers that are some seconds old are shown until there are newer ones.
        see(visitor, path, cluster.namesrv)
    # Brokers that were known are still asked.
    assert GROUP in visitor.get("/groups").text


def test_a_broker_that_never_answers_leaves_the_other_to_be_seen(
    cluster: Cluster, visitor: Visitor
) -> None:
    with silent_broker(cluster.namesrv, "DefaultCluster", [TOPIC]) as silent:
        see(visitor, "/brokers", silent)
        answers = all_pages(visitor, silent)
        assert failed(answers) == {}
        for path in ("/brokers", "/broker"):
            assert silent in answers[path].text, path
        assert cluster.brokers[0].address in answers["/brokers"].text
        assert answers["/topics"].status == answers["/groups"].status == 200
        # Of the topic's queues those are told whose broker answers.
        assert cluster.brokers[0].config.broker_name in answers["/topic"].text


def test_no_page_waits_for_a_silent_broker_as_long_as_the_client_would(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Pages came after 2.5 to 5.6 s. Here each would fail: the client waits for a minute."""
    topics = [TOPIC, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"]
    with (
        silent_broker(cluster.namesrv, "DefaultCluster", topics) as silent,
        running_console(cluster.namesrv, tmp_path, timeout_ms=60_000, wait_s=1.0) as served,
    ):
        assert failed(all_pages(Visitor(served), silent)) == {}
        # Its silence is known by now, however busy this machine is.
        answers = all_pages(Visitor(served), silent)
        assert failed(answers) == {}
        reported = {
            path for path, answer in answers.items() if "has answered nothing for" in answer.text
        }
        assert {"/topic", "/group", "/why/group", "/why/disk", "/producers", "/delayed"} <= reported


def test_a_page_does_not_ask_a_silent_broker_again(cluster: Cluster, tmp_path: Path) -> None:
    asked: list[int] = []
    # What the watch asks, whoever looks: about itself, some topics and members, and all groups.
    watched = {26, 28, 29, 202, 203, 317}
    with (
        silent_broker(cluster.namesrv, "DefaultCluster", [TOPIC], asked) as silent,
        running_console(cluster.namesrv, tmp_path, timeout_ms=60_000, wait_s=0.5) as served,
    ):
        visitor = Visitor(served)
        see(visitor, "/topic?name=orders", f"{silent} has answered nothing for")
        assert "does not hang; silent since 20" in visitor.get("/topic", name=TOPIC).text
        before = len(asked)
        answers = all_pages(visitor, silent)
        assert set(asked[before:]) <= watched
        # The topic's queues at the other broker are there.
        assert cluster.brokers[0].config.broker_name in answers["/topic"].text


def test_the_first_page_says_since_when_a_broker_is_silent(
    cluster: Cluster, tmp_path: Path
) -> None:
    with (
        silent_broker(cluster.namesrv, "DefaultCluster", [TOPIC]),
        running_console(cluster.namesrv, tmp_path) as served,
    ):
        visitor = Visitor(served)
        see(visitor, "/", "It does not answer, since 20")
        see(visitor, "/brokers", "does not answer since 20")
        # The broker that answers has its lag told at once; it was missing for a minute. All together
        # is not known without the other.
        see(visitor, "/", "Not known: how far groups are at")
        assert "Messages that wait for groups –" in visitor.get("/").text


def test_a_broker_that_knows_none_of_the_requests_breaks_no_page(
    cluster: Cluster, visitor: Visitor
) -> None:
    with strange_broker(cluster.namesrv, "DefaultCluster", [TOPIC]) as strange:
        see(visitor, "/brokers", strange)
        answers = all_pages(visitor, strange)
        assert failed(answers) == {}
        assert strange in answers["/brokers"].text
        assert "not supported" in answers["/broker"].text
        assert "does not report" in answers["/broker"].text
        assert "does not answer" not in answers["/broker"].text
        assert "It answers, but does not report its state" in answers["/"].text
        assert answers["/topics"].status == answers["/groups"].status == 200


def test_pages_come_back_with_the_cluster(cluster: Cluster, visitor: Visitor) -> None:
    cluster.call("stop_broker")
    gone = all_pages(visitor, "127.0.0.1:1")
    assert failed(gone) == {}
    cluster.call("start_broker")
    eventually(lambda: TOPIC in visitor.get("/topics").text)
    eventually(lambda: visitor.get("/topic", name=TOPIC).status, (200).__eq__)
