"""Find out whether a directory is a store that this process may use, without changing anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.errors import StoreCorruptError, StoreFullError, StoreUnusableError
from cometmq.protocol.messages.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from cometmq.protocol.messages.record_layout import HEAD_SIZE, MAGIC_AT, PHYSICAL_OFFSET_AT
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.log.scan import ScannedRecord, check_record, find_record_in
from cometmq.store.reading.layout import is_file_name

# Less does not even hold the state files of a broker.
_LEAST_FREE_BYTES: Final = 1024 * 1024
_DLEDGER: Final = "dledger-"
# A file that every directory of RocksDB has.
_ROCKSDB: Final = "CURRENT"


class _Database(NamedTuple):
    """A RocksDB that Java's broker may have in a store, by its place in it."""

    name: str
    content: str
    remedy: str
    # Whether it decides over the files that it replaces also while it is empty.
    holds_when_empty: bool = False


_EXPORT: Final = "let a Java broker write them to files (mqadmin rocksDBConfigToJson)"
_JAVAS_DATABASES: Final = (
    *(
        _Database(f"config/{name}", content, _EXPORT, holds_when_empty=True)
        for name, content in (
            ("topics", "topics"),
            ("subscriptionGroups", "groups"),
            ("consumerOffsets", "offsets"),
            ("rdb", "topics, groups and offsets (configManagerVersion=v2)"),
        )
    ),
    _Database(
        "rocksdbstore",
        "delayed messages, transactions or the index (timerRocksDBEnable, transRocksDBEnable, "
        "indexRocksDBEnable)",
        "let a Java broker deliver what waits, stop it with these settings off",
    ),
    _Database(
        "kvStore",
        "popped messages (popConsumerKVServiceEnable)",
        "let a Java broker write them to files (mqadmin exportPopRecord)",
    ),
)
_MAGICS: Final = (0, MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


def check_usable(config: StoreConfig, disk: Disk) -> None:
    """Raise unless a broker can run on the directory, which need not exist yet.

    Raises StoreUnusableError for another layout, another user's store and a read-only file system,
    StoreFullError for a file system without room.
    """
    for path in (config.store_path_root_dir, config.commit_log_path):
        check_access(path, disk, write=True)
    for path in (config.commit_log_path, config.checkpoint_path):
        owner = disk.owner(path)
        if owner is not None and owner != disk.user():
            # Root may write anywhere, but then the owner could not write the files that root has
            # made.
            raise StoreUnusableError(
                f"{path} belongs to the user {owner}: run as that user, or give the store to "
                f"{disk.user()}: chown -R {disk.user()} {_owned_place(config, path)}"
            )
    check_layout(config, disk)
    total, free = disk.usage(config.store_path_root_dir)
    if not total:
        raise StoreUnusableError(
            f"{config.store_path_root_dir} is on a file system without any space for files, as /proc "
            "and /sys are: name another directory with storePathRootDir"
        )
    if free < _LEAST_FREE_BYTES:
        raise StoreFullError(
            f"{config.store_path_root_dir}: the disk has {free} bytes free, a start needs "
            f"{_LEAST_FREE_BYTES}; free space there, or move the store with storePathRootDir",
            code=14,
        )


def _owned_place(config: StoreConfig, path: Path) -> Path:
    """Return the directory to give to an owner, of which `path` is a part.

    It is never more than the store.
    """
    root = config.store_path_root_dir
    return root if path.is_relative_to(root) and root != Path(root.anchor) else path


def check_sizes(config: StoreConfig, disk: Disk) -> None:
    """Raise StoreUnusableError if the commit log has files, but none of the configured size.

    Single files of another size are damage, which is for recovery to judge.
    """
    directory, expected = config.commit_log_path, config.mapped_file_size_commit_log
    names = [name for name in disk.names(directory) if is_file_name(name)]
    sizes = [disk.size(directory / name) or 0 for name in names]
    if not sizes or any(size == expected for size in sizes):
        return
    # A single file may be shorter: a crash can come while it is being made.
    crashed = disk.size(config.abort_path) is not None
    if len(sizes) == 1 and sizes[0] < expected and (crashed or sizes[0] == 0):
        return
    raise StoreUnusableError(
        f"{directory / names[0]} has {sizes[0]} bytes, expected {expected}: set "
        f"mappedFileSizeCommitLog to the size of the files, or name another directory with "
        f"storePathRootDir"
    )


def check_content(config: StoreConfig, disk: Disk) -> None:
    """Raise StoreUnusableError if the commit log holds something, but no record.

    Then the files belong to something else, and a start would cut off all of them as the tail of a
    crash. A crash cannot leave that: the first sector of a new file is zeros or a record's.
    """
    directory = config.commit_log_path
    names = [name for name in disk.names(directory) if is_file_name(name)]
    head = bytearray(HEAD_SIZE)
    if not names or disk.read_into(directory / names[0], 0, memoryview(head)) < HEAD_SIZE:
        return
    magic = int.from_bytes(head[MAGIC_AT:], "big")
    if magic in _MAGICS or any(_has_record(disk, directory / name) for name in names):
        return
    raise StoreUnusableError(
        f"{directory / names[0]} begins with magic {magic:#010x} and no file there has a message "
        f"of RocketMQ: name another directory with storePathRootDir, or move the files away"
    )


def missing_in_front(begins: int, files: Sequence[MappedFile]) -> str | None:
    """Describe the missing part of a log that is known to begin at `begins`; None if nothing is
    missing.

    Only retention moves the beginning, and notes that first.
    """
    if not files:
        return f"the log has no file, but began at {begins}"
    first = files[0]
    if first.base <= begins:
        return None
    return (
        f"the log begins at {first.base}, and began at {begins}: {first.base - begins} bytes, from "
        f"{first.path.with_name(f'{begins - begins % first.size:020d}')} on, were removed, and not "
        "by the broker"
    )


def check_places(config: StoreConfig, disk: Disk) -> None:
    """Raise StoreCorruptError if a file of the log belongs to another place in a log. Otherwise a
    start would cut it off as the tail of a crash, or serve nothing of it.
    """
    directory = config.commit_log_path
    for name in disk.names(directory):
        if is_file_name(name) and (why := foreign(disk, directory / name)) is not None:
            raise StoreCorruptError(
                f"{directory / name} {why}: move it away, and put the right file back from a copy or "
                "a slave"
            )


def foreign(disk: Disk, path: Path) -> str | None:
    """Return why a file belongs to another place in a log, None if nothing indicates it.

    One damaged record may name any offset, so the second record has to confirm the first one.
    """
    head = bytearray(PHYSICAL_OFFSET_AT + 8)
    size = disk.size(path)
    if not size or disk.read_into(path, 0, memoryview(head)) < len(head):
        return None
    own = int.from_bytes(head[PHYSICAL_OFFSET_AT:], "big")
    if int.from_bytes(head[MAGIC_AT:HEAD_SIZE], "big") not in (MAGIC_V1, MAGIC_V2):
        return None
    if own == int(path.name):
        return None
    file = MappedFile(disk, path, own, size, writable=False)
    try:
        first = check_record(file.view, 0, own, check_crc=True)
        if not isinstance(first, ScannedRecord):
            return None
        second = check_record(file.view, first.size, own + first.size, check_crc=True)
    finally:
        file.release()
    if not isinstance(second, ScannedRecord):
        return None
    return f"has the records that belong at {own} of a log"


def _has_record(disk: Disk, path: Path) -> bool:
    size = disk.size(path)
    if not size:
        return False
    file = MappedFile(disk, path, int(path.name), size, writable=False)
    found = find_record_in(file, 0) is not None
    file.release()
    return found


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
    check_content(config, disk)


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
    for name in disk.names(config.commit_log_path):
        if is_file_name(name) and disk.is_directory(config.commit_log_path / name):
            raise StoreUnusableError(
                f"{config.commit_log_path / name} is a directory where a file of the commit log "
                f"belongs: move it away, or {remedy}"
            )
    queues = config.consume_queue_path
    if disk.size(queues / _ROCKSDB) is not None:
        raise StoreUnusableError(
            f"{queues} is a RocksDB (storeType=defaultRocksDB), which cannot be used here: {remedy}"
        )
    for place in _JAVAS_DATABASES:
        path = root / place.name
        if disk.size(path / _ROCKSDB) is not None and (
            place.holds_when_empty or _has_data(disk, path)
        ):
            raise StoreUnusableError(
                f"{path} is a RocksDB in which Java's broker keeps {place.content}, which cannot be "
                f"used here: {place.remedy}, move {path} away, or {remedy}"
            )


def _has_data(disk: Disk, path: Path) -> bool:
    """Whether a RocksDB ever held something: Java 5.5 makes an empty one in every store."""
    return any(
        name.endswith(".sst") or (name.endswith(".log") and disk.size(path / name))
        for name in disk.names(path)
    )
