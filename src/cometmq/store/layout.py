"""Whether a directory is a store that this process may use, found out without changing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cometmq.errors import StoreFullError, StoreUnusableError
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk

# Less does not even hold the state files of a broker.
_LEAST_FREE_BYTES: Final = 1024 * 1024
_DLEDGER: Final = "dledger-"
# What every directory of RocksDB has.
_ROCKSDB: Final = "CURRENT"


def check_usable(config: StoreConfig, disk: Disk) -> None:
    """Raise unless a broker can run on the directory, which need not exist yet.

    StoreUnusableError for another layout, another user's store and a file system that is read-only,
    StoreFullError for one without room.
    """
    for path in (config.store_path_root_dir, config.commit_log_path):
        check_access(path, disk, write=True)
    owner = disk.owner(config.commit_log_path)
    if owner is not None and owner != disk.user():
        # Root may write anywhere; but then the owner could not write what root has made.
        raise StoreUnusableError(
            f"{config.commit_log_path} belongs to the user {owner}: run as that user, or give the "
            f"store to {disk.user()} with chown -R"
        )
    check_layout(config, disk)
    free = disk.usage(config.store_path_root_dir).free_bytes
    if free < _LEAST_FREE_BYTES:
        raise StoreFullError(
            f"{config.store_path_root_dir}: the disk has {free} bytes free, a start needs "
            f"{_LEAST_FREE_BYTES}; free space there, or move the store with storePathRootDir",
            code=14,
        )


def check_readable(config: StoreConfig, disk: Disk) -> None:
    """Raise StoreUnusableError unless the directory is a store that can be read."""
    root = config.store_path_root_dir
    if disk.owner(root) is None:
        raise StoreUnusableError(f"{root} does not exist: name the directory of storePathRootDir")
    for path in (root, config.commit_log_path):
        check_access(path, disk, write=False)
    check_layout(config, disk)
    if disk.owner(config.commit_log_path) is None and disk.size(config.checkpoint_path) is None:
        raise StoreUnusableError(
            f"{root} is no store, it has no directory {config.commit_log_path.name}: name the "
            f"directory of storePathRootDir"
        )


def check_access(path: Path, disk: Disk, *, write: bool) -> None:
    """Raise StoreUnusableError if `path`, which need not exist, is no directory for us."""
    reason = disk.access_fault(path, write=write)
    if reason is not None:
        raise StoreUnusableError(reason)


def check_layout(config: StoreConfig, disk: Disk) -> None:
    """Raise StoreUnusableError for a store of another kind."""
    root = config.store_path_root_dir
    remedy = "name another directory with storePathRootDir"
    if config.store_path_commit_log is not None and "," in str(config.store_path_commit_log):
        raise StoreUnusableError(
            f"storePathCommitLog={config.store_path_commit_log} names several paths, a commit log "
            f"lies in one here"
        )
    for name in disk.names(root):
        if name.startswith(_DLEDGER):
            raise StoreUnusableError(
                f"{root / name} is the log of a DLedger broker, which cannot be used here: {remedy}"
            )
    queues = config.consume_queue_path
    if disk.size(queues / _ROCKSDB) is not None:
        raise StoreUnusableError(
            f"{queues} is a RocksDB (storeType=defaultRocksDB), which cannot be used here: {remedy}"
        )
