"""The console in Chinese: every text of its pages has one, and the places of both are the same."""

# ruff: noqa: RUF001 - Chinese has a punctuation of its own
from __future__ import annotations

import ast
import json
import re

import pytest
from tests.console import texts
from tests.console.running import Served, Visitor

from cometmq import AdminClient
from cometmq.console.views.rendering import HERE, Span, duration, translated
from cometmq.console.web import guard

CATALOGUE = HERE / "locales" / "zh.json"
_PLACE = re.compile(r"%\((\w+)\)s")


def catalogue() -> dict[str, str]:
    found: dict[str, str] = json.loads(CATALOGUE.read_text("utf-8"))
    return found


def test_every_text_has_chinese() -> None:
    known = catalogue()
    wanted = dict.fromkeys([*texts.of_templates(), *texts.of_python()])
    assert [f"{where}: {text}" for where, text in wanted if text not in known] == []


def test_every_chinese_text_is_of_use() -> None:
    source = HERE.parent
    said = {
        node.value
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    pages = [path for end in ("html", "js") for path in HERE.rglob(f"*.{end}")]
    shown = " ".join(" ".join(path.read_text("utf-8") for path in pages).split())
    shown = shown.replace('\\"', '"')
    assert len(pages) > 50
    unused = [text for text in catalogue() if text not in said and text not in shown]
    assert [text for text in unused if not any(text in each for each in said)] == []


def test_what_needs_attention_has_chinese() -> None:
    known = catalogue()
    assert [text for text in texts.of_concerns() if text not in known] == []


def test_no_page_shows_what_servers_say_untold() -> None:
    """The page of a member showed what is wrong with it, and that of reports a fault, in English."""
    assert list(texts.untold()) == []


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


def test_what_the_guard_refuses_is_told_in_chinese(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers before there is a page, and did so in English."""
    chinese = {"Accept-Language": "zh-CN,zh;q=0.9"}
    stranger = Visitor(served, None)
    unknown = stranger.send("GET", "/login", headers={**chinese, "Host": "evil.example"})
    assert (unknown.status, "控制台不认识名称 evil.example" in unknown.html) == (421, True)
    assert unknown.headers["content-type"] == "text/plain; charset=utf-8"
    other_site = {**chinese, "Origin": "https://evil.example"}
    assert "该表单来自其他网站" in stranger.send("POST", "/logout", {}, other_site).html
    assert "会话已结束" in stranger.send("POST", "/topics/delete", {}, chinese).html
    reader = Visitor(served, "reader")
    reader.cookies["cometmq-language"] = "zh"
    long = reader.get("/topics", q="x" * 9000)
    assert (long.status, "上限 MAX_QUERY_BYTES 为 8192；请减少查询内容" in long.html) == (414, True)
    monkeypatch.setattr(guard, "MAX_REQUESTS_OF_ACCOUNT", 0)
    busy = reader.get("/")
    assert (busy.status, busy.headers["retry-after"]) == (429, "2")
    assert (
        "账号 reader 有 0 个请求正在处理，上限 MAX_REQUESTS_OF_ACCOUNT 为 0；请稍后重试"
        in busy.html
    )
    reader.cookies["cometmq-language"] = "en"
    assert (
        "the account reader has 0 requests under way, the limit MAX_REQUESTS_OF_ACCOUNT is 0; try"
        in reader.get("/").html
    )


def test_time_spans_of_chinese_sentences_had_english_units() -> None:
    text = "%(lag)s messages wait for this group, as many as %(time)s ago."
    reported = translated("zh", text, {"lag": "7", "time": Span(200_000)})
    assert "3 分 20 秒" in reported
    assert re.findall("[a-z]+", reported) == []
    assert "3 min 20 s" in translated("en", text, {"lag": "7", "time": Span(200_000)})
    assert [duration(ms, "zh") for ms in (7, 3_000, 3_600_000, 90_000_000)] == [
        "7 毫秒",
        "3 秒",
        "1 小时",
        "1 天 1 小时",
    ]


def test_the_catalogue_keeps_places_and_order() -> None:
    known = catalogue()
    for english, chinese in known.items():
        assert sorted(_PLACE.findall(english)) == sorted(_PLACE.findall(chinese)), english
        assert chinese.strip(), english
    text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, indent=2) + "\n"
    assert CATALOGUE.read_text("utf-8") == text


def test_a_refusal_with_values_is_told_in_chinese(served: Served) -> None:
    visitor = Visitor(served)
    visitor.cookies["cometmq-language"] = "zh"
    assert "不是大小：请给出字节数" in visitor.get("/why/write", topic="a", size="many").text
    assert (
        "没有注册地址为"
        in visitor.post("/broker/clean", name="b", address="10.9.9.9:1", kind="files").text
    )
