"""Name and find what the files of a store hold, without numpy: a broker starts without it."""

from __future__ import annotations

import mmap
from typing import Final

from cometmq.protocol.messages.record import MAGIC

_NAME_LENGTH: Final = 20
# The size of units that stand for no message: in front of the first one of a queue.
PLACEHOLDER_SIZE: Final = 0x7FFFFFFF


def is_file_name(name: str) -> bool:
    """Say whether a file of a commit log or a consume queue may have that name: its offset."""
    return len(name) == _NAME_LENGTH and name.isdecimal()


def next_magic(mapping: mmap.mmap, position: int, end: int) -> int:
    """Return where the next magic of a record stands below `end`, -1 when none does."""
    found = MAGIC.search(mapping, position, end)
    return -1 if found is None else found.start()
