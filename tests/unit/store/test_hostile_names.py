"""Topics whose names are paths: what a master may send, and what a log from elsewhere may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.store_box import Box, put

from cometmq.errors import MessageIllegalError
from cometmq.store.offline import repair
from cometmq.store.offline.dump import Filter, dump
from cometmq.store.offline.stats import collect
from cometmq.store.offline.store import OfflineStore, open_offline

# Each has eleven bytes, so that it can stand where another topic stood.
HOSTILE = [
    "../../stolen",
    "../stolen/12",
    "/tmp/stolen1",
    "a/../../../b",
    "stolen/../..",
    "stolen\0name1",
]
HARMLESS = "harmless1234"
SHORT = ["..", ".", "", "a/b", "\0", "x" * 300]


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box()


def everything(root: Path) -> set[str]:
    """Return all paths around the store, without those in it."""
    around = {str(path) for path in root.parent.rglob("*") if root not in path.parents}
    return around | {str(path) for path in Path("/tmp").glob("stolen*")}


def log_with(box: Box, topic: str) -> bytes:
    """Return a commit log whose first message has a topic that no broker of ours would take."""
    store = box.open()
    put(store, topic=HARMLESS)
    put(store, topic="orders")
    base, _, view = store.commit_log.window(0)
    data = bytes(view[: store.commit_log.end - base])
    store.close()
    assert len(topic.encode()) == len(HARMLESS)
    return data.replace(HARMLESS.encode(), topic.encode())


def lines_of(offline: OfflineStore) -> Iterator[dict[str, Any]]:
    return dump(offline, Filter(), decode_body=lambda *_: b"", on_damage=lambda _: None)


@pytest.mark.parametrize("topic", [*HOSTILE, *SHORT])
def test_no_queue_has_a_path_for_a_name(box: Box, topic: str) -> None:
    store = box.open()
    before = everything(box.root)
    with pytest.raises(MessageIllegalError):
        put(store, topic=topic)
    assert store.commit_log.end == 0
    assert everything(box.root) == before


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_slave_makes_no_path_of_what_its_master_sends(
    box: Box, make_box: Callable[..., Box], topic: str
) -> None:
    data = log_with(box, topic)
    copied = make_box()
    copy = copied.open()
    before = everything(copied.root)
    copy.append_replicated(0, data)
    # The record stays in the log, as on the master; the others are served.
    assert copy.commit_log.end == len(data)
    assert {queue.topic for queue in copy.queues} == {"orders"}
    assert copy.max_offset("orders", 0) == 1
    copy.close()
    assert everything(copied.root) == before


# A topic with a NUL is no text: recovery calls it damage and stops.
@pytest.mark.parametrize("topic", HOSTILE[:-1])
def test_a_log_from_elsewhere_reaches_nothing_outside_its_store(box: Box, topic: str) -> None:
    data = log_with(box, topic)
    log_file = box.log_files[0]
    log_file.write_bytes(data.ljust(log_file.stat().st_size, b"\0"))
    (box.root / "abort").write_text("1")
    before = everything(box.root)

    # The tools read it.
    with open_offline(box.config) as offline:
        found = [line["topic"] for line in lines_of(offline)]
        assert found[-1] == "orders"
        collect(offline)
        report = repair.check_open(offline)
        plan = repair.plan_repair(offline, report)
    assert everything(box.root) == before
    del plan

    # A broker serves what else there is.
    store = box.open()
    assert {queue.topic for queue in store.queues} == {"orders"}
    assert store.max_offset("orders", 0) == 1
    store.close()
    assert everything(box.root) == before
