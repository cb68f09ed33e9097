"""Packages that are installed are checked by hash, and a release lists those that it brings."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VENDOR = ROOT / "src/cometmq/console/static/vendor"
LOCKS = sorted((ROOT / "locks").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_each_package_of_a_lock_has_a_version_and_hashes(lock: Path) -> None:
    packages = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE)
    packages = [package for package in packages if package and package[0] not in " #"]
    assert packages
    for package in packages:
        assert re.match(r"[A-Za-z0-9_.-]+==\S+", package), package
        assert "--hash=sha256:" in package, package


@pytest.mark.parametrize(
    "path", ["scripts/environment", "scripts/check-package", "deploy/docker/Dockerfile"]
)
def test_nothing_is_installed_without_hashes(path: str) -> None:
    lines = [line for line in (ROOT / path).read_text().splitlines() if line[:1] != "#"]
    text = "\n".join(lines).replace("\\\n", " ")
    commands = re.findall(r"(?:pip install|\"\$\{uv\[@\]\}\")[^\n;&]*", text)
    # A line that ends so only says how uv is called.
    commands = [command for command in commands if not command.endswith(")")]
    assert commands
    for command in commands:
        # The package itself comes from this checkout.
        assert "--require-hashes" in command or "--no-deps" in command, command


def test_an_sbom_has_the_hashes_of_the_lock() -> None:
    sbom: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/sbom_hashes.py"))
    lock = (ROOT / "locks/server.txt").read_text()
    hashes = sbom["hashes_of"](lock)
    assert len(hashes) > 10
    name, version = next(key for key in hashes if key[0] == "msgspec")
    component = {
        "name": name,
        "version": version,
        "licenses": [{"license": {"id": "BSD-3-Clause"}}],
    }
    made = {"metadata": {"component": {"name": "cometmq"}}, "components": [component]}
    sbom["completed"](made, lock, "1.2.0")
    assert made["metadata"]["component"]["version"] == "1.2.0"  # type: ignore[index]  # it is plain JSON
    references: Any = component["externalReferences"]
    reported = {one["hashes"][0]["content"] for one in references}
    assert reported == set(hashes[name, version])
    assert sbom["licences"](component) == ["BSD-3-Clause"]
    assert sbom["licences"]({}) == ["unknown"]


def test_an_sbom_lists_the_scripts_that_the_console_brings() -> None:
    sbom: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/sbom_hashes.py"))
    vendored = json.loads((VENDOR / "vendored.json").read_text())
    made: dict[str, Any] = {
        "metadata": {"component": {"name": "cometmq", "bom-ref": "root"}},
        "components": [],
        "dependencies": [{"ref": "root"}],
    }
    sbom["add_vendored"](made, vendored)
    reported = {
        Path(file["name"]).name: file["hashes"][0]["content"]
        for component in made["components"]
        for file in component["components"]
    }
    there = [path for path in VENDOR.iterdir() if path.suffix in (".js", ".css")]
    assert reported == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in there}
    assert made["dependencies"][0]["dependsOn"] == [each["purl"] for each in made["components"]]
    for each in vendored:
        assert sbom["licences"](made["components"][vendored.index(each)]) == [each["licence"]]
        text = "".join(path.read_text() for path in there)
        assert each["version"] in text, each["name"]


def test_the_image_has_the_console() -> None:
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    assert "--require-hashes -r locks/console.txt" in text
    assert "import cometmq.console.web.serving" in text


def test_an_audit_counts_what_is_not_ignored() -> None:
    audit: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/audit"))
    vulnerable = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"]}
    package = {"name": "lark", "version": "1.0", "vulns": [vulnerable]}
    answer = {"dependencies": [{"name": "a", "version": "1", "vulns": []}, package]}
    count, lines = audit["findings"](answer)
    assert count == 1
    assert lines == ["lark 1.0: CVE-1, PYSEC-1; fixed in 2.0"]
    audit["findings"].__globals__["IGNORED"]["CVE-1"] = "we do not parse grammars of strangers"
    count, lines = audit["findings"](answer)
    assert count == 0
    assert "ignored: we do not" in lines[0]
