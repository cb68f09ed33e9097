"""A store's counts of the messages put to a topic, whichever way they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.store.store_box import CLIENT, Box

from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.ids import pack_host

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.store.store import MessageStore


def totals(store: MessageStore, topic: str) -> tuple[int, int, int]:
    found = store.queues.put_totals[topic]
    return found.message_count, found.byte_count, found.batch_rest


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enable_consume_queue_ext": True},
        {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    ],
    ids=["plain", "extended", "pooled"],
)
@pytest.mark.parametrize("host", [CLIENT, pack_host("::1", 1)], ids=["v4", "v6"])
def test_each_message_is_counted_once_with_the_size_of_its_record(
    tmp_path: Path, settings: dict[str, Any], host: bytes
) -> None:
    box = Box(tmp_path, mapped_file_size_commit_log=64 * 1024, **settings)
    store = box.open()
    began = store.commit_log.end
    for i in range(6):
        store.append(store.queue("t", i % 2), b"x" * i, b"", 0, 0, host, now_ms=box.clock.value)
    store.append_batch(
        store.queue("t", 0), [BatchEntry(0, b"a", b""), BatchEntry(0, b"bb", b"")], [0, 0], 0, host
    )
    assert totals(store, "t") == (8, store.commit_log.end - began, 1)
    store.append(store.queue("u", 0), b"x", b"", 0, 0, host, now_ms=box.clock.value)
    assert totals(store, "t")[0] == 8
    assert totals(store, "u")[0] == 1
    box.close()


def test_recovery_and_a_deleted_topic_leave_nothing_counted(tmp_path: Path) -> None:
    box = Box(tmp_path)
    store = box.open()
    for topic in ("t", "u"):
        store.append(store.queue(topic, 0), b"x", b"", 0, 0, CLIENT, now_ms=box.clock.value)
    queue = store.queue("u", 0)
    store.delete_topic("u")
    assert "u" not in store.queues.put_totals
    store.append(store.queue("u", 0), b"x", b"", 0, 0, CLIENT, now_ms=box.clock.value)
    assert totals(store, "u")[0] == 1
    assert store.queue("u", 0).totals is not queue.totals
    store.close()
    again = box.open()
    assert {topic: put.message_count for topic, put in again.queues.put_totals.items()} == {
        "t": 0,
        "u": 0,
    }
    box.close()
