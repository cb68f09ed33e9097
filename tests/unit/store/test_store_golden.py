"""Files that the Java store and a Java broker wrote are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.golden.golden import Golden, named, of_kind, unpack_store
from tests.unit.store.store_box import HOST, Box, ManualClock, records

from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord
from cometmq.runtime.configuration.config import from_properties
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.store import Boundary, MessageStore


def test_the_same_appends_give_the_same_files(make_box: Callable[..., Box]) -> None:
    """Records, blank records and units, over three files of the log."""
    box = make_box(mapped_file_size_commit_log=2048, mapped_file_size_consume_queue=2000)
    files = of_kind("commit-log-file")
    messages = files[0].input["messages"]
    store = box.new(host=_packed(messages[0]["storeHost"]))
    store.open()
    for message in messages:
        properties = message["propertiesString"]
        tags = decode_properties(properties).get("TAGS", "")
        _, place = store.append(
            store.queue(message["topic"], message["queueId"]),
            bytes.fromhex(message["storedBody"]),
            properties.encode(),
            java_hash(tags),
            message["bornTimestamp"],
            _packed(message["bornHost"]),
            flag=message["flag"],
            now_ms=message["storeTimestamp"],
        )
        assert place == message["commitLogOffset"]
    store.close()
    assert [path.read_bytes() for path in box.log_files] == [file.data for file in files]
    queue = (box.root / "consumequeue/TopicA/0" / f"{0:020d}").read_bytes()
    assert queue == named("consume-queue").data.ljust(2000, b"\0")


def _packed(host: dict[str, Any]) -> bytes:
    return pack_host(host["ip"], host["port"])


@pytest.mark.parametrize("golden", of_kind("checkpoint"), ids=str)
def test_the_checkpoint_both_ways(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(golden.data)
    checkpoint = Checkpoint(Disk(), path)
    checkpoint.load()
    wanted = golden.input
    assert (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_physical_offset,
        checkpoint.min_timestamp,
    ) == (
        wanted["physicMsgTimestamp"],
        wanted["logicsMsgTimestamp"],
        wanted["indexMsgTimestamp"],
        wanted["masterFlushedOffset"],
        wanted["confirmPhyOffset"],
        wanted["minTimestamp"],
    )
    path.unlink()
    checkpoint.flush()
    assert path.read_bytes() == golden.data


def java_store(directory: Path) -> tuple[MessageStore, Path]:
    root = unpack_store(directory)
    conf = named("store").input["conf"] | {"storePathRootDir": str(root)}
    config = from_properties(StoreConfig, conf)
    return MessageStore(config, clock=ManualClock(), store_host=HOST), root


def queue_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "consumequeue").rglob("0" * 12 + "*")
    }


def summary(record: StoredRecord) -> tuple[object, ...]:
    return (
        record.topic, record.queue_id, record.queue_offset, record.physical_offset,
        record.store_timestamp, record.flag, len(record.body), crc32(record.body),
    )  # fmt: skip


@pytest.mark.parametrize("state", ["clean", "dirty", "without queues", "dirty without queues"])
def test_a_store_of_the_java_broker(tmp_path: Path, state: str) -> None:
    store, root = java_store(tmp_path)
    before = queue_files(root)
    if "queues" in state:
        shutil.rmtree(root / "consumequeue")
    if "dirty" in state:
        (root / "abort").write_text("12345")
    store.open()
    for message in named("store").input["messages"]:
        topic, queue_id, offset = message["topic"], message["queueId"], message["queueOffset"]
        (found,) = [r for r in records(store, topic, queue_id) if r.queue_offset == offset]
        # The golden body is the one a client sees, decompressed where it was compressed.
        wanted = (
            topic, queue_id, offset, message["commitLogOffset"], message["storeTimestamp"],
            message["flag"],
        )  # fmt: skip
        assert summary(found)[:6] == wanted
        if not message["sysFlag"]:
            assert summary(found)[6:] == (message["size"], message["crc32"])
        first = store.offset_by_time(topic, queue_id, message["storeTimestamp"])
        last = store.offset_by_time(topic, queue_id, message["storeTimestamp"], Boundary.UPPER)
        assert first <= offset <= last
    store.close()
    assert queue_files(root) == before
