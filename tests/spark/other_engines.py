"""Reads an archive by engines that know nothing of CometMQ, and prints what each of them finds.

python other_engines.py DIRECTORY: a line of JSON, a list for each engine of topic, broker, queue id,
queue offset and the MD5 of the body, in this order.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

NAMES = ["topic", "broker", "queue_id", "queue_offset", "body"]


def by_duckdb(archive: Path) -> list[list[Any]]:
    import duckdb

    source = (
        f"read_parquet('{archive}/data/*/*/*.parquet', hive_partitioning = true, "
        "hive_types_autocast = false)"
    )
    return rows(duckdb.sql(f"SELECT {', '.join(NAMES)} FROM {source}").fetchall())


def by_pandas(archive: Path) -> list[list[Any]]:
    import pandas

    table = pandas.read_parquet(archive / "data", columns=NAMES)
    return rows(table[NAMES].astype(object).itertuples(index=False, name=None))


def by_the_manifests(archive: Path) -> list[list[Any]]:
    """Read the files that the manifests name, as one does where names cannot be exchanged."""
    import pandas

    found: list[list[Any]] = []
    for path in archive.glob("_manifest/*/*.json"):
        manifest = json.loads(path.read_bytes())
        for file in manifest["files"]:
            place = archive / "data" / path.parent.name / path.stem / file["name"]
            table = pandas.read_parquet(place, columns=NAMES[1:], partitioning=None)
            table.insert(0, "topic", manifest["topic"])
            found += rows(table[NAMES].astype(object).itertuples(index=False, name=None))
    return sorted(found)


def rows(found: Any) -> list[list[Any]]:
    return sorted(
        [topic, broker, int(queue_id), int(offset), hashlib.md5(body).hexdigest()]
        for topic, broker, queue_id, offset, body in found
    )


if __name__ == "__main__":
    where = Path(sys.argv[1])
    engines = {"duckdb": by_duckdb, "pandas": by_pandas, "manifests": by_the_manifests}
    json.dump({name: read(where) for name, read in engines.items()}, sys.stdout)
