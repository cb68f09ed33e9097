"""Hold a change of a SYNC_MASTER's tables until its slaves have it, as with messages: code 30004,
which only CometMQ knows.

A slave asks for the state of the tables, and says which state it has on its own disk. The master
answers when its own state differs and a change waits for a slave, or after the time that the slave
gives. So each question confirms the tables that the slave copied after the last one.

A state is written as `id:topics:groups:users`: the counters of the tables, see `table_marks.py`.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from cometmq.access.users.store import UserStore
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.tables import BrokerTables
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import TablesState
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.headers import AwaitTablesRequestHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.replication.master import ReplicationMaster

# A slave asks again at least this often.
MAX_WAIT_S: Final = 30.0
_COUNTERS: Final = 3


class _State(NamedTuple):
    id: str
    counters: tuple[int, ...]

    def covers(self, other: _State) -> bool:
        return self.id == other.id and all(
            mine >= theirs for mine, theirs in zip(self.counters, other.counters, strict=True)
        )

    def __str__(self) -> str:
        return ":".join((self.id, *map(str, self.counters)))


class TableConfirmations:
    """Knows which slaves have which state of the tables. For the loop's thread only.

    It counts only slaves that have confirmed some state before: Java's slaves do not, and changes
    do not wait for them.
    """

    def __init__(
        self, parts: Parts, tables: BrokerTables, master: ReplicationMaster, users: UserStore | None
    ) -> None:
        self._parts = parts
        self._tables = tables
        self._master = master
        self._users = users
        # The state of each slave's tables, by its connection, and the hosts that have confirmed a
        # state.
        self._confirmed: dict[Connection, _State] = {}
        self._hosts: set[str] = set()
        # Set while a change waits for slaves, and when a slave has confirmed something.
        self._wanted = asyncio.Event()
        self._waiting_count = 0
        self._news = asyncio.Event()

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.AWAIT_TABLES, self.state)

    async def state(
        self, connection: Connection, request: Request[AwaitTablesRequestHeader]
    ) -> RemotingCommand:
        """Take in the state of a slave's tables, and return the master's when it differs."""
        header = request.header
        if (known := _parsed(header.known)) is None:
            self._confirmed.pop(connection, None)
        else:
            self._confirmed[connection] = known
            self._hosts.add(_host(connection.peer))
        self._news.set()
        self._news = asyncio.Event()
        wait_s = min(max(header.wait_ms, 0) / 1000, MAX_WAIT_S)
        if known is not None and known == self._now() and wait_s:
            try:
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
        store = self._parts.store
        now = self._now()
        body = TablesState(
            state=str(now), id=now.id, users=now.counters[-1], deleted=store.deleted_topics()
        )
        return response(ResponseCode.SUCCESS, body=encode_body(body))

    def _now(self) -> _State:
        parts = self._parts
        return _State(
            self._tables.marks.id,
            (
                parts.topics.data_version.counter,
                parts.groups.table.data_version.counter,
                0 if self._users is None else self._users.book.version,
            ),
        )

    async def confirmed(self) -> None:
        """Return when the present tables are on as many slaves as a message waits for.

        Raises Refused after slaveTimeout. Like messages, changes do not wait for slaves that are
        not in step.
        """
        if self._parts.replication.broker_role != "SYNC_MASTER" or not self._needed():
            return
        wanted = self._now()
        timeout_s = self._parts.replication.slave_timeout / 1000
        self._waiting_count += 1
        self._wanted.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self._count(wanted) < self._needed():
                    await self._news.wait()
        except TimeoutError:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "the change was made here, but no slave has confirmed it within "
                f"slaveTimeout={self._parts.replication.slave_timeout} ms: it is lost if a slave "
                "without it becomes the master; check that the slave works, then repeat "
                "the request",
            ) from None
        finally:
            self._waiting_count -= 1
            if not self._waiting_count:
                self._wanted.clear()

    def _needed(self) -> int:
        """Return how many slaves in step have to confirm a change."""
        in_step = sum(_host(each.peer) in self._hosts for each in self._master.slaves_in_step())
        return min(in_step, max(self._parts.replication.in_sync_replicas, 2) - 1)

    def _count(self, wanted: _State) -> int:
        for connection in [each for each in self._confirmed if each.closed]:
            del self._confirmed[connection]
        return sum(state.covers(wanted) for state in self._confirmed.values())


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _parsed(text: str) -> _State | None:
    name, *counters = text.split(":")
    if len(counters) != _COUNTERS or not all(each.isdecimal() for each in counters):
        return None
    return _State(name, tuple(map(int, counters)))
