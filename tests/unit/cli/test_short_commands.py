"""A short command converts its options as typer does, and imports little, as imports take most of its time."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from typing import Annotated, Any

import pytest
import typer
from tests.waits import PROCESS_WAIT_S
from typer.testing import CliRunner

from cometmq.cli.help import Command

SIMPLE = """
import sys
sys.argv = ["cometmq", "admin", "topicList", "-n", "127.0.0.1:1", "-o", "json", "--timeoutMillis", "9"]
from cometmq.cli.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 1, end.code
heavy = {"pydantic", "structlog", "rich", "uvloop", "yaml", "lark", "numpy", "lz4", "backports.zstd"}
heavy |= {"ctypes", "concurrent.futures.thread"}
rooms = {"cometmq.broker", "cometmq.store", "cometmq.admin.messages.room", "cometmq.client.instance"}
sys.stdout.write(" ".join(sorted((heavy | rooms) & sys.modules.keys())))
"""


class Form(Enum):
    TABLE = "table"
    JSON = "json"


def doubled(text: str) -> int:
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is no number")
    return 2 * int(text)


def run(cls: type[Any], arguments: tuple[str, ...]) -> tuple[int, str, list[object]]:
    """Return the exit status of a command of this class, what it printed, and the values it got."""
    app, got = typer.Typer(), list[object]()

    @app.command(cls=cls)
    def command(
        count: Annotated[int, typer.Option("-c", min=1, max=10, envvar="COUNT")] = 3,
        free: Annotated[int, typer.Option("-f")] = -1,
        form: Annotated[Form, typer.Option("-o")] = Form.TABLE,
        text: Annotated[str | None, typer.Option("-t")] = None,
        twice: Annotated[Any, typer.Option("-d", parser=doubled)] = "0",
        needed: Annotated[str, typer.Option("-n")] = "some",
        flag: Annotated[bool, typer.Option("-b")] = False,
        several: Annotated[list[int] | None, typer.Option("-s")] = None,
    ) -> None:
        got.extend((count, free, form, text, twice, needed, flag, several))

    result = CliRunner().invoke(app, arguments, env={"COUNT": "4" if "-t" in arguments else None})
    return result.exit_code, result.output, got


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-c 10",
        "-c 11",
        "-c 0",
        "-c -1",
        "-c 1e3",
        "-c \u0661",
        "-f -7",
        "-f 99999999999999999999999",
        "-o json",
        "-o JSON",
        "-o nothing",
        "-t orders -b",
        "-d 4",
        "-d four",
        "-s 1 -s 2",
        "-s one",
        "-n",
    ],
)
def test_values_are_converted_and_refused_as_by_typer(line: str) -> None:
    arguments = tuple(line.split())
    assert run(Command, arguments) == run(typer.core.TyperCommand, arguments)


def test_a_simple_command_imports_only_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIMPLE],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "could not be asked of 127.0.0.1:1" in done.stderr
    assert done.stdout == ""
