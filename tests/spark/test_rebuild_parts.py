"""The passes of the pipeline `rebuild`, one after the other and without Spark, against what a store
makes of the same log when it is opened.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.store_box import ManualClock
from tests.unit.store.test_store_batch_scan import FILE, MESSAGES, TOPICS, Message, write_log

from cometmq.errors import StoreLockedError, StoreUnusableError
from cometmq.pipelines.rebuild.compare import compare_index_file, compare_queue
from cometmq.pipelines.rebuild.index import build_index_file, plan_index
from cometmq.pipelines.rebuild.queues import build_queues, queue_directories
from cometmq.pipelines.rebuild.scan import Part, read_part, scan_part
from cometmq.pipelines.rebuild.work import BUILT, QUEUES, Work, work_on
from cometmq.protocol.messages.record_layout import FIELDS
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.offline.store import open_offline
from cometmq.store.store import MessageStore

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": 100,
    "mapped_file_size_consume_queue_ext": 40_000,
    "max_hash_slot_num": 3,
    "max_index_num": 7,
    "message_delay_level": "1s 5s",
}


def settings_of(root: Path, **more: Any) -> StoreConfig:
    return StoreConfig(store_path_root_dir=root, **(SIZES | more))


def contents(root: Path) -> dict[str, bytes | list[bytes]]:
    """Queue files by their paths; index files in their order, as their names are times."""
    files: dict[str, Any] = {
        str(path.relative_to(root)): path.read_bytes()
        for name in BUILT[:2]
        for path in (root / name).rglob("*")
        if path.is_file()
    }
    files["index"] = [path.read_bytes() for path in sorted((root / "index").glob("*"))]
    return files


def opened(config: StoreConfig) -> None:
    """Let the store make what it lacks."""
    store = MessageStore(config, clock=ManualClock(), store_host=bytes(8))
    store.open()
    assert store.index.catch_up(store.commit_log.end, 60)
    store.close()


def rebuilt(config: StoreConfig, target: Path) -> Work:
    with open_offline(config) as store:
        work = work_on(store, target)
    for number in range(len(work.bases)):
        scan_part(work, number)
    parts = [Part.load(work.part(number)) for number in range(len(work.bases))]
    chunks = [
        ((row["topic"], row["queue_id"], row["first"]), row["rows"])
        for number in range(len(parts))
        for batch in read_part(work, number)
        for row in batch.to_pylist()
    ]
    list(build_queues(work, sorted(chunks)))
    plan = plan_index(work, parts)
    for number in range(len(plan.names)):
        build_index_file(work, plan, number)
    return work


@settings(max_examples=60, deadline=None)
@given(
    messages=MESSAGES.filter(bool),
    extended=st.sampled_from([False, False, True]),
    deleted=st.dictionaries(TOPICS, st.integers(1, 2 * FILE), max_size=1),
)
def test_any_log_gives_the_files_that_a_store_makes_of_it(
    messages: list[Message], extended: bool, deleted: dict[str, int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = Path(directory, "ours"), Path(directory, "theirs")
        log = MappedFileQueue(Disk(), ours / "commitlog", FILE, size_key="size")
        end = write_log(log, messages)
        log.release()
        noted = {topic: min(offset, end) for topic, offset in deleted.items()}
        ledger = {"deleted": noted, "queues": {}, "index": {}}
        (ours / "queues.json").write_text(json.dumps(ledger))
        # All of it was flushed: zeros in properties are the sender's.
        checkpoint = Checkpoint(Disk(), ours / "checkpoint")
        checkpoint.physic_msg_timestamp = 1 << 62
        checkpoint.flush()
        shutil.copytree(ours, theirs)
        opened(settings_of(theirs, enable_consume_queue_ext=extended))
        work = rebuilt(settings_of(ours, enable_consume_queue_ext=extended), Path(directory, "b"))
        assert contents(work.target) == contents(theirs)


@pytest.fixture
def store(tmp_path: Path) -> StoreConfig:
    """A store of several files of each kind, stopped."""
    config = settings_of(tmp_path / "store")
    log = MappedFileQueue(Disk(), config.commit_log_path, FILE, size_key="size")
    tags = b"UNIQ_KEY\x01u%d\x02KEYS\x01a b%d\x02TAGS\x01x\x02"
    plain = [
        Message("orders", number % 2, 0, tags % (number, number), 900, bytes(8), bytes(8), 0)
        for number in range(60)
    ]
    write_log(log, [*plain, Message("late", 0, 0, b"", 1, bytes(8), bytes(8), 0)])
    log.release()
    opened(config)
    return config


def outcomes(work: Work) -> set[str]:
    built = queue_directories(work.target / QUEUES)
    index = (work.target / "index").iterdir()
    return {compare_queue(work, key, kept=False).outcome for key, _ in built} | {
        compare_index_file(work, path.name).outcome for path in index
    }


def test_names_and_bytes_are_those_of_the_store(store: StoreConfig, tmp_path: Path) -> None:
    work = rebuilt(store, tmp_path / "target")
    assert contents(work.target) == contents(store.store_path_root_dir)
    assert outcomes(work) == {"equal"}
    names = [
        sorted(p.name for p in (r / "index").iterdir())
        for r in (work.target, store.index_path.parent)
    ]
    assert names[0] == names[1]
    assert len(names[0]) > 3


def test_after_retention_the_index_is_cut_where_the_broker_cut_it(
    store: StoreConfig, tmp_path: Path
) -> None:
    """Its first file knows messages that the log no longer has."""
    before = contents(store.store_path_root_dir)["index"]
    for path in sorted(store.commit_log_path.iterdir())[:2]:
        path.unlink()
    work = rebuilt(store, tmp_path / "target")
    assert outcomes(work) == {"equal"}
    index = contents(work.target)["index"]
    assert 1 < len(index) < len(before)
    assert index == before[-len(index) :]


def test_a_damaged_store_time_gives_no_name_to_a_file_of_the_index(
    store: StoreConfig, tmp_path: Path
) -> None:
    """No file's name can hold a time in the year 1143730."""
    log = sorted(store.commit_log_path.iterdir())[0]
    damaged = bytearray(log.read_bytes())
    at = FIELDS["store_timestamp"][0]
    damaged[at : at + 8] = (1 << 55).to_bytes(8, "big")
    log.write_bytes(damaged)
    for path in store.index_path.iterdir():
        path.unlink()
    names = [
        path.name for path in sorted((rebuilt(store, tmp_path / "b").target / "index").iterdir())
    ]
    assert len(names) > 3
    assert names[0].startswith(("19700101", "19691231"))
    assert names == sorted(names)
    assert {len(name) for name in names} == {17}


