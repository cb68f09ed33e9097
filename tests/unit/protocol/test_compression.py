from __future__ import annotations

import os
import tracemalloc

import lz4.frame
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ProtocolError
from cometmq.protocol.messages.compression import CompressionType, compress, decompress, inflate

every_type = pytest.mark.parametrize("type_", list(CompressionType), ids=lambda t: t.name)
BODY = b"order paid; " * 500 + bytes(range(256))
LIMIT = 4 * 1024 * 1024


@every_type
@given(body=st.binary(max_size=300), level=st.integers(1, 9))
def test_a_body_comes_back(body: bytes, level: int, type_: CompressionType) -> None:
    packed = compress(body, type_, level)
    assert decompress(packed, type_.sys_flag, max_length=len(body)) == body


def test_sys_flags_are_java_s() -> None:
    flags = {type_.name: type_.sys_flag for type_ in CompressionType}
    assert flags == {"LZ4": 0x101, "ZSTD": 0x201, "ZLIB": 0x301}


def test_a_flag_without_type_means_zlib() -> None:
    assert decompress(compress(BODY), 0x1, max_length=LIMIT) == BODY


def test_a_body_that_is_not_compressed_stays_as_it_is() -> None:
    assert decompress(BODY, 0x300, max_length=1) is BODY


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_an_unknown_type_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"type {kind}"):
        decompress(BODY, kind << 8 | 1, max_length=LIMIT)


def without_length(body: bytes) -> bytes:
    return zstd.compress(body, options={zstd.CompressionParameter.content_size_flag: 0})


@pytest.mark.parametrize("length", [0, 1, 5_000, 100_000, 1_000_000])
def test_zstd_without_declared_length_takes_memory_for_what_it_holds(length: int) -> None:
    """It took as much as the largest body may have: 128 MiB for each small message of Java's."""
    packed = without_length(b"x" * length)
    decompress(packed, CompressionType.ZSTD.sys_flag, max_length=length)  # imports what it needs
    tracemalloc.start()
    try:
        body = decompress(packed, CompressionType.ZSTD.sys_flag, max_length=64 * 1024 * 1024)
        assert tracemalloc.get_traced_memory()[1] < 16 * max(length, 4096)
    finally:
        tracemalloc.stop()
    assert body == b"x" * length


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_zstd_without_declared_length_that_breaks_off_is_no_body(cut: int) -> None:
    packed = without_length(os.urandom(5_000))
    with pytest.raises(ProtocolError, match="break off"):
        decompress(packed[:-cut], CompressionType.ZSTD.sys_flag, max_length=10_000)


def test_zstd_without_declared_length_that_is_too_long_names_the_limit() -> None:
    packed = without_length(bytes(10_001))
    assert len(decompress(packed, CompressionType.ZSTD.sys_flag, max_length=10_001)) == 10_001
    with pytest.raises(ProtocolError, match="more than 10000 bytes") as raised:
        decompress(packed, CompressionType.ZSTD.sys_flag, max_length=10_000, limit="L")
    assert raised.value.limit == "L"


def test_zstd_without_declared_length_as_java_writes_it() -> None:
    packed = without_length(BODY)
    assert decompress(packed, 0x201, max_length=len(BODY)) == BODY
    with pytest.raises(ProtocolError, match=f"more than {len(BODY) - 1} bytes"):
        decompress(packed, 0x201, max_length=len(BODY) - 1)


def test_lz4_with_checksums_and_declared_length() -> None:
    packed = lz4.frame.compress(BODY, content_checksum=True, block_checksum=True, store_size=True)
    assert decompress(packed, 0x101, max_length=len(BODY)) == BODY


@every_type
def test_a_body_above_the_limit_is_refused(type_: CompressionType) -> None:
    packed = compress(BODY, type_)
    assert decompress(packed, type_.sys_flag, max_length=len(BODY)) == BODY
    with pytest.raises(ProtocolError, match=f"more than {len(BODY) - 1} bytes"):
        decompress(packed, type_.sys_flag, max_length=len(BODY) - 1)


@every_type
def test_a_bomb_is_refused(type_: CompressionType) -> None:
    bomb = compress(bytes(50_000_000), type_)
    with pytest.raises(ProtocolError, match="more than 1000 bytes"):
        decompress(bomb, type_.sys_flag, max_length=1000)


def test_a_declared_length_is_not_believed() -> None:
    """The frame has four bytes of magic, a descriptor for an 8-byte length, and a length of an
    exbibyte.
    """
    lie = b"\x28\xb5\x2f\xfd" + b"\xe0" + (1 << 60).to_bytes(8, "little") + b"\1\0\0"
    with pytest.raises(ProtocolError, match="more than"):
        decompress(lie, 0x201, max_length=LIMIT)


@every_type
def test_a_body_that_breaks_off_is_refused(type_: CompressionType) -> None:
    packed = compress(BODY, type_)
    for cut in range(0, len(packed), 7):
        with pytest.raises(ProtocolError):
            decompress(packed[:cut], type_.sys_flag, max_length=LIMIT)


@every_type
@given(data=st.binary(max_size=60), at=st.integers(0, 40), damage=st.binary(max_size=4))
def test_any_bytes_are_a_body_or_a_protocol_error(
    type_: CompressionType, data: bytes, at: int, damage: bytes
) -> None:
    packed = compress(b"body " * 20, type_)
    for candidate in (data, packed[:at] + damage + packed[at + len(damage) :]):
        try:
            assert len(decompress(candidate, type_.sys_flag, max_length=1000)) <= 1000
        except ProtocolError:
            continue


def test_inflate_names_what_is_wrong() -> None:
    with pytest.raises(ProtocolError, match="damaged"):
        inflate(b"no zlib", max_length=10)
    with pytest.raises(ProtocolError, match="break off"):
        inflate(b"", max_length=10)
