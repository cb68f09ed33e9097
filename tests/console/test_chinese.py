"""The console in Chinese: every text of its pages has one, and the places of both are the same."""

from __future__ import annotations

import json
import re

from tests.console import texts
from tests.console.running import Served, Visitor

from cometmq import AdminClient
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


def test_an_action_is_told_in_chinese_and_kept_in_english(
    admin: AdminClient, served: Served
) -> None:
    visitor = Visitor(served)
    visitor.cookies["cometmq-language"] = "zh"
    admin.topics.create("told-in-chinese")
    asked = visitor.post("/topics/delete", name="told-in-chinese")
    assert asked.text.count("删除主题") == 2
    done = visitor.act("/topics/delete", name="told-in-chinese", confirm="told-in-chinese")
    assert "删除主题 told-in-chinese: 已删除" in done.text
    assert "删除主题 told-in-chinese" in visitor.get("/audit", q="told-in-chinese").text
    entry = json.loads((served.root / "audit.jsonl").read_text().splitlines()[-1])
    assert (entry["what"], entry["said"]) == ("delete topic", "deleted")


def test_a_refusal_is_told_in_chinese(served: Served) -> None:
    reader = Visitor(served, "reader")
    reader.cookies["cometmq-language"] = "zh"
    assert "Not Found" not in reader.get("/nothing-here").text
    assert "只有操作员可以执行此操作" in reader.post("/topics/delete", name="any").text


def test_the_catalogue_keeps_places_and_order() -> None:
    known = catalogue()
    for english, chinese in known.items():
        assert sorted(_PLACE.findall(english)) == sorted(_PLACE.findall(chinese)), english
        assert chinese.strip(), english
    text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, indent=2) + "\n"
    assert CATALOGUE.read_text("utf-8") == text
