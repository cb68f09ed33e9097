"""Copies of files that published tables name, in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.pipelines.objects import Objects

from cometmq.errors import ConfigError
from cometmq.pipelines.archive.layout import Hour, Layout
from cometmq.pipelines.archive.tables.links import Copies, link_name
from cometmq.pipelines.archive.tables.settings import TableSettings


def test_copies_of_a_topic_with_a_leading_underscore_are_removed_like_others(
    tmp_path: Path,
) -> None:
    archive = Objects(tmp_path).at("archive")
    home = archive / "_tables"
    for topic in ("orders", "_orders"):
        link = link_name(Hour(topic, "2026-11-20T16"), "part.parquet")
        (home / "files" / link).write(b"PAR1")
    links = Copies(Layout(archive), home, lambda: None)
    assert links.drop_retired(set(), 0, 10) == 0
    assert links.drop_retired(set(), 20, 10) == 2
    assert (home / "files").files.sizes(str(home / "files")) == {}


@pytest.mark.parametrize("sign", "%?#")
def test_a_path_that_readers_of_tables_would_change_is_refused(sign: str) -> None:
    with pytest.raises(ConfigError, match=r"publish is given and path is .*give a path without"):
        TableSettings(publish=["iceberg"]).check_tables(f"s3a://bucket/a{sign}b")