def test_what_was_changed_by_hand_is_named(store: StoreConfig, tmp_path: Path) -> None:
    queue = store.consume_queue_path / "orders" / "0"
    first = sorted(queue.iterdir())[0]
    data = bytearray(first.read_bytes())
    data[40:60] = bytes(20)
    first.write_bytes(data)
    index = sorted(store.index_path.iterdir())[1]
    index.write_bytes(index.read_bytes()[:-1] + b"\x07")
    work = rebuilt(store, tmp_path / "target")
    found = compare_queue(work, ("orders", 0), kept=False)
    assert found.outcome == "different"
    assert found.note.startswith("1 units from queue offset 2 on: (0, 0, 0), not (")
    assert compare_queue(work, ("orders", 1), kept=False).outcome == "equal"
    assert compare_index_file(work, index.name).outcome == "different"


def test_a_log_without_files_and_one_that_is_short_are_refused(
    store: StoreConfig, tmp_path: Path
) -> None:
    files = sorted(store.commit_log_path.iterdir())
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with (
        open_offline(store) as offline,
        pytest.raises(StoreUnusableError, match="cometmq store repair"),
    ):
        work_on(offline, tmp_path / "target")
    for path in files:
        path.unlink()
    with (
        open_offline(store) as offline,
        pytest.raises(StoreUnusableError, match="nothing to build"),
    ):
        work_on(offline, tmp_path / "target")


def test_a_store_in_use_is_refused(store: StoreConfig) -> None:
    running = MessageStore(store, clock=ManualClock(), store_host=bytes(8))
    running.open()
    try:
        with pytest.raises(StoreLockedError), open_offline(store):
            pass
    finally:
        running.close()
