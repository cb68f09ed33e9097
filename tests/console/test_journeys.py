"""Whole journeys through the console with Chromium, while real clients send and consume."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.console.actors import QUICK_CHECKS, Actors, Bank
from tests.console.running import Served, logged_in, logged_in_by_form, running_console
from tests.waits import eventually

from cometmq import AdminClient, LocalTransactionState, Message
from cometmq.testing import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# A busy machine may take its time for a page, and live parts come every five seconds.
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with Cluster(properties=QUICK_CHECKS) as cluster:
        yield cluster.namesrv


@pytest.fixture(scope="module")
def served(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running_console(namesrv, tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture
def actors(namesrv: str) -> Iterator[Actors]:
    with Actors(namesrv) as made:
        yield made


@pytest.fixture
def admin(namesrv: str) -> Iterator[AdminClient]:
    with AdminClient(namesrv) as made:
        yield made


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    """An operator's page."""
    yield from opened(logged_in(browser, served, at=""))


@pytest.fixture
def readers_page(browser: Browser, served: Served) -> Iterator[Page]:
    yield from opened(logged_in(browser, served, "reader", at=""))


def opened(page: Page) -> Iterator[Page]:
    """Yield a page whose every answer and script has to do, and close its browser context."""
    wrong: list[str] = []
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
    page.on(
        "response",
        lambda answer: (
            wrong.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None
        ),
    )
    page.on(
        "console",
        lambda line: wrong.append(f"console: {line.text}") if line.type == "error" else None,
    )
    yield page
    page.context.close()
    assert wrong == []


def figure(page: Page, name: str) -> Locator:
    """Return the number of a page that has this name beside it."""
    return (
        page.locator("dl.figures div").filter(has=page.get_by_text(name, exact=True)).locator("dd")
    )


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


def confirm(page: Page, target: str, why: str) -> None:
    """Type what the page of a preview wants, with a reason, and go on."""
    page.get_by_label(f"Type {target} to confirm").fill(target)
    page.get_by_label("Why (for the audit log)").fill(why)
    page.locator("main form button.danger").click()


def done(page: Page, text: str | re.Pattern[str]) -> None:
    """Wait for the note that reports a success."""
    expect(page.locator(".note.done")).to_contain_text(text, timeout=WAIT_MS)


def mark(page: Page) -> None:
    page.evaluate("window.isStillHere = true")


def was_never_reloaded(page: Page) -> bool:
    return page.evaluate("window.isStillHere === true") is True


def test_an_account_logs_in_by_the_form(browser: Browser, served: Served) -> None:
    for page in opened(logged_in_by_form(browser, served)):
        expect(page.locator("#live-state")).to_have_text("live", timeout=WAIT_MS)


def test_a_topic_is_made_and_a_message_sent_and_found(page: Page, actors: Actors) -> None:
    page.goto("/topics")
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name", exact=True).fill("journey-orders")
    page.get_by_label("Queues at each broker to write").fill("2")
    page.get_by_label("Queues at each broker to read").fill("2")
    page.get_by_role("button", name="Create the topic").click()
    done(page, "journey-orders")
    member = actors.member("journey-shipping", "journey-orders")
    page.get_by_role("link", name="Send a message").click()
    page.get_by_label("Body").fill('{"order": "O-1", "note": "你好 <b>bold</b>"}')
    page.get_by_label("Tag").fill("placed")
    page.get_by_label("Keys, with blanks between them").fill("O-1 K-7")
    page.get_by_role("button", name="Send").click()
    done(page, "sent")
    assert member.wait_for(1)[0].body == '{"order": "O-1", "note": "你好 <b>bold</b>"}'.encode()
    page.goto("/messages?by=key")
    page.locator("main [name=topic]").fill("journey-orders")
    page.get_by_label("Key", exact=True).fill("K-7")
    page.get_by_role("button", name="Find").click()
    row(page, "placed").get_by_role("link").click()
    page.wait_for_url("**/message?*")
    expect(page.locator("main")).to_contain_text("<b>bold</b>")
    expect(page.locator("main")).to_contain_text("你好")

    # Members commit what they have consumed every five seconds.
    def consumer_of_the_page() -> str:
        page.reload()
        return row(page, "journey-shipping").inner_text()

    eventually(consumer_of_the_page, lambda text: "not yet" not in text)
    expect(row(page, "journey-shipping")).to_contain_text("consumed")


def test_a_body_is_downloaded_byte_by_byte(page: Page, actors: Actors) -> None:
    body = bytes(range(256)) * 300
    sent = actors.producer("journey-bytes-sender").send(
        Message("journey-bytes", body, keys=["all"])
    )
    page.goto(f"/message?id={sent.msg_id}&topic=journey-bytes")
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("Download")).click()
    assert Path(download.value.path()).read_bytes() == body


