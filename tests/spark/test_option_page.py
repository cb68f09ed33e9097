"""docs/spark-options.md, which sets our options beside those of Spark's Kafka connector, says what the
code does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cometmq.spark import kafka_names
from cometmq.spark.live import options as live_options
from cometmq.spark.options import Options
from cometmq.spark.sink import options as sink_options

PAGE = Path(__file__).parents[2] / "docs" / "spark-options.md"
OURS = {*live_options.KNOWN, *sink_options.KNOWN}


def rows() -> list[tuple[list[str], list[str], str]]:
    """Kafka's names, ours, and the differences, of each line of the tables."""
    found = []
    for line in PAGE.read_text().split("## Positions")[0].splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if len(cells) == 3 and "`" in "".join(cells[:2]):
            kafka, ours = (re.findall(r"`([^`]+)`", cell) for cell in cells[:2])
            found.append((kafka, ours, cells[2]))
    return found


def test_every_option_of_ours_is_there_and_no_other() -> None:
    named = {name for _, ours, _ in rows() for name in ours}
    assert named - OURS == set()
    assert not OURS - named, "options that the page does not name"


def test_every_name_of_kafkas_is_taken_or_answered_as_the_page_says() -> None:
    taken = {}
    for kafka, ours, differences in rows():
        for name in kafka:
            if name in OURS:
                assert name in ours, name
            elif name in kafka_names.ALIASES:
                assert ours == [kafka_names.ALIASES[name]]
                assert "the other name is taken, too" in differences
                taken[name] = ours[0]
            else:
                advice = kafka_names.instead_of(name)
                assert advice is not None, name
                assert all(option in advice for option in ours) or not ours, (name, advice)
    assert taken == kafka_names.ALIASES
    assert {name for kafka, _, _ in rows() for name in kafka} >= kafka_names.INSTEAD.keys()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("kafka.bootstrap.servers", "which is Kafka's: give namesrv"),
        ("KAFKA.linger.ms", "settings of Kafka's clients mean nothing"),
        ("maxOffsetPerTrigger", "did you mean maxMessagesPerTrigger"),
        ("minOffsetsPerTriger", "did you mean minMessagesPerTrigger"),
        ("startingOffset", "did you mean startingOffsets"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(given: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Options("rocketmq", {given: "1"}, live_options.KNOWN)


def test_both_names_of_one_option_are_refused() -> None:
    # As Spark gives them: in small letters, either of them first.
    for given in (
        ["maxoffsetspertrigger", "maxmessagespertrigger"],
        ["maxmessagespertrigger", "maxoffsetspertrigger"],
    ):
        with pytest.raises(
            ValueError, match="maxOffsetsPerTrigger is another name of maxMessagesPerTrigger"
        ):
            Options("rocketmq", dict.fromkeys(given, "1"), live_options.KNOWN)
    options = Options("rocketmq", {"MAXOFFSETSPERTRIGGER": "7"}, live_options.KNOWN)
    assert options.number("maxMessagesPerTrigger", 1, 9) == 7


def test_an_alias_means_nothing_to_a_source_without_the_option() -> None:
    with pytest.raises(ValueError, match="rocketmq-store has no option maxOffsetsPerTrigger"):
        Options("rocketmq-store", {"maxOffsetsPerTrigger": "7"}, ("path", "subscribe"))
