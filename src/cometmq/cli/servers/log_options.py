"""Provide the options of a server's log, and set up the log by them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cometmq.errors import ConfigError
from cometmq.logs.file import FILE_MIB, KEPT_FILES, MOST_KEPT_FILES, LogFile
from cometmq.logs.levels import parse_levels
from cometmq.logs.setup import FORMATS, configure_logging


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The options of a server's log. `spread` gives them to a command."""

    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="debug, info, warning or error; also for parts of the server: info,cometmq.store=debug. "
            "Overrides the file's logLevel.",
        ),
    ] = None
    log_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the log to FILE instead of standard error."),
    ] = None
    log_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="text or json; if left out, text on a terminal and json otherwise.",
        ),
    ] = None
    log_file_mib: Annotated[
        int, typer.Option(min=1, help="Begin a new log file at this size, in MiB.")
    ] = FILE_MIB
    log_files: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_KEPT_FILES,
            help="How many full log files to keep: FILE.1 is the newest.",
        ),
    ] = KEPT_FILES

    @property
    def is_json(self) -> bool:
        """Whether the lines are JSON: as the format says; without a format, unless they go to a terminal."""
        if self.log_format is not None:
            return self.log_format == "json"
        return self.log_file is not None or not sys.stderr.isatty()


def begin_log(level: str, options: LogOptions = LogOptions()) -> None:
    """Set up the log at `level`, and otherwise as the options say. Raises ConfigError."""
    form = options.log_format
    if form not in (None, *FORMATS):
        raise ConfigError(f"the log format {form} is none of {', '.join(FORMATS)}")
    file = None
    if options.log_file is not None:
        parse_levels(level)  # before a file is made
        file = LogFile(
            options.log_file,
            file_bytes=options.log_file_mib << 20,
            kept_files=options.log_files,
        )
    configure_logging(level, json=None if form is None else form == "json", file=file)
