"""Write lists of buffers in a way that says when the peer does not read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Final

# In these versions `writelines` of asyncio's own transports takes any amount, and never says that
# the peer does not read (CVE-2024-12254). `write` does; uvloop is not concerned.
_PASSES_LIMIT: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (
    3,
    13,
) <= sys.version_info < (3, 13, 2)


def write_lines(
    transport: asyncio.Transport, buffers: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Write all buffers as `transport.writelines` does, or in the way that stands in for it."""
    if _PASSES_LIMIT and type(transport).__module__.startswith("asyncio"):
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)
