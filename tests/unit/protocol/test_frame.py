from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.growth import check_growth, cpu_seconds

from cometmq.errors import FrameTooLargeError, ProtocolError
from cometmq.protocol.frame import Frame, FrameDecoder, SerializeType, encode_frame, frame_prefix

# Longer than what is kept in one piece.
LONG_BODY = bytes(range(256)) * 1_500

frames = st.builds(
    Frame,
    st.sampled_from([0, 1, 7, 255]),
    st.binary(max_size=60),
    st.binary(max_size=200),
)


def encode(frame: Frame) -> bytes:
    return encode_frame(frame.header, frame.body, frame.serialize_type)


def test_layout_is_length_type_header_length_header_body() -> None:
    assert encode_frame(b"head", b"body!") == b"\0\0\0\x0d\0\0\0\4headbody!"
    assert encode_frame(b"head", b"", SerializeType.ROCKETMQ) == b"\0\0\0\x08\1\0\0\4head"


@given(st.lists(frames, max_size=6))
def test_frames_that_come_in_one_read_all_come_out(sent: list[Frame]) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"".join(map(encode, sent))) == sent
    assert decoder.buffered == 0


@given(st.lists(frames, max_size=4))
def test_reads_of_one_byte_give_the_same_frames(sent: list[Frame]) -> None:
    decoder = FrameDecoder()
    stream = b"".join(map(encode, sent))
    received = [frame for i in range(len(stream)) for frame in decoder.feed(stream[i : i + 1])]
    assert received == sent
    assert decoder.buffered == 0


@given(st.lists(frames, min_size=1, max_size=5), st.data())
def test_any_split_of_the_stream_gives_the_same_frames(
    sent: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert received == sent


@given(st.data())
def test_any_split_of_long_frames_gives_the_same_frames(data: st.DataObject) -> None:
    sent = [
        Frame(0, b"h" * 90, b"b" * 200),
        *(2 * [Frame(1, b"header", LONG_BODY)]),
        Frame(7, b"", b""),
    ]
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = FrameDecoder()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
        assert decoder.buffered == end - sum(len(encode(frame)) for frame in received)
    assert received == sent


def test_a_long_frame_of_single_bytes_takes_little_more_than_its_bytes() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(b"header", LONG_BODY)
    tracemalloc.start()
    for position in range(len(stream) - 1):
        decoder.feed(stream[position : position + 1])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1.3 * len(stream)
    assert decoder.unfinished_header() == Frame(0, b"header", b"")
    assert decoder.feed(stream[-1:]) == [Frame(0, b"header", LONG_BODY)]


@pytest.mark.parametrize("read", [1_000, 65_536, 262_144])
def test_the_last_read_of_a_long_frame_joined_all_that_came_before(read: int) -> None:
    """A frame of 16 MiB was joined from its parts in one piece, which took the loop 10 ms."""
    body = bytes(range(256)) * (16 * 4096 - 1)
    stream = encode_frame(b"header", body)
    decoder = FrameDecoder()
    position, most = 0, 0
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    while position < len(stream):
        data = stream[position : position + read]
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        frames = decoder.feed(data)
        _, peak = tracemalloc.get_traced_memory()
        position += len(data)
        if 2 * position > len(stream) + 4 * read:  # the place for the whole is there
            most = max(most, peak - held)
        # Who declares much and sends little takes no more than he sends, and two copies of a read.
        elif 2 * (position + read) < len(stream):
            assert peak - before < 1.1 * position + 2 * read + 4 * 65_536
        assert peak - before < len(stream) + position + 4 * 262_144
    tracemalloc.stop()
    assert most < read + 4 * 65_536, "nothing is copied but what was read, and as much again"
    assert frames == [Frame(0, b"header", body)]


def test_a_long_frame_that_is_dropped_is_not_held() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"header", LONG_BODY)[:-1])
    assert decoder.buffered > len(LONG_BODY)
    decoder.drop()
    assert decoder.buffered == 0
    assert decoder.unfinished_header() is None


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_any_bytes_give_frames_or_a_protocol_error(reads: list[bytes]) -> None:
    decoder = FrameDecoder(max_frame_length=1000)
    try:
        for read in reads:
            decoder.feed(read)
            assert decoder.buffered <= 1004
    except ProtocolError:
        pass


