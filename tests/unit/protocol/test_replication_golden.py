"""Recorded bytes between Java's masters and slaves, read in the parts in which they came."""

import itertools

import pytest
from tests.golden.replication import load
from tests.interop.ha_tap import Connection

from cometmq.protocol.replication import FrameReader, ReportReader, encode_head, encode_report

RECORDINGS = load()
HEARTBEAT_MS = 5_000
# What a Java broker needs beyond its interval, on a machine that was busy.
LATE_MS = 3_000

recordings = pytest.mark.parametrize(
    "connection", [pytest.param(found, id="-".join(key)) for key, found in RECORDINGS.items()]
)


def said(connection: Connection, side: str) -> bytes:
    return b"".join(chunk.data for chunk in connection.chunks if chunk.side == side)


@recordings
def test_frames_of_a_master_are_read(connection: Connection) -> None:
    reader = FrameReader()
    copied = bytearray()
    begin: int | None = None
    for chunk in connection.chunks:
        if chunk.side == "master":
            for offset, part in reader.feed(chunk.data):
                begin = offset if begin is None else begin
                assert offset == begin + len(copied)
                copied += part
    frames = connection.frames()
    assert begin == frames[0].offset
    # Nothing of a frame has come whose rest is missing: the next one is read as such.
    ((offset, part),) = reader.feed(encode_head(begin + len(copied), 0))
    assert (offset, bytes(part)) == (begin + len(copied), b"")
    assert copied == b"".join(frame.body for frame in frames)


@recordings
def test_reports_of_a_slave_are_read(connection: Connection) -> None:
    reader = ReportReader()
    last = None
    for chunk in connection.chunks:
        if chunk.side == "slave":
            last = reader.feed(chunk.data)
    assert last == connection.reports()[-1].offset


@recordings
def test_the_same_bytes_are_written(connection: Connection) -> None:
    frames = [
        encode_head(frame.offset, len(frame.body)) + frame.body for frame in connection.frames()
    ]
    assert b"".join(frames) == said(connection, "master")
    reports = [encode_report(report.offset) for report in connection.reports()]
    assert b"".join(reports) == said(connection, "slave")


@recordings
def test_a_slave_reports_once_for_each_frame_and_at_least_every_five_seconds(
    connection: Connection,
) -> None:
    reports = connection.reports()
    ends = {frame.offset + len(frame.body) for frame in connection.frames()}
    assert {report.offset for report in reports[1:]} <= ends
    for before, after in itertools.pairwise(reports):
        assert after.at_ms - before.at_ms < HEARTBEAT_MS + LATE_MS


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_an_empty_slave_is_sent_the_last_file(version: str) -> None:
    connection = RECORDINGS[version, "last-file"]
    assert connection.reports()[0].offset == 0
    assert connection.frames()[0].offset == 2 * 256 * 1024


def test_a_master_that_has_been_silent_begins_with_an_empty_frame() -> None:
    """The slave takes it for the beginning of its log, and says so."""
    connection = RECORDINGS["4.9.7", "last-file"]
    first = connection.frames()[0]
    assert first.body == b""
    assert connection.reports()[1].offset == first.offset > 0


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_slave_that_comes_again_goes_on_where_its_log_ends(version: str) -> None:
    end = RECORDINGS[version, "empty"].reports()[-1].offset
    connection = RECORDINGS[version, "again"]
    assert connection.reports()[0].offset == end
    assert connection.frames()[0].offset == end
