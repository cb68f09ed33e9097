"""Messages, names and addresses that carry markup are text in every page: nothing of them runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page
from tests.console.running import Served, Visitor, logged_in

from cometmq import AdminClient, Message, Producer
from cometmq.testing import Cluster

pytestmark = pytest.mark.browser
# Whatever of this runs, or asks for something elsewhere, is noticed.
SCRIPT = "\"'><script>window.hacked=1</script><img src=x onerror=window.hacked=2>"
PARTS = (
    SCRIPT,
    "<svg/onload=window.hacked=3>",
    "<a href=javascript:window.hacked=4>x</a>",
    "<form action=/logout method=post><button>x</button></form>",
    "<b hx-get=/logout hx-trigger=load hx-on:htmx:load=window.hacked=5>x</b>",
    "<style>*{display:none}</style><base href=http://192.0.2.1/>",
    "<iframe srcdoc='<script>parent.hacked=6</script>'></iframe>",
    "<meta http-equiv=refresh content='0;url=http://192.0.2.1/'>",
    "{{constructor.constructor('hacked=7')()}}${hacked=8}",
)
BODY = "".join(PARTS)
TOPIC = "hostile"


@pytest.fixture(scope="module")
def message_id(cluster: Cluster, admin: AdminClient) -> str:
    """The offset id of a message whose every part is markup."""
    admin.topics.create(TOPIC)
    properties = {"<img src=x onerror=window.hacked=9>": BODY, "plain": SCRIPT}
    message = Message(TOPIC, BODY.encode(), tags=SCRIPT, keys=[SCRIPT.replace(" ", "/")])
    message.properties.update(properties)
    with Producer("hostile-producer", namesrv=cluster.namesrv) as producer:
        return producer.send(message).offset_msg_id


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    made = logged_in(browser, served, at="")
    yield made
    made.context.close()


def visit(page: Page, address: str) -> None:
    """Open a page; fail if something ran, was asked for elsewhere, or was taken for markup."""
    foreign: list[str] = []
    page.on("request", lambda request: foreign.append(request.url))
    answer = page.goto(address)
    assert answer is not None
    assert answer.status < 500, address
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None, address
    assert page.evaluate("document.baseURI") == page.url
    found = page.locator(
        "main :is(script, iframe, base, meta, style, [onload], [onerror], [srcdoc])"
    )
    assert found.count() == 0, address
    assert page.locator("main [hx-get='/logout']").count() == 0
    assert page.locator("main").is_visible()
    own = "/".join(page.url.split("/", 3)[:3]) + "/"
    assert [url for url in foreign if not url.startswith((own, "data:"))] == [], address


def test_a_hostile_message_is_text(page: Page, message_id: str) -> None:
    for address in (
        f"/message?id={message_id}&topic={TOPIC}",
        f"/message?id={message_id}&topic={TOPIC}&as=json",
        f"/message?id={message_id}&topic={TOPIC}&as=hex",
        f"/messages?topic={TOPIC}",
        f"/messages?topic={TOPIC}&by=tail",
        f"/messages?topic={TOPIC}&by=key&key={quote(SCRIPT.replace(' ', '/'))}",
        f"/why/message?id={message_id}&topic={TOPIC}",
        f"/topic?name={TOPIC}",
    ):
        visit(page, address)
    page.goto(f"/message?id={message_id}&topic={TOPIC}")
    assert "<script>window.hacked=1</script>" in page.locator("main").inner_text()


def test_a_downloaded_body_is_no_page(operator: Visitor, message_id: str) -> None:
    html = operator.get("/message", id=message_id, topic=TOPIC).html
    start = html.find("/message/body")
    assert start > 0, "the page offers a download"
    address = html[start : html.find('"', start)].replace("&amp;", "&")
    answer = operator.send("GET", address)
    assert answer.body == BODY.encode()
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "html" not in answer.headers["content-type"]


@pytest.mark.parametrize(
    "path", ["/topics", "/groups", "/producers", "/audit", "/reports", "/letters"]
)
def test_a_hostile_search_is_text(page: Page, path: str) -> None:
    visit(page, f"{path}?q={quote(BODY)}")


def test_a_hostile_reason_and_target_are_text(page: Page, operator: Visitor) -> None:
    operator.post("/topics/delete", name="hostile-topic", confirm="hostile-topic", why=SCRIPT)
    log = (operator.served.root / "audit.jsonl").read_text().splitlines()
    assert SCRIPT in [json.loads(line)["why"] for line in log]
    visit(page, "/audit")


def test_the_policy_refuses_what_escaping_would_have_missed(page: Page) -> None:
    """The second wall: markup that got into a page all the same does not run."""
    page.goto("/why")
    refused: list[str] = []
    page.on("console", lambda line: refused.append(line.text))
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            const image = new Image();
            image.setAttribute("onerror", "window.hacked = 2");
            image.src = "/static/none";
            document.body.append(image);
            const elsewhere = document.createElement("script");
            elsewhere.src = "http://192.0.2.1/x.js";
            document.body.append(elsewhere);
        }"""
    )
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    assert len([line for line in refused if "Content Security Policy" in line]) >= 3
