"""The console in Chinese: every text of its pages has one, and the places of both are the same."""

# ruff: noqa: RUF001 - Chinese has a punctuation of its own
from __future__ import annotations

import json
import re

import pytest
from tests.console import texts
from tests.console.running import Served, Visitor
from tests.console.sayings import of_source

from cometmq import AdminClient
from cometmq.console.views import sayings as sayings_module
from cometmq.console.views.rendering import HERE, Span, duration, translated
from cometmq.console.views.sayings import PLACE, told_in
from cometmq.console.web import guard
from cometmq.runtime.sockets.addresses import Reach

CATALOGUE = HERE / "locales" / "zh.json"
SAYINGS = HERE / "locales" / "zh-sayings.json"
_PLACE = re.compile(r"%\((\w+)\)s")


def catalogue() -> dict[str, str]:
    found: dict[str, str] = json.loads(CATALOGUE.read_text("utf-8"))
    return found


def sayings() -> dict[str, str]:
    found: dict[str, str] = json.loads(SAYINGS.read_text("utf-8"))
    return found


def test_every_text_has_chinese() -> None:
    known = catalogue()
    wanted = dict.fromkeys([*texts.of_templates(), *texts.of_python()])
    assert [f"{where}: {text}" for where, text in wanted if text not in known] == []


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


def test_a_refusal_of_a_server_is_told_in_chinese() -> None:
    said = (
        "setting the entry k of n was refused by 10.0.0.1:9876 with code 29 (INVALID_PARAMETER): "
        "the value of k has 70000 letters, the limit MAX_KV_VALUE_LENGTH is 65536; split it over "
        "several keys"
    )
    told = told_in("zh", said)
    assert "被 10.0.0.1:9876 拒绝，错误码 29（INVALID_PARAMETER）" in told
    assert told.endswith("k 的值有 70000 个字符，上限 MAX_KV_VALUE_LENGTH 为 65536；请拆分到多个键")


def test_findings_of_the_first_page_are_chinese_as_a_whole() -> None:
    """The reach of an address stayed English, and a slave's number stood behind the check."""
    for reach in Reach:
        told = told_in("zh", f"127.0.0.1 is reached by {reach.value}")
        assert re.findall(r"[a-z]{4,}", told.replace("Docker", "")) == [], told
    assert told_in("zh", "slave 1 of broker-a: address") == "broker-a 的从节点 1：地址"


def test_time_spans_of_chinese_sentences_had_english_units() -> None:
    text = "%(lag)s messages wait for this group, as many as %(time)s ago."
    told = translated("zh", text, {"lag": "7", "time": Span(200_000)})
    assert "3 分 20 秒" in told
    assert re.findall("[a-z]+", told) == []
    assert "3 min 20 s" in translated("en", text, {"lag": "7", "time": Span(200_000)})
    assert [duration(ms, "zh") for ms in (7, 3_000, 3_600_000, 90_000_000)] == [
        "7 毫秒",
        "3 秒",
        "1 小时",
        "1 天 1 小时",
    ]


def test_a_clock_and_an_empty_list_are_chinese_as_a_whole() -> None:
    """Values of one word stayed English: "behind", "none"."""
    for direction in ("ahead of", "behind"):
        told = told_in("zh", f"5.0 s {direction} this machine's (±0.1 s)")
        assert re.findall("[a-z]+", told) == [], told
    told = told_in("zh", "the name servers know no cluster 'x'; they know none")
    assert told.endswith("无"), told


def test_the_catalogue_keeps_places_and_order() -> None:
    known = catalogue()
    for english, chinese in known.items():
        assert sorted(_PLACE.findall(english)) == sorted(_PLACE.findall(chinese)), english
        assert chinese.strip(), english
    text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, indent=2) + "\n"
    assert CATALOGUE.read_text("utf-8") == text


def test_everything_that_is_said_below_has_a_chinese_pattern() -> None:
    known = sayings() | catalogue()
    wanted = dict.fromkeys(of_source())
    assert len(wanted) > 400
    assert [f"{where}: {text}" for where, text in wanted if text not in known] == []


def test_the_patterns_keep_places_and_order() -> None:
    known = sayings()
    for english, chinese in known.items():
        assert sorted(PLACE.findall(english)) == sorted(PLACE.findall(chinese)), english
        assert chinese.strip(), english
    text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, indent=2) + "\n"
    assert SAYINGS.read_text("utf-8") == text
    assert not known.keys() & catalogue().keys()


def test_each_pattern_is_told_by_its_own_translation() -> None:
    for english, chinese in sayings().items():
        if english.count(" ") < 4:
            continue  # the shorter ones are phrases, parts of others

        def fill(place: re.Match[str]) -> str:
            return {"#": "7"}.get(place[1][0], f"v{place[1]}")

        assert told_in("zh", PLACE.sub(fill, english)) == PLACE.sub(fill, chinese), english


def test_phrases_within_a_reason_are_told_and_names_are_kept() -> None:
    assert told_in("zh", "group g is not behind: no message waits in 3 queues") == (
        "消费组 g 没有堆积：3 个队列中没有等待的消息"
    )
    refused = "no connection to 10.0.0.1:9876: refused"
    said = (
        f"the configuration of topic a could not be asked of 10.0.0.1:9876: {refused}; check that "
    )
    assert told_in("zh", f"{said}the server runs there and can be reached from here") == (
        "无法向 10.0.0.1:9876 查询“主题 a 的配置”：无法连接 10.0.0.1:9876：refused；"
        "请确认该服务器在运行且可从这里访问"
    )
    restart = (
        "a clean restart of broker a takes about a second: it reads 3 MiB of log and opens 1 queue; after "
        "a crash it reads 5 MiB, about 2 s; 8 consumers of 3 groups and its producers lose it meanwhile"
    )
    assert told_in("zh", restart) == (
        "Broker a 正常重启约需一秒：读取 3 MiB 日志，打开 1 个队列；崩溃后读取 5 MiB，约需2 秒；"
        "在此期间 3 个消费组的 8 个消费者以及 其生产者会失去它"
    )
    java = "CODE: 17  DESC: topic[a] not exist, apply first please!"
    assert told_in("zh", java) == java


def test_a_text_made_to_be_hard_to_fit_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    plain = sayings_module.Pattern.values_of

    def count(self: sayings_module.Pattern, text: str) -> dict[str, str] | None:
        nonlocal looked
        looked += 1
        return plain(self, text)

    monkeypatch.setattr(sayings_module.Pattern, "values_of", count)
    hostile = ("no connection to : ; " * 200)[: sayings_module.MAX_TEXT]
    told_in("zh", hostile)
    assert 0 < looked <= sayings_module.MAX_LOOK_UPS * len(sayings())
    longer = "x y" * sayings_module.MAX_TEXT
    looked = 0
    assert told_in("zh", longer) == longer
    assert looked == 0


def test_a_refusal_with_values_is_told_in_chinese(served: Served) -> None:
    visitor = Visitor(served)
    visitor.cookies["cometmq-language"] = "zh"
    assert "不是大小：请给出字节数" in visitor.get("/why/write", topic="a", size="many").text
    assert (
        "没有注册地址为"
        in visitor.post("/broker/clean", name="b", address="10.9.9.9:1", kind="files").text
    )
