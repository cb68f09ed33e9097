"""Fuzz targets of a store: a file of it has any bytes, or a slave is sent them as its master's log.

The store lies in memory and has small files. It is made once; each input gets a copy. The first byte
of an input of `store-…` chooses the file, the second one how it is damaged, and the rest are its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.target import REFUSALS, Target
from tests.unit.store.store_box import Box, ManualClock, put, records

from cometmq.model.sysflag import TRANSACTION_PREPARED
from cometmq.protocol.messages.record import decode_record
from cometmq.store.offline.check import Area, Report
from cometmq.store.offline.dump import Filter, dump
from cometmq.store.offline.rejoin import OwnLog, plan_rejoin, rejoin
from cometmq.store.offline.repair import check, check_open, plan_repair, repair
from cometmq.store.offline.slice import Selection, make_slice
from cometmq.store.offline.stats import collect
from cometmq.store.offline.store import OfflineStore, open_offline
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

_ROOT: Final = Path("/store")
_SETTINGS: Final = {"max_hash_slot_num": 16, "max_index_num": 64}
_WAS_KILLED, _OTHER_LENGTH, _BEHIND, _LOG_LOST = 1, 2, 4, 8
_FOR_EVER_S: Final = 1e9


def _box(disk: VirtualDisk, root: Path = _ROOT) -> Box:
    return Box(root, disk=disk, **_SETTINGS)


@cache
def _template(*, killed: bool) -> dict[Path, bytes]:
    """Return the files of a store that was stopped, or killed, by path."""
    disk = VirtualDisk()
    box = _box(disk)
    store = box.open()
    for number in range(24):
        put(
            store,
            bytes([number]) * (number * 13),
            topic=("orders", "returns")[number % 2],
            queue_id=number % 3,
            tags="ab"[number % 2],
            sys_flag=TRANSACTION_PREPARED if number == 7 else 0,
        )
        box.clock.value += 5
    store.index.catch_up(store.commit_log.end, _FOR_EVER_S)
    store.flush_all()
    if killed:
        files = dict(_files(disk, _ROOT))
        store.close()
        return files
    store.close()
    return dict(_files(disk, _ROOT))


def _files(disk: VirtualDisk, path: Path) -> Iterator[tuple[Path, bytes]]:
    if disk.is_directory(path):
        for name in disk.names(path):
            yield from _files(disk, path / name)
    elif "lock" not in path.name:
        yield path, disk.read(path)


def _disk(files: dict[Path, bytes]) -> VirtualDisk:
    disk = VirtualDisk()
    for path, data in files.items():
        disk.make_directory(path.parent)
        disk.overwrite(path, data.rstrip(b"\0"), len(data))
    return disk


def _damaged(data: bytes) -> VirtualDisk:
    """Return a disk with a store of which one file has the bytes of the input."""
    number, how = (*data[:2], 0, 0)[:2]
    files = dict(_template(killed=bool(how & _WAS_KILLED)))
    paths = sorted(files)
    path, content = paths[number % len(paths)], data[2:]
    whole = files[path]
    if how & _BEHIND:  # the input stands behind what is sound
        sound = whole.rstrip(b"\0")
        content = sound[: len(sound) // 2] + content
    files[path] = content if how & _OTHER_LENGTH else content[: len(whole)].ljust(len(whole), b"\0")
    if how & _LOG_LOST:
        files.pop(next(one for one in paths if "commitlog" in one.parts), None)
    return _disk(files)


def _corpus() -> list[bytes]:
    """Return an input for each file of a store: its own bytes."""
    found = []
    for how in (0, _WAS_KILLED):
        files = _template(killed=bool(how))
        for number, path in enumerate(sorted(files)):
            found.append(bytes([number, how]) + files[path].rstrip(b"\0"))
    return found


@contextmanager
def _opened(disk: VirtualDisk) -> Iterator[MessageStore]:
    box = _box(disk)
    box.clock.value += 1000
    store = box.new()
    try:
        store.open()
        yield store
    finally:
        store.close()


def _use(store: MessageStore) -> tuple[object, ...]:
    """Read all that a store has, and append; what cannot be is refused."""
    count = 0
    for topic, queue_ids in sorted(store.topics().items()):
        for queue_id in queue_ids:
            with suppress(REFUSALS):
                count += len(records(store, topic, queue_id))
            store.offset_by_time(topic, queue_id, 1_700_000_000_050)
            store.earliest_store_time(topic, queue_id)
    with suppress(REFUSALS):
        store.index.catch_up(store.commit_log.end, _FOR_EVER_S)
        store.index.query("orders", "k", 10, 0, 2**62)
    for _ in range(3):
        with suppress(REFUSALS):
            put(store, b"new" * 100)
    store.flush_all()
    return count, store.commit_log.min_offset, store.commit_log.end


def run_open(_: Random, data: bytes) -> object:
    """A broker starts on a damaged store or says why not, and starts again after that."""
    disk = _damaged(data)
    with _opened(disk) as store:
        outcome = _use(store)
    with _opened(disk) as store:
        again = _use(store)
        assert again[2] >= outcome[2], (outcome, again)  # type: ignore[operator]  # an offset
    return outcome, again


def run_tools(_random: Random, data: bytes) -> object:
    """The tools look at a damaged store. A store that they repair has a sound log, and a broker starts
    on it.

    A record whose queue offset is damaged, which no sum covers, stays a finding of the queue.
    """
    disk = _damaged(data)
    config, clock = _box(disk).config, ManualClock()
    clock.value += 1000
    with open_offline(config, disk) as store:
        report = check_open(store)
        _look(store, disk, clock)
        plan = plan_repair(store, report)
    repair(store, plan, clock=clock, stamp="fuzz")
    _, after = check(config, disk)
    assert not after.damages, (_told(report), _told(after))
    assert not any(one.area in (Area.LOG, Area.INDEX, Area.FILES) for one in after.findings), (
        _told(report),
        _told(after),
    )
    with _opened(disk) as opened:
        return len(report.findings), _use(opened)


def _told(report: Report) -> list[str]:
    return [f"{one.path} {one.position}: {one.text}" for one in report.findings]


def _look(store: OfflineStore, disk: VirtualDisk, clock: ManualClock) -> None:
    with suppress(REFUSALS):
        collect(store)
    with suppress(REFUSALS):
        list(dump(store, Filter(), decode_body=lambda one: one.body, on_damage=lambda _: None))
    for selection in (Selection(), Selection(topic="orders", queue_id=0)):
        with suppress(REFUSALS):
            make_slice(store, Path("/slice"), selection, clock=clock, disk=disk)
        disk.remove_tree(Path("/slice"))


def run_rejoin(random: Random, data: bytes) -> object:
    """Cut a damaged log behind any of its records, and start a broker on it."""
    disk = _damaged(data)
    config, clock = _box(disk).config, ManualClock()
    with open_offline(config, disk) as store:
        log = OwnLog(store)
        starts = [-1, *(int(start) for file in log.files for start in log.starts(file))]
        plan = plan_rejoin(store, log, random.choice(starts), whole=False)
    rejoin(plan, disk, clock=clock, master="10.0.0.1:10912")
    with _opened(disk) as opened:
        assert opened.commit_log.end <= max(plan.cut, opened.commit_log.min_offset)
        return plan.cut, _use(opened)


@cache
def _master_log() -> bytes:
    files = _template(killed=False)
    return b"".join(files[path] for path in sorted(files) if "commitlog" in path.parts)


def _slave_corpus() -> list[bytes]:
    log = _master_log().rstrip(b"\0")
    return [bytes([size]) + log[:end] for size in (0, 7, 200) for end in (4096, 5000, len(log))]


def run_slave(_: Random, data: bytes) -> object:
    """A slave takes whole records of a master's log, however they come, and refuses all else. A broker
    starts on the log that it has taken.
    """
    disk, part = VirtualDisk(), 1 + 3 * data[0] if data else 1
    at, end = 0, 0
    with _opened(disk) as store:
        with suppress(REFUSALS):
            for at in range(1, len(data), part):
                store.append_replicated(store.replicated_end, data[at : at + part])
        with suppress(REFUSALS):
            while store.publish():
                pass
        store.forget_partial_record()
        store.flush_all()
        end = store.commit_log.end
    with _opened(disk) as store:
        assert store.commit_log.end <= end
        return at, end, _use(store)


def _first_record_is_sound() -> bool:
    return decode_record(_master_log(), check_crc=True).topic == "orders"


assert _first_record_is_sound(), "the master's log of these targets begins with a record"

TARGETS: Final = [
    Target("store-open", _corpus(), run_open, cost=6, takes_long=False),
    Target("store-tools", _corpus(), run_tools, cost=12, takes_long=False),
    Target("store-rejoin", _corpus(), run_rejoin, cost=6, takes_long=False),
    Target("slave-log", _slave_corpus(), run_slave, cost=6, takes_long=False),
]
