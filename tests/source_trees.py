"""Parse the project's own files once in a process, for tests that look at code."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file. Callers must not change it.

    The garbage collector is off meanwhile. A thousand files have a million nodes, and going through them
    again and again took three quarters of the time.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"))
    finally:
        if is_collecting:
            gc.enable()


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, in the order of `ast.walk`."""
    return tuple(ast.walk(tree_of(path)))