def test_a_changed_copy_of_a_message_is_sent(page: Page, actors: Actors) -> None:
    body = '\n{"order": "O-1",\n\t"amount": "<10 €>", "to": "杭州\u3000市"}\n'
    sent = actors.producer("journey-copy-sender").send(
        Message(
            "journey-copy",
            body.encode(),
            tags="paid",
            keys=["O-1", "K-7"],
            properties={"city": "Kraków = <b>", "shop": "7"},
        )
    )
    member = actors.member("journey-copy-group", "journey-copy")
    member.wait_for(1)
    page.goto(f"/message?id={sent.msg_id}&topic=journey-copy")
    page.get_by_role("link", name="Send a changed copy").click()
    expect(page.get_by_label("Body")).to_have_value(body)
    page.get_by_label("Body").fill(body.replace("10", "12"))
    page.get_by_role("button", name="Send").click()
    done(page, "sent")
    copy = member.wait_for(2)[1]
    assert copy.body.decode() == body.replace("10", "12")
    assert (copy.tags, copy.keys) == ("paid", ("O-1", "K-7"))
    assert (copy.properties["city"], copy.properties["shop"]) == ("Kraków = <b>", "7")
    assert copy.msg_id != sent.msg_id
    assert copy.unique_id != member.received[0].unique_id


def test_the_lag_of_a_group_is_seen_to_grow_and_to_shrink(page: Page, actors: Actors) -> None:
    member = actors.member("journey-slow", "journey-lag")
    producer = actors.producer("journey-lag-sender")
    producer.send(Message("journey-lag", b"first"))
    member.wait_for(1)
    member.hold()
    page.goto("/group?name=journey-slow")
    mark(page)
    for number in range(30):
        producer.send(Message("journey-lag", b"%d" % number))
    expect(figure(page, "Messages waiting")).to_have_text("30", timeout=WAIT_MS)
    for number in range(12):
        producer.send(Message("journey-lag", b"%d" % number))
    expect(figure(page, "Messages waiting")).to_have_text("42", timeout=WAIT_MS)
    member.release()
    expect(figure(page, "Messages waiting")).to_have_text("0", timeout=WAIT_MS)
    assert was_never_reloaded(page)


def test_a_topic_is_followed_live(page: Page, actors: Actors) -> None:
    producer = actors.producer("journey-tail-sender")
    producer.send(Message("journey-tail", b"before anybody looked"))
    page.goto("/messages?topic=journey-tail&by=tail")
    expect(row(page, "before anybody looked")).to_be_visible()
    expect(page.locator("[data-tail-state]")).to_have_text("New messages appear at the top.")
    mark(page)
    for word in ("one", "two", "<script>document.title = 'three'</script>"):
        producer.send(Message("journey-tail", f"body {word}".encode()))
        expect(page.locator("tbody[data-tail] tr").first).to_contain_text(
            f"body {word}", timeout=WAIT_MS
        )
    assert "three" not in page.title()
    assert was_never_reloaded(page)


def test_a_group_is_reset_and_gets_all_messages_again(
    page: Page, actors: Actors, admin: AdminClient
) -> None:
    producer = actors.producer("journey-reset-sender")
    for number in range(5):
        producer.send(Message("journey-reset", b"%d" % number))
    member = actors.member("journey-again", "journey-reset")
    member.wait_for(5)
    # The members commit what they have consumed every five seconds.
    eventually(
        lambda: sum(
            at.committed_offset or 0
            for at in admin.offsets.of_topic("journey-reset", "journey-again")
        ),
        lambda consumed: consumed == 5,
    )
    page.goto("/group?name=journey-again&view=offsets&topic=journey-reset")
    page.get_by_label("Go on with messages stored from").fill("0")
    page.locator("form[action='/groups/reset'] button").click()
    expect(page.locator("main")).to_contain_text("5 messages are delivered again.")
    confirm(page, "journey-again", "the price was wrong")
    done(page, "journey-again")
    assert sorted(message.body for message in member.wait_for(10)[5:10]) == [
        b"0", b"1", b"2", b"3", b"4",
    ]  # fmt: skip
    page.goto("/audit?q=journey-again")
    expect(page.locator("main")).to_contain_text("the price was wrong")


