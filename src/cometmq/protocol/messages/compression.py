"""Compress and decompress message bodies (Java: CompressionType, CompressorFactory,
MessageSysFlag).

Bit 0 of a message's sys flag says that the body is compressed. Bits 8 to 10 say how: 1 is LZ4
(frame format), 2 ZSTD, 3 ZLIB. 0 is ZLIB, too, because releases before 4.9.4 had nothing else.
"""

from __future__ import annotations

import sys
import zlib
from enum import IntEnum
from typing import Final, Protocol

from cometmq.errors import ProtocolError
from cometmq.model.sysflag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

DEFAULT_LEVEL: Final = 5


class CompressionType(IntEnum):
    """The kinds of compression. The values are the bits of the sys flag."""

    LZ4 = COMPRESSION_LZ4
    ZSTD = COMPRESSION_ZSTD
    ZLIB = COMPRESSION_ZLIB

    @property
    def sys_flag(self) -> int:
        """Return the bits that a compressed message adds to its sys flag."""
        return COMPRESSED | self.value


def compress(
    body: bytes, type_: CompressionType = CompressionType.ZLIB, level: int = DEFAULT_LEVEL
) -> bytes:
    """Return the compressed body. `level` is for zlib and zstd; LZ4 has one level, as in Java."""
    if type_ is CompressionType.ZLIB:
        return zlib.compress(body, level)
    if type_ is CompressionType.ZSTD:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        return zstd.compress(body, level)
    import lz4.frame  # most messages are not compressed, or by zlib

    packed: bytes = lz4.frame.compress(body, store_size=False)
    return packed


def decompress(body: bytes, sys_flag: int, *, max_length: int, limit: str = "max_length") -> bytes:
    """Return the body as its producer gave it; `body` itself if `sys_flag` says it is not
    compressed.

    Raise ProtocolError if the body is damaged, breaks off, would exceed `max_length` bytes, or has
    an unknown type. `limit` is the name of `max_length` in the error. Never allocate more than
    `max_length` bytes, whatever the data declares.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, COMPRESSION_ZLIB):
        return inflate(body, max_length=max_length, limit=limit)
    if kind == COMPRESSION_ZSTD:
        return _unzstd(body, max_length, limit)
    if kind == COMPRESSION_LZ4:
        import lz4.frame

        try:
            return _drain("LZ4", lz4.frame.LZ4FrameDecompressor(), body, max_length, limit)
        except RuntimeError as error:
            raise ProtocolError(f"a compressed body is damaged: {error}") from error
    raise ProtocolError(f"compression type {kind >> 8} of a message is unknown")


def _unzstd(body: bytes, max_length: int, limit: str) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    try:
        declared = zstd.get_frame_info(body).decompressed_size
        if declared is not None and declared > max_length:
            raise _too_long("ZSTD", max_length, limit)
        if (
            declared == 0
        ):  # nothing is lost if the checksum breaks off; the reader in the JVM agrees
            return b""
        return _drain("ZSTD", zstd.ZstdDecompressor(), body, max_length, limit)
    except zstd.ZstdError as error:
        raise ProtocolError(f"a compressed body is damaged: {error}") from error


def inflate(data: bytes, *, max_length: int, limit: str = "max_length") -> bytes:
    """Return the content of a zlib stream, under the same rules as `decompress`."""
    try:
        return _drain("ZLIB", zlib.decompressobj(), data, max_length, limit)
    except zlib.error as error:
        raise ProtocolError(f"ZLIB data are damaged: {error}") from error


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _drain(
    name: str, decompressor: _Decompressor, data: bytes, max_length: int, limit: str
) -> bytes:
    # Asking for one byte more than allowed distinguishes a body of exactly the limit from a larger
    # one.
    content = decompressor.decompress(data, max_length + 1)
    if len(content) > max_length:
        raise _too_long(name, max_length, limit)
    if not decompressor.eof:
        raise ProtocolError(f"{name} data of {len(data)} bytes break off")
    return content


def _too_long(name: str, max_length: int, limit: str) -> ProtocolError:
    return ProtocolError(
        f"{name} data decompress to more than {max_length} bytes, the limit {limit} is "
        f"{max_length}; send it in parts",
        limit=limit,
    )
