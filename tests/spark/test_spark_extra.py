"""The extra `spark` brings what PySpark itself asks for."""

from __future__ import annotations

import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extra_brings_what_dataframes_of_pyspark_ask_for() -> None:
    """Without pandas, `transformWithState` failed in a fresh installation."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    assert "cometmq[server]" in extras["spark"]
    lines = project["dependencies"] + extras["server"] + extras["spark"]
    ours = {requirement.name: requirement for requirement in map(Requirement, lines)}
    asked = [Requirement(line) for line in requires("pyspark") or []]
    of_sql = [each for each in asked if each.marker and each.marker.evaluate({"extra": "sql"})]
    assert {"pandas", "pyarrow"} <= {each.name for each in of_sql}
    for each in of_sql:
        (lowest,) = ours[each.name].specifier
        assert each.specifier.contains(lowest.version), f"{each}, and we ask for {ours[each.name]}"
