"""Take Java's enums by name or by ordinal, as fastjson does (Java: EnumDeserializer).

The C++ client, and clients in other languages that wrap it, send ordinals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    EnumName = str
else:
    EnumName = str | int  # a record replaces numbers by names as soon as it is decoded

# The constants in Java's order.
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING", "LITE_SELECTIVE")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
TOPIC_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
RETRY_POLICIES: Final = ("EXPONENTIAL", "CUSTOMIZED")
MESSAGE_REQUEST_MODES: Final = ("PULL", "POP")


def enum_name(field: str, value: str | int, names: tuple[str, ...]) -> str:
    """Return the name that a peer sent, or the name for the ordinal that it sent. Raise ValueError
    for an ordinal out of range; a decoder reports it with the place of the value.
    """
    if isinstance(value, str):
        return value
    if not 0 <= value < len(names):
        raise ValueError(
            f"{field} is {value}; send one of {', '.join(names)}, or an ordinal from 0 to "
            f"{len(names) - 1}"
        )
    return names[value]
