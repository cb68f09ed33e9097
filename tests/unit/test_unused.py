"""Somebody uses what a module defines: a name at its top is read there, imported, or public."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.source_trees import nodes_of, tree_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

# Names that no code of ours reads, each with its reader.
READERS = {
    "cometmq.model.java.hashing": {"cached_count": "tests, which show that the cache is bounded"},
    "cometmq.model.sysflag": {"PULL_CLASS_FILTER": "the list of Java's flags, which is complete"},
    "cometmq.spark.lag": {"LagListener": "users"},
    "cometmq.testing.unittest": {"BrokerTestCase": "users", "VirtualTestCase": "users"},
}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def is_python(path: Path) -> bool:
    return path.read_text().startswith("#!/usr/bin/env python")


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """All our programs and stubs, tests left out."""
    found = {}
    for folder in ("src", "scripts", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".pyi") or (
                path.parent.name == "scripts" and path.is_file() and is_python(path)
            ):
                found[path] = tree_of(path)
    return found


@functools.cache
def uses() -> tuple[set[tuple[str, str]], set[str]]:
    """All pairs of a module and a name that our code imports from it, and all names behind a dot.

    The latter are those of `requests.SEND_MESSAGE`, and texts that are names, for `getattr` and tables.
    """
    imported, dotted_names = set(), set()
    for path in trees():
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute):
                dotted_names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                dotted_names.add(node.value.partition("[")[0])
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level and path.is_relative_to(SOURCE):
                    package = path.relative_to(SOURCE).parts[: -node.level]
                    module = ".".join((*package, *module.split("."))).rstrip(".")
                imported |= {(module, each.name) for each in node.names}
    return imported, dotted_names


def unused(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the names that the module defines at its top and that nothing reads."""
    imported, dotted_names = uses()
    read = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # A decorator may register the function, as commands and pages are.
            names = (
                [] if node.decorator_list and not isinstance(node, ast.ClassDef) else [node.name]
            )
        elif isinstance(node, ast.Assign):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            names = []
        for name in names:
            is_known = name in read or (module, name) in imported or name in dotted_names
            if not is_known and not name.startswith(("__", "pytest_")):
                yield name


def test_an_unused_name_is_found() -> None:
    code = "_LEFT_OVER = 3\n_READ = 4\ndef nobody_calls_this(): return _READ\n"
    assert list(unused("cometmq.nowhere", ast.parse(code))) == ["_LEFT_OVER", "nobody_calls_this"]


def test_nothing_is_defined_in_vain() -> None:
    found = {
        dotted(path): names
        for path, tree in trees().items()
        if path.is_relative_to(SOURCE) and path.suffix == ".py"
        if (names := set(unused(dotted(path), tree)))
    }
    assert found == {module: set(names) for module, names in READERS.items()}
