"""Define a topic's configuration, and the version of a table (Java: TopicConfig, DataVersion)."""

from __future__ import annotations

import msgspec

from cometmq.model.java.enums import TOPIC_FILTER_TYPES, EnumName, enum_name
from cometmq.model.java.ranges import Int32, Int64
from cometmq.model.sysflag import PERM_READ, PERM_RW, PERM_WRITE


class DataVersion(msgspec.Struct, rename="camel"):
    """Says whether two copies of a table are the same: they are if all three fields are equal."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0

    def next(self, now_ms: int) -> None:
        """Mark one change of the guarded table."""
        self.timestamp = now_ms
        self.counter += 1


class TopicConfig(msgspec.Struct, rename="camel"):
    """Configures one topic on one broker. `perm` is a bit set of `sysflag.PERM_*`."""

    topic_name: str = ""
    attributes: dict[str, str] = {}
    order: bool = False
    perm: Int32 = PERM_RW
    read_queue_nums: Int32 = 16
    topic_filter_type: EnumName = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16

    def __post_init__(self) -> None:
        self.topic_filter_type = enum_name(
            "topicFilterType", self.topic_filter_type, TOPIC_FILTER_TYPES
        )

    @property
    def readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def writable(self) -> bool:
        return self.perm & PERM_WRITE != 0
