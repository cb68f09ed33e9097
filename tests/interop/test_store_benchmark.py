"""Java's store and ours do the same in the benchmark of the store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import store
from rich.console import Console

pytestmark = pytest.mark.interop


def test_both_stores_are_driven_alike(tmp_path: Path) -> None:
    options = replace(
        store.parse_options(["--quick"]),
        append_count=300,
        sync_counts={8: 40},
        read_count=250,
        random_count=20,
        sizes_gib=(0.001,),
        kinds=("killed", "rebuilt"),
    )
    with Path(os.devnull).open("w") as nowhere:
        result = store.run(options, tmp_path, Console(file=nowhere))
    assert list(result.peers) == ["Java", "CometMQ"]
    java, ours = (
        (
            {title: [each.count for each in rounds] for title, rounds in figures.rows.items()},
            {kind: {size: len(each) for size, each in sizes.items()} for kind, sizes in starts},
        )
        for figures in result.peers.values()
        for starts in [figures.starts.items()]
    )
    assert java == ours
