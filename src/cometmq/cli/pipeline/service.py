"""Keep a pipeline running as a service: each driver is the same command in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cometmq.cli.forms import Form
from cometmq.errors import ConfigError
from cometmq.pipelines.table.notes import VARIABLE

if TYPE_CHECKING:
    from cometmq.pipelines.table.settings import Config


def is_supervised() -> bool:
    """Return whether a supervisor started this process."""
    return VARIABLE in os.environ


def supervise(
    settings: Config, name: str, file: Path, reports: Path, output: Form, *, lenient: bool
) -> int:
    """Run the service until a signal comes, and return its exit status. Raise ConfigError."""
    from cometmq.pipelines.table.days import Days
    from cometmq.pipelines.table.supervisor import Supervisor

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise ConfigError(
            f"cometmq pipeline {name} starts and restarts Spark itself, so spark-submit cannot run it: run "
            "the command without spark-submit, and name the cluster as master in the table [spark]"
        )
    command = [
        *(sys.executable, "-m", "cometmq", "pipeline", name),
        *("--config", str(file), "--reports", str(reports), "--output", output.value),
        *(["--lenient"] if lenient else []),
    ]

    def say(line: str) -> None:
        typer.echo(f"cometmq: {line}", err=True)

    days = Days(reports, settings.freshness_s, say)
    return Supervisor(settings, command, say, days).run()
