"""The settings of an audit, and which are refused."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from cometmq.errors import ConfigError
from cometmq.pipelines import audit
from cometmq.pipelines.audit.settings import (
    EXPLAINING,
    Config,
    Ledger,
    Rule,
    SqlSubscription,
    level_delays_ms,
)
from cometmq.pipelines.configuration import ConfigFile


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    return ConfigFile(path).table("audit", Config)


def test_a_whole_table(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        [audit]
        topics = ["orders"]
        groups = ["billing", "search"]
        archive = "/data/archive"
        sent = "/data/sent.jsonl.gz"
        consumed = { path = "/data/consumed", msg_id = "id", group = "consumer" }
        business_key = "keys[0]"
        subscriptions = { billing = "paid || open", search = { sql = "amount > 5" } }
        fail_on = ["dead-lettered"]

        [[audit.rules]]
        difference = "business key twice"
        cause = "an order changed"
        when = "tags = 'changed'"
        """,
    )
    assert config.sent_ledger() == Ledger(path="/data/sent.jsonl.gz")
    assert config.consumed_ledger() == Ledger(path="/data/consumed", msg_id="id", group="consumer")
    assert config.tags("billing") == ["paid", "open"]
    assert config.tags("search") is None
    assert config.sql("search") == "amount > 5"
    assert config.subscriptions["search"] == SqlSubscription(sql="amount > 5")
    assert config.rules == [
        Rule(difference="business key twice", cause="an order changed", when="tags = 'changed'")
    ]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"topics": []}, 'topics is empty; name some, for example topics = \\["orders"\\]'),
        ({"topics": ["a b"]}, "topics: the topic name 'a b' has characters"),
        ({"topics": ["a", "a"]}, "topics names a twice"),
        ({"groups": ["g", "g"]}, "groups names g twice"),
        ({"groups": ["g!"]}, "groups: the group name 'g!'"),
        ({"subscriptions": {"h": "*"}}, "subscriptions has 'h', which is not among groups"),
        (
            {"groups": ["g"], "subscriptions": {"g": "||"}},
            "subscriptions of g: .* names no tag",
        ),
        (
            {"groups": ["g"], "subscriptions": {"g": SqlSubscription(sql="a = = 1")}},
            "subscriptions of g: ",
        ),
        ({"settle_s": -1.0}, r"settle_s is -1.0; it lies in 0\.\.604800"),
        ({"business_key": " "}, "business_key is empty; leave it out"),
        (
            {"fail_on": ["dead letered"]},
            "fail_on has 'dead letered', which explains nothing; .*dead-l",
        ),
        ({"delay_levels": "1s 5x"}, "delay_levels has '5x'; a level is written as 30s"),
    ],
)
def test_what_does_not_fit_names_key_and_remedy(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Config(**{"topics": ["orders"], **settings})


def test_an_audit_may_fail_on_causes_of_its_own_rules() -> None:
    rule = Rule(difference="stored twice", cause="by hand", when="true")
    assert Config(topics=["a"], rules=[rule], fail_on=["by hand"]).fail_on == ["by hand"]


def test_what_an_audit_may_fail_on_is_what_explains() -> None:
    """The names are read from the source of the expressions, which only Spark could evaluate."""
    root = Path(audit.__file__).parent
    cases = [
        node
        for node in ast.walk(ast.parse((root / "causes.py").read_text()))
        if isinstance(node, ast.Tuple) and len(node.elts) == 3
    ]
    explaining = {
        case.elts[1].value
        for case in cases
        if isinstance(case.elts[1], ast.Constant)
        and isinstance(case.elts[2], ast.Constant)
        and case.elts[2].value is True
    }
    assert {*explaining, "redriven", "replayed"} == set(EXPLAINING)


def test_a_rule_is_for_a_difference_that_there_is() -> None:
    with pytest.raises(ConfigError, match="the difference 'lost', which there is not"):
        Rule(difference="lost", cause="x", when="true")


def test_the_file_and_the_table_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline.toml, table \[audit\]: topics is empty"):
        read(tmp_path, "[audit]\ntopics = []\n")
    with pytest.raises(
        ConfigError, match=r"table \[audit\]: there is no key `topic`; keys are topics"
    ):
        read(tmp_path, '[audit]\ntopic = "orders"\n')


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/sent", "parquet"),
        ("/data/sent.parquet", "parquet"),
        ("/data/sent.json", "json"),
        ("/data/sent.jsonl.gz", "json"),
        ("/data/sent.csv", "csv"),
    ],
)
def test_a_ledger_is_what_its_path_says(path: str, kind: str) -> None:
    assert Ledger(path=path).file_format() == kind
    assert Ledger(path=path, format="csv").file_format() == "csv"


def test_a_ledger_of_another_format() -> None:
    with pytest.raises(ConfigError, match="format is 'orc' for /data/x; it is one of parquet"):
        Ledger(path="/data/x", format="orc")


def test_levels() -> None:
    assert level_delays_ms("1s 2m 1h 1d") == [1000, 120_000, 3_600_000, 86_400_000]