def test_a_frame_above_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(
        FrameTooLargeError,
        match=r"declares 1001 bytes, the limit com\.\w+\.remoting\.frameMaxLength is 1000",
    ):
        FrameDecoder(max_frame_length=1000).feed((1001).to_bytes(4, "big"))


def test_a_frame_above_the_limit_is_refused_when_its_length_comes_byte_by_byte() -> None:
    decoder = FrameDecoder(max_frame_length=1000)
    *first, last = [bytes([byte]) for byte in (1001).to_bytes(4, "big")]
    assert [decoder.feed(byte) for byte in first] == [[], [], []]
    with pytest.raises(FrameTooLargeError):
        decoder.feed(last)


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    body = bytes(1000 - 4 - 10)
    assert FrameDecoder(max_frame_length=1000).feed(encode_frame(b"h" * 10, body))[0].body == body


@pytest.mark.parametrize(
    "lie",
    [
        b"\0\0\0\0\0\0\0\0",  # a total too small for the type and header length
        b"\0\0\0\3\0\0\0\0",
        b"\0\0\0\4\0\0\0\1",  # a header longer than the frame
        b"\0\0\0\x10\0\xff\xff\xff",
    ],
)
def test_lengths_that_contradict_each_other_are_refused(lie: bytes) -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError, match="declares"):
        decoder.feed(lie + bytes(16))
    with pytest.raises(ProtocolError, match="declares"):
        decoder.feed(encode_frame(b"a header"))


def test_what_came_whole_before_a_lie_is_not_lost_with_it() -> None:
    decoder = FrameDecoder()
    lie = b"\0\0\0\3\0\0\0\0"
    assert decoder.feed(encode_frame(b"fine", b"frame") + lie) == [Frame(0, b"fine", b"frame")]
    with pytest.raises(ProtocolError, match="declares"):
        decoder.check()


def test_a_header_longer_than_its_frame_is_refused_before_the_frame_came() -> None:
    """Found by fuzzing: with single bytes, the decoder noticed the wrong length only when the whole
    frame had arrived.
    """
    decoder = FrameDecoder()
    *first, last = [bytes([byte]) for byte in b"\0\0\0\xdd\0\0\x2c\0"]
    assert [decoder.feed(byte) for byte in first] == [[]] * 7
    with pytest.raises(ProtocolError, match="header of 11264 bytes"):
        decoder.feed(last)


def test_a_total_length_too_small_is_refused_when_it_comes_alone() -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(b"\0\0\0\3")


def test_a_header_too_long_for_three_bytes_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match="16777216 bytes"):
        frame_prefix(1 << 24, 0)


def test_the_header_of_an_unfinished_frame_can_be_read_as_soon_as_it_is_there() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(b"head", b"body!", SerializeType.ROCKETMQ)
    for position in range(len(stream) - 1):
        decoder.feed(stream[position : position + 1])
        there = position + 1 >= 12
        assert decoder.unfinished_header() == (Frame(1, b"head", b"") if there else None)
    decoder.drop()
    assert decoder.buffered == 0
    assert decoder.unfinished_header() is None


def test_a_frame_fed_byte_by_byte_costs_no_more_for_each_byte_when_it_is_long() -> None:
    def seconds(length: int) -> float:
        stream = encode_frame(b"", bytes(length))
        decoder = FrameDecoder()

        def feed() -> None:
            for position in range(len(stream)):
                decoder.feed(stream[position : position + 1])

        return cpu_seconds(feed)

    # If each byte copied what is there, four times the length would be sixteen times the work.
    check_growth(seconds, 50_000)
