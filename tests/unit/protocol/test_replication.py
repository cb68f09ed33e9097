"""The frames of the HA protocol: whole, split anywhere, and lying."""

import struct

import pytest

from cometmq.errors import FrameTooLargeError, ProtocolError
from cometmq.protocol.replication import (
    MAX_BODY_SIZE,
    FrameReader,
    ReportReader,
    encode_head,
    encode_report,
)


def read(reader: FrameReader, data: bytes) -> list[tuple[int, bytes]]:
    return [(offset, bytes(part)) for offset, part in reader.feed(data)]


def test_the_layout_is_that_of_java() -> None:
    assert encode_report(0x0102030405060708) == bytes(range(1, 9))
    assert encode_head(0x0102030405060708, 0x090A0B0C) == bytes(range(1, 13))


def test_frames_are_read_as_they_come() -> None:
    stream = encode_head(500, 3) + b"abc" + encode_head(503, 0) + encode_head(503, 2) + b"de"
    assert read(FrameReader(), stream) == [(500, b"abc"), (503, b""), (503, b"de")]


@pytest.mark.parametrize("cut", range(1, 41))
def test_a_cut_at_any_byte_changes_nothing(cut: int) -> None:
    stream = encode_head(500, 3) + b"abc" + encode_head(503, 0) + encode_head(503, 2) + b"de"
    reader = FrameReader()
    pieces = read(reader, stream[:cut]) + read(reader, stream[cut:])
    copied = {offset + i: byte for offset, part in pieces for i, byte in enumerate(part)}
    assert bytes(copied[offset] for offset in range(500, 505)) == b"abcde"
    assert len(copied) == 5
    assert read(reader, encode_head(505, 1) + b"f") == [(505, b"f")]


def test_a_body_is_given_before_all_of_it_has_come() -> None:
    reader = FrameReader()
    assert read(reader, encode_head(7, 100) + b"ab") == [(7, b"ab")]
    assert read(reader, b"c") == [(9, b"c")]


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        (-1, 5, "negative offset -1"),
        (5, -1, "negative size -1"),
        (0, MAX_BODY_SIZE + 1, f"the limit is {MAX_BODY_SIZE}: lower haTransferBatchSize"),
        (0, 2**31 - 1, "declares 2147483647 bytes"),
        (2**63 - 5, 5, "behind the last possible offset"),
    ],
)
def test_a_lying_head_is_refused_with_the_reason(offset: int, size: int, reason: str) -> None:
    reader = FrameReader()
    good = encode_head(3, 1) + b"x"
    pieces = reader.feed(good + encode_head(offset, size))
    assert bytes(next(pieces).data) == b"x"
    with pytest.raises(ProtocolError, match=reason):
        next(pieces)
    with pytest.raises(ProtocolError, match=reason):
        read(reader, good)


def test_the_limit_of_a_body_is_a_refusal_of_its_own() -> None:
    with pytest.raises(FrameTooLargeError):
        read(FrameReader(10), encode_head(0, 11))
    assert read(FrameReader(10), encode_head(0, 10)) == []


def test_the_last_offset_possible_is_no_fault() -> None:
    assert read(FrameReader(), encode_head(2**63 - 2, 1) + b"x") == [(2**63 - 2, b"x")]


def test_the_last_report_of_a_read_counts() -> None:
    reader = ReportReader()
    assert reader.feed(encode_report(5) + encode_report(9)) == 9


@pytest.mark.parametrize("cut", range(17))
def test_reports_may_be_cut_anywhere(cut: int) -> None:
    reader, stream = ReportReader(), encode_report(5) + encode_report(2**40)
    first, second = reader.feed(stream[:cut]), reader.feed(stream[cut:])
    assert (second if cut < 16 else first) == 2**40
    assert first == (None if cut < 8 else 5 if cut < 16 else 2**40)


def test_a_negative_report_is_refused_also_in_front_of_a_good_one() -> None:
    with pytest.raises(ProtocolError, match="negative commit-log offset -3"):
        ReportReader().feed(struct.pack(">qq", -3, 5))
