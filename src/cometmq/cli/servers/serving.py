"""Provide the options and steps that the commands for servers have in common."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Protocol

import typer

from cometmq.logs.line_writer import line_writer
from cometmq.logs.loggers import get_logger
from cometmq.runtime.configuration.config import load_properties, unknown_keys
from cometmq.runtime.garbage import keep_passes_short
from cometmq.runtime.host.process_limits import raise_open_file_limit
from cometmq.runtime.loop import SWITCH_INTERVAL_S
from cometmq.runtime.signals import set_by_end_of_input, stop_event

log = get_logger(__name__)

# The long names are spelt as in Java's mqnamesrv and mqbroker.
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--configFile",
        metavar="FILE",
        help="A properties file with RocketMQ's keys.",
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option("-p", "--printConfigItem", help="Print the effective configuration and exit."),
]
Lenient = Annotated[
    bool,
    typer.Option("--lenient", help="Start with misspelt keys, too, and log them as warnings."),
]
Open = Annotated[
    bool,
    typer.Option(
        "--open",
        help="Serve other machines, too, though there is no access control (protectedMode=false).",
    ),
]


class Server(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


def read_config_file(path: Path | None) -> dict[str, str]:
    """Return the entries of the file that `-c` names, none without `-c`. Raises ConfigError."""
    return load_properties(path) if path is not None else {}


def report_unknown_keys(properties: Mapping[str, str], *classes: type) -> None:
    """Log one line with the keys of a file that change nothing here."""
    if keys := unknown_keys(properties, *classes):
        log.info("configuration keys without effect", keys=keys)


def say(text: str) -> None:
    """Print a line without failing or waiting, even if standard output is closed or blocked."""
    line_writer(sys.stdout).write(f"{text}\n")


async def serve(
    server: Server,
    on_ready: Callable[[], None],
    *,
    until_input_ends: bool = False,
    on_stop: Callable[[], Awaitable[None] | None] = lambda: None,
) -> None:
    """Run `server` until SIGTERM or SIGINT; call `on_ready` once it serves, `on_stop` before it
    stops.

    With `until_input_ends` the end of standard input stops it, too, if that is a pipe.
    """
    raise_open_file_limit()
    with stop_event() as stop, set_by_end_of_input(stop) if until_input_ends else nullcontext():
        await server.start()
        keep_passes_short()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            on_ready()
            await stop.wait()
            if (stopping := on_stop()) is not None:
                await stopping
        finally:
            await server.close()
