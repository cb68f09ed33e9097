"""Test how the bytes of requests that have begun are counted, however the reads cut them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.proxy.port.requests_begun import STREAM_BYTES, RequestsBegun

LONGEST = 1_000
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END = 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def message(size: int, here: int | None = None) -> bytes:
    return b"\0" + struct.pack(">I", size) + bytes(size if here is None else here)


def counted(*frames: bytes, cuts: list[int] | None = None) -> int:
    """Feed a connection in pieces; return what it holds, which is what `on_change` said."""
    said = 0

    def on_change(change: int) -> None:
        nonlocal said
        said += change

    begun = RequestsBegun(LONGEST, on_change, lambda _cancels, _empty: None)
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + b"".join(frames)
    at = 0
    for cut in [*(cuts or []), len(data)]:
        begun.feed(data[at : at + cut])
        at += cut
    assert said == begun.held_bytes
    held = begun.held_bytes
    begun.close()
    assert said == begun.held_bytes == 0
    return held


CASES = {
    "a whole request": ([frame(HEADERS, 4, 1, b"h"), frame(DATA, END, 1, message(300))], 0),
    "a part": ([frame(DATA, 0, 1, message(300, 200))], 200 + STREAM_BYTES),
    "parts of two": (
        [frame(DATA, 0, 1, message(300, 200)), frame(DATA, 0, 3, message(300, 100))],
        300 + 2 * STREAM_BYTES,
    ),
    "a part and the rest": (
        [frame(DATA, 0, 1, message(300, 200)), frame(DATA, END, 1, bytes(100))],
        0,
    ),
    "a whole message of a stream that goes on": (
        [frame(DATA, 0, 1, message(300)), frame(DATA, 0, 1, message(300) + message(9, 4))],
        4 + STREAM_BYTES,
    ),
    "a message too long to be kept": ([frame(DATA, 0, 1, message(LONGEST + 1, 900))], STREAM_BYTES),
    "a reset stream": (
        [frame(DATA, 0, 1, message(300, 200)), frame(RST_STREAM, 0, 1, bytes(4))],
        0,
    ),
    "an empty end": ([frame(DATA, 0, 1, message(300, 200)), frame(DATA, END, 1)], 0),
    "an end by trailers": ([frame(DATA, 0, 1, message(9, 2)), frame(HEADERS, END, 1, b"h")], 0),
    "half of a length": ([frame(DATA, 0, 1, b"\0\0\0")], STREAM_BYTES),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_held(name: str) -> None:
    frames, held = CASES[name]
    assert counted(*frames) == held


@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(1, 300), max_size=60))
def test_it_does_not_depend_on_how_reads_cut_the_bytes(name: str, cuts: list[int]) -> None:
    frames, held = CASES[name]
    assert counted(*frames, cuts=cuts) == held


@given(st.lists(st.binary(max_size=400), max_size=8))
def test_any_bytes_are_counted_somehow(reads: list[bytes]) -> None:
    total = 0

    def on_change(change: int) -> None:
        nonlocal total
        total += change

    begun = RequestsBegun(LONGEST, on_change, lambda _cancels, _empty: None)
    for data in reads:
        begun.feed(data)
        assert total == begun.held_bytes >= 0
    begun.close()
    assert total == 0


def test_a_close_in_the_midst_of_a_read_takes_back_no_more_than_was_reported() -> None:
    """The sum of all connections would become too small, and with it the limit on it meaningless."""
    total = 0

    def on_change(change: int) -> None:
        nonlocal total
        total += change

    begun = RequestsBegun(LONGEST, on_change, lambda _cancels, _empty: begun.close())
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(DATA, 0, 1, b"part")
    begun.feed(data + frame(PING, 0, 0, bytes(8)) * 2_000)
    assert begun.is_closed
    assert total == 0


@given(cuts=st.lists(st.integers(0, 50), max_size=8))
def test_frames_that_carry_no_request_are_counted(cuts: list[int]) -> None:
    cancels = empty = 0

    def on_frames(more_cancels: int, more_empty: int) -> None:
        nonlocal cancels, empty
        assert more_cancels or more_empty
        cancels += more_cancels
        empty += more_empty

    begun = RequestsBegun(LONGEST, lambda _: None, on_frames)
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(
        [
            frame(SETTINGS, 0, 0),  # empty
            frame(HEADERS, 4, 1, b"h"),
            frame(DATA, 0, 1),  # empty
            frame(DATA, END, 1),  # empty
            frame(HEADERS, 4 | END, 3, b"h"),
            frame(RST_STREAM, 0, 3, bytes(4)),  # cancels
            frame(PING, 0, 0, bytes(8)),  # empty
            frame(RST_STREAM, 0, 5, bytes(4)),  # cancels
            frame(WINDOW_UPDATE, 0, 0, bytes(4)),  # empty
        ]
    )
    at = 0
    for cut in [*cuts, len(data)]:
        begun.feed(data[at : at + cut])
        at += cut
    assert (cancels, empty) == (2, 5)
