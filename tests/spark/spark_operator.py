"""Keep the definition of Kubeflow's Spark operator for its `SparkApplication`, which its Go module has.

`python -m tests.spark.spark_operator` gets the module before the tests run (`make spark-versions`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from tests.spark.hadoop_aws import ROOT

VERSION: Final = "v2.4.0"
_MODULE: Final = "github.com/kubeflow/spark-operator/v2"
_FILE: Final = "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"
_KEPT: Final = ROOT / ".cache" / "spark-operator" / f"{VERSION}.yaml"


def fetch() -> None:
    """Download the module by Go, and keep the file, unless it is there. If this fails, say why on stderr."""
    if _KEPT.is_file():
        return
    if shutil.which("go") is None:
        sys.stderr.write(
            "no definition of the Spark operator, its test is skipped: there is no Go\n"
        )
        return
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{_MODULE}@{VERSION}"],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    if done.returncode:
        sys.stderr.write(
            f"no definition of the Spark operator, its test is skipped: {done.stdout}\n"
        )
        return
    _KEPT.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(json.loads(done.stdout)["Dir"]) / _FILE, _KEPT)


def schema() -> dict[str, Any] | None:
    """Return the schema of a SparkApplication, which takes no field that it does not name; None if it was not
    downloaded.
    """
    if not _KEPT.is_file():
        return None
    definition = yaml.safe_load(_KEPT.read_text())
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1beta2"]
    closed: dict[str, Any] = _closed(version["schema"]["openAPIV3Schema"])
    return closed


def _closed(node: Any) -> Any:
    """Return a schema that refuses fields without a definition, as Kubernetes does with strict decoding."""
    if isinstance(node, list):
        return [_closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    closed = {name: _closed(value) for name, value in node.items()}
    # A node of a schema, and not a table of properties of which one is called `properties`.
    if (
        isinstance(node.get("type"), str)
        and "properties" in node
        and not node.get("x-kubernetes-preserve-unknown-fields")
    ):
        closed.setdefault("additionalProperties", False)
    return closed


if __name__ == "__main__":
    fetch()
