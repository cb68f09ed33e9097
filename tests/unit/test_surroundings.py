"""Only `runtime`, `logs` and `tls` ask the machine for the time, a random number or a connection.

So a whole cluster can run in one process on a simulated clock, with connections in memory and from
one seed. The check names every use; those that are still to go stand in `LEFT`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.source_trees import nodes_of

SOURCE: Final = Path(__file__).parents[2] / "src" / "cometmq"

# What may not be used, by its full name; a package stands for all that is in it.
TIME: Final = frozenset(
    {
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "time.clock_gettime",
        "time.clock_gettime_ns",
        "time.monotonic",
        "time.monotonic_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.process_time",
        "time.process_time_ns",
        "time.sleep",
        "time.thread_time",
        "time.thread_time_ns",
        "time.time",
        "time.time_ns",
    }
)
RANDOMNESS: Final = frozenset(
    {"numpy.random", "os.getrandom", "os.urandom", "random", "secrets", "uuid.uuid1", "uuid.uuid4"}
)
CONNECTIONS: Final = frozenset(
    {
        "asyncio.open_connection",
        "asyncio.open_unix_connection",
        "asyncio.start_server",
        "asyncio.start_unix_server",
        "http.client",
        "http.server",
        "socket",
        "socketserver",
        "urllib.request",
    }
)
# Parts of `socket` that only convert or name something.
PURE: Final = frozenset(
    {"error", "gaierror", "htonl", "htons", "inet_ntop", "inet_pton", "ntohl", "ntohs", "timeout"}
)
# These give the present time unless they are called with as many arguments.
CONVERSIONS: Final = {"ctime": 1, "gmtime": 1, "localtime": 1, "asctime": 1, "strftime": 2}
# Methods of a loop, whatever the variable that holds it is called.
LOOP_METHODS: Final = frozenset(
    {
        "connect_accepted_socket",
        "create_connection",
        "create_datagram_endpoint",
        "create_server",
        "create_unix_connection",
        "create_unix_server",
        "getaddrinfo",
        "getnameinfo",
        "sock_accept",
        "sock_connect",
    }
)

# What is still to go, by room and module; the packages between them are left out, so that a module
# may move within its room. The list may only become shorter: a module that uses less than stands
# here fails the test, too. What is used by the modules of one name stands in one line.
LEFT: Final[dict[str, str]] = {}


def uses(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the full names of all that the nodes of a module ask the machine for."""
    names = _imported(nodes)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in LOOP_METHODS:
            found.add(f"loop.{node.attr}")
        if isinstance(node, ast.Attribute | ast.Name) and (name := _full_name(node, names)):
            found.add(name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _present_time(node, names)):
            found.add(name)
    return {name for name in found if _is_forbidden(name)}


def _imported(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Return what each imported name stands for, wherever in the module it is imported."""
    names = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return what `a.b.c` stands for if `a` was imported, else an empty text."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = _full_name(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _present_time(call: ast.Call, names: dict[str, str]) -> str:
    name = _full_name(call.func, names)
    module, _, function = name.rpartition(".")
    if module == "time" and len(call.args) < CONVERSIONS.get(function, 0):
        return f"{name}()"
    return ""


def _is_forbidden(name: str) -> bool:
    module, _, last = name.rpartition(".")
    if module == "loop" or name.endswith("()"):
        return True
    if module == "socket" and (last in PURE or last.isupper()):
        return False
    if not module:  # the module alone says nothing of what is used of it
        return False
    return any(f"{name}.".startswith(f"{part}.") for part in TIME | RANDOMNESS | CONNECTIONS)


def short_name(path: Path) -> str:
    """Return room and module, so that a module may move within its room."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0] if len(parts) == 1 else f"{parts[0]}.{parts[-1]}"


# The rooms in which a process meets its surroundings.
MEETING: Final = frozenset({"runtime", "logs", "tls"})
# This module names what code in virtual time may not call.
REFUSING: Final = SOURCE / "testing" / "virtual" / "blocking.py"


def used_by_rooms() -> dict[str, set[str]]:
    """Return what each module outside of MEETING uses, by its short name."""
    found: dict[str, set[str]] = {}
    for path in sorted(set(SOURCE.rglob("*.py")) - {REFUSING}):
        if path.relative_to(SOURCE).parts[0] not in MEETING and (used := uses(nodes_of(path))):
            found.setdefault(short_name(path), set()).update(used)
    return found


def test_no_other_room_asks_for_time_randomness_or_connections() -> None:
    left = {module: set(names.split()) for module, names in LEFT.items()}
    found = used_by_rooms()
    new = {m: sorted(names - left.get(m, set())) for m, names in found.items()}
    gone = {m: sorted(names - found.get(m, set())) for m, names in left.items()}
    assert {m: names for m, names in new.items() if names} == {}, (
        "take a Clock, a Randomness or a Network of cometmq.runtime as a parameter"
    )
    assert {m: names for m, names in gone.items() if names} == {}, "take them out of LEFT"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import time\ntime.time()", "time.time"),
        ("import time as t\nnow = t.monotonic", "time.monotonic"),
        ("from time import perf_counter_ns as now", "time.perf_counter_ns"),
        ("def f():\n    import time\n    time.sleep(1)", "time.sleep"),
        ("import time\nday = time.localtime()", "time.localtime()"),
        ("import time\nday = time.strftime('%d')", "time.strftime()"),
        ("from datetime import datetime\ndatetime.now(UTC)", "datetime.datetime.now"),
        ("import datetime\ndatetime.date.today()", "datetime.date.today"),
        ("import random\nrandom.randrange(3)", "random.randrange"),
        ("from random import Random\nRandom(3)", "random.Random"),
        ("import numpy as np\nnp.random.default_rng()", "numpy.random.default_rng"),
        ("import secrets\nsecrets.token_hex()", "secrets.token_hex"),
        ("from uuid import uuid4\nuuid4()", "uuid.uuid4"),
        ("import os\nos.urandom(3)", "os.urandom"),
        ("import socket\nsocket.socket()", "socket.socket"),
        ("from socket import create_connection", "socket.create_connection"),
        ("import asyncio\nasyncio.open_connection('h', 1)", "asyncio.open_connection"),
        ("loop.create_server(f)", "loop.create_server"),
        ("asyncio.get_running_loop().create_connection(f)", "loop.create_connection"),
        ("from urllib.request import urlopen", "urllib.request.urlopen"),
    ],
)
def test_the_check_finds_what_asks_the_machine(code: str, name: str) -> None:
    assert name in uses(tuple(ast.walk(ast.parse(code))))


@pytest.mark.parametrize(
    "code",
    [
        "import time\nday = time.localtime(1.0)",
        "import time\ntext = time.strftime('%d', day)",
        "from datetime import datetime\ndatetime.fromtimestamp(1.0)",
        "from datetime import timedelta\ntimedelta(1)",
        "import socket\nsocket.inet_pton(socket.AF_INET, host)",
        "import asyncio\nasyncio.sleep(1)\nasyncio.get_running_loop().time()",
        "loop.call_later(1, f)",
        "self._clock.monotonic()",
        "randomness.randrange(3)",
        "from cometmq.runtime.clock import SYSTEM_CLOCK\nSYSTEM_CLOCK.now_ms()",
        "import uuid\nuuid.UUID(text)",
    ],
)
def test_the_check_lets_pass_what_asks_nobody(code: str) -> None:
    assert uses(tuple(ast.walk(ast.parse(code)))) == set()
