"""The checker's reader of store files, on files that the Java broker wrote, and on damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.golden import of_kind, unpack_store
from tests.simulation.checker import check
from tests.simulation.evidence import Evidence, StoreImage
from tests.simulation.history import History, Outgoing
from tests.simulation.invariants import files_agree
from tests.simulation.store_reader import Gap, Store, java_hash, parse_state, position_of
from tests.unit.simulation.story import TOPIC, MadeStore, offset_msg_id

from cometmq.model.java import hashing


@pytest.fixture
def java_files(tmp_path: Path) -> dict[str, bytes]:
    root = unpack_store(tmp_path)
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_the_store_of_a_java_broker_is_read(java_files: dict[str, bytes]) -> None:
    golden = of_kind("store")[0].input
    store = Store(java_files, int(golden["conf"]["maxHashSlotNum"]))
    assert store.gaps == []
    assert len(store.records) == len(golden["messages"])
    for message in golden["messages"]:
        record = store.by_position[message["commitLogOffset"]]
        seen = (record.topic, record.queue_id, record.queue_offset, record.fault)
        assert seen == (message["topic"], message["queueId"], message["queueOffset"], None)
        for name in ("KEYS", "TAGS", "UNIQ_KEY"):
            assert record.properties.get(name) == message["properties"].get(name)
        assert position_of(message["offsetMsgId"]) == record.position
        for key in message["properties"].get("KEYS", "").split():
            assert record.position in store.look_up(record.topic, key)
    assert store.committed_offsets()["audit", "orders", 1] == 125
    assert store.state("nothing.json") is None


def test_the_files_of_a_java_broker_agree(java_files: dict[str, bytes]) -> None:
    evidence = Evidence(History(), {"broker-a": StoreImage(files=java_files, state="running")})
    assert list(files_agree.judge(evidence)) == []


def two_messages(change: Callable[[bytearray], Any]) -> Store:
    made = MadeStore()
    for number in range(3):
        made.add(Outgoing(number=number, body=b"x" * 100))
    files = made.image().files
    log = bytearray(files[f"commitlog/{0:020}"])
    change(log)
    return Store({**files, f"commitlog/{0:020}": bytes(log)})


def test_a_record_that_is_none_leaves_a_gap() -> None:
    whole = two_messages(lambda log: None)
    first, second, third = whole.records

    def damage(log: bytearray) -> None:
        log[second.position + 5] ^= 1

    damaged = two_messages(damage)
    assert damaged.records == [first, third]
    assert damaged.gaps == [Gap(second.position, third.position)]


def test_what_no_record_follows_is_the_end_of_the_log() -> None:
    whole = two_messages(lambda log: None)

    def damage(log: bytearray) -> None:
        log[whole.records[2].position + 5] ^= 1

    damaged = two_messages(damage)
    assert damaged.records == whole.records[:2]
    assert damaged.gaps == []
    assert damaged.end == whole.records[2].position


def test_a_body_with_another_crc_is_a_fault_of_its_record() -> None:
    def damage(log: bytearray) -> None:
        log[log.index(b"xxx")] ^= 1

    damaged = two_messages(damage)
    assert [each.fault for each in damaged.records] == ["its body has another CRC", None, None]


def test_a_gap_in_a_store_is_named() -> None:
    made = MadeStore()
    for number in range(3):
        made.add(Outgoing(number=number, body=b"x" * 100))
    image = made.image()
    log = bytearray(image.files[f"commitlog/{0:020}"])
    second = Store(image.files).records[1]
    log[second.position + 5] ^= 1
    image.files[f"commitlog/{0:020}"] = bytes(log)
    found = [str(each) for each in check(History(), {"broker-a": image})]
    gap = f"files agree: in the store of broker-a bytes {second.position} to {second.end}"
    assert any(each.startswith(gap) for each in found)
    assert (
        f"files agree: in the store of broker-a unit 1 of {TOPIC}/0 points to {second.position}, no record"
        in found
    )


def test_state_files_have_integer_keys_without_quotes() -> None:
    text = '{"offsetTable":{"%RETRY%g@g":{0:12, 10 : -1},"a,{1:@g":{"x":{3:[1,2]}}}}'
    assert parse_state(text) == {
        "offsetTable": {"%RETRY%g@g": {"0": 12, "10": -1}, "a,{1:@g": {"x": {"3": [1, 2]}}}
    }


@pytest.mark.parametrize("text", ["", "a", "orders#k1", "标签", "😀", "polygenelubricants"])
def test_hashes_are_those_of_java(text: str) -> None:
    assert java_hash(text) == hashing.java_hash(text)


def test_an_offset_message_id_names_a_place_of_the_log() -> None:
    assert position_of(offset_msg_id(4711)) == 4711