def test_one_dead_letter_of_two_is_sent_again(page: Page, actors: Actors) -> None:
    first, second = actors.bury("journey-dead", "journey-letters", [b"good now", b"bad still"])
    member = actors.member("journey-dead", "journey-letters")
    page.goto("/letters")
    page.get_by_role("link", name="journey-dead").click()
    expect(row(page, second.msg_id)).to_be_visible()
    row(page, first.msg_id).get_by_role("checkbox").check()
    page.get_by_role("button", name="Send the chosen ones again …").click()
    expect(page.locator("main")).to_contain_text("1 of the dead letters would be sent again")
    expect(page.locator("main")).to_contain_text("1 to topic journey-letters.")
    assert member.received == []
    confirm(page, "journey-dead", "the parser is mended")
    done(page, "journey-dead")
    expect(page.locator(".note.done li")).to_contain_text("sent to journey-letters")
    assert [message.body for message in member.wait_for(1)] == [b"good now"]


def test_all_dead_letters_of_a_page_are_chosen_at_once(page: Page, actors: Actors) -> None:
    actors.bury("journey-all-dead", "journey-all-letters", [b"1", b"2", b"3"])
    page.goto("/letters?group=journey-all-dead")
    every = page.get_by_role("checkbox", name="Choose all on this page")
    ones = page.locator("tbody").get_by_role("checkbox")
    every.check()
    assert [ones.nth(at).is_checked() for at in range(3)] == [True] * 3
    ones.nth(1).uncheck()
    assert every.evaluate("box => [box.checked, box.indeterminate]") == [False, True]
    ones.nth(1).check()
    assert every.evaluate("box => [box.checked, box.indeterminate]") == [True, False]
    every.uncheck()
    assert [ones.nth(at).is_checked() for at in range(3)] == [False] * 3
    every.check()
    page.get_by_role("button", name="Send the chosen ones again …").click()
    expect(page.locator("main")).to_contain_text("3 of the dead letters would be sent again")


def test_on_a_phone_all_dead_letters_of_a_page_are_chosen_at_once(
    browser: Browser, served: Served, actors: Actors
) -> None:
    """The box was in the heading, which cards do not have."""
    actors.bury("journey-phone-dead", "journey-phone-letters", [b"1", b"2"])
    page = logged_in(browser, served, at="", viewport={"width": 390, "height": 844})
    page.goto("/letters?group=journey-phone-dead")
    every = page.get_by_role("checkbox", name="Choose all on this page")
    ones = page.locator("tbody").get_by_role("checkbox")
    every.check()
    assert [ones.nth(at).is_checked() for at in range(2)] == [True] * 2
    ones.nth(1).uncheck()
    assert every.evaluate("box => [box.checked, box.indeterminate]") == [False, True]
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(every).to_be_visible()
    assert every.evaluate("box => box.indeterminate"), "the box of the heading knows, too"
    page.context.close()


def test_a_given_up_transaction_is_resumed_and_delivered(page: Page, actors: Actors) -> None:
    bank = Bank()
    half = actors.forget("journey-bank", "journey-payments", b"paid in the end", bank)
    member = actors.member("journey-ledger", "journey-payments")
    page.goto("/transactions?kind=given-up")
    # Resumed without an answer it would be given up once more.
    bank.verdict = LocalTransactionState.COMMIT
    row(page, half.msg_id).get_by_role("button", name="Resume …").click()
    target = page.locator("label", has_text="to confirm").inner_text()
    confirm(page, target.removeprefix("Type ").removesuffix(" to confirm").strip(), "it was paid")
    done(page, "resume")
    assert member.wait_for(1)[0].body == b"paid in the end"


def test_an_open_transaction_is_committed_by_hand(page: Page, actors: Actors) -> None:
    half = actors.leave_waiting("journey-kiosk", "journey-tickets", b"a ticket")
    member = actors.member("journey-door", "journey-tickets")
    page.goto("/transactions")
    row(page, half.msg_id).get_by_role("button", name="Commit …").click()
    target = page.locator("label", has_text="to confirm").inner_text()
    confirm(
        page, target.removeprefix("Type ").removesuffix(" to confirm").strip(), "seen at the till"
    )
    done(page, "commit")
    assert member.wait_for(1)[0].body == b"a ticket"
    expect(row(page, half.msg_id)).to_have_count(0, timeout=WAIT_MS)


def test_a_trace_is_followed_from_the_producer_to_the_group(page: Page, actors: Actors) -> None:
    sent = actors.trace("journey-traced-group", "journey-traced", b"followed")
    page.goto("/trace")
    page.get_by_label("Message id or key").fill(sent.msg_id)
    page.get_by_role("button", name="Search").click()
    # A click returns before the browser has gone anywhere, and it refuses to reload a page that it leaves.
    page.wait_for_url("**/trace?*")
    # Traces are sent and indexed a moment after the messages that they tell of.
    eventually(lambda: page.reload() and page.locator(".timeline tbody tr").count() == 3)
    expect(row(page, "journey-traced-group-sender")).to_contain_text("sent")
    expect(row(page, "broker-a")).to_contain_text("stored")
    expect(page.locator(".timeline tbody tr").last).to_contain_text("journey-traced-group")
    expect(page.locator(".timeline svg rect")).to_have_count(3)
    page.get_by_role("link", name="The message").click()
    expect(page.locator("main")).to_contain_text("followed")


