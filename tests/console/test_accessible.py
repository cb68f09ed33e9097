"""Every page as axe-core judges it, in both themes and on a phone: no serious finding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page
from tests.console import axe
from tests.console.crawl import crawl
from tests.console.demo_cluster import Demo, demo
from tests.console.running import Visitor, logged_in

from cometmq.console.views import rendering
from cometmq.console.views.sayings import told_in

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
_SETTING: Final = re.compile("[a-z]+[A-Z][A-Za-z]*")
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("shop"), traffic=False) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(shop: Demo) -> list[str]:
    """An address of each page that links lead to; of several the one that says most."""
    visits = crawl(Visitor(shop.served), alike=1)
    pages = [visit.path for visit in visits if "html" in visit.answer.headers["content-type"]]
    return list({page.partition("?")[0]: page for page in sorted(pages, key=len)}.values())


@pytest.mark.parametrize("view", VIEWS)
def test_no_page_has_a_serious_finding(
    browser: Browser, shop: Demo, addresses: list[str], view: str
) -> None:
    page = logged_in(browser, shop.served, at="", **VIEWS[view])
    # A report's own page is in a sandbox, where no script runs, not even axe's: it would wait for ever.
    ours = [address for address in addresses if not address.startswith("/reports/page")]
    assert len(ours) > 20
    found = {address: judged(page, address) for address in ours}
    page.context.close()
    assert {address: said for address, said in found.items() if said} == {}


def test_login_and_errors_have_no_serious_finding(browser: Browser, shop: Demo) -> None:
    page = logged_in(browser, shop.served, at="")
    said = judged(page, "/there-is-no-such-page")
    page.context.clear_cookies()
    said += judged(page, "/login")
    page.context.close()
    assert said == []


def test_every_page_is_chinese_where_it_can_be(
    shop: Demo, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the texts that no test sees in the sources, as those that come from a table."""
    missing: set[str] = set()

    class Recorder(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            if key not in self:
                missing.add(key)
            return super().get(key, default)

    known = Recorder(rendering._catalogue("zh"))
    monkeypatch.setattr(rendering, "_catalogue", lambda language: known)
    visitor = Visitor(shop.served)
    visitor.cookies[rendering.LANGUAGE_COOKIE] = "zh"
    for address in addresses:
        visitor.send("GET", address)
    # Figures of evidence have patterns in the sayings, and names of settings are no words.
    words = {text for text in missing if told_in("zh", text) == text}
    assert {text for text in words if not _SETTING.fullmatch(text)} == set()


def judged(page: Page, address: str) -> list[str]:
    page.goto(address)
    # Dialogs and menus are judged open.
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    return axe.findings(page)
