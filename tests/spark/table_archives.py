"""An archive for tests of its tables: files as Spark writes them, written and committed without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec.structs import replace
from pyarrow import parquet

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.layout import DataFile, Hour, Manifest, QueueState, in_order
from cometmq.pipelines.archive.schemas import ALL
from cometmq.pipelines.locations import Location
from cometmq.pipelines.s3_access import S3Access

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
ORDERS: Final = Hour("orders", "2026-11-20T16")
LATER: Final = Hour("orders", "2026-11-21T03")
RETRIES: Final = Hour("%RETRY%g", "2026-11-20T16")


def plain_body(offset: int) -> bytes:
    return b"body %d" % offset


def rows_of(
    hour: Hour, first: int, count: int, body_of: Callable[[int], bytes] = plain_body
) -> list[dict[str, Any]]:
    stored = datetime.fromisoformat(f"{hour.hour}:00:00").replace(tzinfo=UTC)
    return [
        {
            "broker": "broker-a",
            "queue_id": 0,
            "queue_offset": at,
            "commit_log_offset": 300 * at,
            "msg_id": f"{at:032X}",
            "keys": [f"O-{at}"],
            "tags": "paid",
            "body": body_of(at),
            "properties": [("KEYS", f"O-{at}"), ("TAGS", "paid")],
            "born_time": stored + timedelta(milliseconds=at),
            "store_time": stored + timedelta(milliseconds=at + 7),
            "born_host": "127.0.0.1:5000",
            "store_host": "127.0.0.1:10911",
            "reconsume_times": 0,
            "flag": 0,
            "sys_flag": 0,
            "body_crc": -at,
        }
        for at in range(first, first + count)
    ]


class MadeArchive:
    """Commits to an archive that is open, as the pipeline does."""

    def __init__(self, archive: Archive, body_of: Callable[[int], bytes] = plain_body) -> None:
        self.archive = archive
        self._body_of = body_of

    def batch(self, form: int, hours: dict[Hour, tuple[int, int]]) -> None:
        """Archive rows of hours, each from an offset on, so many."""
        self._commit(
            form, {hour: [rows_of(hour, *rows, self._body_of)] for hour, rows in hours.items()}, {}
        )

    def compact(self, hour: Hour) -> None:
        """Write the rows of an hour's files of the present schema into one."""
        files = list(self.archive.manifests[hour].files)
        form = files[0].form
        rows: list[dict[str, Any]] = []
        for file in files:
            content = (self.archive.layout.data_of(hour) / file.name).read_bytes()
            rows += parquet.read_table(pa.BufferReader(content), partitioning=None).to_pylist()
        self._commit(form, {hour: [rows]}, {hour: [file.name for file in files]})

    def remove(self, hour: Hour, names: Sequence[str]) -> None:
        """Take files out of the archive, as a retention does."""
        self._commit(ALL, {hour: []}, {hour: list(names)})

    def prove(self) -> None:
        """Commit something that changes no file."""
        self.archive.commit(Commit("nothing", (), self.archive.state))

    def columns(self, more: dict[str, str]) -> int:
        """Have files get further columns, and return the number of their schema."""
        schemas = self.archive.schemas
        number = max(schemas) + 1
        schema = replace(schemas[ALL], number=number, columns={**schemas[ALL].columns, **more})
        state = self.archive.state
        state = replace(state, schemas=(*state.schemas, schema), form=number)
        self.archive.commit(Commit("nothing", (), state))
        return number

    def _commit(
        self,
        form: int,
        files: dict[Hour, list[list[dict[str, Any]]]],
        removed: dict[Hour, list[str]],
    ) -> None:
        archive = self.archive
        number = archive.state.next_batch
        staged = archive.new_staging()
        manifests, gone = [], []
        for hour, contents in files.items():
            names = removed.get(hour, [])
            before = archive.manifests.get(hour, Manifest(*hour))
            kept = [file for file in before.files if file.name not in names]
            new = []
            for at, rows in enumerate(contents):
                name = f"{'c' if names else 'b'}{number:08d}-{at:04d}.parquet"
                size = self._write(staged / hour.directory / name, form, rows)
                new.append(DataFile(name, size, number, form=form))
            manifests.append(replace(before, files=(*kept, *new)))
            gone.append(tuple(names))
        state = replace(
            archive.state, next_batch=number + 1, queues=self._queues(files if not removed else {})
        )
        commit = Commit("files", tuple(manifests), state, staged.name)
        if removed:
            commit = replace(commit, moves="replaced", removed=tuple(gone))
        archive.commit(commit)

    def _queues(self, files: dict[Hour, list[list[dict[str, Any]]]]) -> tuple[QueueState, ...]:
        """Return the queues behind a batch."""
        queues = self.archive.state.by_queue()
        for hour, contents in files.items():
            offsets = [row["queue_offset"] for rows in contents for row in rows]
            queue = MessageQueue(hour.topic, "broker-a", 0)
            first = queues[queue].first if queue in queues else min(offsets)
            queues[queue] = QueueState(*queue, first=first, to=max(offsets) + 1, proved_to=first)
        return in_order(queues)

    def _write(self, path: Location, form: int, rows: Iterable[dict[str, Any]]) -> int:
        columns = {n: k for n, k in self.archive.schemas[form].columns.items() if n != "topic"}
        schema = pa.schema([pa.field(name, _TYPES[kind]) for name, kind in columns.items()])
        content = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist(list(rows), schema), content, compression="zstd")
        data = content.getvalue().to_pybytes()
        path.write(data)
        return len(data)


def tables_of(path: Path | str, access: S3Access | None = None) -> dict[str, list[list[int]]]:
    """Return what PyIceberg and deltalake read at each snapshot: [commit, rows, sum of offsets].

    path: of this machine, or the URI of an archive that is reached by `access`.
    """
    return {"iceberg": iceberg_snapshots(path, access), "delta": delta_versions(path, access)}


def iceberg_table(path: Path | str, access: S3Access | None = None) -> StaticTable:
    """Return the newest table, as readers without the catalog find it."""
    from pyiceberg.table import StaticTable

    properties = access.of_pyiceberg() if access else {}
    return StaticTable.from_metadata(f"{path}/_tables/iceberg", properties)


def iceberg_snapshots(path: Path | str, access: S3Access | None = None) -> list[list[int]]:
    table = iceberg_table(path, access)
    found = []
    for snapshot in table.metadata.snapshots:
        assert snapshot.summary is not None
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        offsets = rows["queue_offset"].to_pylist()
        found.append([int(snapshot.summary["cometmq-commit"] or -1), len(offsets), sum(offsets)])
    return found


def delta_versions(path: Path | str, access: S3Access | None = None) -> list[list[int]]:
    from deltalake import DeltaTable

    place = f"{path}/_tables/files"
    storage = access.of_deltalake() if access else None
    newest = DeltaTable(place, storage_options=storage)
    commits = {
        one["version"]: int(one["cometmq-commit"])
        for one in newest.history()
        if "cometmq-commit" in one
    }
    found = []
    for version in sorted(commits):
        table = DeltaTable(place, version=version, storage_options=storage)
        assert table.transaction_version("cometmq-archive") == commits[version]
        offsets = table.to_pyarrow_table(columns=["queue_offset"])["queue_offset"].to_pylist()
        found.append([commits[version], len(offsets), sum(offsets)])
    assert version == newest.version()
    return found
