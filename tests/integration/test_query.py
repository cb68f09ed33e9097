"""Test codes 12 and 33 over the wire, with raw requests."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.raw_client import Command, RawClient, batch_body, properties, send_ext

from cometmq.testing import Cluster

SEND, QUERY, VIEW, BATCH = 310, 12, 33, 320
NOT_FOUND, SYSTEM_ERROR = 22, 1
ALWAYS = (1 << 63) - 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path, properties={"maxIndexNum": "50"}) as running:
        yield running


@pytest.fixture(params=["json", "binary"])
def client(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[RawClient]:
    binary = request.param == "binary"
    with RawClient(cluster.brokers[0].address, binary=binary) as connected:
        yield connected


def send(client: RawClient, body: bytes, topic: str = "orders", **texts: str) -> int:
    """Store a message; return its commit-log offset."""
    answer = client.ask(SEND, send_ext(topic, letters=True, properties=properties(texts)), body)
    assert answer.code == 0, answer.remark
    return int(answer.ext["msgId"][16:], 16)


def query(client: RawClient, key: str, topic: str = "orders", **fields: object) -> Command:
    ext: dict[str, object] = {
        "topic": topic,
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": ALWAYS,
    }
    return client.ask(QUERY, ext | fields)


def view(client: RawClient, offset: int) -> Command:
    return client.ask(VIEW, {"offset": offset})


def places(data: bytes) -> list[int]:
    """Return the physical offsets of the records in an answer."""
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        found.append(int.from_bytes(data[at + 28 : at + 36], "big"))
        at += size
    assert at == len(data)
    return found


def test_a_query_by_tag_is_refused_by_name(client: RawClient) -> None:
    """Java 5.5 indexes tags. The tag was taken for a key, so its messages seemed not to be there."""
    send(client, b"x", TAGS="paid", KEYS="k")
    refused = query(client, "paid", indexType="T")
    assert refused.code == SYSTEM_ERROR
    assert refused.remark is not None
    assert "indexType=T" in refused.remark
    assert query(client, "k", indexType="K").code == 0


def test_by_key_and_by_unique_id(client: RawClient) -> None:
    """A message is found as soon as its send is answered."""
    sent = [
        send(client, b"body-%d" % number, KEYS=f"all  k{number}", UNIQ_KEY=f"ID{number:030d}")
        for number in range(40)
    ]
    send(client, b"other", topic="other", KEYS="all")
    answer = query(client, "k7")
    assert answer.code == 0
    assert places(answer.body) == [sent[7]]
    assert b"body-7" in answer.body
    assert places(query(client, "all").body) == sent
    assert places(query(client, "all", maxNum=5).body) == sent[-5:]
    answer = query(client, f"ID{3:030d}", maxNum=0, _UNIQUE_KEY_QUERY="true")
    assert places(answer.body) == [sent[3]]
    assert len(places(query(client, "all", _UNIQUE_KEY_QUERY="true").body)) == 32
    assert int(answer.ext["indexLastUpdatePhyoffset"]) > sent[-1]
    assert int(answer.ext["indexLastUpdateTimestamp"]) > 1_700_000_000_000


def test_never_more_than_64(client: RawClient) -> None:
    sent = [send(client, b"x", KEYS="all") for _ in range(70)]
    assert places(query(client, "all", maxNum=1000).body) == sent[-64:]


def test_of_a_batch_each_message(client: RawClient) -> None:
    body = batch_body(
        (b"b%d" % number, properties({"KEYS": f"k{number}"}).encode()) for number in range(3)
    )
    answer = client.ask(BATCH, send_ext("orders", letters=True, batch="true"), body)
    ids = answer.ext["msgId"].split(",")
    assert places(query(client, "k2").body) == [int(ids[2][16:], 16)]


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "nothing"},
        {"topic": "unknown"},
        {"maxNum": 0},
        {"maxNum": -1},
        {"beginTimestamp": 0, "endTimestamp": 1000},
        {"beginTimestamp": ALWAYS},
        {"beginTimestamp": -(1 << 63), "endTimestamp": -1},
        {"key": ""},
    ],
    ids=str,
)
def test_nothing_found(client: RawClient, fields: dict[str, object]) -> None:
    send(client, b"x", KEYS="a")
    answer = query(client, **{"key": "a", **fields})  # type: ignore[arg-type]  # a dict of fields of several types
    assert (answer.code, answer.body) == (NOT_FOUND, b"")
    assert "can not find message" in (answer.remark or "")
    assert answer.ext["indexLastUpdateTimestamp"] == "0"


def test_a_field_that_is_missing(client: RawClient) -> None:
    answer = client.ask(QUERY, {"topic": "orders"})
    assert answer.code == SYSTEM_ERROR
    assert "key" in (answer.remark or "")


def test_view_by_offset(client: RawClient) -> None:
    sent = [send(client, b"body-%d" % number, KEYS="k") for number in range(3)]
    for number, place in enumerate(sent):
        answer = view(client, place)
        assert answer.code == 0
        assert places(answer.body) == [place]
        assert b"body-%d" % number in answer.body


def test_view_what_is_no_message(client: RawClient) -> None:
    first = send(client, b"x" * 50)
    last = send(client, b"y" * 50)
    wrong = [-1, -(1 << 63), 1, first + 4, first + 91, last + 1, last + 10_000, 1 << 62, ALWAYS]
    for offset in wrong:
        answer = view(client, offset)
        assert (answer.code, answer.body) == (SYSTEM_ERROR, b""), offset
        assert f"can not find message by the offset, {offset}" in (answer.remark or "")


def test_a_message_forged_in_a_body_is_not_served(client: RawClient) -> None:
    """A sender put a record, right down to its own offset, into a body."""
    real = send(client, b"x")
    record = view(client, real).body
    outer = real + len(record)
    inner = outer + 88
    forged = record[:28] + struct.pack(">q", inner) + record[36:]
    assert send(client, forged) == outer
    assert view(client, inner).code == SYSTEM_ERROR
    assert places(view(client, outer).body) == [outer]


def test_no_more_than_a_frame(tmp_path: Path) -> None:
    """Of 40 messages with 1 MiB each, only the newest that fit into a frame are returned."""
    with (
        Cluster(directory=tmp_path) as cluster,
        RawClient(cluster.brokers[0].address) as client,
    ):
        sent = [send(client, bytes(1 << 20), KEYS="big") for _ in range(40)]
        found = places(query(client, "big").body)
        assert 10 < len(found) < 17
        assert found == sent[-len(found) :]


def test_restarts_and_a_deleted_index(tmp_path: Path) -> None:
    """Keys are found after a restart, and the index that is built again equals the former one."""
    with Cluster(directory=tmp_path, properties={"maxIndexNum": "50"}) as cluster:
        index = cluster.brokers[0].store.config.index_path
        with RawClient(cluster.brokers[0].address) as client:
            sent = [send(client, b"x", KEYS=f"k{number} all") for number in range(100)]
        cluster.call("restart_broker", 0)
        before = [path.read_bytes() for path in sorted(index.iterdir())]
        assert len(before) > 3
        with RawClient(cluster.brokers[0].address) as client:
            assert places(query(client, "k0").body) == [sent[0]]
        cluster.call("stop_broker", 0)
        shutil.rmtree(index)
        cluster.call("start_broker", 0)
        with RawClient(cluster.brokers[0].address) as client:
            assert places(query(client, "k50").body) == [sent[50]]
            assert places(query(client, "all").body) == sent[-64:]
        after = [path.read_bytes() for path in sorted(index.iterdir())]
        assert after == before
