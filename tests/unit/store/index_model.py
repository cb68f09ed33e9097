"""The index in its simplest form: one key after the other, in plain Python."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from cometmq.model.properties import KEYS, UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from cometmq.protocol.messages.properties import decode_properties, find_batch_id
from cometmq.protocol.messages.record import StoredRecord


def java_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def key_hash(text: str) -> int:
    value = abs(java_hash(text))
    return value if value < 1 << 31 else 0


def keys_of(record: StoredRecord) -> list[str]:
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return []
    properties = decode_properties(record.properties)
    # Java's index has the last of several unique ids, which is that of the batch.
    unique_id = find_batch_id(record.properties) or properties.get(UNIQ_CLIENT_MESSAGE_ID)
    keys = [] if unique_id is None else [unique_id]
    keys += [key for key in properties.get(KEYS, "").split(" ") if key]
    return [f"{record.topic}#{key}" for key in keys]


@dataclass
class ModelFile:
    slot_count: int
    entry_count: int
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.entries) + 1 >= self.entry_count

    def put(self, text: str, offset: int, timestamp: int) -> None:
        value = key_hash(text)
        slot = value % self.slot_count
        before = self.slots.get(slot, 0)
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = min(max((timestamp - self.begin_timestamp) // 1000, 0), 2**31 - 1)
        if not self.entries:
            self.begin_offset, self.begin_timestamp = offset, timestamp
        self.entries.append((value, offset, seconds, before))
        self.slots[slot] = len(self.entries)
        self.used += before == 0
        self.end_offset, self.end_timestamp = offset, timestamp

    def data(self) -> bytes:
        header = struct.pack(
            ">qqqqii", self.begin_timestamp, self.end_timestamp, self.begin_offset,
            self.end_offset, self.used, len(self.entries) + 1,
        )  # fmt: skip
        slots = [self.slots.get(slot, 0) for slot in range(self.slot_count)]
        data = header + struct.pack(f">{self.slot_count}i", *slots) + bytes(20)
        data += b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        return data.ljust(40 + 4 * self.slot_count + 20 * self.entry_count, b"\0")


class Model:
    """All files of an index; `put` takes messages in the order of the log."""

    def __init__(self, slot_count: int, entry_count: int) -> None:
        self.slot_count, self.entry_count = slot_count, entry_count
        self.files: list[ModelFile] = []
        self.texts: list[tuple[str, int, int]] = []

    def put(self, record: StoredRecord) -> None:
        for text in keys_of(record):
            self.texts.append((text, record.physical_offset, record.store_timestamp))
            if not self.files or self.files[-1].is_full:
                file = ModelFile(self.slot_count, self.entry_count)
                if self.files:
                    last = self.files[-1]
                    file.begin_timestamp = file.end_timestamp = last.end_timestamp
                    file.begin_offset = file.end_offset = last.end_offset
                self.files.append(file)
            self.files[-1].put(text, record.physical_offset, record.store_timestamp)

    def data(self) -> list[bytes]:
        return [file.data() for file in self.files]
