"""Hold the rooms of `src/cometmq` to the table of imports that the design states."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from tests.source_trees import nodes_of, tree_of
from tests.waits import PROCESS_WAIT_S

SOURCE = Path(__file__).parents[2] / "src" / "cometmq"

# Where a process meets its surroundings, and what it logs.
PROCESS = ("logs", "runtime")

# room: what it may import besides itself; entries with a dot allow one module (or package) only.
RULES: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "logs": frozenset({"model"}),
    "runtime": frozenset({"logs", "model.reports.finding"}),
    "metrics": frozenset(),
    "tls": frozenset({"metrics", "logs", "runtime", "model"}),
    "protocol": frozenset({"model"}),
    "filtering": frozenset({"model"}),
    # Of the protocol only the record codec, one record at a time or many, and what it rests on.
    "store": frozenset({"model", "protocol.messages", "logs.loggers"}),
    "remoting": frozenset({"protocol", "tls", "metrics", *PROCESS, "model"}),
    "replication": frozenset({"store", "remoting", "protocol", "tls", *PROCESS, "model"}),
    "access": frozenset({"remoting", "protocol", "metrics", *PROCESS, "model"}),
    "namesrv": frozenset({"access", "remoting", "protocol", "tls", "metrics", *PROCESS, "model"}),
    # Of the runtime and the network nothing but what a registry needs: the clock, and threads.
    "payloads": frozenset({"model", *PROCESS}),
    "client": frozenset(
        {"payloads", "remoting", "protocol", "filtering", "tls", *PROCESS, "model"}
    ),
    "bulk": frozenset({"client", "protocol", "filtering", *PROCESS, "model"}),
    "broker": frozenset(
        {
            "access",
            "store",
            "replication",
            "remoting",
            "filtering",
            "protocol",
            "tls",
            "metrics",
            *PROCESS,
            "model",
        }
    ),
    # `explain` decides as brokers do which messages a group selects.
    "admin": frozenset({"client", "filtering", "remoting", "protocol", "tls", *PROCESS, "model"}),
    # Stateless: what it knows of a cluster it asks for, as clients and tools do.
    "proxy": frozenset(
        {
            "client",
            "admin",
            "access",
            "protocol",
            "filtering",
            "remoting",
            "tls",
            "metrics",
            *PROCESS,
            "model",
        }
    ),
    "idempotent": frozenset({"client", *PROCESS, "model"}),
    # A broker for the framework of that name. It stands beside the facade `taskiq`, but has modules.
    "faststream": frozenset({"client", "filtering.tags", *PROCESS, "model"}),
    # Of the store only what is made to be light: workers import it for each task. On the driver `lag` asks
    # brokers about groups; `decoding` asks schema registries by their asynchronous client.
    "spark": frozenset(
        {
            "admin",
            "bulk",
            "client",
            "model",
            "payloads",
            "protocol.codes",
            "protocol.messages",
            "store.reading",
            "logs.loggers",
            "runtime.clock",
            "runtime.portal",
            "runtime.spelling",
            "runtime.state_files.file_lock",
            "runtime.randomness",
        }
    ),
    # `rebuild` makes the store's own files; `audit` and `redrive` ask brokers what is theirs. A service
    # serves its metrics as servers do.
    "pipelines": frozenset(
        {
            "remoting.http.http_server",
            "spark",
            "bulk",
            "admin",
            "client",
            "payloads",
            "store",
            "protocol",
            "filtering",
            *PROCESS,
            "model",
        }
    ),
    "console": frozenset({"admin", "payloads", "tls", "metrics", *PROCESS, "model"}),
}
# Packages that may import less than their room: nothing else of it, either.
LIGHT: dict[str, frozenset[str]] = {"store.reading": frozenset({"model", "protocol.messages"})}
# These stand above all rooms; no room may import them.
ABOVE = frozenset({"testing", "cli"})
# These lie below all rooms.
FOR_ALL = frozenset({"errors", "extras", "forks", "_lazy", "_version"})
# Modules beside the rooms: those that only re-export, the loader of compiled modules, and `otel` and
# `taskiq`, which nothing else may import, because they need extras.
FACADES = frozenset({"__init__", "aio", "__main__", "_compiled", "otel", "taskiq"})
FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "helpers", "misc"})
# Tasks have owners: only `runtime` starts them, and TLS the one that its caller awaits.
TASK_STARTERS = frozenset({"create_task", "ensure_future"})
# The store appends, reads and flushes; whoever calls it decides where it runs.
NO_ASYNCIO = frozenset({"model", "protocol", "filtering", "store"})


def faults(module: str, nodes: Sequence[ast.AST]) -> list[str]:
    """Return how the nodes of a module break the rules; `module` is its dotted name without `cometmq.`."""
    room = module.partition(".")[0]
    return [
        *_name_faults(module),
        *(f for name, line in _imports(module, nodes) if (f := _import_fault(module, name, line))),
        *(_task_faults(nodes) if room not in ("runtime", "tls") else ()),
    ]


def _name_faults(module: str) -> list[str]:
    parts = module.split(".")
    if parts[0] not in RULES.keys() | ABOVE | FOR_ALL | FACADES:
        return [f"{parts[0]} is no room of the design"]
    return [f"a module may not be called {part}" for part in parts if part in FORBIDDEN_NAMES]


def _imports(module: str, nodes: Iterable[ast.AST]) -> list[tuple[str, int]]:
    """Full names of all imported modules, also in functions and under TYPE_CHECKING, with lines.

    `from cometmq.a import b` counts as `cometmq.a.b`, since `b` may be a module.
    """
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = ["cometmq", *module.split(".")][: -node.level]
                base = ".".join([*package, *([base] if base else [])])
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _import_fault(module: str, name: str, line: int) -> str | None:
    room = next((light for light in LIGHT if f"{module}.".startswith(f"{light}.")), None)
    allowed = LIGHT[room] if room else frozenset()
    if room is None:
        room = module.partition(".")[0]
        allowed = RULES.get(room, frozenset())
    top, _, inner = name.partition(".")
    if top == "asyncio" and room.partition(".")[0] in NO_ASYNCIO:
        return f"line {line}: {room} may not import asyncio"
    if top != "cometmq" or room in ABOVE | FACADES:
        return None
    if f"{inner}.".startswith(f"{room}.") or inner.partition(".")[0] in FOR_ALL:
        return None
    if any(inner == entry or inner.startswith(entry + ".") for entry in allowed):
        return None
    return f"line {line}: {room} may not import {name}"


def _task_faults(nodes: Sequence[ast.AST]) -> list[str]:
    return [
        f"line {node.lineno}: only runtime may call {name}"
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Name)
        and (name := node.attr if isinstance(node, ast.Attribute) else node.id) in TASK_STARTERS
    ]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def test_every_module_keeps_the_rules() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        # A package's `__init__` is named like a module in it, so that relative imports resolve.
        module = module_name(path) + (".__init__" if path.name == "__init__.py" else "")
        module = "__init__" if module == "__init__.__init__" else module
        found[module] = faults(module, nodes_of(path))
    assert len(found) > 1_000
    assert {module: said for module, said in found.items() if said} == {}


def test_the_rooms_imports_run_one_way() -> None:
    """The table itself has no cycle."""
    order: list[str] = []
    while len(order) < len(RULES):
        ready = [
            room
            for room, allowed in RULES.items()
            if room not in order and {name.partition(".")[0] for name in allowed} <= set(order)
        ]
        assert ready, f"a circle among {RULES.keys() - set(order)}"
        order += ready


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions, or for type checkers only, are not made when a module is loaded."""
    paths = {module_name(path): path for path in SOURCE.rglob("*.py")}
    graph = {
        module: {
            found
            for name, _ in _imports(module, _run_at_import(tree_of(path)))
            if name.startswith("cometmq.")
            for inner in [name.removeprefix("cometmq.")]
            if (found := inner if inner in paths else inner.rpartition(".")[0]) in paths
        }
        - {module}
        for module, path in paths.items()
    }
    assert sum(map(len, graph.values())) > 2_000
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported, without functions and code for type checkers."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                continue
        yield child
        yield from _run_at_import(child)


