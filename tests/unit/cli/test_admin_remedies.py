"""Errors of commands name commands, where those of AdminClient name its calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cometmq.admin
from cometmq.cli.admin.app import MODULES
from cometmq.cli.admin.remedies import _SAID, in_commands
from cometmq.remoting import credentials
from cometmq.tls import contexts as tls

ADMIN = Path(cometmq.admin.__file__).parent
# Without `explain`, which answers questions, and whose remedies name calls and commands side by side.
MODULES_OF_ADMIN = sorted(path for path in ADMIN.rglob("*.py") if path.parent.name != "explain")
CALL = re.compile(
    r"\b(?:access|brokers|groups|messages|name_servers|offsets|producers|topics)\.\w+\("
)


def texts(module: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings."""
    tree = ast.parse(module.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.value


@pytest.mark.parametrize("module", MODULES_OF_ADMIN, ids=lambda path: str(path.relative_to(ADMIN)))
def test_no_error_of_a_command_names_a_call(module: Path) -> None:
    assert [text for text in texts(module) if CALL.search(in_commands(text))] == []


def test_what_is_replaced_is_said_and_names_commands_that_are_there() -> None:
    modules = (*MODULES_OF_ADMIN, Path(credentials.__file__), Path(tls.__file__))
    said = "\n".join(text for module in modules for text in texts(module))
    known = {name for names in MODULES.values() for name in names}
    for call, command in _SAID:
        assert call in said
        assert set(re.findall(r"(?<!-)\b[a-z]+[A-Z]\w+", command)) <= known
