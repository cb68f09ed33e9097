"""Share among the tests of the store a directory with small files, and shortcuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.protocol.messages.record_layout import BODY_AT
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.store import MessageStore

HOST = pack_host("127.0.0.1", 10911)
CLIENT = pack_host("10.0.0.7", 50000)
LOG_FILE = 4096
QUEUE_FILE = 100


class ManualClock:
    def __init__(self) -> None:
        self.value = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.value

    def monotonic(self) -> float:
        return self.value / 1000

    def sleep(self, seconds: float, /) -> None:
        """Hold up nobody."""


def damage_body(store: MessageStore, place: int) -> None:
    """Alter the first byte of the body of the record at a place of the log."""
    file = store.commit_log.files.find(place)
    assert file is not None
    file.map[place - file.base + BODY_AT] ^= 1


class QuickDisk(Disk):
    """Syncs nothing, because a killed process loses no pages."""

    def side_by_side(self, works: Sequence[Callable[[], object]]) -> None:
        # Threads for syncs that wait for nothing would cost more than all else here.
        for work in works:
            work()

    def sync(self, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def overwrite(self, path: Path, data: bytes, size: int) -> None:
        path.write_bytes(data.ljust(size, b"\0"))


class Box:
    """A store directory with small files, on `disk`; every store it opens is closed at the end."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.disk: Disk | None = settings.pop("disk", None)
        self.clock = ManualClock()
        self.config = StoreConfig(
            store_path_root_dir=root,
            **{
                "mapped_file_size_commit_log": LOG_FILE,
                "mapped_file_size_consume_queue": QUEUE_FILE,
            }
            | settings,
        )
        self.arrivals: list[tuple[str, int, int, int, int, bytes]] = []
        self.stores: list[MessageStore] = []

    def new(self, disk: Disk | None = None, host: bytes = HOST) -> MessageStore:
        store = MessageStore(
            self.config,
            clock=self.clock,
            store_host=host,
            disk=disk or self.disk,
            on_arrival=lambda *arrival: self.arrivals.append(arrival),
        )
        self.stores.append(store)
        return store

    def open(self, disk: Disk | None = None) -> MessageStore:
        store = self.new(disk)
        store.open()
        return store

    def crash(self, store: MessageStore) -> None:
        """End the store as a kill would: pages and the abort file stay."""
        store.close()
        (self.root / "abort").write_text("1")

    def close(self) -> None:
        for store in self.stores:
            store.close()

    @property
    def opened(self) -> list[MessageStore]:
        """Return the stores that are open."""
        return [store for store in self.stores if store.refusal is None]

    @property
    def log_files(self) -> list[Path]:
        return sorted((self.root / "commitlog").iterdir())


def put(
    store: MessageStore,
    body: bytes = b"body",
    *,
    topic: str = "orders",
    queue_id: int = 0,
    tags: str = "",
    **fields: Any,
) -> tuple[int, int]:
    properties = f"TAGS\x01{tags}\x02".encode() if tags else b""
    tags_code = java_hash(tags) if tags else 0
    queue = store.queue(topic, queue_id)
    return store.append(queue, body, properties, tags_code, 1_699_999_999_999, CLIENT, **fields)


def records(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[StoredRecord]:
    """Return all messages of a queue, read as a consumer would."""
    offset = store.min_offset(topic, queue_id)
    found: list[StoredRecord] = []
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 32)
        assert result.next_begin_offset > offset, result
        for data in result.slices:
            found += decode_records(data)
        offset = result.next_begin_offset
    return found


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in records(store, topic, queue_id)]
