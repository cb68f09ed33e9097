"""Everything that a page links to answers, for operators and for readers, in a shop with much going on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.crawl import FRAME_FORMS, Visit, crawl
from tests.console.demo_cluster import Demo, demo
from tests.console.running import Visitor

from cometmq.console.app import PAGES

pytestmark = pytest.mark.timeout(300)

# The shop has no schema, no paused group, no group that a broker lacks, no broker whose write permission
# was taken, no entry at the name servers, and messages that may be recalled have no link but that of their
# page.
ABSENT = {
    "/schemas/delete",
    "/groups/resume",
    "/groups/complete",
    "/broker/permit",
    "/name-servers/delete",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("shop"), traffic=False) as made:
        yield made


@pytest.fixture(scope="module")
def operators_visits(shop: Demo) -> list[Visit]:
    # Messages that groups consume, too: the first page leads to dead letters and half messages first.
    return crawl(Visitor(shop.served), "/", "/messages?topic=orders")


@pytest.fixture(scope="module")
def readers_visits(shop: Demo) -> list[Visit]:
    return crawl(Visitor(shop.served, "reader"))


def broken(visits: list[Visit]) -> list[tuple[int, str, str]]:
    return [
        (visit.answer.status, visit.path, visit.source)
        for visit in visits
        if visit.answer.status != 200
    ]


def test_every_link_answers_an_operator(operators_visits: list[Visit]) -> None:
    assert broken(operators_visits) == []
    assert len(operators_visits) > 40


def test_every_link_answers_a_reader(readers_visits: list[Visit]) -> None:
    assert broken(readers_visits) == []
    assert len(readers_visits) > 40


def test_a_reader_is_offered_no_action(readers_visits: list[Visit]) -> None:
    offered = {visit.path: visit.actions - FRAME_FORMS for visit in readers_visits}
    assert {path: actions for path, actions in offered.items() if actions} == {}


def test_every_page_can_be_reached_by_links(operators_visits: list[Visit]) -> None:
    reached = {visit.path.partition("?")[0] for visit in operators_visits}
    pages = {
        route.path
        for module in PAGES
        for route in module.routes.routes
        if "GET" in (route.methods or ())
    }
    # What only scripts and load balancers ask for, and a report where no pipeline has written any.
    unlinked = {
        "/events",
        "/find",
        "/healthz",
        "/login",
        "/metrics",
        "/messages/tail",
        "/propose",
        "/propose/messages",
        "/reports/page",
    }
    assert pages - reached <= unlinked


def test_every_action_is_offered_somewhere(operators_visits: list[Visit]) -> None:
    offered = {action for visit in operators_visits for action in visit.actions}
    actions = {
        route.path
        for module in PAGES
        for route in module.routes.routes
        if "POST" in (route.methods or ()) and route.path != "/login"
    }
    assert actions - offered <= ABSENT
