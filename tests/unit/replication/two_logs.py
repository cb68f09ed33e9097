"""Two stores whose logs may differ, and a master's log that is read without a network."""

from __future__ import annotations

from tests.unit.store.store_box import Box, put

from cometmq.errors import ConnectError
from cometmq.remoting.client import RemotingClient
from cometmq.replication.divergence import Bounds, MasterLog
from cometmq.store.store import MessageStore


class LogOf(MasterLog):
    """The log of a store as its broker shows it: ours, or with `as_java` one of Java's."""

    def __init__(self, store: MessageStore, *, as_java: bool = False) -> None:
        super().__init__(RemotingClient(), "10.0.0.1:10911")
        self._store = store
        self._as_java = as_java
        self.asked: list[int] = []
        self.is_away = False

    async def bytes_at(self, offset: int, topic: str) -> bytes | None:
        assert topic
        if self.is_away:
            raise ConnectError("nobody is there")
        self.asked.append(offset)
        log = self._store.commit_log
        if not self._as_java:
            found = self._store.message_at(offset)
            return None if found is None else bytes(found)
        # Java: DefaultMessageStore.selectOneMessageByOffset believes the size that it finds.
        head = log.read(offset, 4)
        if head is None:
            return None
        data = log.read(offset, max(int.from_bytes(head, "big", signed=True), 0))
        return bytes(data) if data else None

    async def bounds(self) -> Bounds:
        return Bounds(self._store.commit_log.min_offset, self._store.commit_log.readable_end)


def fill(store: MessageStore, count: int, text: str, *, size: int = 200) -> list[int]:
    """Store messages that differ by `text`; return where their records are."""
    return [
        put(store, f"{text} {number}".ljust(size).encode(), queue_id=number % 2)[1]
        for number in range(count)
    ]


def replicate(master: MessageStore, slave: MessageStore, until: int | None = None) -> None:
    """Give the slave what it lacks, up to the offset `until`."""
    log = master.commit_log
    until = log.end if until is None else until
    slave.forget_partial_record()
    while (start := slave.replicated_end) < until:
        base, end, view = log.window(start)
        slave.append_replicated(start, view[start - base : min(end, until) - base])


def promoted(box: Box, slave: Box) -> tuple[MessageStore, MessageStore]:
    """Return the former master, which has messages of its own at its end, and the slave that was
    made the master and has others.
    """
    former, master = box.open(), slave.open()
    fill(former, 30, "both")
    replicate(former, master)
    fill(former, 12, "former")
    fill(master, 25, "new", size=150)
    return former, master
