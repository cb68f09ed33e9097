"""Lay out the fields of a stored record: one table, from which offsets, structs and numpy types come.

Java: MessageExtEncoder, MessageDecoder, MessageVersion. Big-endian; offsets for IPv4 hosts:

    offset  size    field
    0       4       total size of the record
    4       4       magic: v1 0xDAA320A7, v2 0xDAA320AB (two-byte topic length)
    8       4       CRC-32 of the body & 0x7FFFFFFF
    12      4       queue id
    16      4       flag of the application
    20      8       queue offset
    28      8       physical offset: its own place in the commit log
    36      4       sys flag
    40      8       born timestamp, ms
    48      8 / 20  born host: address, port as int32 (20 when sys flag & 0x10)
    56      8       store timestamp, ms
    64      8 / 20  store host (20 when sys flag & 0x20)
    72      4       reconsume times
    76      8       prepared transaction offset
    84      4       length of the body
    88      n       body
    88+n    1/2+t   topic, behind its length
    …       2+p     properties string, behind its length

An IPv6 host moves the fields behind it by V6_WIDER bytes.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final, NamedTuple

from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6

# Literals: only these does mypyc put into the code of the compiled modules.
SIZE_AT: Final = 0
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_TIMESTAMP_AT: Final = 40
BORN_HOST_AT: Final = 48
STORE_TIMESTAMP_AT: Final = 56
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72
PREPARED_TRANSACTION_OFFSET_AT: Final = 76
BODY_LENGTH_AT: Final = 84
BODY_AT: Final = 88

# No calendar of Python, SQL or a file's name has a time from here on, the year 9999: a store time that
# is not below is damage, which no CRC of the format covers.
STORE_TIME_LIMIT_MS: Final = 253_370_764_800_000

V4_HOST_SIZE: Final = 8
V6_HOST_SIZE: Final = 20
V6_WIDER: Final = 12
HOSTS_V6: Final = 0x30
assert HOSTS_V6 == BORN_HOST_V6 | STORE_HOST_V6


class Field(NamedTuple):
    """A field of fixed size: where it begins, and its format for `struct`."""

    at: int
    code: str

    @property
    def size(self) -> int:
        return struct.calcsize(">" + self.code)

    @property
    def kind(self) -> str:
        """The field's type for numpy; of numbers only."""
        return _NUMPY_KINDS[self.code]


_NUMPY_KINDS: Final = {"I": ">u4", "i": ">i4", "q": ">i8"}

FIELDS: Final = {
    "size": Field(SIZE_AT, "I"),
    "magic": Field(MAGIC_AT, "I"),
    "body_crc": Field(BODY_CRC_AT, "I"),
    "queue_id": Field(QUEUE_ID_AT, "i"),
    "flag": Field(FLAG_AT, "i"),
    "queue_offset": Field(QUEUE_OFFSET_AT, "q"),
    "physical_offset": Field(PHYSICAL_OFFSET_AT, "q"),
    "sys_flag": Field(SYS_FLAG_AT, "i"),
    "born_timestamp": Field(BORN_TIMESTAMP_AT, "q"),
    "born_host": Field(BORN_HOST_AT, "8s"),
    "store_timestamp": Field(STORE_TIMESTAMP_AT, "q"),
    "store_host": Field(STORE_HOST_AT, "8s"),
    "reconsume_times": Field(RECONSUME_TIMES_AT, "i"),
    "prepared_transaction_offset": Field(PREPARED_TRANSACTION_OFFSET_AT, "q"),
    "body_length": Field(BODY_LENGTH_AT, "i"),
}
# Both of them, to be compared at once.
_SIZE_AND_MAGIC: Final = {"size_and_magic": Field(SIZE_AT, "Q")}
assert all(one.at + one.size == next_.at for one, next_ in pairwise(FIELDS.values()))
assert BODY_LENGTH_AT + FIELDS["body_length"].size == BODY_AT


def record_struct(*names: str | tuple[str, ...]) -> struct.Struct:
    """Make a struct of the named fields of a record with IPv4 hosts, in the record's order.

    It begins with the first of them and passes over those that are not named. Several names in a
    tuple, or one, are fields that stay the bytes they are, as one value.
    """
    fields = FIELDS | _SIZE_AND_MAGIC
    form = ">"
    at = -1
    for name in names:
        group = (name,) if isinstance(name, str) else name
        first, last = fields[group[0]], fields[group[-1]]
        end = last.at + last.size
        if at >= 0:
            form += "x" * (first.at - at)
        form += first.code if isinstance(name, str) else f"{end - first.at}s"
        at = end
    return struct.Struct(form)


# The fixed part up to and including the body's length.
FIXED_V4: Final = record_struct(*FIELDS)
assert FIXED_V4.size == BODY_AT
# All that a blank record has, which declares the rest of a file of the log as unused.
HEAD: Final = record_struct("size", "magic")
HEAD_SIZE: Final = 8
assert HEAD.size == HEAD_SIZE


def wider_by(sys_flag: int) -> int:
    """Return by how many bytes the IPv6 hosts of a record move what stands behind both."""
    return V6_WIDER * (sys_flag & HOSTS_V6).bit_count()
