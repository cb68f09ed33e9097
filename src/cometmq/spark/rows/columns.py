"""Name the columns of a message, and the columns that a source was asked for.

Nothing here needs PySpark, so the driver can check options without it.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

from cometmq.spark.options import Options

# In their order, with Spark's types.
#
# `msg_id` is the producer's unique id, or the offset id without one. `batch_msg_id` is the id that
# Java's consumers see in its place if the message came in a batch through a Java broker of 4.8 to
# 5.3.3; null if they see the same one. `keys` is empty if no key was given. `body` is decompressed unless the option `decompress` is false; `body_crc` is the checksum
# of the stored bytes. `transaction_type` is prepared, commit or rollback, and null outside of
# transactions. `delay_level` and `deliver_time` are null for a message without a delay. `broker` is
# null for a store whose broker is not named.
COLUMNS: Final = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "commit_log_offset": "bigint",
    "msg_id": "string",
    "offset_msg_id": "string",
    "batch_msg_id": "string",
    "keys": "array<string>",
    "tags": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "born_time": "timestamp",
    "store_time": "timestamp",
    "born_host": "string",
    "store_host": "string",
    "reconsume_times": "int",
    "flag": "int",
    "sys_flag": "int",
    "body_crc": "int",
    "transaction_type": "string",
    "transaction_id": "string",
    "prepared_transaction_offset": "bigint",
    "delay_level": "int",
    "deliver_time": "timestamp",
}

# The columns that are read unless the option `columns` or a schema asks for others. Spark asks a Python
# source for all columns of its schema, whatever the query uses, and each of them has to be made, sent
# to the JVM and read there. The others describe the log, not the message.
DEFAULT_COLUMNS: Final = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "msg_id",
    "keys",
    "tags",
    "body",
    "properties",
    "born_time",
    "store_time",
)
OPTION: Final = "columns"
_ALL: Final = "all"
_DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
# A star that stands for all columns, as in hash(*), and does not multiply.
_STAR: Final = re.compile(r"[(,.]\s*\*")


def named_columns(options: Options) -> list[str] | None:
    """Return the columns that the option `columns` names, or None if it is not given.

    The option names columns, separated by commas; `default` and `all` stand for several of them.
    Raise IllegalArgumentError for a name that is no column, and for one that stands twice.
    """
    text = options.text(OPTION)
    if text is None:
        return None
    names: list[str] = []
    for word in text.split(","):
        name = word.strip()
        if name == _ALL:
            names += COLUMNS
        elif name == _DEFAULT:
            names += DEFAULT_COLUMNS
        elif name in COLUMNS:
            names.append(name)
        else:
            near = difflib.get_close_matches(name, COLUMNS, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise options.error(
                OPTION,
                f"names {name!r}{meant}; columns are {', '.join(COLUMNS)}, and {_DEFAULT} and "
                f"{_ALL} stand for several",
            )
    for name in names:
        if names.count(name) > 1:
            raise options.error(OPTION, f"is {text!r}, which names {name} more than once")
    return names


def columns_in(expression: str) -> set[str]:
    """Return the columns that an expression in Spark SQL may name, whatever the case of letters."""
    if _STAR.search(expression):
        return set(COLUMNS)
    return {name.lower() for name in _NAME.findall(expression)} & COLUMNS.keys()
