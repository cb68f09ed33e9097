"""The dbt project of docs/sql.md runs over published tables, and takes each message once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from tests.spark.table_archives import ORDERS, RETRIES, MadeArchive
from tests.waits import PROCESS_WAIT_S

from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.schemas import COMPACT
from cometmq.pipelines.archive.tables.publisher import Publisher
from cometmq.pipelines.archive.tables.settings import TableSettings

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ROOT / ".venv-spark-dbt"
# A file's name in backticks, and the block behind it.
FILES: Final = re.compile(
    r"`([\w/.]+)`[^`]*\n\n```(?:yaml|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
# Extensions lie beside DuckDB as packages: its own server of extensions is no registry.
PREPARE: Final = """
import duckdb, importlib.util, pathlib, sys
for name in ("icu", "httpfs", "delta"):
    place = importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations[0]
    for file in pathlib.Path(place).glob(f"extensions/*/{name}.duckdb_extension"):
        duckdb.sql(f"INSTALL '{file}'")
"""
ASK: Final = """
import duckdb, json, sys
rows = duckdb.connect("warehouse.duckdb").sql(
    "SELECT queue_offset, tags, body FROM order_messages ORDER BY queue_offset").fetchall()
json.dump(rows, sys.stdout)
"""


def program(directory: Path, *arguments: str) -> str:
    """Run Python with dbt and nothing of CometMQ."""
    if not PACKAGES.is_dir():
        pytest.skip("`make spark` makes .venv-spark-dbt, which has dbt")
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        # DuckDB keeps its extensions below HOME.
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGES), "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        cwd=directory,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_project(directory: Path, archive: Path) -> None:
    section = (ROOT / "docs" / "sql.md").read_text().partition("\n## dbt\n")[2]
    files = dict(FILES.findall(section))
    assert len(files) == 4, files.keys()
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("/data/archive", str(archive)))


def batch(path: Path, first: int, count: int) -> None:
    with Archive(path) as archive:
        publisher = Publisher(archive, TableSettings(publish=["delta"]))
        archive.after_commit = publisher.publish
        made = MadeArchive(archive)
        made.batch(COMPACT, {ORDERS: (first, count), RETRIES: (first, count)})


def rows(directory: Path) -> list[list[Any]]:
    import json

    found: list[list[Any]] = json.loads(program(directory, "-c", ASK))
    return found


def test_a_dbt_model_takes_each_message_of_a_topic_once(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    project = tmp_path / "project"
    write_project(project, path)
    program(project, "-c", PREPARE)
    run = ("-m", "dbt.cli.main", "--no-send-anonymous-usage-stats", "run", "--profiles-dir", ".")
    for first, count in ((0, 7), (7, 5)):
        batch(path, first, count)
        program(project, *run)
        wanted = [[at, "paid", f"body {at}"] for at in range(first + count)]
        assert rows(project) == wanted
    # Nothing new: nothing changes.
    program(project, *run)
    assert rows(project) == wanted
