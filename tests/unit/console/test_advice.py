"""Advice in errors, as a user of the console reads it."""

from __future__ import annotations

import pytest

from cometmq.console.views.advice import advised


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            "check the name (topics.names() has all), or make it with topics.create()",
            "check the name (the page Topics has all), or make it on the page Topics",
        ),
        (
            "check the group's name (groups.names() has all), or make it with groups.create()",
            "check the group's name (the page Groups has all), or make it on the page Groups",
        ),
        (
            "give it the permission to write by topics.update(permission=6)",
            "give it the permission to write on the topic's page (Change topic)",
        ),
        (
            "give ms since the epoch, or offsets.END (-1) for the end of every queue",
            "give ms since the epoch, or -1 for the end of every queue",
        ),
        ("it took 3 s (12.5 MB/s), see log.txt", "it took 3 s (12.5 MB/s), see log.txt"),
    ],
)
def test_a_call_becomes_an_action_of_a_page(said: str, wanted: str) -> None:
    assert advised(said) == wanted
