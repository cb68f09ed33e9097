"""Add the version of this project, the lock's hashes and the vendored scripts of the console to an SBOM;
check it, list the licences.

python scripts/sbom_hashes.py MADE.json locks/console.txt TARGET.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VENDOR = ROOT / "src/cometmq/console/static/vendor"
PACKAGE = re.compile(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def main() -> int:
    made, lock, target = map(Path, sys.argv[1:])
    bom = completed(json.loads(made.read_text()), lock.read_text(), version())
    add_vendored(bom, json.loads((VENDOR / "vendored.json").read_text()))
    fault = schema_fault(json.dumps(bom))
    if fault:
        print(f"the SBOM does not fit its schema: {fault}", file=sys.stderr)
        return 1
    target.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")
    for component in bom["components"]:
        print(f"{component['name']} {component['version']}: {', '.join(licences(component))}")
    return 0


def version() -> str:
    text = (ROOT / "src/cometmq/_version.py").read_text()
    found = re.search(r'__version__ = "(.*)"', text)
    assert found is not None
    return found[1]


def normalized(name: str) -> str:
    """Return the one spelling of a package's name (PEP 503): `backports.zstd` is `backports-zstd`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes_of(lock: str) -> dict[tuple[str, str], list[str]]:
    """Return the hashes of a lock by name and version."""
    found: dict[tuple[str, str], list[str]] = {}
    of: list[str] = []
    for line in lock.splitlines():
        if (package := PACKAGE.match(line)) is not None:
            of = found.setdefault((normalized(package[1]), package[2]), [])
        of += HASH.findall(line)
    return found


def completed(bom: dict[str, Any], lock: str, version: str) -> dict[str, Any]:
    """Name the version, and give each component a reference to its files with their hashes.

    A component of the SBOM is a package, of which the index has several files; so the hashes belong to
    references to the distribution, one for each file that the lock allows.
    """
    bom["metadata"]["component"]["version"] = version
    known = hashes_of(lock)
    for component in bom["components"]:
        name, number = normalized(component["name"]), component["version"]
        component["externalReferences"] = [
            *component.get("externalReferences", []),
            *(
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{number}/#files",
                    "comment": "one of the files that the lock allows",
                    "hashes": [{"alg": "SHA-256", "content": one}],
                }
                for one in known[name, number]
            ),
        ]
    return bom


def add_vendored(bom: dict[str, Any], vendored: list[dict[str, Any]]) -> None:
    """Add what lies in the wheel itself: the scripts that the console's pages load, file by file."""
    root = bom["metadata"]["component"].get("bom-ref")
    for one in vendored:
        reference = f"pkg:npm/{one['name']}@{one['version']}"
        bom["components"].append(
            {
                "type": "library",
                "bom-ref": reference,
                "purl": reference,
                "name": one["name"],
                "version": one["version"],
                "licenses": [{"license": {"id": one["licence"]}}],
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": one["distribution"],
                        "comment": "the package that the files below were taken from, unchanged",
                        "hashes": [{"alg": "SHA-512", "content": one["sha512"]}],
                    }
                ],
                "components": [
                    {
                        "type": "file",
                        "name": f"cometmq/console/static/vendor/{name}",
                        "hashes": [{"alg": "SHA-256", "content": digest}],
                    }
                    for name, digest in one["files"].items()
                ],
            }
        )
        dependencies = bom.setdefault("dependencies", [])
        dependencies.append({"ref": reference})
        for each in dependencies:
            if root is not None and each["ref"] == root:
                each["dependsOn"] = sorted([*each.get("dependsOn", []), reference])


def schema_fault(text: str) -> str | None:
    """Return what is wrong with an SBOM by CycloneDX's own schema; None if nothing is."""
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from cyclonedx.validation import make_schemabased_validator

    fault = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6).validate_str(text)
    return None if fault is None else str(fault)


def licences(component: dict[str, Any]) -> list[str]:
    found = []
    for one in component.get("licenses", []):
        licence = one.get("license", {})
        found.append(one.get("expression") or licence.get("id") or licence.get("name"))
    return sorted({name for name in found if name}) or ["unknown"]


if __name__ == "__main__":
    sys.exit(main())
