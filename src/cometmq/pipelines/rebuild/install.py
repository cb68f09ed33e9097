"""Put the rebuilt directories into the store, and the former ones aside.

Each directory is replaced by one exchange of two names, so that none is missing at any time. The
extension of the queues is put aside first and installed last: queues without an extension hand out
messages that the client then filters, but queues with the extension of others would filter the
wrong messages.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.errors import ConfigError, StoreError
from cometmq.pipelines.rebuild.index import last_offset
from cometmq.pipelines.rebuild.work import BUILT, EXTENSIONS, INDEX, QUEUES, State, Work
from cometmq.runtime.state_files.durable import exchange_names
from cometmq.store.files.disk import Disk
from cometmq.store.layout import check_usable
from cometmq.store.queues.queue_ledger import QueueLedger


def check_installable(work: Work) -> None:
    """Raise ConfigError when renaming cannot make the target a part of the store."""
    target = work.target
    target.mkdir(parents=True, exist_ok=True)
    root = work.config.store_path_root_dir
    if target.stat().st_dev != root.stat().st_dev:
        raise ConfigError(
            f"target={target} is on another file system than {root}: install = true needs both on "
            "one; leave target out, or install = false"
        )
    check_usable(work.config, Disk())


def install(work: Work, state: State) -> Path:
    """Exchange the store's directories for the built ones, and return where the former ones are
    now.

    Continue where a killed call has stopped. Raise StoreLockedError when a broker runs.
    """
    disk = Disk()
    lock = disk.lock(work.config.lock_path)
    try:
        names = [name for name in BUILT if name != INDEX or work.config.message_index_enable]
        identities: dict[str, int] = state.values.setdefault(
            "installing",
            {
                name: (work.target / name).stat().st_ino
                for name in names
                if (work.target / name).is_dir()
            },
        )
        state.save()
        replaced = work.target / "replaced"
        disk.make_directory(replaced)
        if EXTENSIONS in names:
            _put_aside(work, EXTENSIONS, identities.get(EXTENSIONS), replaced)
        for name in (QUEUES, INDEX, EXTENSIONS):
            if name in identities:
                _exchange(work, name, identities[name], replaced)
        for path in (work.config.store_path_root_dir, work.target, replaced):
            disk.sync_directory(path)
        if INDEX in names:
            _note_index(work, disk)
    finally:
        lock.release()
    return replaced


def _put_aside(work: Work, name: str, built: int | None, replaced: Path) -> None:
    place = work.store_directory(name)
    if place.is_dir() and place.stat().st_ino != built:
        place.rename(replaced / name)


def _exchange(work: Work, name: str, built: int, replaced: Path) -> None:
    place, made = work.store_directory(name), work.target / name
    if not place.is_dir():
        made.rename(place)
    elif place.stat().st_ino != built:
        _swap(made, place)
    # From here on the target has the store's former directories, even after a kill during the exchange.
    if made.is_dir():
        made.rename(replaced / name)


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name(f"{one.name}.former")
    try:
        if exchange_names(one, other):
            return
        # A broker that is started between two of these builds the missing files.
        other.rename(aside)
        one.rename(other)
        aside.rename(one)
    except OSError as error:
        raise StoreError(f"{one} and {other} cannot change places: {error.strerror}") from error


def _note_index(work: Work, disk: Disk) -> None:
    """Note the index files in the store's ledger; unknown names would make the next start rebuild
    the index.
    """
    ledger = QueueLedger(disk, work.config.ledger_path)
    if disk.size(work.config.ledger_path) is None:
        return
    ledger.load()
    directory = work.store_directory(INDEX)
    ledger.index = {name: last_offset(directory / name) for name in disk.names(directory)}
    ledger.save()
