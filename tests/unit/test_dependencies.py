"""The package imports only what a fresh installation has."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Distributions whose module goes by another name.
MODULES = {
    "antlr4-python3-runtime": "antlr4",
    "lazy-loader": "lazy_loader",
    "prometheus-client": "prometheus_client",
    "proto-schema-parser": "proto_schema_parser",
    "grpcio": "grpc",
    "protobuf": "google",
    "pyyaml": "yaml",
    "zlib-ng": "zlib_ng",
}
# Rooms that need extras, and the extras that bring them.
EXTRAS = {
    "tls": ["certificates"],
    "spark": ["spark"],
    "pipelines": ["spark", "tables"],
    # The console reads `.proto` files.
    "payloads": ["avro", "protobuf", "console"],
    "console": ["console"],
    "proxy": ["proxy"],
}


def imported_by(directory: Path) -> set[str]:
    found = set()
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"cometmq"}


def modules_of(requirements: list[str]) -> set[str]:
    names = {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}
    return {MODULES.get(name, name) for name in names}


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = modules_of(project["dependencies"])
    source = ROOT / "src" / "cometmq"
    for room in sorted(path for path in source.iterdir() if path.is_dir()):
        extras = EXTRAS.get(room.name, [])
        more = [each for extra in extras for each in project["optional-dependencies"][extra]]
        allowed = declared | modules_of(more)
        assert imported_by(room) <= allowed, room.name
