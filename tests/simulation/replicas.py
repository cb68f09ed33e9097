"""Looks at the disks of masters and slaves while a run goes on, and writes down what it sees.

A history has no room for every log at every moment. So logs are compared where they are looked at, byte
by byte, and the history gets where they differ. The checker decides who is right. Nothing here asks a
broker or the store's code: it reads files, and finds records by the first bytes that Java gives them.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from tests.simulation.history import (
    CopiesSeen,
    LogSeen,
    Queue,
    SendAcknowledged,
    TableSeen,
    TopicsSeen,
)
from tests.simulation.store_reader import Store, parse_state, position_of
from tests.simulation.workloads.stage import Stage

from cometmq.model import properties as p
from cometmq.model.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from cometmq.runtime.state_files.seals import Seal, sealed
from cometmq.testing.cluster import Cluster
from cometmq.testing.virtual.storage.disk import VirtualDisk

_BLOCK: Final = 16 * 1024
_MIN_RECORD: Final = 88
# The topics that messages are sent to right before a switch begin with this.
NEWS: Final = "news-"
WAITING: Final = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC")


class Log(NamedTuple):
    """The bytes of a log from `begin` to `end`, as files by where they begin."""

    files: dict[int, bytes]
    begin: int
    end: int

    def differs(self, other: Log) -> int:
        """Return where two logs first differ behind where both begin, at most the shorter one's end."""
        at, limit = max(self.begin, other.begin), min(self.end, other.end)
        for base in sorted(self.files.keys() | other.files.keys()):
            if not at <= base < limit:
                continue
            mine = self.files.get(base, b"")[: limit - base]
            theirs = other.files.get(base, b"")[: limit - base]
            if mine != theirs:
                return base + _same(memoryview(mine), memoryview(theirs))
        return max(at, limit)


