"""Test that the store's benchmark runs, counts its work and writes what it found, without times."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import store, store_report
from benchmarks.frames import BenchmarkError
from benchmarks.report import rewrite_section
from benchmarks.store_peers import CometStorePeer
from rich.console import Console

QUICK = replace(
    store.parse_options(["--quick", "--peers", "CometMQ"]),
    append_count=300,
    sync_counts={1: 5, 8: 20},
    read_count=250,
    random_count=20,
    sizes_gib=(0.0005, 0.001),
    file_mib=1,
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> store_report.Report:
    with Path(os.devnull).open("w") as nowhere:
        return store.run(QUICK, tmp_path_factory.mktemp("stores"), Console(file=nowhere))


def test_every_row_has_its_rounds(result: store_report.Report) -> None:
    counts = {title: [each.count for each in rounds] for title, rounds in ours(result).rows.items()}
    assert counts == {
        "append, async flush": [300],
        # A batch of 32 may end behind the limit.
        "read in order, 32 at a time": [counts["read in order, 32 at a time"][0]],
        "read one at a random queue offset": [20],
        "append, sync flush, 1 writer": [5],
        "append, sync flush, 8 writers": [20],
    }
    assert counts["read in order, 32 at a time"][0] >= 250


def test_every_kind_of_start_was_made_at_every_size(result: store_report.Report) -> None:
    starts = ours(result).starts
    assert list(starts) == list(store.KINDS)
    for sizes in starts.values():
        assert [(size, len(each)) for size, each in sizes.items()] == [("0.0005", 1), ("0.001", 1)]


def test_what_was_found_is_written(result: store_report.Report, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{store_report.BEGIN}\nold\n{store_report.END}\nafter\n")
    results, picture, _ = store_report.write(result, tmp_path)
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| append, sync flush, 8 writers |" in text
    assert "| rebuilt | 0.001 GiB |" in text
    assert results.name in text
    assert json.loads(results.read_text())["peers"]["CometMQ"]["rows"]
    lines = ElementTree.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}polyline")
    assert len(list(lines)) == len(store_report.PLOTTED_KINDS)


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("nothing")
    with pytest.raises(AssertionError, match="lost its begin marker"):
        rewrite_section(page, "begin", "end", "text")
    assert page.read_text() == "nothing"


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    peer = CometStorePeer(tmp_path / "comet")
    with peer.process() as process, pytest.raises(BenchmarkError, match="no command dance"):
        process.ask("dance")


def ours(result: store_report.Report) -> store_report.PeerFigures:
    return result.peers["CometMQ"]
