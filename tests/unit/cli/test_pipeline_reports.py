"""The directory of reports is checked before a pipeline begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.cli.pipeline.command import check_reports
from cometmq.errors import ConfigError


def test_a_directory_is_made_and_left_empty(tmp_path: Path) -> None:
    check_reports(tmp_path / "new" / "reports")
    assert list((tmp_path / "new" / "reports").iterdir()) == []


def test_where_nothing_can_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(ConfigError, match=r"--reports is .*file.*; name another directory"):
            check_reports(tmp_path / place)
