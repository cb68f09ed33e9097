"""The console in Chinese: every text of its pages has one, and the places of both are the same."""

from __future__ import annotations

import json
import re

from tests.console import texts

from cometmq.console.rendering import HERE

CATALOGUE = HERE / "locales" / "zh.json"
_PLACE = re.compile(r"%\((\w+)\)s")


def catalogue() -> dict[str, str]:
    found: dict[str, str] = json.loads(CATALOGUE.read_text("utf-8"))
    return found


def test_every_text_has_chinese() -> None:
    known = catalogue()
    wanted = dict.fromkeys([*texts.of_templates(), *texts.of_python()])
    assert [f"{where}: {text}" for where, text in wanted if text not in known] == []


def test_the_catalogue_keeps_places_and_order() -> None:
    known = catalogue()
    for english, chinese in known.items():
        assert sorted(_PLACE.findall(english)) == sorted(_PLACE.findall(chinese)), english
        assert chinese.strip(), english
    text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, indent=2) + "\n"
    assert CATALOGUE.read_text("utf-8") == text
