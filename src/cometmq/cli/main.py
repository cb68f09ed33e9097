"""Define the application, and end it after an error with one sentence and an exit status.

Status 2 says that something the user gave does not fit (options, files, keys, a taken port, a store
directory that cannot be used); status 1 says that something else failed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, Final

import typer
import typer.core

from cometmq import _compiled
from cometmq._version import __version__
from cometmq.cli.help import Command, Group
from cometmq.errors import (
    CometMQError,
    ConfigError,
    IllegalArgumentError,
    MissingExtraError,
    StoreFullError,
    StoreLockedError,
    StoreUnusableError,
)
from cometmq.extras import needs
from cometmq.logs.line_writer import reserve_standard_descriptors
from cometmq.logs.plain import plain

_GIVEN_WRONG = (
    ConfigError,
    IllegalArgumentError,
    StoreUnusableError,
    StoreLockedError,
    StoreFullError,
)

# The place of each command: the module in `cometmq.cli`, and the function or typer application in it. The
# third text is the extra that brings its packages. A module is imported when its command is called, so that no command
# waits for the imports of others.
_COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "dev": ("dev.command", "dev", "server"),
    "namesrv": ("servers.namesrv", "namesrv", "server"),
    "broker": ("servers.broker", "broker", "server"),
    "proxy": ("servers.proxy", "proxy", "proxy"),
    "console": ("servers.console", "app", "console"),
    "doctor": ("doctor.command", "doctor", "server"),
    "probe": ("doctor.command", "probe", "server"),
    "pipeline": ("pipeline.command", "pipeline", "spark"),
    "admin": ("admin.app", "app", "server"),
    "explain": ("explain.command", "app", "server"),
    "bench": ("bench.command", "app", "server"),
    "store": ("store.command", "app", "server"),
}


class _Commands(Group):
    def list_commands(self, ctx: Any) -> list[str]:
        del ctx  # the list is the same for all calls
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        if cmd_name not in self.commands:
            self.add_command(_built(cmd_name))
        return self.commands[cmd_name]


def _built(name: str) -> Any:
    module, attribute, extra = _COMMANDS[name]
    what = f"cometmq {name}"
    holder = typer.Typer()
    try:
        with needs(extra, what):
            found = getattr(import_module(f"cometmq.cli.{module}"), attribute)
    except MissingExtraError as error:
        return _Missing(name, error)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, cls=_class_of(name))(found)
    command = typer.main.get_group(holder).commands[name]
    invoke = command.invoke

    def invoke_with_its_packages(context: Any) -> Any:
        with needs(extra, what):
            return invoke(context)

    setattr(command, "invoke", invoke_with_its_packages)  # noqa: B010 - mypy minds it written out
    return command


class _Missing(typer.core.TyperCommand):
    """Stands for a command that lacks its packages: the list shows it, and a call ends with the error."""

    def __init__(self, name: str, error: MissingExtraError) -> None:
        settings = {
            "ignore_unknown_options": True,
            "allow_extra_args": True,
            "help_option_names": [],
        }
        super().__init__(name, context_settings=settings, help=f"Not installed: {error}")
        self._error = error

    def invoke(self, ctx: Any) -> Any:
        del ctx  # the error is the same for all calls
        raise self._error


def _class_of(name: str) -> type[Command]:
    if name == "pipeline":
        from cometmq.cli.pipeline.help import PipelineCommand

        return PipelineCommand
    return Command


app = typer.Typer(
    name="cometmq",
    help="Apache RocketMQ in Python: name server, broker and tools.",
    cls=_Commands,
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


def main() -> None:
    reserve_standard_descriptors()
    try:
        app()
    except CometMQError as error:
        # Not through `sys.stderr`: its buffer would fail again at the end, and change the status.
        with suppress(OSError):
            os.write(2, f"cometmq: {plain(str(error), keep=chr(10))}\n".encode())
        sys.exit(2 if isinstance(error, _GIVEN_WRONG) else 1)
