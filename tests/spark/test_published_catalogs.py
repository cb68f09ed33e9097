"""Catalogs with a server, for the tables of archives in S3: Glue (by moto), REST (Iceberg's own server) and Hive
(its metastore, which PySpark brings).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.spark import hive_metastore, iceberg_rest
from tests.spark.bucket import KEY, REGION, SECRET, Bucket, access_to, client_of, require, server
from tests.spark.table_archives import ORDERS, MadeArchive
from tests.spark.test_published_tables import AFTER, changes_of_all_kinds

from cometmq.errors import ConfigError
from cometmq.pipelines.archive import lease
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.schemas import COMPACT
from cometmq.pipelines.archive.tables.iceberg import IcebergTable
from cometmq.pipelines.archive.tables.publisher import Publisher
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.locations import Location

IN_CATALOG: Final = TableSettings(
    publish=["iceberg"], iceberg_catalog="company", iceberg_table="shop.messages"
)
WAREHOUSE: Final = "s3://archives/warehouse"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with server() as url:
        client_of(url).create_bucket(Bucket="archives")
        yield url


@pytest.fixture(params=["glue", "rest", "hive"])
def catalog(
    request: pytest.FixtureRequest,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[str]:
    """Yield the kind of the catalog `company` of PyIceberg's configuration."""
    monkeypatch.setattr(lease, "PATIENCE_S", 0.5)
    if request.param == "glue":
        settings = {
            "TYPE": "glue",
            "WAREHOUSE": WAREHOUSE,
            "GLUE__ENDPOINT": endpoint,
            "GLUE__REGION": REGION,
            "GLUE__ACCESS_KEY_ID": KEY,
            "GLUE__SECRET_ACCESS_KEY": SECRET,
        }
        configure(monkeypatch, settings)
        yield "glue"
        return
    if request.param == "hive":
        with hive_metastore.hive_metastore(tmp_path, endpoint, WAREHOUSE) as uri:
            settings = {"TYPE": "hive", "URI": uri, "HIVE__HIVE2_COMPATIBLE": "true"}
            configure(monkeypatch, settings)
            yield "hive"
        return
    require(bool(iceberg_rest.jars()), "needs jars of Iceberg's REST catalog, got by `make spark`")
    with iceberg_rest.rest_catalog(tmp_path, endpoint, WAREHOUSE) as url:
        configure(monkeypatch, {"TYPE": "rest", "URI": url})
        yield "rest"


def configure(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    for key, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__COMPANY__{key}", value)
    from pyiceberg.utils.config import Config

    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def at(endpoint: str, name: str) -> Location:
    return Bucket(endpoint).at(f"s3a://archives/{name}")


def table_in_catalog(endpoint: str) -> Any:
    from pyiceberg.catalog import load_catalog

    found = load_catalog("company", **access_to(endpoint).of_pyiceberg())
    return found.load_table(IN_CATALOG.iceberg_table)


def problems(publisher: Publisher) -> list[str | None]:
    return [line.problem for line in publisher.lines]


def test_a_catalog_with_a_server_has_each_commit_and_keeps_other_archives_out(
    endpoint: str, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = at(endpoint, catalog)
    with Archive(path) as archive:
        publisher = Publisher(archive, IN_CATALOG)
        archive.after_commit = publisher.publish
        changes_of_all_kinds(MadeArchive(archive))
        assert problems(publisher) == [None]
        table = table_in_catalog(endpoint)
        found = []
        for snapshot in table.snapshots():
            rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
            offsets = rows["queue_offset"].to_pylist()
            found.append([int(snapshot.summary["cometmq-commit"]), len(offsets), sum(offsets)])
        assert found == AFTER
        assert table.location().startswith(WAREHOUSE)

        # The catalog commits, and its answer is lost: the commit is not made twice.
        commit = IcebergTable.publish

        def lose_answer(self: IcebergTable, change: Any) -> None:
            commit(self, change)
            raise ConnectionError("the answer was lost")

        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "publish", lose_answer)
            MadeArchive(archive).batch(COMPACT, {ORDERS: (40, 2)})
        assert problems(publisher) == ["ConnectionError: the answer was lost"]
        publisher.publish()
        assert problems(publisher) == [None]
        later = table_in_catalog(endpoint)
        assert len(later.snapshots()) == len(AFTER) + 1
        assert later.scan().to_arrow().num_rows == AFTER[-1][1] + 2
    with Archive(at(endpoint, f"{catalog}-other")) as archive:
        MadeArchive(archive).batch(COMPACT, {ORDERS: (0, 2)})
        with pytest.raises(ConfigError, match="give iceberg_table another name"):
            Publisher(archive, IN_CATALOG).publish()
