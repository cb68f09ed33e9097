"""Index files compared with those that Java wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.golden.golden import Golden, named, of_kind
from tests.unit.store.test_store_golden import java_store

from cometmq.model.measures.work import WorkBudget
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.files.disk import Disk
from cometmq.store.index.index_file import HEADER_SIZE, IndexFile, file_size
from cometmq.store.index.index_keys import IndexKeys


def columns(keys: list[dict[str, int]]) -> IndexKeys:
    names = ("hash", "offset", "storeTimestamp")
    return IndexKeys(*(np.array([key[name] for key in keys], np.int64) for name in names))


@pytest.mark.parametrize("golden", of_kind("index"), ids=str)
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_same_keys_give_the_same_file(golden: Golden, tmp_path: Path, at_once: int) -> None:
    wanted = golden.input
    previous: IndexFile | None = None
    if "previousEndTimestamp" in wanted:
        previous = IndexFile(Disk(), tmp_path / "previous", 1, 1)
        previous.end_timestamp = wanted["previousEndTimestamp"]
        previous.end_offset = wanted["previousEndOffset"]
    path = tmp_path / "index"
    file = IndexFile.create(Disk(), path, wanted["slots"], wanted["maxEntries"], previous)
    for start in range(0, len(wanted["keys"]), at_once):
        file.put(columns(wanted["keys"][start : start + at_once]))
    assert path.read_bytes() == golden.data


@pytest.mark.parametrize("golden", of_kind("index"), ids=str)
def test_a_file_of_java_is_read(golden: Golden, tmp_path: Path) -> None:
    wanted = golden.input
    path = tmp_path / "index"
    path.write_bytes(golden.data)
    file = IndexFile.load(Disk(), path, wanted["slots"], wanted["maxEntries"])
    assert (file.begin_timestamp, file.end_timestamp, file.begin_offset, file.end_offset) == (
        wanted["beginTimestamp"],
        wanted["endTimestamp"],
        wanted["beginOffset"],
        wanted["endOffset"],
    )
    assert (file.used_slot_count, file.count) == (wanted["usedSlots"], wanted["indexCount"])
    for key in wanted["keys"]:
        same = [one["offset"] for one in wanted["keys"] if one["hash"] == key["hash"]]
        found = file.select(key["hash"], 0, 1 << 62, WorkBudget(100), SYSTEM_CLOCK)
        assert list(found) == same[::-1]


def index_files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


@pytest.mark.parametrize("state", ["clean", "dirty", "without index", "dirty without queues"])
def test_the_index_of_a_java_broker(tmp_path: Path, state: str) -> None:
    """Kept or rebuilt from the log, the index equals the one that Java wrote."""
    store, root = java_store(tmp_path)
    before = index_files(root)
    if "without index" in state:
        shutil.rmtree(root / "index")
    if "queues" in state:
        shutil.rmtree(root / "consumequeue")
    if "dirty" in state:
        (root / "abort").write_text("12345")
    size = file_size(store.config.max_hash_slot_num, store.config.max_index_num)
    assert [len(data) for data in before] == [size]
    store.open()
    assert store.index.catch_up(store.commit_log.end, 60)
    for message in named("store").input["messages"]:
        place = message["commitLogOffset"]
        for key in [message["properties"]["UNIQ_KEY"], *message["keys"].split()]:
            found = store.index.query(message["topic"], key, 64, 0, 1 << 62).offsets
            assert place in found or len(found) == 64
        time = message["storeTimestamp"] // 1000 * 1000
        unique = message["properties"]["UNIQ_KEY"]
        found = store.index.query(message["topic"], unique, 64, time - 1000, time + 1999).offsets
        assert place in found
        data = store.message_at(place)
        assert data is not None
        assert int.from_bytes(data[28:36], "big") == place
    store.close()
    after = index_files(root)
    assert after[0][:HEADER_SIZE].hex() == before[0][:HEADER_SIZE].hex()
    assert after == before
