"""The first page, the palette's names, and what the watch sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.console.actors import QUICK_CHECKS, Actors, Bank
from tests.console.running import Served, Visitor, logged_in, running_console
from tests.waits import eventually

from cometmq import AdminClient, Message, Producer
from cometmq.testing import Cluster

LOOK_S = 0.3


def page_with(visitor: Visitor, path: str, *texts: str) -> str:
    """Load a page until it has all texts: the watch looks every few seconds."""
    return eventually(
        lambda: visitor.get(path).text,
        lambda text: all(wanted in text for wanted in texts),
        pause_s=LOOK_S,
    )


def make_lag(cluster: Cluster, admin: AdminClient, name: str, count: int) -> None:
    """Leave `count` messages of a topic to wait for a group that has consumed one."""
    admin.topics.create(name, read_queues=1, write_queues=1)
    admin.groups.create(f"{name}-group")
    with Producer(name, namesrv=cluster.namesrv) as producer:
        queue = producer.send(Message(name, b"first")).queue
        for number in range(count):
            producer.send(Message(name, b"%d" % number))
    admin.offsets.commit(f"{name}-group", queue, 1)


def test_the_overview_shows_brokers_and_groups_that_are_behind(
    cluster: Cluster, admin: AdminClient, tmp_path: Path
) -> None:
    make_lag(cluster, admin, "overview-lag", 7)
    # A console that starts now looks at the groups at once; the shared one may do so in 30 s.
    with running_console(cluster.namesrv, tmp_path) as served:
        text = page_with(Visitor(served), "/", "overview-lag-group", "answers")
    assert "1 of 1" in text
    assert "overview-lag-group 7 –" in text


def test_a_cluster_in_order_needs_no_attention(tmp_path: Path) -> None:
    # Others leave dead letters in the cluster that all share.
    with Cluster() as own, running_console(own.namesrv, tmp_path) as served:
        page_with(Visitor(served), "/", "Nothing. All servers answer")


def test_what_no_server_tells_by_itself_is_counted_on_the_first_page(tmp_path: Path) -> None:
    """Nobody saw letters, disagreeing members and given-up transactions who did not look for them."""
    with (
        Cluster(properties=QUICK_CHECKS) as own,
        Actors(own.namesrv) as actors,
        AdminClient(own.namesrv) as own_admin,
    ):
        for topic in ("mails", "payments"):
            own_admin.topics.create(topic)
        actors.bury("mailer", "mails", [b"1", b"2", b"3"])
        actors.forget("terminal", "payments", b"half", Bank())
        for number, tags in ((1, "a"), (2, "a || b")):
            actors.member("loyalty", "payments", tags, instance_name=f"loyalty-{number}")
        actors.member("alone", "payments", "a")
        with running_console(own.namesrv, tmp_path) as served:
            visitor = Visitor(served)
            text = page_with(
                visitor,
                "/",
                "New dead letters in 24 hours 3",
                "Transactions given up in 24 hours 1",
                "Groups with different subscriptions 1",
                "loyalty Its members select topic payments differently",
                "mailer New dead letters within 24 hours: 3, the last one 20",
                "half messages Given up within 24 hours: 1, the last one 20",
            )
            assert "error loyalty" in text
            assert "alone" not in text.partition("Groups that are behind")[0]
            html = visitor.get("/").html
            for page, shows in (
                ("/letters?group=mailer&amp;begin=24h", "Dead letters of mailer"),
                ("/transactions?kind=given-up", "payments"),
                (
                    "/group?name=loyalty&amp;view=members",
                    "Members select topic payments differently",
                ),
                ("/groups?kind=conflict", "loyalty"),
            ):
                assert f'href="{page}"' in html
                assert shows in visitor.get(page.replace("&amp;", "&")).text
            listed = visitor.get("/groups", kind="conflict").text
            assert "mailer" not in listed
            assert "select differently" in listed


def test_a_first_page_without_troubles_counts_none(tmp_path: Path) -> None:
    with Cluster() as own, running_console(own.namesrv, tmp_path) as served:
        text = page_with(Visitor(served), "/", "Groups with different subscriptions 0")
    assert "New dead letters in 24 hours 0" in text
    # Brokers make the topic of given-up transactions with the first one.
    assert "Transactions given up in 24 hours 0" in text


def test_what_is_not_known_of_troubles_is_no_zero(tmp_path: Path) -> None:
    with running_console("127.0.0.1:1", tmp_path) as served:
        text = page_with(Visitor(served), "/", "Not known: new dead letters")
    assert "New dead letters in 24 hours –" in text
    assert "Transactions given up in 24 hours –" in text
    assert "Groups with different subscriptions –" in text


def test_a_console_without_name_servers_that_answer_says_so(tmp_path: Path) -> None:
    with running_console("127.0.0.1:1", tmp_path) as served:
        visitor = Visitor(served)
        text = page_with(visitor, "/", "The name servers do not say")
        assert "name server 127.0.0.1:1" in page_with(visitor, "/", "name server 127.0.0.1:1")
        assert "Broken" not in text
        listed = page_with(visitor, "/brokers", "which brokers there are now", "does not answer")
        assert "127.0.0.1:1" in listed
        assert visitor.get("/find", q="any").body == b"[]"


def test_brokers_stay_on_the_page_when_name_server_and_broker_go_away(tmp_path: Path) -> None:
    with Cluster() as own, running_console(own.namesrv, tmp_path) as served:
        visitor = Visitor(served)
        page_with(visitor, "/", "1 of 1")
        with AdminClient(own.namesrv) as own_admin:
            address = own_admin.brokers.addresses()[0].address
        own.call("stop_broker")
        own.call("stop_name_server")
        page_with(visitor, "/", "0 of 1", "It does not answer", "The name servers do not say")
        one = visitor.get("/broker", address=address)
        assert one.status == 200
        assert "Not known: its state" in one.text


def test_a_broker_that_is_registered_no_more_is_told(tmp_path: Path) -> None:
    with Cluster(brokers=2) as own, running_console(own.namesrv, tmp_path) as served:
        visitor = Visitor(served)
        page_with(visitor, "/", "2 of 2")
        own.call("stop_broker", 1)
        page_with(visitor, "/", "1 of 2", "It is no longer registered")
        assert "unregistered" in visitor.get("/brokers").text
        own.call("start_broker", 1)
        page_with(visitor, "/", "2 of 2")


def test_names_are_found_by_any_part_of_them(admin: AdminClient, reader: Visitor) -> None:
    admin.topics.create("Find-Me-Topic")
    admin.groups.create("find-me-group")
    found = eventually(
        lambda: json.loads(reader.get("/find", q="find-me").body),
        lambda found: len(found) == 2,
        pause_s=LOOK_S,
    )
    assert found == [
        {"name": "Group: find-me-group", "url": "/group?name=find-me-group"},
        {"name": "Topic: Find-Me-Topic", "url": "/topic?name=Find-Me-Topic"},
    ]
    assert json.loads(reader.get("/find", q="").body) == []
    assert len(json.loads(reader.get("/find", q="e").body)) <= 20


def test_the_best_name_comes_first(admin: AdminClient, reader: Visitor) -> None:
    for name in ("a-rank-topic", "rank-topic-two", "rank-topic"):
        admin.topics.create(name)
    found = eventually(
        lambda: json.loads(reader.get("/find", q="rank-topic").body),
        lambda found: len(found) >= 3,
        pause_s=LOOK_S,
    )
    names = [hit["name"] for hit in found]
    assert names == ["Topic: rank-topic", "Topic: rank-topic-two", "Topic: a-rank-topic"]


@pytest.mark.browser
def test_the_numbers_change_without_a_reload(
    browser: Browser, cluster: Cluster, admin: AdminClient, served: Served
) -> None:
    page = logged_in(browser, served)
    expect(page.locator("figure#rates canvas")).to_be_visible()
    page.evaluate("window.stays = true")
    admin.topics.create("overview-live")
    with Producer("overview-live", namesrv=cluster.namesrv) as producer:

        def shown() -> str:
            for _ in range(100):
                producer.send(Message("overview-live", b"x"))
            return page.locator(".figures dd").first.inner_text()

        eventually(shown, lambda text: text not in ("0", "–"))
    assert page.evaluate("window.stays")
