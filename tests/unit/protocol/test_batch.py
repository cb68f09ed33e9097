from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batches import decode_batch

from cometmq.errors import ProtocolError
from cometmq.protocol.messages.batch import BatchEntry, batch_entry_size, encode_batch

entries = st.builds(
    BatchEntry, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)
)


@given(st.lists(entries, max_size=6))
def test_a_batch_comes_back(batch: list[BatchEntry]) -> None:
    data = encode_batch(batch)
    assert decode_batch(data) == batch
    assert len(data) == sum(batch_entry_size(len(e.body), len(e.properties)) for e in batch)


def test_layout() -> None:
    assert encode_batch([BatchEntry(5, b"body", b"k\x01v\x02")]) == (
        b"\0\0\0\x1e\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0\4body\0\4k\x01v\x02"
    )


def test_properties_above_the_limit_are_refused() -> None:
    encode_batch([BatchEntry(0, b"", bytes(32767))])
    with pytest.raises(
        ProtocolError, match="32768 bytes, the limit MAX_PROPERTIES_LENGTH is 32767"
    ):
        encode_batch([BatchEntry(0, b"", bytes(32768))])


one = encode_batch([BatchEntry(0, b"body", b"props")])


@pytest.mark.parametrize("cut", range(1, len(one)))
def test_a_batch_that_breaks_off_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(one + one[:cut])


@pytest.mark.parametrize(
    "lie",
    [
        b"\0\0\0\0" + one[4:],
        b"\xff\xff\xff\xff" + one[4:],
        b"\x7f\xff\xff\xff" + one[4:],
        one[:16] + b"\xff\xff\xff\xff" + one[20:],
        one[:16] + b"\x7f\xff\xff\xff" + one[20:],
        one[:16] + b"\0\0\0\3" + one[20:],
        one[:24] + b"\xff\xff" + one[26:],
        one[:24] + b"\0\4" + one[26:],
    ],
)
def test_sizes_that_contradict_each_other_are_refused(lie: bytes) -> None:
    with pytest.raises(ProtocolError, match="declares"):
        decode_batch(lie)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_batch_or_a_protocol_error(data: bytes) -> None:
    try:
        batch = decode_batch(data)
    except ProtocolError:
        return
    assert sum(batch_entry_size(len(e.body), len(e.properties)) for e in batch) == len(data)
