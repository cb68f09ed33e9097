"""Every page as axe-core judges it, in both themes and on a phone: no serious finding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, ViewportSize
from tests.console import axe
from tests.console.crawl import crawl
from tests.console.demo_cluster import Demo, demo
from tests.console.running import Visitor, logged_in

from cometmq.console import languages
from cometmq.console.views import rendering

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
_SETTING: Final = re.compile("[a-z]+[A-Z][A-Za-z]*")
WIDE: Final[ViewportSize] = {"width": 1280, "height": 720}
PHONE: Final[ViewportSize] = {"width": 390, "height": 844}
# axe's rules about colours that are in force; a theme changes nothing else.
COLOURS: Final = ("color-contrast", "link-in-text-block")
_DRAWN: Final = """() => new Promise((done) => {
  requestAnimationFrame(() => requestAnimationFrame(done));
})"""


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


def test_no_page_has_a_serious_finding(browser: Browser, shop: Demo, addresses: list[str]) -> None:
    """Each page is loaded once, judged by all rules as wide as it is and on a phone, and by its colours
    in the dark.
    """
    page = light_page(browser, shop)
    # A report's own page is in a sandbox, where no script runs, not even axe's: it would wait for ever.
    ours = [address for address in addresses if not address.startswith("/reports/page")]
    assert len(ours) > 20
    found: dict[str, list[str]] = {}
    for address in ours:
        found[f"{address}, light"] = judged(page, address)
        page.emulate_media(color_scheme="dark")
        page.evaluate(_DRAWN)
        found[f"{address}, dark"] = axe.findings(page, *COLOURS)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        page.evaluate(_DRAWN)
        found[f"{address}, phone"] = axe.findings(page)
        page.set_viewport_size(WIDE)
    page.context.close()
    assert {place: said for place, said in found.items() if said} == {}


def test_a_theme_changes_nothing_but_colours() -> None:
    sheet = (Path(rendering.__file__).parents[1] / "static" / "console.css").read_text()
    themes = re.findall(
        r':root(?::not\(\[data-theme="light"\]\)|\[data-theme="dark"\]) \{([^}]*)\}', sheet
    )
    assert len(themes) == 2
    assert len(re.findall("data-theme|prefers-color-scheme", sheet)) == 3
    for theme in themes:
        left = re.sub(r"--[a-z0-9-]+: #[0-9a-f]{6};|color-scheme: dark;", "", theme)
        assert left.strip() == ""


def test_a_dark_page_that_cannot_be_read_is_found(browser: Browser, shop: Demo) -> None:
    page = light_page(browser, shop)
    assert judged(page, "/audit") == []
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.documentElement.style.setProperty('--text', '#232323')")
    page.evaluate(_DRAWN)
    said = axe.findings(page, *COLOURS)
    page.context.close()
    assert said[0].startswith("color-contrast: ")


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

    known = Recorder(languages.texts_of("zh"))
    monkeypatch.setattr(rendering, "texts_of", lambda language: known)
    visitor = Visitor(shop.served)
    visitor.cookies[rendering.LANGUAGE_COOKIE] = "zh"
    for address in addresses:
        visitor.send("GET", address)
    # Names of settings are no words.
    assert {text for text in missing if not _SETTING.fullmatch(text)} == set()


def light_page(browser: Browser, shop: Demo) -> Page:
    """Return a page in the light theme, whose colours change at once when the theme does."""
    options: dict[str, Any] = {
        "color_scheme": "light",
        "reduced_motion": "reduce",
        "viewport": WIDE,
    }
    return logged_in(browser, shop.served, at="", **options)


def judged(page: Page, address: str) -> list[str]:
    page.goto(address)
    # Dialogs and menus are judged open.
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    axe.load(page)
    return axe.findings(page)
