"""Keep a store for its owner alone: the messages, and the files that say who may have them.

The store makes its own files with 0600 and its directories with 0700, whatever the umask. Java's
broker makes them with 0644 and 0755 under the usual umask; a start takes these rights away, too,
and logs it. The contents of a directory that others cannot enter are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq.errors import StoreError
from cometmq.logs.loggers import get_logger
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk

log = get_logger(__name__)

# A root directory with any other name in it may be meant for others, too (`/tmp`, a home
# directory).
_NAMES_IN_ROOT: Final = frozenset(
    {
        "abort",
        "checkpoint",
        "commitlog",
        "config",
        "consumequeue",
        "consumequeue_ext",
        "index",
        "lock",
        "lost+found",
        "queues.json",
        "timerlog",
        "timerwheel",
    }
)


def restrict_to_owner(config: StoreConfig, disk: Disk) -> None:
    """Take the rights of group and others from the store's files and directories, and log it if any
    had such rights.

    Links are not followed. A second log line names paths that stay open to others.
    """
    root = config.store_path_root_dir
    closed: list[Path] = []
    left: list[str] = []
    for path in _open_paths(config, disk):
        try:
            disk.restrict(path)
            closed.append(path)
        except StoreError as error:
            left.append(str(error))
    if disk.is_open_to_others(root):
        strangers = sorted(set(disk.names(root)) - _NAMES_IN_ROOT)
        if strangers:
            left.append(f"{root} holds {strangers[0]}, which is not the store's")
        else:
            disk.restrict(root)
            closed.append(root)
    if closed:
        log.warning(
            "other users could reach parts of the store; they cannot any more",
            path=str(root),
            count=len(closed),
            first=str(closed[0]),
        )
    if left:
        log.warning("other users can reach parts of the store", path=str(root), left=left[:3])


def _open_paths(config: StoreConfig, disk: Disk) -> Iterator[Path]:
    root = config.store_path_root_dir
    for path in (
        config.commit_log_path,
        config.consume_queue_path,
        config.consume_queue_ext_path,
        config.index_path,
        root / "config",
    ):
        yield from _open_tree(path, disk)
    for path in (config.checkpoint_path, config.abort_path, config.lock_path, config.ledger_path):
        if disk.is_open_to_others(path):
            yield path


def _open_tree(path: Path, disk: Disk) -> Iterator[Path]:
    if not disk.is_open_to_others(path):
        return
    yield path
    if disk.is_directory(path):
        for name in disk.names(path):
            yield from _open_tree(path / name, disk)
