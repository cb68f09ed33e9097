"""Without a cluster of Kubernetes: the files fit the schemas of Kubernetes and of the Spark operator, and so do the
objects that the command of docs/spark-clusters.md makes.

`make spark-versions` runs this, because it gets the definition of the operator.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.spark import spark_operator
from tests.spark.bucket import PACKAGES, require
from tests.spark.environments import run_script, script_with
from tests.spark.recording_api import recording_api
from tests.spark.standalone import ROOT
from tests.spark.test_versions import VERSIONS
from tests.waits import JVM_WAIT_S

from cometmq.pipelines.archive import Config

pytestmark = [
    pytest.mark.timeout(JVM_WAIT_S),
    pytest.mark.skipif(not VERSIONS, reason="`make spark-versions` gets what these tests need"),
]

KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
ARCHIVE: Final = KUBERNETES / "spark" / "archive.yaml"
DOCKERFILE: Final = ROOT / "deploy" / "docker" / "spark.Dockerfile"
OF_KUBERNETES: Final = "1.34"


@pytest.fixture(autouse=True)
def _packages() -> Iterator[None]:
    require(PACKAGES.is_dir(), "needs schemas of Kubernetes, which `make spark-versions` gets")
    sys.path.append(str(PACKAGES))
    yield
    sys.path.remove(str(PACKAGES))


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def faults(document: dict[str, Any]) -> list[str]:
    """Return what a schema refuses of an object, also fields that it does not have."""
    if document["apiVersion"].startswith("sparkoperator.k8s.io/"):
        import jsonschema

        schema = spark_operator.schema()
        require(
            schema is not None, "needs the definition of the operator, of `make spark-versions`"
        )
        return [
            one.message for one in jsonschema.Draft202012Validator(schema).iter_errors(document)
        ]
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, OF_KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


def application() -> dict[str, Any]:
    (found,) = [one for one in documents(ARCHIVE) if one["kind"] == "SparkApplication"]
    return found


@pytest.mark.parametrize("name", ["namesrv.yaml", "broker.yaml", "spark/archive.yaml"])
def test_manifests_fit_the_schemas(name: str) -> None:
    found = documents(KUBERNETES / name)
    assert len(found) > 3
    assert [fault for one in found for fault in faults(one)] == []


def test_a_fault_in_a_manifest_is_found() -> None:
    given = application()
    given["spec"]["driver"]["memmory"] = "2g"
    assert any("memmory" in one for one in faults(given))
    given = application()
    del given["spec"]["sparkVersion"]
    assert any("sparkVersion" in one for one in faults(given))
    account = documents(ARCHIVE)[0]
    assert account["kind"] == "ServiceAccount"
    assert faults({**account, "secret": []})


def test_the_parts_of_the_application_name_each_other() -> None:
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents(ARCHIVE)}
    spec = application()["spec"]
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert ("PersistentVolumeClaim", volumes["data"]["persistentVolumeClaim"]["claimName"]) in found
    config = found["ConfigMap", volumes["config"]["configMap"]["name"]]
    assert ("ServiceAccount", spec["driver"]["serviceAccount"]) in found
    mounted = {one["name"]: one["mountPath"] for one in spec["driver"]["volumeMounts"]}
    assert spec["executor"]["volumeMounts"] == [{"name": "data", "mountPath": mounted["data"]}]
    # The arguments name the file, and the pipeline writes to the volume.
    ((file, text),) = config["data"].items()
    name, option, path, reports, directory = spec["arguments"]
    assert (name, option, path, reports) == (
        "archive",
        "-c",
        f"{mounted['config']}/{file}",
        "--reports",
    )
    pipeline = tomllib.loads(text)
    archive = Config(**pipeline[name])
    assert [
        one for one in (archive.path, directory) if not one.startswith(f"{mounted['data']}/")
    ] == []
    # Both files of the image are where the package has them.
    packages = "local:///opt/cometmq/packages/"
    for uri in (spec["mainApplicationFile"], *spec["deps"]["jars"]):
        inside = ROOT / "src" / uri.removeprefix(packages)
        assert uri.startswith(packages)
        assert inside.parent.is_dir(), inside
    assert (
        "ln -s /opt/cometmq/lib/python*/site-packages /opt/cometmq/packages"
        in DOCKERFILE.read_text()
    )
    assert f"ARG SPARK_IMAGE=apache/spark:{spec['sparkVersion']}\n" in DOCKERFILE.read_text()


def test_spark_submit_makes_a_driver_with_the_volume_the_account_and_the_jar(
    tmp_path: Path,
) -> None:
    with recording_api() as api:
        script = script_with("--master k8s://").replace("https://k8s:6443", api.url)
        ended = run_script(
            script, tmp_path, {"spark.kubernetes.submission.waitAppCompletion": "false"}
        )
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert [fault for one in api.objects.values() for fault in faults(one)] == []
    (pod,) = api.made("Pod")
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert spec["serviceAccountName"] == "cometmq-spark"
    assert container["image"] == "registry.example.org/cometmq-spark"
    claims = [one["persistentVolumeClaim"] for one in spec["volumes"] if one["name"] == "data"]
    assert [one["claimName"] for one in claims] == ["cometmq-archive"]
    assert "/data" in [one["mountPath"] for one in container["volumeMounts"]]
    assert container["args"][-5:] == [
        "archive",
        "-c",
        "/data/pipeline.toml",
        "--reports",
        "/data/reports",
    ]
    properties = "\n".join(text for one in api.made("ConfigMap") for text in one["data"].values())
    assert "rocketmq-store.jar" in properties