def _same(one: memoryview, other: memoryview) -> int:
    """Return how many bytes are the same at the beginning of both."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Replicas:
    """Looks at the servers of each broker that has slaves."""

    def __init__(self, cluster: Cluster, stage: Stage) -> None:
        self._cluster = cluster
        self._stage = stage
        nodes = cluster.nodes
        self.servers = {
            broker: [
                broker,
                *(each for each in nodes.slaves if each.startswith(f"{broker}-slave-")),
            ]
            for broker in nodes.brokers
        }
        self.masters = {broker: broker for broker in nodes.brokers}
        self._former: dict[str, Log] = {}
        self._told: dict[str, LogSeen] = {}
        # Servers that are not looked at. Their power went and they have not recovered since, so that what
        # they have is torn; or their log is being cut just now.
        self.torn: set[str] = set()
        # Servers that an operator has stopped.
        self.down: set[str] = set()

    def broker_of(self, server: str) -> str | None:
        """Return the broker of a server; None for a node that is none, or has no slaves."""
        for broker, servers in self.servers.items():
            if server in servers and len(servers) > 1:
                return broker
        return None

    @contextlib.contextmanager
    def cutting(self, server: str) -> Iterator[None]:
        """Do not look at a server while its log is cut. A look shortly after the cut began would show what
        was there before, and the next one that it is gone, without anything between the two.
        """
        was_torn = server in self.torn
        self.torn.add(server)
        try:
            yield
        finally:
            if not was_torn:
                self.torn.discard(server)

    def runs_again(self, server: str) -> None:
        """Note that a server has started, and so has recovered."""
        self.torn.discard(server)
        self.down.discard(server)

    # -- logs --

    def look(self, broker: str, *, again: bool = False) -> None:
        """Compare the logs of a broker's servers, and note what their tables say.

        An unchanged log is noted again only if `again` asks for that.
        """
        servers = self.servers[broker]
        if len(servers) < 2:
            return
        logs = {server: self.log(server) for server in servers if server not in self.torn}
        master = self.masters[broker]
        of_master = logs.get(master)
        for server, log in logs.items():
            former = self._former.get(server)
            seen = LogSeen(
                at_s=self._stage.at_s,
                node=server,
                broker=broker,
                server=server,
                is_up=self._is_up(server),
                begin=log.begin,
                end=log.end,
                master=None if of_master is None or server == master else master,
                master_begin=0 if of_master is None else of_master.begin,
                master_end=0 if of_master is None else of_master.end,
                same_as_master=None
                if of_master is None or server == master
                else log.differs(of_master),
                kept=None if former is None else log.differs(former),
                former_end=None if former is None else former.end,
            )
            self._former[server] = log
            reported = msgspec.structs.replace(seen, at_s=0.0, kept=0, former_end=0)
            if self._told.get(server) == reported and seen.kept == seen.former_end and not again:
                continue
            self._told[server] = reported
            self._stage.record(seen)
            if again and self._is_up(server):
                self._look_at_table(broker, server)

    def _is_up(self, server: str) -> bool:
        return not self._cluster.node(server).is_killed and server not in self.down

    def look_at_all(self) -> None:
        for broker in self.servers:
            self.look(broker, again=True)

    def log(self, server: str) -> Log:
        disk = self._cluster.node(server).disk
        files = dict(_written(disk, self._cluster.directory / server / "commitlog"))
        written = {base: len(data) for base, data in files.items() if data}
        last = max(written, default=min(files, default=0))
        return Log(files, min(files, default=0), last + written.get(last, 0))

    def _look_at_table(self, broker: str, server: str) -> None:
        store = Store(self._state_files(server))
        offsets = {
            f"{group}@{topic}/{queue_id}": offset
            for (group, topic, queue_id), offset in sorted(store.committed_offsets().items())
        }
        self._stage.record(
            TableSeen(
                at_s=self._stage.at_s, node=server, broker=broker, server=server, offsets=offsets
            )
        )

        self.look_at_topics(broker, server)

    def look_at_topics(self, broker: str, server: str, *, has_begun: bool = False) -> None:
        """Note which topics and groups a server's files have; and if it `has_begun` just now, without a
        copy of what it lacked, what its log has.
        """
        found = {}
        for name in ("topics", "subscriptionGroup"):
            disk = self._cluster.node(server).disk
            path = self._cluster.directory / server / "config" / f"{name}.json"
            with disk.at_peace():
                data = disk.read(path) if disk.size(path) else b""
            found[name] = parse_state(data.decode()) if data.strip() else {}
        self._stage.record(
            TopicsSeen(
                at_s=self._stage.at_s,
                node=server,
                broker=broker,
                server=server,
                readable={
                    topic: config["readQueueNums"]
                    for topic, config in found["topics"].get("topicConfigTable", {}).items()
                },
                groups=tuple(found["subscriptionGroup"].get("subscriptionGroupTable", {})),
                in_log=self._queues_in_log(server) if has_begun else None,
            )
        )

    def _queues_in_log(self, server: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        records = self.store(server).records
        # Halves that nobody decided on within all their checks wait no more.
        given_up = {
            record.properties.get(p.UNIQ_CLIENT_MESSAGE_ID)
            for record in records
            if record.topic == TRANS_CHECK_MAX_TIME_TOPIC
        }
        # Nor do those whose transactions ended: a producer rolls back a half that no slave has.
        ended = {
            int(offset)
            for record in records
            if record.topic == TRANS_OP_HALF_TOPIC
            for offset in record.body.split(b",")
            if offset
        }
        for record in records:
            topic, queue_id = record.topic, record.queue_id
            if not record.is_in_queue:
                continue
            if topic in WAITING and record.properties.get(p.UNIQ_CLIENT_MESSAGE_ID) in given_up:
                continue
            if topic == TRANS_HALF_TOPIC and record.queue_offset in ended:
                continue
            real = record.properties.get("REAL_TOPIC", "")
            if record.topic in WAITING and real.startswith(NEWS):
                # What waits for a topic of a workload may have been recalled, or rolled back.
                topic, queue_id = real, int(record.properties["REAL_QID"])
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        return counts

    def _state_files(self, server: str) -> dict[str, bytes]:
        disk = self._cluster.node(server).disk
        path = self._cluster.directory / server / "config" / "consumerOffset.json"
        with disk.at_peace():
            data = disk.read(path) if disk.size(path) else b""
        # A damaged file says nothing, as long as nobody has read it.
        return {"config/consumerOffset.json": data} if sealed(data)[1] is Seal.HOLDS else {}

    def refusing(self) -> list[str]:
        """Return the slaves that run and whose logs had diverged from their masters' at the last look."""
        found = []
        for broker, servers in self.servers.items():
            for server in servers:
                seen = self._told.get(server)
                if (
                    seen is not None
                    and seen.master == self.masters[broker]
                    and seen.same_as_master is not None
                    and seen.same_as_master < min(seen.end, seen.master_end)
                    and self._is_up(server)
                    and self._is_up(self.masters[broker])
                ):
                    found.append(server)
        return found

    # -- records --

    def look_at_copies(self, acknowledged: SendAcknowledged) -> None:
        """Note what the servers have at the places of acknowledged messages."""
        broker = acknowledged.queue.broker
        servers = self.servers.get(broker, ())
        positions = [position_of(each) for each in acknowledged.offset_msg_ids if each]
        if len(servers) < 2 or not positions:
            return
        digests = {
            server: tuple(self._digest(server, position) for position in positions)
            for server in servers
        }
        self._stage.record(
            CopiesSeen(
                at_s=self._stage.at_s,
                node=acknowledged.node,
                send=acknowledged.send,
                broker=broker,
                digests=digests,
            )
        )

    def _digest(self, server: str, position: int) -> int:
        disk = self._cluster.node(server).disk
        directory = self._cluster.directory / server / "commitlog"
        if not disk.is_directory(directory):
            return 0
        bases = [int(name) for name in disk.names(directory) if name.isdigit()]
        base = max((each for each in bases if each <= position), default=None)
        if base is None:
            return 0
        file = disk.system.file(directory / f"{base:020}")
        start = position - base
        size = int.from_bytes(file.read(start, start + 4))
        if size < _MIN_RECORD:
            return 0
        data = file.read(start, start + size)
        return zlib.crc32(data) or 1 if len(data) == size else 0

    # -- switches --

    def queue_ends(self, server: str) -> dict[str, int]:
        """Return the next offset of each queue, as a server's log says, by the text of the queue."""
        broker = self.broker_of(server) or server
        ends: dict[str, int] = {}
        for record in self.store(server).records:
            if record.is_in_queue:
                queue = Queue(record.topic, broker, record.queue_id)
                ends[str(queue)] = record.queue_offset + 1
        return ends

    def store(self, server: str) -> Store:
        """Return the log of a server for reading."""
        return Store(
            {f"commitlog/{base:020}": data for base, data in self.log(server).files.items()}
        )

    def successor(self, broker: str) -> str | None:
        """Return the slave that an operator makes the master: the one whose log is the longest of those
        that are copies of the master's from its beginning; None if there is none.
        """
        looks: dict[str, LogSeen] = {}
        for event in self._stage.history.of(LogSeen):
            if event.broker == broker and event.same_as_master is not None:
                looks[event.server] = event
        master = self.masters[broker]
        sound = [
            each
            for server, each in looks.items()
            if server != master
            and each.master == master
            and each.begin <= each.master_begin
            and each.same_as_master == each.end
        ]
        best = max(sound, key=lambda each: self.log(each.server).end, default=None)
        return None if best is None else best.server


def _written(disk: VirtualDisk, directory: Path) -> Iterator[tuple[int, bytes]]:
    """Give the files of a log, by where they begin, with their bytes up to the last that is not zero."""
    for path, file in disk.system.files(directory):
        if path.name.isdigit():
            end = 0
            # What lies behind the end is not touched: a disk looks at touched pages when it syncs.
            while end < file.size and file.read(end, end + _BLOCK).strip(b"\0"):
                end += _BLOCK
            yield int(path.name), file.read(0, end).rstrip(b"\0")
