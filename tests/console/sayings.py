"""Finds what the rooms below the console say to users: texts with values, as patterns.

A pattern of `f"topic {topic} is not there"` is `topic {1} is not there`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cometmq

SOURCE: Final = Path(cometmq.__file__).parent
# All that these modules say reaches pages.
ROOMS: Final = (
    "admin/**/*.py",
    "namesrv/kv_config.py",
    "remoting/credentials.py",
    "runtime/sockets/addresses.py",
    "runtime/spelling.py",
    "store/retention.py",
)
# Of these it is what they raise, or note as an error.
RAISING: Final = (
    "console/**/*.py",
    "errors.py",
    "remoting/client.py",
    "remoting/connection.py",
    "client/routes.py",
    "namesrv/admin_handlers.py",
)
# The console does not ask for what these say: access control, Java's own stores, progress, the
# account file and start of the console, which the shell shows.
_APART: Final = (
    "admin/access/room.py",
    "admin/access/records.py",
    "admin/access/accounts.py",
    "admin/brokers/java.py",
    "admin/sync.py",
    "console/users/accounts.py",
    "console/config.py",
    "console/web/listening.py",
    "console/schemas/decoding.py",
)
_UNSEEN: Final = (
    "step",
    "debug",
    "info",
    "warning",
    "exception",
    "compile",
    "getLogger",
    "ConfigError",
    "AssertionError",
)
# "{1} and {2}" would fit too much; it is told as a list.
_WORD: Final = re.compile(r"(?!\band\b)\b[a-zA-Z]*[a-z]{3}")


def of_source() -> Iterator[tuple[str, str]]:
    """Yield the module and the pattern of each text."""
    for globs, is_raising in ((ROOMS, False), (RAISING, True)):
        for glob in globs:
            for path in sorted(SOURCE.glob(glob)):
                name = path.relative_to(SOURCE).as_posix()
                if name in _APART:
                    continue
                for text in _said(ast.parse(path.read_text("utf-8")), is_shown=not is_raising):
                    if pattern := pattern_of(text):
                        yield name, pattern


def _said(node: ast.AST, *, is_shown: bool) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert | ast.Compare) or (
            isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        ):
            continue
        if isinstance(child, ast.Call) and _called(child) in _UNSEEN:
            continue
        is_text = isinstance(child, ast.JoinedStr | ast.Constant)
        if is_text and is_shown:
            assert isinstance(child, ast.expr)
            yield child
        raises = isinstance(child, ast.Call) and _called(child).endswith(("Error", "Exception"))
        for part in child.values if isinstance(child, ast.JoinedStr) else [child]:
            if not isinstance(part, ast.Constant):
                yield from _said(part, is_shown=is_shown or raises)


def _called(call: ast.Call) -> str:
    named = call.func
    return named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")


def pattern_of(text: ast.expr) -> str:
    """Return the pattern of a text, "" if it has no words.

    Places with nothing but a space between them are one. What begins like the end of a sentence follows a place.
    """
    made, number, words = "", 0, ""
    for part in text.values if isinstance(text, ast.JoinedStr) else [text]:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            made, words = made + part.value, words + part.value
        elif isinstance(part, ast.FormattedValue):
            if made.rstrip(" ").endswith(f"{{{number}}}"):
                made = made.rstrip(" ")
                continue
            number += 1
            made += f"{{{number}}}"
    if not _WORD.search(words) or " " not in made:
        return ""
    if made[0] in " ,;":
        made = "{1}" + re.sub(r"\{(\d+)\}", lambda place: f"{{{int(place[1]) + 1}}}", made)
    return made