def test_a_delayed_message_is_recalled(page: Page, actors: Actors, admin: AdminClient) -> None:
    producer = actors.producer("journey-delay-sender")
    kept = producer.send(Message("journey-later", b"comes", delay_ms=3_600_000))
    recalled = producer.send(Message("journey-later", b"never comes", delay_ms=3_600_000))
    page.goto("/delayed")
    expect(row(page, kept.msg_id)).to_be_visible(timeout=WAIT_MS)
    row(page, recalled.msg_id).get_by_role("link", name=recalled.msg_id).click()
    page.get_by_role("button", name="Recall …").click()
    target = page.locator("label", has_text="to confirm").inner_text()
    confirm(page, target.removeprefix("Type ").removesuffix(" to confirm").strip(), "sold out")
    done(page, "recall")


def test_a_reader_sees_live_what_an_operator_does(
    page: Page, readers_page: Page, actors: Actors
) -> None:
    actors.producer("journey-two-sender").send(Message("journey-two", b"the first"))
    readers_page.goto("/topic?name=journey-two")
    mark(readers_page)
    expect(readers_page.get_by_role("button", name="Delete …")).to_have_count(0)
    expect(readers_page.get_by_role("link", name="Send a message")).to_have_count(0)
    page.goto("/topic/send?name=journey-two")
    page.get_by_label("Body").fill("the second")
    page.get_by_role("button", name="Send").click()
    done(page, "sent")
    page.goto("/topic?name=journey-two")
    expect(page.get_by_role("button", name="Delete …")).to_be_visible()
    readers_page.goto("/messages?topic=journey-two")
    expect(row(readers_page, "the second")).to_be_visible()
    page.get_by_role("button", name="Delete …").click()
    readers_page.goto("/topics?q=journey-two")
    mark(readers_page)
    expect(readers_page.get_by_role("link", name="journey-two", exact=True)).to_be_visible()
    confirm(page, "journey-two", "no longer used")
    done(page, "journey-two")
    expect(readers_page.get_by_role("link", name="journey-two", exact=True)).to_have_count(
        0, timeout=WAIT_MS
    )
    assert was_never_reloaded(readers_page)


def test_a_paused_group_gets_nothing_until_it_is_resumed(page: Page, actors: Actors) -> None:
    member = actors.member("journey-paused", "journey-pause")
    producer = actors.producer("journey-pause-sender")
    producer.send(Message("journey-pause", b"before"))
    member.wait_for(1)
    page.goto("/group?name=journey-paused&view=configuration")
    page.get_by_role("button", name="Pause …").click()
    confirm(page, "journey-paused", "the database is down")
    done(page, "journey-paused")
    producer.send(Message("journey-pause", b"meanwhile"))
    page.goto("/group?name=journey-paused")
    expect(figure(page, "Messages waiting")).to_have_text("1", timeout=WAIT_MS)
    assert len(member.received) == 1
    page.goto("/group?name=journey-paused&view=configuration")
    page.get_by_role("button", name="Resume").first.click()
    done(page, "journey-paused")
    assert member.wait_for(2)[1].body == b"meanwhile"


def test_the_palette_leads_to_a_group(page: Page, actors: Actors) -> None:
    # Its first message has the brokers know the topic, and by it the group.
    actors.producer("journey-palette-sender").send(Message("journey-palette", b"x"))
    actors.member("journey-palette-group", "journey-palette").wait_for(1)
    found = page.get_by_role("option", name="Group: journey-palette-group")

    def look() -> bool:
        # The names of groups are a few seconds old.
        page.goto("/")
        page.locator("h1").click()
        page.keyboard.press("/")
        page.keyboard.type("palette-group")
        expect(page.locator("#palette li, #palette-state:not(:empty)").first).to_be_visible()
        return found.count() > 0

    eventually(look)
    page.keyboard.press("Enter")
    page.wait_for_url("**/group?name=journey-palette-group")


def test_the_console_speaks_chinese(page: Page) -> None:
    page.goto("/topics")
    page.evaluate("document.querySelector('details.account')?.setAttribute('open', '')")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("h1")).to_have_text("主题")
    assert page.url.endswith("/topics")
    assert page.locator("html").get_attribute("lang") == "zh"
