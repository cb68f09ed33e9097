"""No request leads to a shell, to code that is made at run time, or to an import that it names.

This lists every place of `src` that can do one of these, with the reason why what it runs does not
come from a peer. A new place fails until it is listed; so does a listed one that is gone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.source_trees import nodes_of

SOURCE: Final = Path(__file__).parents[2] / "src"
# Modules that run programs, run code, import by name, or make objects of bytes.
MODULES: Final = frozenset(
    [
        "asyncio.subprocess",
        "code",
        "codeop",
        "cloudpickle",
        "commands",
        "ctypes",
        "dill",
        "dbm",
        "imp",
        "importlib",
        "jinja2",
        "joblib",
        "marshal",
        "multiprocessing",
        "pdb",
        "pickle",
        "pickletools",
        "pkgutil",
        "pty",
        "runpy",
        "shelve",
        "subprocess",
        "timeit",
        "yaml",
        "zipimport",
    ]
)
BUILT_INS: Final = frozenset({"eval", "exec", "compile", "__import__", "input", "breakpoint"})
METHODS: Final = frozenset(
    [
        "system",
        "popen",
        "execl",
        "execle",
        "execlp",
        "execlpe",
        "execv",
        "execve",
        "execvp",
        "execvpe",
        "spawnl",
        "spawnle",
        "spawnlp",
        "spawnlpe",
        "spawnv",
        "spawnve",
        "spawnvp",
        "spawnvpe",
        "posix_spawn",
        "posix_spawnp",
        "startfile",
        "fork",
        "forkpty",
        "create_subprocess_exec",
        "create_subprocess_shell",
        "subprocess_exec",
        "subprocess_shell",
    ]
)

ALLOWED: Final = {
    ("cometmq/_compiled.py", "importlib"): "loads our own compiled modules from a fixed directory",
    ("cometmq/access/plain/account_file.py", "yaml"): "reads the accounts with the safe loader",
    ("cometmq/access/plain/files.py", "yaml"): "names the error of the same reader",
    ("cometmq/testing/accounts.py", "yaml"): "writes accounts for tests, by the safe dumper",
    ("cometmq/broker/filters/predicates.py", "importlib"): (
        "imports what filterPredicateModules names, a key of the file that no request changes; "
        "requests choose among the functions by their names"
    ),
    ("cometmq/cli/admin/app.py", "importlib"): "imports a command of ours, named by our own table",
    ("cometmq/cli/admin/output.py", "yaml"): "writes YAML for a terminal, by the safe dumper",
    ("cometmq/cli/connection.py", "yaml"): "reads a user's own file, texts only (BaseLoader)",
    (
        "cometmq/console/views/rendering.py",
        "jinja2",
    ): "templates of ours only; all values are escaped",
    ("cometmq/console/schemas/store.py", "subprocess"): (
        "runs our own decoder with fixed arguments; schema and body go through its input"
    ),
    ("cometmq/_lazy.py", "importlib"): "imports a module of ours, named by the list beside it",
    ("cometmq/extras.py", "importlib"): "looks whether a package is installed, and imports nothing",
    ("cometmq/cli/main.py", "importlib"): "imports a command of ours, named by our own table",
    ("cometmq/cli/pipeline/command.py", "importlib"): "asks whether PySpark is installed",
    ("cometmq/filtering/sql92.py", "importlib"): "reads our own grammar as a package resource",
    ("cometmq/idempotent/redis_store.py", "importlib"): "imports `redis`, which is an extra",
    ("cometmq/pipelines/page.py", "jinja2"): "fills our own template, with values escaped",
    ("cometmq/pipelines/catalogue.py", "importlib"): "imports a pipeline, named by our own table",
    (
        "cometmq/pipelines/table/supervisor.py",
        "subprocess",
    ): "starts our driver: our interpreter",
    (
        "cometmq/runtime/host/bus_errors.py",
        "ctypes",
    ): "has libc call a function when a page is gone",
    ("cometmq/runtime/state_files/durable.py", "ctypes"): "calls renameat2 of libc with two paths",
    (
        "cometmq/runtime/host/installation.py",
        "importlib",
    ): "reads the metadata of installed packages",
    ("cometmq/runtime/supervision/plan.py", "execv"): "becomes the supervisor: our interpreter",
    (
        "cometmq/runtime/supervision/supervisor.py",
        "posix_spawn",
    ): "starts our brokers: our interpreter",
    ("cometmq/spark/java.py", "subprocess"): "asks the Java of this machine for its version",
    ("cometmq/store/files/memory.py", "ctypes"): "calls madvise and mlock of libc on a mapping",
    ("cometmq/testing/virtual/blocking.py", "subprocess"): "replaces it by what refuses, in tests",
    ("cometmq/testing/virtual/loop.py", "subprocess_exec"): "refuses it, in tests",
    ("cometmq/testing/virtual/loop.py", "subprocess_shell"): "refuses it, in tests",
    (
        "cometmq/testing/virtual/storage/touched.py",
        "ctypes",
    ): "looks at a mapping's pages, in tests",
}


def found_in(path: Path) -> Iterator[str]:
    """Yield the names of what a module can run code with."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (each.name.split(".")[0] for each in node.names if _is_module(each.name))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{each.name}" for each in node.names]
            if not node.level and any(map(_is_module, [module, *names])):
                yield module.split(".")[0]
            if module in {"os", "asyncio"}:
                yield from (each.name for each in node.names if each.name in METHODS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in BUILT_INS:
                yield node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in METHODS:
                yield node.func.attr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in METHODS:
            yield node.name


def _is_module(name: str) -> bool:
    return name in MODULES or name.split(".", maxsplit=1)[0] in MODULES


def test_whatever_runs_code_or_programs_is_listed_with_its_reason() -> None:
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        for name in found_in(path)
    }
    assert sorted(found - ALLOWED.keys()) == [], "give the reason why no peer chooses what it runs"
    assert sorted(ALLOWED.keys() - found) == [], "take out what is gone"


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import importlib.util",
        "from importlib import import_module as get",
        "import os\nos.system('x')",
        "from os import popen",
        "eval('1')",
        "exec(compile('1', '', 'eval'))",
        "import yaml",
        "import asyncio\nasyncio.create_subprocess_shell('x')",
    ],
)
def test_each_way_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(line)
    assert list(found_in(path))
