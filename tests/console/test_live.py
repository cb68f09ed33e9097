"""A page's own updates while somebody looks at it, chooses on it, or has left it in a tab."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.console.actors import Actors
from tests.console.running import Served, Visitor, logged_in
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import AdminClient, Message, Producer
from cometmq.testing import Cluster

pytestmark = pytest.mark.browser

# Stands for a tab that the browser shows or hides, which a browser without windows never does.
_HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
}"""
# In one step: the page may be drawn again at any time, until something is chosen.
_CHOOSE = """() => {
  const html = '<input type="checkbox" id="chosen"><p id="old">from before</p>';
  document.querySelector("#live").insertAdjacentHTML("beforeend", html);
  document.querySelector("#chosen").click();
}"""


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    page = logged_in(browser, served)
    expect(page.locator("#live-state")).to_have_text("live")
    yield page
    page.context.close()


def _is_refresh(request: Any) -> bool:
    return "x-refresh" in request.headers


def test_more_tabs_than_a_browser_has_connections_are_live(page: Page) -> None:
    tabs = [page]
    for _ in range(7):
        tabs[-1].evaluate(_HIDE, True)
        tabs.append(page.context.new_page())
        tabs[-1].goto("/")
        expect(tabs[-1].locator("#live-state")).to_have_text("live")
    tabs[-1].evaluate(_HIDE, True)
    with tabs[0].expect_request(_is_refresh):
        tabs[0].evaluate(_HIDE, False)
    expect(tabs[0].locator("#live-state")).to_have_text("live")


def test_what_is_chosen_and_not_sent_yet_stays_where_it_was_chosen(page: Page) -> None:
    page.evaluate(_CHOOSE)
    expect(page.locator("#live-state")).to_have_text("paused while you choose", timeout=20_000)
    assert page.is_checked("#chosen")
    page.uncheck("#chosen")
    page.locator("h1").click()  # takes the focus away
    expect(page.locator("#old")).to_have_count(0, timeout=20_000)
    expect(page.locator("#live-state")).to_have_text("live")


def test_what_is_chosen_while_the_console_answers_stays_too(page: Page) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if _is_refresh(route.request) and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/*", hold_the_first)
    with page.expect_request(_is_refresh):
        pass
    page.evaluate(_CHOOSE)
    with page.expect_event("requestfinished", _is_refresh):
        held[0].continue_()
    expect(page.locator("#live-state")).to_have_text("paused while you choose", timeout=20_000)
    assert page.is_checked("#chosen")


def test_times_are_those_of_the_browser_also_after_a_refresh(page: Page, cluster: Cluster) -> None:
    with Producer("live-sender", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        producer.send(Message("live-times", b"x"))
    page.goto("/topic?name=live-times")
    times = page.locator("#live time")
    expect(times.first).not_to_contain_text("UTC")
    with page.expect_event("requestfinished", _is_refresh):
        pass
    page.evaluate("() => new Promise((done) => setTimeout(done, 300))")  # until it is swapped
    assert "UTC" not in times.first.inner_text()


def test_a_chart_tells_its_newest_values_unless_somebody_points_at_others(page: Page) -> None:
    def newest() -> list[float]:
        points = json.loads(page.get_attribute("#rates", "data-points") or "")
        return [values[-1] for values in points[1:]]

    def reported() -> list[float]:
        texts = page.locator("#rates .u-series .u-value").all_inner_texts()[1:]
        return [float(text.replace(",", "")) for text in texts if text != "--"]

    expect(page.locator("#rates .u-value").last).not_to_have_text("--", timeout=20_000)
    page.keyboard.press(".")  # the numbers stay as they are
    expect(page.locator("#live-state")).to_have_text("paused")
    assert reported() == newest()
    page.locator("#rates .u-over").hover(position={"x": 0, "y": 5})
    assert len(reported()) == 2
    page.locator("h1").hover()
    assert reported() == newest()


def test_a_page_that_outlives_its_session_leads_to_the_login(page: Page, served: Served) -> None:
    visitor = Visitor(served, None)
    [cookie] = [c for c in page.context.cookies() if c["name"].startswith("cometmq-session")]
    visitor.cookies[cookie["name"]] = cookie["value"]
    assert visitor.post("/logout").status == 303
    page.wait_for_url("**/login?next=*", timeout=20_000)


def test_an_error_after_a_form_leads_back_to_the_page_of_the_form(page: Page) -> None:
    page.goto("/topics?kind=all&q=nothing-of-the-kind")
    page.evaluate(
        """() => { const form = document.createElement("form"); form.method = "post";
        form.action = "/topics/delete"; document.body.append(form); form.submit(); }"""
    )
    page.wait_for_url("**/topics/delete")
    again = page.get_by_role("link", name="Try again")
    assert urlsplit(again.get_attribute("href") or "").path == "/topics"
    again.click()
    page.wait_for_url("**/topics?kind=all&q=nothing-of-the-kind")


# What is typed in a browser of Newfoundland, and what is sent: an hour more in summer, wherever its clock
# stands today.
_TYPED = {
    "2026-07-01 12:00": "2026-07-01 12:00-02:30",
    "2026-01-15T12:00:30": "2026-01-15 12:00:30-03:30",
    " 2026-01-15 ": "2026-01-15 00:00-03:30",
    "2026-01-15 12:00:00+08:00": "2026-01-15 12:00:00+08:00",
    "2h": "2h",
    "1700000000000": "1700000000000",
    "2026-99-99 12:00": "2026-99-99 12:00",
}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/messages?topic=live-times", "end"),
        ("/audit", "since"),
        ("/letters?group=nobody", "begin"),
    ],
)
def test_a_time_that_is_typed_is_that_of_the_browser(
    browser: Browser, served: Served, cluster: Cluster, path: str, field: str
) -> None:
    with AdminClient(cluster.namesrv) as admin:  # an unknown topic or group has no form
        admin.topics.create("live-times")
        admin.groups.create("nobody")
    reader = Visitor(served, "reader")
    eventually(lambda: reader.get("/topic", name="live-times").status, lambda status: status == 200)
    page = logged_in(browser, served, "reader", at="", timezone_id="America/St_Johns")
    for typed, sent in _TYPED.items():
        page.goto(path)
        page.fill(f"[name={field}]", typed)
        page.locator(f"form:has([name={field}]) button").click()
        page.wait_for_url(re.compile(rf"[?&]{field}="))
        assert parse_qs(urlsplit(page.url).query)[field] == [sent]
    page.context.close()


def test_a_reset_to_a_time_is_shown_as_it_was_typed(
    browser: Browser, served: Served, cluster: Cluster
) -> None:
    topic, group = "live-reset", "live-reset-group"
    with Actors(cluster.namesrv) as actors:
        actors.producer("live-reset-sender").send(Message(topic, b"x"))
        actors.member(group, topic).wait_for(1)
    page = logged_in(browser, served, at="", timezone_id="Asia/Kathmandu")
    page.goto(f"/group?name={group}&view=offsets&topic={topic}")
    form = page.locator('form[action="/groups/reset"]')
    form.locator("[name=time]").fill("2026-03-01 10:00")
    form.get_by_role("button").click()
    shown = page.locator("main time")
    expect(shown).to_have_text("2026-03-01 10:00:00")
    assert shown.get_attribute("datetime") == "2026-03-01T04:15:00.000Z"
    page.context.close()
