from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from cometmq.pipelines.audit.settings import Config as AuditConfig
from cometmq.pipelines.configuration import ClusterConfig, Settings, SparkConfig
from cometmq.pipelines.key_help import KeyHelp, keys_of_table


class Base(Settings, frozen=True, kw_only=True):
    """since: from when on: 16:00
        and no sooner.
    first, second: of both.
    """

    since: str | None = None
    first: int = 1
    second: float = 2.0


class Sample(Base, frozen=True, kw_only=True):
    """name: how it is called. mode: `a` or `b`.
    rules: more of them.

    Not a key: this.
    """

    name: str
    mode: Literal["a", "b"] = "a"
    rules: list[Base] = msgspec.field(default_factory=list)
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    either: str | Base | None = None


def test_keys_have_type_default_and_meaning_of_their_class() -> None:
    assert keys_of_table(Sample) == [
        KeyHelp("since", "text", "", "from when on: 16:00 and no sooner"),
        KeyHelp("first", "whole number", "1", "of both"),
        KeyHelp("second", "number", "2.0", "of both"),
        KeyHelp("name", "text", None, "how it is called"),
        KeyHelp("mode", '"a" or "b"', '"a"', "`a` or `b`"),
        KeyHelp("rules", "list of tables", "", "more of them"),
        KeyHelp("limits", "table", "", ""),
        KeyHelp("either", "text or table", "", ""),
    ]


@pytest.mark.parametrize("kind", [AuditConfig, ClusterConfig, SparkConfig])
def test_no_key_is_without_a_meaning(kind: type[msgspec.Struct]) -> None:
    assert [key.key for key in keys_of_table(kind) if not key.meaning] == []
