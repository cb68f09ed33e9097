"""How the console feels: palette, keys, themes, languages, and the width of a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.console.running import Served, Visitor, logged_in
from tests.waits import eventually

from cometmq import AdminClient, Message, Producer
from cometmq.model.topic import TopicConfig
from cometmq.testing import Cluster

pytestmark = pytest.mark.browser
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    page = logged_in(browser, served)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    yield page
    page.context.close()
    assert faults == []


@pytest.fixture
def phone(browser: Browser, served: Served) -> Iterator[Page]:
    page = logged_in(browser, served, viewport=PHONE)
    yield page
    page.context.close()


def listed(operator: Visitor, topic: str) -> None:
    """Wait until the console, which keeps names for some seconds, lists a topic."""
    eventually(lambda: topic in operator.get("/topics", q=topic).text)


def test_the_palette_goes_to_pages_and_topics(
    page: Page, admin: AdminClient, operator: Visitor
) -> None:
    admin.topics.create("palette-finds-me")
    listed(operator, "palette-finds-me")
    page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Page, topic, group or broker")
    expect(field).to_be_focused()
    expect(page.get_by_role("option")).to_have_count(13)
    field.fill("palette-finds")
    expect(page.get_by_role("option")).to_contain_text(["palette-finds-me"], timeout=15_000)
    assert field.get_attribute("aria-activedescendant") == "palette-0"
    page.keyboard.press("Enter")
    page.wait_for_url("**/topic?name=palette-finds-me")
    page.keyboard.press("Control+k")
    field.fill("nothing has this name")
    expect(page.locator("#palette-state")).to_have_text("Nothing has this name.")
    field.fill("")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#palette-list [aria-selected=true]")).to_have_text("Audit log")
    page.keyboard.press("Enter")
    page.wait_for_url("**/audit")


def test_letters_are_keys_until_somebody_turns_them_off(page: Page) -> None:
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("f")
    expect(page.get_by_role("combobox", name="Name contains")).to_be_focused()
    page.keyboard.type("g?")
    expect(page.get_by_role("combobox", name="Name contains")).to_have_value("g?")
    page.locator("h1").click()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Shortcuts")
    expect(dialog).to_be_visible()
    dialog.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#palette")).to_be_hidden()
    page.reload()
    page.keyboard.press("?")
    expect(dialog).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()


def test_rows_and_pages_of_a_list_have_keys(
    page: Page, admin: AdminClient, operator: Visitor
) -> None:
    for name in ("rows-a", "rows-b", "rows-c"):
        admin.topics.create(name)
    listed(operator, "rows-c")
    page.goto("/topics?q=rows-&rows=2")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="rows-a", exact=True)).to_be_focused()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="rows-b", exact=True)).to_be_focused()
    page.keyboard.press("n")
    page.wait_for_url("**page=2**")
    page.keyboard.press("k")
    expect(page.get_by_role("link", name="rows-c", exact=True)).to_be_focused()
    page.keyboard.press("p")
    page.wait_for_url("**page=1**")


def test_a_key_pauses_the_live_numbers(page: Page) -> None:
    expect(page.locator("#live-state")).to_have_text("live")
    page.keyboard.press(".")
    expect(page.locator("#live-state")).to_have_text("paused")
    page.keyboard.press(".")
    expect(page.locator("#live-state")).to_have_text("live")


def test_a_theme_and_a_language_stay_chosen(page: Page) -> None:
    def choose(name: str) -> None:
        page.locator("details.account summary").click()
        page.get_by_role("button", name=name, exact=True).click()

    page.goto("/topics?kind=all")
    choose("Dark")
    assert page.url.endswith("/topics?kind=all")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    choose("Light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    choose("中文")
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.get_by_role("heading", name="主题")).to_be_visible()
    choose("English")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()


def test_on_a_phone_the_menu_opens_and_nothing_is_wider_than_the_screen(
    phone: Page, admin: AdminClient
) -> None:
    admin.topics.create(
        "a-topic-whose-name-is-so-long-that-no-phone-shows-it-in-a-single-line-of-text"
    )
    menu = phone.get_by_role("navigation", name="Pages", exact=True)
    expect(menu).to_be_hidden()
    phone.get_by_role("button", name="Menu").click()
    expect(menu).to_be_visible()
    for path in ("/", "/brokers", "/topics?q=so-long", "/groups", "/messages", "/audit"):
        phone.goto(path)
        wide = phone.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, path


def test_a_list_of_fifty_topics_on_a_phone_was_12000_pixels_long(
    phone: Page, admin: AdminClient, operator: Visitor, cluster: Cluster
) -> None:
    names = [f"phone-list-{number:02}" for number in range(50)]
    address = next(iter(cluster.brokers)).address
    admin.topics.create_many([TopicConfig(topic_name=name) for name in names], broker=address)
    listed(operator, names[-1])
    phone.goto("/topics?q=phone-list")
    rows = phone.locator("tbody tr:visible")
    expect(rows).to_have_count(12)
    assert phone.evaluate("document.documentElement.scrollHeight") < 4_000
    phone.get_by_role("button", name="Show all rows").click()
    expect(rows).to_have_count(50)


def test_a_chart_on_a_phone_has_at_least_two_times(phone: Page) -> None:
    """Steps from 30 s to 5 min left one time, or none, on most charts of the first hour."""
    expect(phone.locator("figure#rates canvas")).to_be_visible()
    shown = phone.evaluate(
        """async () => {
          const figure = document.querySelector("figure#rates");
          const counts = {};
          for (let span = 20; span <= 3600; span = Math.ceil(span * 1.07)) {
            const end = 1800000000 + 7 * span;
            const seconds = Array.from({ length: 20 }, (_, at) => end - span + (at * span) / 19);
            figure.dataset.points = JSON.stringify([seconds, seconds.map(() => 1), seconds.map(() => 2)]);
            redraw();
            await new Promise((done) => setTimeout(done));
            const axis = figure.querySelector(".plot").chart.axes[0];
            counts[span] = axis._values.filter((label) => label).length;
          }
          return counts;
        }"""
    )
    assert len(shown) > 50
    assert {span: count for span, count in shown.items() if not 2 <= count <= 5} == {}


def test_the_account_menu_closes_by_escape_and_by_a_click_elsewhere(page: Page) -> None:
    account = page.locator("details.account")
    account.locator("summary").click()
    expect(account).to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(account).not_to_have_attribute("open", "")
    expect(account.locator("summary")).to_be_focused()
    account.locator("summary").click()
    page.locator("h1").click()
    expect(account).not_to_have_attribute("open", "")


def test_without_scripts_pages_and_choices_work_too(served: Served) -> None:
    visitor = Visitor(served)
    assert "Overview" in visitor.get("/").text
    answer = visitor.post("/choices", theme="dark", next="/topics")
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    assert 'data-theme="dark"' in visitor.get("/topics").html


def test_inputs_propose_the_names_that_exist_however_many_there_are(
    page: Page, served: Served, cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    with Producer("proposing-shop", namesrv=cluster.namesrv) as producer:
        sent = producer.send(Message("proposed-topic", b"x")).msg_id
        admin.groups.create("proposed-group")
        listed(operator, "proposed-topic")
        broker = admin.brokers.addresses()[0]
        for path, field, typed, name in (
            ("/messages?by=time", "topic", "proposed-t", "proposed-topic"),
            ("/messages?by=id&topic=proposed-topic", "id", "", sent),
            ("/messages?by=offset", "broker", "", broker.broker_name),
            ("/messages?by=time", "queue", "", f"{broker.broker_name}:0"),
            ("/producers", "group", "proposing", "proposing-shop"),
            ("/producers", "topic", "proposed-t", "proposed-topic"),
            ("/why/group", "name", "proposed-g", "proposed-group"),
            ("/why/group", "cluster", "", broker.cluster),
            ("/why/message", "topic", "proposed-t", "proposed-topic"),
            ("/trace", "trace_topic", "proposed-t", "proposed-topic"),
            ("/schemas", "topic", "proposed-t", "proposed-topic"),
            ("/groups", "q", "proposed-g", "proposed-group"),
            ("/name-servers?new=1", "key", "proposed-t", "proposed-topic"),
        ):
            page.goto(served.url + path)
            box = page.locator(f"main input[name={field}]:not([type=hidden])").first
            box.focus()
            box.fill(typed)
            options = page.locator(f"datalist#{box.get_attribute('list')} option")
            expect(options.and_(page.locator(f'[value="{name}"]'))).to_have_count(1, timeout=15_000)
    answer = operator.get("/propose", kind="topics", q="proposed-topic")
    assert answer.text.count("proposed-topic") == 1
    assert operator.get("/propose", kind="secrets", q="").text == "[]"
