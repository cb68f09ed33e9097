"""Records of TLS connections: how many are opened in a turn of the loop, and that none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.waits import until

from cometmq.tls.records import RECORDS_AT_ONCE, TURN_S, RecordReader, RecordTurns

RECORD = bytes((23, 3, 3, 0, 22)) + bytes(22)
# What opening one takes, and so how many are opened in a turn at most: no longer than TURN_S, but for the
# last ones.
RECORD_S = 0.00003
MOST = int(TURN_S / RECORD_S) + RECORDS_AT_ONCE


class Under(asyncio.Transport):
    """The transport of a socket, and the TLS over it, which keeps what it is given."""

    def __init__(self, turns: RecordTurns) -> None:
        super().__init__()
        self.given: list[bytes] = []
        self.reads = True
        self.ended = False
        self._room = bytearray(4096)
        self.reader = RecordReader(turns, self)

    def get_protocol(self) -> Any:
        return self

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.reads = False

    def get_buffer(self, _wanted: int) -> bytearray:
        return self._room

    def buffer_updated(self, count: int) -> None:
        self.given.append(bytes(self._room[:count]))

    def eof_received(self) -> None:
        self.ended = True

    @property
    def records(self) -> int:
        return len(b"".join(self.given)) // len(RECORD)


class Work:
    """The processor time of a thread for which each record takes as long as a request for new keys."""

    def __init__(self) -> None:
        self.peers: list[Under] = []

    def __call__(self) -> float:
        return sum(peer.records for peer in self.peers) * RECORD_S


def peers(count: int) -> list[Under]:
    work = Work()
    turns = RecordTurns(work)
    work.peers = [Under(turns) for _ in range(count)]
    return work.peers


@pytest.fixture
async def under() -> Under:
    return peers(1)[0]


async def test_short_records_are_opened_some_in_a_turn(under: Under) -> None:
    """A peer can ask for new keys by records of 27 bytes: 256 KiB of them held the loop for 0.3 s."""
    under.reader.data_received(RECORD * 1000)
    assert under.records == RECORDS_AT_ONCE
    assert not under.reads
    before = under.records
    while under.records < 1000:
        await asyncio.sleep(0)
        assert 0 < under.records - before <= MOST
        before = under.records
    assert under.reads


async def test_connections_share_a_turn_and_take_turns() -> None:
    """Each had a hundred records at once: four connections held the loop for 25 ms."""
    all_ = peers(20)
    for each in all_:
        each.reader.data_received(RECORD * 500)
    assert sum(each.records for each in all_) <= MOST
    while min(each.records for each in all_) < 100:
        before = sum(each.records for each in all_)
        await asyncio.sleep(0)
        assert 0 < sum(each.records for each in all_) - before <= MOST
    assert max(each.records for each in all_) <= 100 + 3 * RECORDS_AT_ONCE, "they go on together"
    await until(lambda: [each.records for each in all_] == [500] * 20)


async def test_who_has_just_sent_something_does_not_wait_for_a_backlog() -> None:
    *flood, client = peers(20)
    for each in flood:
        each.reader.data_received(RECORD * 500)
    await asyncio.sleep(0)
    client.reader.data_received(RECORD)
    assert client.records == 1


async def test_long_records_wait_for_nothing(under: Under) -> None:
    record = bytes((23, 3, 3, 64, 0)) + bytes(16 * 1024)
    under.reader.data_received(record * 16)
    assert len(b"".join(under.given)) == 16 * len(record)
    assert under.reads


@pytest.mark.parametrize("size", [1, 3, 5, 26, 28])
async def test_records_may_come_in_any_pieces(under: Under, size: int) -> None:
    data = b"".join(bytes((23, 3, 3, 0, at)) + bytes([at]) * at for at in range(60))
    for at in range(0, len(data), size):
        under.reader.data_received(data[at : at + size])
    await until(lambda: b"".join(under.given) == data)


async def test_who_does_not_read_is_given_nothing(under: Under) -> None:
    under.reader.data_received(RECORD * 100)
    under.reader.hold()
    held = under.records
    under.reader.data_received(RECORD)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (under.records, under.reads) == (held, False)
    under.reader.release()
    await until(lambda: under.records == 101)
    assert under.reads


async def test_the_end_of_the_stream_comes_behind_its_records(under: Under) -> None:
    under.reader.data_received(RECORD * 100)
    assert under.reader.eof_received()
    assert not under.ended
    await until(lambda: under.ended)
    assert under.records == 100
