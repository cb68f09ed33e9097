"""Test reading ranges of queues as bytes, with many pulls at a time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.waits import eventually

from cometmq import Credentials, Message, MessageQueue, Producer
from cometmq.bulk.range_pulls import Missing
from cometmq.bulk.range_reader import BlockingRangeReader, RangeReader
from cometmq.errors import (
    CometMQError,
    ConnectError,
    FilterExpressionError,
    IllegalArgumentError,
    RemoteError,
    RouteNotFoundError,
)
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.testing.cluster import Cluster

COUNT = 3000
QUEUE = MessageQueue("orders", "broker-a", 0)
# A pull returns 32 messages or fewer: messages of these sizes do not all fit into its bytes.
LIMITS = {"maxTransferBytesOnMessageInMemory": str(16 * 1024), "enablePropertyFilter": "true"}


def body(at: int) -> bytes:
    return b"%d " % at * (1 + at * 7919 % 400)


pytestmark = [pytest.mark.cluster(properties=LIMITS)]


@pytest.fixture(scope="module")
def namesrv(real_cluster: Cluster) -> str:
    fill(real_cluster.namesrv, COUNT)
    return real_cluster.namesrv


def fill(namesrv: str, count: int) -> None:
    with Producer("filler", namesrv=namesrv) as producer:
        producer.send(Message("orders", b"makes the topic"), queue=QUEUE._replace(queue_id=1))
        for start in range(0, count, 100):
            messages = [
                Message("orders", body(at), tags=("a", "b")[at % 2], properties={"n": str(at)})
                for at in range(start, start + 100)
            ]
            producer.send_batch(messages, queue=QUEUE)


@pytest.fixture(scope="module")
def reader(namesrv: str) -> Iterator[BlockingRangeReader]:
    with BlockingRangeReader(namesrv=namesrv, patience_ms=500) as reader:
        yield reader


def read(reader: BlockingRangeReader, start: int, end: int, **selection: Any) -> list[StoredRecord]:
    records: list[StoredRecord] = []
    position = start
    for chunk in reader.read(QUEUE, start, end, **selection):
        assert chunk.start == position
        assert not chunk.missing
        position = chunk.end
        records += decode_records(chunk.records)
    assert position == end
    return records


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(bounds=st.tuples(st.integers(0, COUNT), st.integers(0, COUNT)).map(sorted))
def test_a_range_gives_each_offset_once_and_in_order(
    reader: BlockingRangeReader, bounds: list[int]
) -> None:
    start, end = bounds
    records = read(reader, start, end)
    assert [record.queue_offset for record in records] == list(range(start, end))
    assert all(record.body == body(record.queue_offset) for record in records)


def test_what_there_is_to_read(reader: BlockingRangeReader) -> None:
    assert "orders" in reader.topics()
    queues = reader.queues("orders")
    assert QUEUE in queues
    assert reader.offsets(queues)[QUEUE] == (0, COUNT)
    (record,) = read(reader, 7, 8)
    found = reader.offsets_for_timestamp([QUEUE], record.store_timestamp)[QUEUE]
    assert found <= 7
    assert read(reader, found, found + 1)[0].store_timestamp == record.store_timestamp


def test_a_selection_is_made_by_the_broker(reader: BlockingRangeReader) -> None:
    by_tag = [r for r in read(reader, 0, 1000, tags="a") if r.queue_offset < 1000]
    assert [record.queue_offset for record in by_tag] == list(range(0, 1000, 2))
    by_sql = [r for r in read(reader, 0, COUNT, sql="n > 2990") if r.queue_offset < COUNT]
    assert [record.queue_offset for record in by_sql] == list(range(2991, COUNT))


def test_a_selection_that_cannot_be_is_refused(reader: BlockingRangeReader) -> None:
    reader.check_selection("orders", sql="n > 5")
    with pytest.raises((RemoteError, FilterExpressionError), match=r"n > > 5|line 1"):
        reader.check_selection("orders", sql="n > > 5")
    with pytest.raises(IllegalArgumentError):
        reader.check_selection("orders", "a", sql="n > 5")


def test_offsets_behind_the_end_are_missing(reader: BlockingRangeReader) -> None:
    chunks = list(reader.read(QUEUE, COUNT - 10, COUNT + 100_000))
    assert sum(len(list(decode_records(chunk.records))) for chunk in chunks) == 10
    assert [missing for chunk in chunks for missing in chunk.missing] == [
        (COUNT, COUNT + 100_000, Missing.BEYOND_THE_END)
    ]


def test_offsets_that_retention_took_are_missing(tmp_path: Path) -> None:
    properties = {"mappedFileSizeCommitLog": str(256 * 1024)}
    with Cluster(directory=tmp_path, properties=properties) as cluster:
        fill(cluster.namesrv, 1000)
        cluster.call("stop_broker", 0)
        (tmp_path / "broker-a" / "commitlog" / f"{0:020d}").unlink()
        cluster.call("start_broker", 0)
        with BlockingRangeReader(namesrv=cluster.namesrv) as reader:
            low = reader.offsets([QUEUE])[QUEUE][0]
            assert 0 < low < 1000
            chunks = list(reader.read(QUEUE, 0, 1000))
    missing = [missing for chunk in chunks for missing in chunk.missing]
    assert {entry.cause for entry in missing} == {Missing.RETENTION}
    assert [at for entry in missing for at in range(entry.start, entry.end)] == list(range(low))
    offsets = [r.queue_offset for chunk in chunks for r in decode_records(chunk.records)]
    assert offsets == list(range(low, 1000))


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path, properties=LIMITS) as cluster:
        fill(cluster.namesrv, COUNT)
        with BlockingRangeReader(namesrv=cluster.namesrv) as reader:
            offsets = []
            for count, chunk in enumerate(reader.read(QUEUE, 0, COUNT)):
                if count == 0:
                    cluster.call("restart_broker", 0)
                offsets += [record.queue_offset for record in decode_records(chunk.records)]
    assert offsets == list(range(COUNT))


def test_offsets_of_a_group_are_kept(reader: BlockingRangeReader) -> None:
    group = "TOOLS_CONSUMER"
    reader.commit(group, {QUEUE: 17})
    other = QUEUE._replace(queue_id=2)
    assert reader.committed(group, [QUEUE, other]) == {QUEUE: 17, other: None}


def test_a_group_without_an_offset_has_none_and_not_0_while_the_first_message_is_in_memory(
    reader: BlockingRangeReader,
) -> None:
    group = "TOOLS_CONSUMER"
    begun, other = QUEUE._replace(queue_id=1), QUEUE._replace(queue_id=0)
    assert reader.offsets([begun]) == {begun: (0, 1)}
    assert reader.committed(group, [begun]) == {begun: None}
    reader.commit("TOOLS_CONSUMER", {other: 0})
    assert reader.committed(group, [other]) == {other: 0}


def test_what_is_not_there(reader: BlockingRangeReader) -> None:
    with pytest.raises(RouteNotFoundError, match="knows a route of topic nothing"):
        reader.queues("nothing")
    lost = MessageQueue("orders", "broker-z", 0)
    with pytest.raises(RouteNotFoundError, match="names no broker broker-z"):
        reader.offsets([lost])
    with (
        BlockingRangeReader(namesrv="127.0.0.1:1") as nobody,
        pytest.raises(ConnectError, match=r"no connection to 127\.0\.0\.1:1"),
    ):
        nobody.queues("orders")


def test_both_faces_take_the_same() -> None:
    for name in ("topics", "queues", "check_selection", "offsets", "commit", "committed", "read"):
        ours, theirs = (getattr(cls, name) for cls in (BlockingRangeReader, RangeReader))
        assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters


async def test_the_asyncio_face(namesrv: str) -> None:
    async with RangeReader(namesrv=namesrv) as reader:
        (bounds,) = (await reader.offsets([QUEUE])).values()
        offsets = [
            record.queue_offset
            async for chunk in reader.read(QUEUE, *bounds)
            for record in decode_records(chunk.records)
        ]
        assert offsets == list(range(COUNT))
        # A reader that is left early has no pull under way any more.
        async with aclosing(reader.read(QUEUE, 0, COUNT)) as chunks:
            async for _ in chunks:
                break
    assert not [task for task in asyncio.all_tasks() if "range-" in task.get_name()]


def test_windows_are_read_over_tls_and_with_signed_pulls() -> None:
    owner = Credentials("admin", "admin-secret")
    guarded = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    }
    with Cluster(tls=True, properties=guarded, namesrv_properties=guarded) as cluster:
        known: dict[str, Any] = {"namesrv": cluster.namesrv, "tls": cluster.tls}
        with Producer("filler", credentials=owner, **known) as producer:
            producer.send(Message("orders", b"makes the topic"), queue=QUEUE._replace(queue_id=1))
            for start in range(0, 1000, 100):
                sent = [Message("orders", b"%d" % at) for at in range(start, start + 100)]
                producer.send_batch(sent, queue=QUEUE)
        # While the name server knows no route, a reader falls back to pulls without windows.
        eventually(lambda: cluster.name_servers[0].table.route(QUEUE.topic))
        with BlockingRangeReader(credentials=owner, **known) as reader:
            chunks = list(reader.read(QUEUE, 0, 1000))
        assert all(chunk.window is not None for chunk in chunks)
        records = [one for chunk in chunks for one in decode_records(chunk.records)]
        assert [one.body for one in records] == [b"%d" % at for at in range(1000)]
        stranger = Credentials("stranger", "secret")
        with (
            BlockingRangeReader(credentials=stranger, patience_ms=0, **known) as reader,
            pytest.raises(CometMQError),
        ):
            list(reader.read(QUEUE, 0, 1000))
