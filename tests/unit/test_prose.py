"""The check of prose finds the patterns that it names, and has few false alarms."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "scripts" / "prose"
_LOADER = SourceFileLoader("prose", str(_PATH))
_SPEC = spec_from_loader("prose", _LOADER)
assert _SPEC is not None
prose = module_from_spec(_SPEC)
_LOADER.exec_module(prose)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Whose requests run and inspect a cluster.", "begins without a noun"),
        ("Count it. Who asks again gets the same.", "begins without a noun"),
        ("Those that wait are served first.", "begins without a noun"),
        ("The broker tells its master.", "tell (write report, say, show, log)"),
        ("The file is made anew.", "anew (write again)"),
        ("Name servers, parted by semicolons", "parted by (write separated by)"),
        ("It is registered no more", "is no more, no more registered (write no longer)"),
        ("It has none. Nor does it start.", "nor does (write and not)"),
        ("An account loses his sessions", "his, her (write their)"),
    ],
)
def test_a_sentence_that_needs_a_second_look_is_found(text: str, pattern: str) -> None:
    assert [found for found, _ in prose.faults(text)] == [pattern]


@pytest.mark.parametrize(
    "text",
    [
        "Who may send to it?",
        "Those files are removed.",
        "The first key tells one order from another.",
        'The word `told` and the text "what is told" are quoted.',
        "Return what the broker reported.",
    ],
)
def test_a_sentence_that_is_well_passes(text: str) -> None:
    assert list(prose.faults(text)) == []


def test_the_lines_of_a_comment_are_one_text() -> None:
    source = "x = 1  # a number\n# The servers that\n# tell are asked.\ny = 2\n"
    assert list(prose.comments(source)) == [
        (1, "a number"),
        (2, "The servers that tell are asked."),
    ]


def test_code_in_a_page_is_left_out() -> None:
    page = "# Title\n\nA line.\n\n```sh\nWho reads this\n```\n\n    Whose code\n\nAnother.\n"
    assert [text.strip() for _, text in prose.paragraphs(page)] == ["A line.", "Another."]
