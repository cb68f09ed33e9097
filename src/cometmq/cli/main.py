"""Defines the application, and ends it after an error with one sentence and an exit status.

Status 2 says that something the user gave does not fit (options, files, keys, a taken port, a store
directory that cannot be used); status 1 says that something else failed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from cometmq import _compiled
from cometmq._version import __version__
from cometmq.cli import bench, broker, dev, doctor, namesrv, pipeline, store
from cometmq.cli.admin import app as admin
from cometmq.cli.help import Command, Group
from cometmq.cli.pipeline_help import PipelineCommand
from cometmq.errors import (
    CometMQError,
    ConfigError,
    IllegalArgumentError,
    StoreFullError,
    StoreLockedError,
    StoreUnusableError,
)
from cometmq.runtime.line_writer import reserve_standard_descriptors

_GIVEN_WRONG = (
    ConfigError,
    IllegalArgumentError,
    StoreUnusableError,
    StoreLockedError,
    StoreFullError,
)

app = typer.Typer(
    name="cometmq",
    help="Apache RocketMQ in Python: name server, broker and tools.",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cometmq {__version__} ({_form()})")
        raise typer.Exit


def _form() -> str:
    why_not = _compiled.state()
    if not why_not:
        return "compiled"
    # The reason says what to run, which helps in a checkout only: a wheel cannot be changed.
    return f"interpreted: {why_not}" if _compiled.is_checkout() else "interpreted"


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


app.command("dev", cls=Command)(dev.dev)
app.command("namesrv", cls=Command)(namesrv.namesrv)
app.command("broker", cls=Command)(broker.broker)
app.command("doctor", cls=Command)(doctor.doctor)
app.command("probe", cls=Command)(doctor.probe)
app.command("pipeline", cls=PipelineCommand)(pipeline.pipeline)
app.add_typer(admin.app, name="admin")
app.add_typer(bench.app, name="bench")
app.add_typer(store.app, name="store")


def main() -> None:
    reserve_standard_descriptors()
    try:
        app()
    except CometMQError as error:
        # Not through `sys.stderr`: its buffer would fail again at the end, and change the status.
        with suppress(OSError):
            os.write(2, f"cometmq: {error}\n".encode(errors="backslashreplace"))
        sys.exit(2 if isinstance(error, _GIVEN_WRONG) else 1)
