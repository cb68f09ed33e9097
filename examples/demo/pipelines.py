"""The last part: the sent messages go to Parquet on local Spark, and an audit compares the
producer's list of sends, the log, the archive and the consumers' lists.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from examples.demo.messages import GROUP, TOPIC
from examples.demo.tally import Tally
from rich.console import Console
from rich.markup import escape

from cometmq.errors import ConfigError
from cometmq.spark.java import require_java
from cometmq.testing import Cluster

_ARCHIVE: Final = "archive"
_SENT: Final = "sent.jsonl"
_CONSUMED: Final = "consumed.jsonl"
_SPARK: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
}


def write_ledgers(tally: Tally, directory: Path) -> None:
    """The lists of producer and consumers, as an application would keep them."""
    # The cluster is a new one with every run, and so are its offsets.
    shutil.rmtree(directory / _ARCHIVE, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    _write_ledger(directory / _SENT, tally.sent_ids, {"topic": TOPIC})
    _write_ledger(directory / _CONSUMED, tally.received_ids, {"topic": TOPIC, "group": GROUP})


def _write_ledger(path: Path, event_ids: Sequence[str], more: dict[str, str]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps({"key": key, **more}) + "\n" for key in event_ids)


async def pipelines_part(cluster: Cluster, console: Console, directory: Path) -> bool:
    """Archive and audit. True also where Spark cannot run, which the screen then says."""
    console.print()
    try:
        require_java()
    except ConfigError as error:
        console.print(f"[bold]not shown: archive and audit.[/] {escape(str(error))}")
        return True
    if find_spec("pyspark") is None:
        console.print(
            "[bold]not shown: archive and audit.[/] They run on PySpark: "
            "pip install 'cometmq\\[spark]', or make demo, which brings it"
        )
        return True
    console.print("[bold]archive and audit[/] of the same messages, on local Spark, about a minute")
    # The cluster lives on this thread's loop.
    return await asyncio.to_thread(_run, cluster.namesrv, directory)


def _run(namesrv: str, directory: Path) -> bool:
    from cometmq.cli.pipeline import screen
    from cometmq.pipelines import archive, audit
    from cometmq.pipelines.configuration import ClusterConfig, SparkConfig
    from cometmq.pipelines.context import open_context
    from cometmq.pipelines.page import write_page

    absolute = directory.absolute()
    archived = archive.Config(topics=[TOPIC], path=str(absolute / _ARCHIVE))
    audited = audit.Config(
        topics=[TOPIC],
        groups=[GROUP],
        archive=archived.path,
        sent=str(absolute / _SENT),
        consumed=str(absolute / _CONSUMED),
        business_key="eventId",
        settle_s=0,
    )
    spark = SparkConfig(master="local[*]", config=_SPARK)
    with screen.progress() as progress, ExitStack() as stack:
        with progress.step("Start Spark"), _java_writes_to(directory / "spark.log"):
            context = stack.enter_context(
                open_context(ClusterConfig(namesrv=namesrv), spark, progress, "demo")
            )
        reports = [archive.run(archived, context), audit.run(audited, context)]
    for report in reports:
        report.write_json(directory / f"{report.pipeline}.json")
        write_page(report, directory / f"{report.pipeline}.html")
    screen.print_report(reports[-1], [directory / "audit.html", directory / "archive.html"])
    return all(report.holds for report in reports)


@contextmanager
def _java_writes_to(path: Path) -> Iterator[None]:
    """Keep the lines that Java prints at its start from standing between the bars."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
