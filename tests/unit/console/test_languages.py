"""Say in Chinese, by keys, what other rooms say: all of it, and with the same values."""

# ruff: noqa: RUF001 - Chinese has a punctuation of its own
from __future__ import annotations

import ast
import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import cometmq.admin.explain.room
import cometmq.admin.health
import cometmq.console.app
from cometmq.admin.checkup_texts import Checked, Found, Reached
from cometmq.admin.explain.texts import Remedy, Said
from cometmq.console import languages
from cometmq.console.languages import said_in, sentences_of
from cometmq.console.refusals import Refused
from cometmq.errors import CometMQError
from cometmq.model.reports.keyed_text import TextKey

SOURCE = Path(cometmq.__file__).parent
LOCALES = Path(languages.__file__).parent / "locales"
_CALL = re.compile(r"\b[a-z_]+\.[a-z_]+\([^)]*\)|\b[a-z_]+\.[A-Z]+\b")


def keys() -> dict[str, TextKey]:
    """Return all keys that the console can meet, by their ids."""
    kinds = [kind for kind in TextKey.__subclasses__() if kind.__module__.startswith("cometmq.")]
    assert len({kind.__name__ for kind in kinds}) == len(kinds), "an id names one of them"
    return {key.id: key for kind in kinds for key in kind}


def places_of(template: str) -> set[str]:
    """Return the names of the places that a template has."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def test_every_key_has_a_chinese_text_and_no_chinese_text_lacks_a_key() -> None:
    known = keys()
    assert len(known) > 350
    assert sentences_of("zh").keys() == known.keys()
    assert sentences_of("en").keys() <= known.keys()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_texts_of_a_key_have_the_same_places(language: str) -> None:
    known, texts = keys(), sentences_of(language)
    wrong = {
        key: text for key, text in texts.items() if places_of(text) != places_of(known[key].value)
    }
    assert wrong == {}
    ordered = json.dumps(dict(sorted(texts.items())), ensure_ascii=False, indent=2) + "\n"
    assert (LOCALES / f"{language}-keys.json").read_text("utf-8") == ordered


def test_no_two_keys_have_one_sentence() -> None:
    """An enum would take the second for another name of the first."""
    kinds = {type(key) for key in keys().values()}
    assert [kind.__name__ for kind in kinds if len(kind.__members__) != len(kind)] == []


def made_in_source() -> Iterator[tuple[str, str, set[str]]]:
    """Yield where a key is called by its name, the key, and the places that it is given."""
    kinds = {type(key).__name__ for key in keys().values()}
    for path in SOURCE.glob("**/*.py"):
        text = path.read_text("utf-8")
        # Most of a thousand modules name no key; to parse them takes seconds.
        if not any(kind in text for kind in kinds):
            continue
        for call in ast.walk(ast.parse(text)):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if isinstance(call.func.value, ast.Name) and all(each.arg for each in call.keywords):
                key = f"{call.func.value.id}.{call.func.attr}"
                yield f"{path.name}:{call.lineno}", key, {each.arg or "" for each in call.keywords}


def test_every_sentence_is_given_the_values_of_its_places() -> None:
    known = keys()
    made = [(where, known[key], given) for where, key, given in made_in_source() if key in known]
    assert len(made) > 300
    assert [where for where, key, given in made if places_of(key.value) != given] == []


def test_every_key_is_of_use() -> None:
    source = "\n".join(path.read_text("utf-8") for path in SOURCE.glob("**/*.py"))
    used = set(re.findall(r"\b[A-Z]\w+\.[A-Z_]+\b", source))
    looked_up = set(re.findall(r"\b([A-Z]\w+)\[", source))
    unused = [key for key, at in keys().items() if type(at).__name__ not in looked_up]
    assert [key for key in unused if key not in used] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_page_advises_to_call_the_library(language: str) -> None:
    """A call is for programs; a user of the console has a page for it."""
    texts = {key: sentences_of(language).get(key, at.value) for key, at in keys().items()}
    assert {key: text for key, text in texts.items() if _CALL.search(text)} == {}
    assert "groups.update(" in Remedy.CONSUMPTION_DISABLED.value


def test_values_that_are_sentences_are_chinese_too() -> None:
    queues = Said.CAUGHT_UP(group="g", queues=3)
    assert said_in("zh", queues) == "消费组 g 没有堆积：3 个队列中没有等待的消息"
    waits = Said.WAITS(count=1, where="orders 1")
    assert said_in("zh", Said.NO_MEMBER(group="g", waits=waits)) == (
        "消费组 g 没有已连接的消费者；有 1 条消息等待（orders 1）"
    )
    slaves = tuple(Found.SLAVE_AT(id=number, address=f"b:{number}") for number in (1, 2))
    assert said_in("zh", Found.NO_MASTER(slaves=slaves)) == (
        "没有注册主节点，只有位于 b:1 的从节点 1、位于 b:2 的从节点 2"
    )
    assert said_in("en", Found.NO_MASTER(slaves=slaves)) == (
        "no master is registered, only slave 1 at b:1, slave 2 at b:2"
    )


def test_findings_of_the_first_page_are_chinese_as_a_whole() -> None:
    """The reach of an address stayed English, and a slave's number stood behind the check."""
    for reach in Reached:
        said = said_in("zh", Found.REACHED_BY(host="127.0.0.1", reach=reach()))
        assert re.findall(r"[a-z]{4,}", said.replace("Docker", "")) == [], said
    slave = Checked.SLAVE(id=1, name="broker-a")
    assert said_in("zh", Checked.ADDRESS(server=slave)) == "broker-a 的从节点 1：地址"
    for skewed in (Found.AHEAD, Found.BEHIND):
        said = said_in("zh", skewed(skew=5.0, unsure=0.1))
        assert re.findall("[a-z]+", said) == [], said


def test_a_refusal_keeps_its_key_in_an_error() -> None:
    error = CometMQError(Refused.NO_SIZE(text="many"))
    assert said_in("zh", error) == "'many' 不是大小：请给出字节数，1 或更大"
    assert said_in("en", error) == str(error)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_text_without_a_key_stays_as_it_is(language: str) -> None:
    java = "CODE: 17  DESC: topic[a] not exist, apply first please!"
    assert said_in(language, java) == java
    assert said_in(language, CometMQError("no connection to 10.0.0.1:9876: refused")) == (
        "no connection to 10.0.0.1:9876: refused"
    )
    assert said_in(language, "Topics") == "Topics", "it may be the name of a group"
    values = "{count} %(x)s"
    assert values in said_in(language, Said.NO_MEMBER(group=values, waits=""))
