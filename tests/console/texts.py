"""Finds the texts of the console that are translated: in its templates and in its Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jinja2 import nodes

from cometmq.console.pages import name_servers
from cometmq.console.users.accounts import Role
from cometmq.console.views.rendering import HERE, MENU, environment

# The functions of the console whose arguments are texts in English.
TRANSLATES: Final = ("translated", "_", "text_of")


def of_templates() -> Iterator[tuple[str, str]]:
    """Yield each text that a template translates, after the template's name.

    Of `_(names[key])` with names written there all of them.
    """
    for path in sorted((HERE / "templates").glob("**/*.html")):
        tree = environment().parse(path.read_text("utf-8"))
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "_" and call.args:
                for text in _texts(call.args[0]):
                    yield path.name, text


def _texts(node: nodes.Expr) -> Iterator[str]:
    if isinstance(node, nodes.Const):
        yield str(node.value)
    elif isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Dict):
        yield from (str(pair.value.as_const()) for pair in node.node.items)
    elif isinstance(node, nodes.CondExpr):
        yield from _texts(node.expr1)
        if node.expr2 is not None:
            yield from _texts(node.expr2)


# Texts of other packages are English: `localized` returns them in the language of a page.
_SAID_BELOW: Final = ("error", "fault", "reason", "remedy", "said", "text")
# Notes are in the language of who acted; the others are bodies and a schema.
_NOT_BELOW: Final = ("note.text", "shown.text", "row.text", "chosen.text")


def untold() -> Iterator[tuple[str, str]]:
    """Yield the expressions by which templates show other rooms' texts untranslated, with the
    template.
    """
    for path in sorted((HERE / "templates").glob("**/*.html")):
        tree = environment().parse(path.read_text("utf-8"))
        for output in tree.find_all(nodes.Output):
            for shown in output.nodes:
                yield from ((path.name, each) for each in _shown_as_it_is(shown))


def _shown_as_it_is(node: nodes.Expr) -> Iterator[str]:
    if isinstance(node, nodes.Call) or (
        isinstance(node, nodes.Filter) and node.name == "localized"
    ):
        return  # a macro or `_` tells its reasons
    if isinstance(node, nodes.CondExpr):
        yield from _shown_as_it_is(node.expr1)
        if node.expr2 is not None:
            yield from _shown_as_it_is(node.expr2)
        return
    if isinstance(node, nodes.Getattr) and node.attr in _SAID_BELOW:
        name = f"{getattr(node.node, 'name', '…')}.{node.attr}"
        if name not in _NOT_BELOW:
            yield name
        return
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Expr):
            yield from _shown_as_it_is(child)


def of_python() -> Iterator[tuple[str, str]]:
    """Yield each text that a module translates, after the module's name."""
    for path in sorted(HERE.glob("**/*.py")):
        yield from ((path.name, text) for text in _of_module(path))
    yield from (("login.py", what) for what in ("log in", "log out"))
    yield from (("name_servers.py", text) for text in name_servers.EFFECTS.values())
    yield from (("rendering.py", name) for _, name, _ in MENU)
    yield from (("accounts.py", role.value) for role in Role)


def of_concerns() -> Iterator[str]:
    """Yield what the first page says of what needs attention, and what to do."""
    for call in ast.walk(ast.parse((HERE / "watching" / "concerns.py").read_text("utf-8"))):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Concern":
            _severity, where, *said = call.args[:4]
            yield from (
                str(node.value)
                for arg in (where, *said)
                for node in ast.walk(arg)
                # "%(found)s" alone is told by another room.
                if isinstance(node, ast.Constant) and " " in str(node.value)
            )


def _of_module(path: Path) -> Iterator[str]:
    for call in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr == "action":
            yield from (
                str(at.value.value) for at in call.keywords if isinstance(at.value, ast.Constant)
            )
        if not isinstance(call.func, ast.Name):
            continue
        # The name of an action, and how it ended: English for the audit log, translated for pages.
        said = [keyword.value for keyword in call.keywords if keyword.arg == "what"]
        if call.func.id == "Outcome":
            said.append(call.args[0])
        # The page of an error translates its reason, if it has no places.
        if call.func.id == "HTTPException" and not isinstance(call.args[1], ast.JoinedStr):
            said.append(call.args[1])
        if call.func.id == "_error":
            said += call.args[2:4]
        for part in said:
            assert not isinstance(part, ast.JoinedStr), f"{path.name}:{part.lineno} has no values"
            yield from _alternatives(part)
        if call.func.id in TRANSLATES:
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def _alternatives(text: ast.expr) -> Iterator[str]:
    if isinstance(text, ast.IfExp):
        yield from _alternatives(text.body)
        yield from _alternatives(text.orelse)
    elif isinstance(text, ast.Constant) and text.value:
        yield str(text.value)