@pytest.mark.parametrize("module", ["broker.server", "namesrv.server"])
def test_servers_start_without_numpy(module: str) -> None:
    # It takes 6 MB and a quarter of a second; what needs it imports it when it is needed.
    program = f"import sys, cometmq.{module}; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROCESS_WAIT_S)


def test_the_packages_of_the_broker_import_one_way() -> None:
    """Modules beside them, as `parts.py`, may know all packages."""
    broker = SOURCE / "broker"
    packages = {path.parent.name for path in broker.glob("*/__init__.py")}
    graph = {
        package: {
            name.split(".")[2]
            for path in (broker / package).glob("*.py")
            for name, _ in _imports("", nodes_of(path))
            if name.startswith("cometmq.broker.")
        }
        & packages - {package}
        for package in packages
    }
    assert len(packages) > 5
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("model.message", "from cometmq.protocol.messages.record import decode_record"),
        ("protocol.frame", "import cometmq.runtime"),
        ("protocol.frame", "from cometmq import runtime"),
        ("protocol.frame", "from ..store import store"),
        ("protocol.frame", "import asyncio"),
        ("store.store", "from cometmq.protocol.command import RemotingCommand"),
        ("store.store", "from cometmq.protocol import command"),
        ("store.store", "from cometmq.filtering.tags import tag_matcher"),
        ("store.store", "from asyncio import Future"),
        ("filtering.tags", "from cometmq.protocol.fastjson.dialect import decode_body"),
        ("broker.send", "from cometmq.client.producing.producer import Producer"),
        ("broker.send", "def f():\n    import cometmq.testing"),
        ("client.producer", "if TYPE_CHECKING:\n    from cometmq.broker import server"),
        ("client.producer", "from cometmq import Producer"),
        ("client.producer", "from cometmq.otel import OpenTelemetryHook"),
        ("client.producer", "from cometmq.bulk.sending import Parcel"),
        ("bulk.producer", "from cometmq.spark.options import Options"),
        ("spark.stores.source", "from cometmq.store.offline.store import open_offline"),
        ("store.reading.files", "from cometmq.store.files.disk import Disk"),
        ("store.reading.files", "from ..disk import Disk"),
        ("console.app", "from cometmq.client import instance"),
        ("namesrv.server", "from cometmq.cli import main"),
        ("errors", "from cometmq.model.message import Message"),
        ("client.producer", "asyncio.create_task(run())"),
        ("broker.server", "task = loop.create_task(run())"),
        ("broker.server", "from asyncio import ensure_future\nensure_future(run())"),
        ("testing.cluster", "asyncio.ensure_future(run())"),
        ("utils", ""),
        ("client.utils", ""),
        ("broker.common.tables", ""),
        ("gateway.server", ""),
    ],
)
def test_the_checker_finds_what_breaks_a_rule(module: str, code: str) -> None:
    assert len(faults(module, tuple(ast.walk(ast.parse(code))))) >= 1


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("model.message", "from cometmq.model import properties as p"),
        ("model.message", "from . import properties"),
        ("model.names", "from cometmq.errors import IllegalArgumentError"),
        ("protocol.codes", "from cometmq._version import __version__"),
        ("store.commit_log", "from cometmq.protocol.messages.record import decode_record"),
        ("store.commit_log", "import mmap\nimport os"),
        ("broker.send", "from cometmq.store.store import MessageStore"),
        ("runtime.tasks", "task = asyncio.create_task(run())"),
        ("client.producer", "owner.spawn(run())"),
        ("spark.stores.source", "from cometmq.store.reading.files import StoreFiles"),
        ("store.reading.files", "from cometmq.store.reading.lock import take_lock"),
        ("store.disk", "from cometmq.store.reading.lock import take_lock"),
        ("cli.dev.command", "from cometmq.broker.server import Broker"),
        ("testing.cluster", "from cometmq.broker.server import Broker"),
        ("__init__", "from cometmq.client.blocking.producers import Producer"),
        ("aio", "from cometmq.client.producing.producer import Producer"),
    ],
)
def test_the_checker_lets_pass_what_keeps_the_rules(module: str, code: str) -> None:
    assert faults(module, tuple(ast.walk(ast.parse(code)))) == []
