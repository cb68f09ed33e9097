"""What errors and causes advise, as a user of the console reads it."""

from __future__ import annotations

import re

import pytest
from tests.console.sayings import of_source

from cometmq.console.views.advice import advised
from cometmq.console.views.sayings import told_in

_CALL = re.compile(r"\b[a-z_]+\.[a-z_]+\([^)]*\)|\b[a-z_]+\.[A-Z]+\b")
# Access control has commands, and no page.
_COMMANDS = re.compile(r"\baccess\.[a-z_]+\(\)")


def seen() -> list[str]:
    """Every text with a call in it that pages may show, with words at its places."""
    texts = {pattern for _, pattern in of_source() if _CALL.search(_COMMANDS.sub("", pattern))}
    return sorted(re.sub(r"\{(\d+)\}", r"'name\1'", text) for text in texts)


def test_there_are_texts_that_name_calls() -> None:
    assert len(seen()) > 20


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_page_advises_to_call_the_library(language: str) -> None:
    told = {text: advised(told_in(language, text)) for text in seen()}
    assert {text: said for text, said in told.items() if _CALL.search(said)} == {}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            "give the topic more queues: topics.update('orders', read_queues=8, write_queues=8)",
            (
                "give the topic more queues on the page of topic 'orders' (Change topic): 8 to read, 8 to "
                "write"
            ),
        ),
        (
            "make it: topics.create('orders'); or check the topic's name (topics.names() has all)",
            "make it on the page Topics; or check the topic's name (the page Topics has all)",
        ),
        (
            "repair the listener, then send it again: messages.redrive(ID, 'g', ids=['7F0001'])",
            "repair the listener, then send it again on the page Dead letters of group 'g'",
        ),
        (
            "switch it on: groups.update('g', consume_enable=True)",
            "switch it on by Resume on the page of group 'g'",
        ),
        ("it took 3 s (12.5 MB/s), see log.txt", "it took 3 s (12.5 MB/s), see log.txt"),
    ],
)
def test_a_call_becomes_an_action_of_a_page(said: str, wanted: str) -> None:
    assert advised(said) == wanted
