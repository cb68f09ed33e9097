"""The package imports only what a fresh installation has."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.source_trees import nodes_of
from tests.waits import PROCESS_WAIT_S

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cometmq"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Prints the names that are missing, and the command that installs them.
USE_ALL_NAMES = """
import cometmq, cometmq.aio, cometmq.idempotent
from cometmq.protocol.messages.compression import CompressionType, compress, decompress
for name in cometmq.__all__:
    try:
        getattr(cometmq, name)
    except cometmq.errors.MissingExtraError as error:
        print(f"{name}: {str(error).partition('installed: ')[2]}")
for kind in CompressionType:
    assert decompress(compress(b"body", kind), kind.sys_flag, max_length=9) == b"body"
"""
# Distributions whose module goes by another name.
MODULES = {
    "antlr4-python3-runtime": "antlr4",
    "backports-zstd": "backports",
    "prometheus-client": "prometheus_client",
    "proto-schema-parser": "proto_schema_parser",
    "grpcio": "grpc",
    "opentelemetry-api": "opentelemetry",
    "protobuf": "google",
    "pyyaml": "yaml",
    "zlib-ng": "zlib_ng",
    "fast-depends": "fast_depends",
}
# Rooms that need other extras than `server`.
EXTRAS = {
    "tls": ["certificates"],
    "faststream": ["faststream"],
    # Bodies of Protobuf are decoded, too.
    "spark": ["spark", "protobuf"],
    "pipelines": ["spark", "tables"],
    # The console reads `.proto` files.
    "payloads": ["avro", "protobuf", "console"],
    "console": ["console"],
    "proxy": ["proxy"],
}
# What Windows lacks, and macOS in part.
ELSEWHERE_MISSING = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")


def imported_by(directory: Path) -> set[str]:
    found = set()
    for path in directory.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.partition(".")[0])
    # The last is Python's from 3.14 on.
    return found - set(sys.stdlib_module_names) - {"cometmq", "compression"}


def requirements(extra: str) -> list[str]:
    """Return what an installation with an extra requires, "" for none."""
    found: list[str] = list(PROJECT["dependencies"])
    for line in PROJECT["optional-dependencies"][extra] if extra else ():
        others = re.fullmatch(r"cometmq\[(.*)\]", line)
        found += (
            [r for one in others[1].split(",") for r in requirements(one)] if others else [line]
        )
    return found


def modules_of(requirements: list[str]) -> set[str]:
    names = {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}
    return {MODULES.get(name, name) for name in names}


@pytest.mark.parametrize("room", sorted(p.name for p in SOURCE.iterdir() if p.is_dir()))
def test_every_import_is_a_declared_dependency(room: str) -> None:
    extras = ["server", *EXTRAS.get(room, [])]
    allowed = modules_of([each for extra in extras for each in requirements(extra)])
    assert imported_by(SOURCE / room) <= allowed


def test_all_has_every_extra_for_users() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs", "fuzz", "supply"}
    assert modules_of(requirements("all")) == {
        module for extra in extras for module in modules_of(requirements(extra))
    }


def others_than_the_client() -> list[str]:
    return sorted(modules_of(requirements("all")) - modules_of(requirements("")))


def ended(code: str, hidden: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds none of the `hidden` modules."""
    hide = f"import sys\nfor name in {hidden}: sys.modules[name] = None\n"
    return subprocess.run(
        [sys.executable, "-c", hide + code, *arguments],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )


def run(code: str, hidden: list[str], *arguments: str) -> str:
    """Return what such a program shows."""
    result = ended(code, hidden, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_client_needs_at_most_five_packages() -> None:
    assert len(requirements("")) <= 5


def test_the_client_needs_the_packages_of_no_extra() -> None:
    missing = run(USE_ALL_NAMES, others_than_the_client())
    assert missing == "ClientMetrics: pip install 'cometmq[metrics]'\n"


def test_the_client_imports_where_modules_and_forks_of_unix_are_missing() -> None:
    """It shows no more than that: nothing here runs on Windows or macOS."""
    gone = "import os\ndel os.fork, os.register_at_fork, os.getuid, os.uname\n"
    run(gone + USE_ALL_NAMES, [*others_than_the_client(), *ELSEWHERE_MISSING])


def test_a_producer_does_not_import_what_it_does_not_use() -> None:
    code = "import sys\nfrom cometmq import Producer\nprint(*sys.modules)"
    loaded = set(run(code, []).split())
    assert not loaded & {*others_than_the_client(), "lz4", "backports.zstd", "http", "email"}
    rooms = ("admin", "broker", "store", "client.consuming", "client.popping")
    assert not loaded & {f"cometmq.{room}" for room in rooms}


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import cometmq.testing", "server"),
        ("import cometmq.otel", "otel"),
        ("from cometmq.idempotent import RedisStore; RedisStore('redis://127.0.0.1')", "redis"),
        ("from cometmq.__main__ import main; main()", "cli"),
    ],
)
def test_a_missing_extra_is_named_by_the_command_that_installs_it(code: str, extra: str) -> None:
    result = ended(code, others_than_the_client())
    assert result.stderr.rstrip().endswith(f"not installed: pip install 'cometmq[{extra}]'")
    assert result.returncode == (2 if extra == "cli" else 1)


@pytest.mark.parametrize(
    ("command", "extra"),
    [("broker", "server"), ("dev", "server"), ("console", "console"), ("proxy", "proxy")],
)
def test_a_command_without_its_packages_says_what_to_install(command: str, extra: str) -> None:
    hidden = sorted(modules_of(requirements("all")) - modules_of(requirements("cli")))
    program = "from cometmq.__main__ import main\nmain()"
    result = ended(program, hidden, command, "--help")
    assert result.returncode == 2, result.stdout
    assert result.stderr.rstrip().endswith(f"not installed: pip install 'cometmq[{extra}]'")
    assert f"cometmq {command} needs the" in " ".join(run(program, hidden, "--help").split())
