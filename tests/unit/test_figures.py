"""Keep the figures of the README those of the last run of `make bench`, and that run recent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# README.md names its rows for readers, benchmarks/README.md for those who choose them.
ROWS: Final = {
    "1 connection, 1 in flight, 1 KiB": "1×1, 1 KiB",
    "64 connections, 1 in flight each, 1 KiB": "64×1, 1 KiB",
    "4 connections, 32 in flight each, 1 KiB": "4×32, 1 KiB",
    "8 connections, 64 in flight each, 128 B": "8×64, 128 B",
    "4 connections, 4 batches of 32 × 128 B in flight each": "4×4, batches of 32 × 128 B",
    "4 connections, 4 batches of 32 × 1 KiB in flight each": "4×4, batches of 32 × 1 KiB",
    "4 connections, 1 pull of 32 × 128 B in flight each": "4×1, pulls of 32 × 128 B",
    "16 connections, 4 pulls of 32 × 128 B in flight each": "16×4, pulls of 32 × 128 B",
    "16 connections, 4 pulls of 32 × 1 KiB in flight each": "16×4, pulls of 32 × 1 KiB",
}
# A run may be of the release before the last one, but no older.
RELEASES: Final = 2


def test_the_send_path_was_measured_in_one_of_the_last_releases() -> None:
    measured = re.search(r"\| CometMQ broker \| CometMQ ([\d.]+) at \w+", _send_path())
    assert measured is not None, "benchmarks/README.md does not say which release was measured"
    changelog = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## ([\d.]+) ", changelog, re.MULTILINE)
    assert measured[1] in releases[:RELEASES], "run `make bench`: its figures are too old"


def test_the_readme_has_the_figures_of_the_last_run() -> None:
    last = {cells[0]: cells[1:] for cells in _tables(_send_path())}
    readme = {cells[0]: cells[1:] for cells in _tables(_section("README.md", "## Performance"))}
    missing = ROWS.keys() - readme.keys()
    assert not missing, f"README.md lacks rows: {missing}"
    for row, name in ROWS.items():
        java, ours, ratio = readme[row]
        assert [java, ours, ratio] == [last[name][0], last[name][2], last[name][4]], row


def _send_path() -> str:
    section = _section("benchmarks/README.md", "<!-- send-path:begin")
    return section.partition("<!-- send-path:end")[0]


def _section(page: str, beginning: str) -> str:
    text = (ROOT / page).read_text()
    assert text.count(beginning) == 1, f"{page} has no single {beginning!r}"
    return text.partition(beginning)[2]


def _tables(text: str) -> list[list[str]]:
    """Return the cells of all rows, of a row that occurs twice the first."""
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows.setdefault(cells[0], cells)
    return list(rows.values())
