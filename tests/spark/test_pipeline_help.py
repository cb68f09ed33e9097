"""The help of each pipeline, whose classes are imported with Spark only."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from cometmq.cli.main import app
from cometmq.pipelines.catalogue import PIPELINES, pipeline
from cometmq.pipelines.key_help import keys_of_table


@pytest.mark.parametrize("name", PIPELINES)
def test_every_key_is_shown_with_its_meaning(name: str) -> None:
    keys = keys_of_table(pipeline(name).Config)
    assert [key.key for key in keys if not key.meaning] == []
    result = CliRunner().invoke(app, ["pipeline", name, "-h"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert f"[{name}]" in result.output
    assert all(key.key in result.output for key in keys)
