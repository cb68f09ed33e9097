"""Hold the data that all steps of a rebuild share: the store, the target directory and its layout.

    parts/<base>/       of each file of the log: part.json, queues.arrow, keys.bin (`scan`)
    consumequeue/       as in a store, and beside it
    consumequeue_ext/
    index/
    building/           what is being made; it is renamed when it is whole
    replaced/           what an installation took out of the store
    rebuild.json        for which state of the store this is, and its result

Everything under its final name is complete, so a run continues where a killed one stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cometmq.errors import ConfigError, StoreUnusableError
from cometmq.runtime.configuration.config import from_properties, load_properties
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.runtime.state_files.durable import PRIVATE_FILE, write_atomically
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.offline.store import OfflineStore
from cometmq.store.queues.queue_ledger import QueueLedger
from cometmq.store.queues.queue_table import Extensions, QueueTable

QUEUES: Final = "consumequeue"
EXTENSIONS: Final = "consumequeue_ext"
INDEX: Final = "index"
BUILT: Final = (QUEUES, EXTENSIONS, INDEX)


@dataclasses.dataclass(frozen=True)
class Work:
    """The store and the target of a rebuild. Goes to the workers, so it holds values only.

    config: of the store, with the sizes that its files have.
    bases: the log offsets at which the files of the log begin.
    extends: whether queues have an extension.
    deleted: see `QueueLedger`.
    flushed_until: see `BatchScan`.
    mark: changes when the store changes.
    is_replica: see `QueueLedger`.
    """

    config: StoreConfig
    target: Path
    bases: tuple[int, ...]
    extends: bool
    deleted: dict[str, int]
    flushed_until: int
    mark: str
    is_replica: bool = False

    @property
    def min_offset(self) -> int:
        return self.bases[0]

    @property
    def log_file_bytes(self) -> int:
        return self.config.mapped_file_size_commit_log

    def part(self, number: int) -> Path:
        """Return the directory of the part of the log file with that number."""
        return self.target / "parts" / f"{self.bases[number]:020d}"

    def store_directory(self, name: str) -> Path:
        """Return the directory of one of BUILT in the store."""
        return self.config.store_path_root_dir / name

    def log(self, *bases: int) -> MappedFileQueue:
        """Return the log, or these files of it, for reading."""
        disk = Disk()
        directory, size = self.config.commit_log_path, self.log_file_bytes
        log = MappedFileQueue(
            disk, directory, size, size_key="mappedFileSizeCommitLog", writable=False
        )
        log.files = [
            MappedFile(disk, directory / f"{base:020d}", base, size, writable=False)
            for base in bases or self.bases
        ]
        return log

    @contextmanager
    def making(self) -> Iterator[Path]:
        """Yield a directory for unfinished files, and remove it at the end."""
        path = self.target / "building" / SYSTEM_RANDOMNESS.token_hex(16)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def queues(self, root: Path) -> QueueTable:
        """Return the consume queues below `root`, with the store's sizes."""
        return QueueTable(
            Disk(),
            root / QUEUES,
            self.config.mapped_file_size_consume_queue,
            extensions=Extensions(
                root / EXTENSIONS, self.config.mapped_file_size_consume_queue_ext, self.extends
            ),
        )


def put_in_place(made: Path, place: Path) -> None:
    """Rename a complete directory to its place. If another task was faster, that task's directory
    stays.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    disk = Disk()
    disk.sync_directory(made)
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        return
    disk.sync_directory(place.parent)


def store_config(store: str, commit_log: str | None, broker_conf: str | None) -> StoreConfig:
    """Return the settings of the store at `store`. Raise ConfigError."""
    properties = load_properties(broker_conf) if broker_conf else {}
    properties["storePathRootDir"] = os.path.abspath(store)  # noqa: PTH100 - links stay links
    if commit_log:
        properties["storePathCommitLog"] = os.path.abspath(commit_log)  # noqa: PTH100 - links stay links
    return from_properties(StoreConfig, properties, broker_conf or "")


def work_on(store: OfflineStore, target: Path) -> Work:
    """Return the work on a store. Raise StoreUnusableError for a log that no broker starts on."""
    config = store.config
    bad = [bad for bad in store.bad_files if bad.path.parent == config.commit_log_path]
    if bad:
        raise StoreUnusableError(
            f"{bad[0].path}: {bad[0].reason}; put the log in order first with "
            f"cometmq store repair {config.store_path_root_dir}"
        )
    if not store.log_files:
        raise StoreUnusableError(
            f"{config.commit_log_path} has no file: there is nothing to build queues from"
        )
    ledger = QueueLedger(store.disk, config.ledger_path)
    ledger.load()
    mark = _mark(config, ledger.deleted)
    checkpoint = Checkpoint(store.disk, config.checkpoint_path)
    checkpoint.read()
    extensions = list(config.consume_queue_ext_path.glob("*/*/*"))
    if extensions:
        config = dataclasses.replace(
            config, mapped_file_size_consume_queue_ext=extensions[0].stat().st_size
        )
    return Work(
        config=config,
        target=target,
        bases=tuple(file.base for file in store.log_files),
        extends=bool(extensions) or config.enable_consume_queue_ext,
        deleted=ledger.deleted,
        flushed_until=checkpoint.physic_msg_timestamp,
        mark=mark,
        is_replica=ledger.is_replica,
    )


def _mark(config: StoreConfig, deleted: dict[str, int]) -> str:
    files = sorted(config.commit_log_path.iterdir())
    return json.dumps(
        [
            str(config.store_path_root_dir),
            [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files],
            [config.mapped_file_size_consume_queue, config.mapped_file_size_consume_queue_ext],
            [config.max_hash_slot_num, config.max_index_num, config.message_index_enable],
            [config.message_delay_level, config.enable_consume_queue_ext],
            sorted(deleted.items()),
        ]
    )


class State:
    """Reads and writes `rebuild.json`."""

    def __init__(self, work: Work) -> None:
        self._path = work.target / "rebuild.json"
        self._mark = work.mark
        self.values: dict[str, Any] = {}

    def load(self) -> None:
        """Load the file. Raise ConfigError when the directory holds something else."""
        target = self._path.parent
        if not self._path.exists():
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise ConfigError(
                    f"target={target} has files that no rebuild made: name a directory that is "
                    "empty or not there"
                )
            try:
                self.save()
            except OSError as error:
                raise ConfigError(
                    f"target={target} cannot be written to: {error.strerror or error}; name a "
                    "directory that can"
                ) from error
            return
        try:
            self.values = json.loads(self._path.read_text())
            mark = self.values.pop("mark")
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{self._path} cannot be used ({error}): name another directory as target"
            ) from error
        if mark != self._mark:
            raise ConfigError(
                f"target={target} was built from another store or an earlier state of this one, or "
                "with other settings: remove it, or name another directory"
            )

    def save(self) -> None:
        text = json.dumps({"mark": self._mark, **self.values})
        write_atomically(self._path, text.encode(), PRIVATE_FILE)
