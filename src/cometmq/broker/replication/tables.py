"""Copy to a slave what the log does not hold: tables of its master (Java: SlaveSynchronize).

    code  table                    taken over
    21    topics                   at once, if the data version differs
    201   consumer groups          the same
    43    consumer offsets         once our log covers them
    45    delay offsets            the same, to config/delayOffset.json
    60    progress of timers       the same, to config/timercheck
    30002 consumers' expressions   at once, what is not known here; CometMQ's masters only
    402   which groups pop         at once
    3005  users, with              at once, if both have access control by users
    3010  policies

Offsets speak of messages. A delay level at 500 says that the copies of 500 messages are in the
log, and the offsets of CID_RMQ_SYS_TRANS say so of transactions that have ended. If a slave whose
log lacks some of them became the master with such offsets, it would never deliver those messages.
So these copies wait until the slave's disk has the log up to the end that the master's log had
behind them. Java's slaves take them over at once.

Longer than 500 lines: the order in which tables are requested, judged and taken over is read in one
go.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.access.users.book import Book, State, book_of
from cometmq.access.users.store import UserStore
from cometmq.broker.delays.state import TIMER_CHECK_SIZE, DelayState
from cometmq.broker.delays.state_handlers import DelayStateHandlers
from cometmq.broker.filters.consumer_filters import ConsumerFilterTable
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.replication.known_master import KnownMaster
from cometmq.broker.replication.master_check import WrongMasterError, check_master
from cometmq.broker.replication.unknown_topics import UnknownTopics
from cometmq.broker.tables import BrokerTables
from cometmq.errors import AccessDeniedError, CometMQError, RemoteError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import (
    AclInfo,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserInfo,
)
from cometmq.protocol.bodies.cluster import ConsumerOffsetSerializeWrapper, TablesState
from cometmq.protocol.bodies.overview import MessageRequestModes
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body, pretty_pieces
from cometmq.protocol.header import Header, NoHeader
from cometmq.protocol.headers import AwaitTablesRequestHeader
from cometmq.protocol.request_type import RequestType
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.credentials import is_protected
from cometmq.runtime.slices import run_slices
from cometmq.runtime.state_files.json_file import JsonFile

log = get_logger(__name__)

# Java 4.9: 10 s, the first time after 3 s; 5.x: 60 s.
_PERIOD_S: Final = 10.0
_FIRST_S: Final = 3.0
# Between two copies that messages of unknown topics cause.
_UNKNOWN_TOPIC_PAUSE_S: Final = 0.5
# The pause between two attempts to find the master.
_MASTER_PAUSE_S: Final = 0.5
# How often a copy of offsets looks whether our log has got as far as it waits for.
_COVERED_PERIOD_S: Final = 0.5
_TIMEOUT_S: Final = 10.0
# By request code: the type of a table's entries, and the table's name in the answer and here.
_ENTRIES_OF: Final[Mapping[int, tuple[Any, str, str]]] = {
    requests.GET_ALL_TOPIC_CONFIG.code: (TopicConfig, "topicConfigTable", "topic_config_table"),
    requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code: (
        SubscriptionGroupConfig,
        "subscriptionGroupTable",
        "subscription_group_table",
    ),
}
# Stands for a digest: a broker of Java's does not serve the request.
_NOT_SERVED: Final = b""
# How long a question for changes that wait for slaves stays at the master; then it is repeated.
_CHANGES_WAIT_S: Final = 15.0
# Stands for the id of the tables of a master that has none, such as Java's.
_JAVAS: Final = "-"
_CREDENTIALS_REMEDY: Final = (
    "set innerClientAuthenticationCredentials of this slave to an administrator (ACL 1.0) or a Super "
    "user (ACL 2.0) that the master knows"
)
_NO_CHECK_POINT: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


class TablesRefusedError(RemoteError):
    """Says that a master's tables do not continue the tables of this slave. `parts` is True if only
    counters have shown it.
    """

    parts = False


class _OlderTablesError(TablesRefusedError):
    parts = True


class _Offsets(NamedTuple):
    """A master's offsets, the end of its log when it had read them, and how many commits this slave had
    taken when it asked.
    """

    consumed: ConsumerOffsetSerializeWrapper
    delays: DelayState
    timer_check: bytes
    log_end: int
    asked_at: int


class MasterTables:
    """Finds out that a master is the right one, and copies its tables, also to `users`.

    Nothing is copied before `trust` was called, nor while `is_diverged` says that our log differs
    from the master's. Before topics and groups are taken over, `compare` gets the master's address
    and returns how the two logs differ. A master that has lost its disk has lost its tables, too,
    and would empty ours. For the loop's thread only.
    """

    def __init__(
        self,
        parts: Parts,
        tables: BrokerTables,
        master: KnownMaster,
        client: RemotingClient,
        is_diverged: Callable[[], bool],
        compare: Callable[[str], Awaitable[object | None]],
        users: UserStore | None = None,
    ) -> None:
        self._parts = parts
        self._tables = tables
        self._master = master
        self._client = client
        self._is_diverged = is_diverged
        self._compare = compare
        self._users = users
        self._show_delays: Callable[[DelayState], None] = lambda _: None
        # Called with the choice of modes when it is copied.
        self.on_modes: Callable[[MessageRequestModes], None] = lambda _: None
        config_directory = parts.store.config.store_path_root_dir / "config"
        self._delay_file = JsonFile(config_directory / "delayOffset.json", files=parts.files)
        self._timer_check_path = config_directory / "timercheck"
        self._delays = DelayState()
        self._timer_check = b""
        # The address of the broker that was found to be the master.
        self._checked: str | None = None
        self._failing: set[str] = set()
        self._copying = asyncio.Lock()
        self._copy_soon: asyncio.Task[None] | None = None
        # Whether the master may have changed its tables since the last copy began.
        self._may_be_old = False
        self.unknown = UnknownTopics(parts.store, parts.topics, parts.groups)
        self._offsets_copy: asyncio.Task[None] | None = None
        # Grows with each connection to a master, and whenever offsets go with a topic or a group.
        # Offsets that were asked for before may be those of messages that the master has lost
        # since, by a power cut, or of topics and groups that are gone.
        self._era = 0
        # By request code: a digest of the last answer that was taken over.
        self._known: dict[int, bytes] = {}
        # The state of the master's tables that is on this disk, None while it is unknown.
        self._confirmed: str | None = None
        self._following: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to be a slave: the tables here are those of a master from now on."""
        parts = self._parts
        parts.topics.is_copy = parts.groups.is_copy = parts.offsets.is_copy = True
        # As on the master. A group that went on from an offset of former queues would pass over
        # what the new ones have in front of it.
        offsets = parts.offsets
        parts.topics.on_removed.append(
            lambda topic: self._remove_offsets(
                lambda: offsets.remove_topic(topic, copies_only=True)
            )
        )
        parts.groups.on_remove.append(
            lambda group: self._remove_offsets(
                lambda: offsets.remove_group(group, copies_only=True)
            )
        )
        parts.store.on_begin_anew.append(
            lambda topic, queue_id: self._remove_offsets(
                lambda: offsets.remove_queue(topic, queue_id)
            )
        )
        state = self._delay_file.read(lambda text: decode_body(text.encode(), DelayState))
        self._delays = state or DelayState()
        DelayStateHandlers(parts.config, lambda: self._delays).register(parts.handlers)
        self._master.on_change.append(self._master_changed)

    def _remove_offsets(self, remove: Callable[[], None]) -> None:
        remove()
        self._era += 1
        self._tables.save_offsets()

    def show_delays(self, show: Callable[[DelayState], None]) -> None:
        """Have `show` called with the progress of delayed messages, now and when it is copied."""
        self._show_delays = show
        show(self._delays)

    def start(self) -> None:
        """Copy from time to time, and as soon as the log has a message of an unknown topic.

        If the master were lost before the next round, nobody could read that message here.
        """
        self._parts.tasks.every(_PERIOD_S, self.copy, "copy-tables", first_s=_FIRST_S)
        self._parts.store.queues.on_made.append(self._queue_made)

    def _follow_soon(self) -> None:
        tasks = self._parts.tasks
        if not tasks.is_closed and (self._following is None or self._following.done()):
            self._following = tasks.spawn(self._follow_changes(), "follow-tables")

    async def _follow_changes(self) -> None:
        """Report to the master what is on this disk, and copy its tables when a change waits for
        that.
        """
        while (known := self._confirmed) is not None and not self._is_diverged():
            address = self._checked
            if address is None:
                return
            try:
                state = await self._state(address, known, _CHANGES_WAIT_S)
            except CometMQError:
                await asyncio.sleep(_MASTER_PAUSE_S)
                continue
            if state is not None and state.state != known:
                await self.copy()

    def stop(self) -> None:
        """Call it when nothing more is copied and the tables can still be written."""
        if not self._is_diverged():
            self.unknown.make()

    def _queue_made(self, topic: str, queue_id: int) -> None:
        if self.unknown.note(topic, queue_id):
            self._copy_now()

    def _copy_now(self) -> None:
        self._may_be_old = True
        tasks = self._parts.tasks
        if not tasks.is_closed and (self._copy_soon is None or self._copy_soon.done()):
            self._copy_soon = tasks.spawn(self._copy_until_new(), "copy-tables-now")

    async def _copy_until_new(self) -> None:
        while self._may_be_old:
            await self.copy()
            await asyncio.sleep(_UNKNOWN_TOPIC_PAUSE_S)

    # -- who the master is --

    @property
    def master(self) -> str | None:
        """The address of the broker that was found to be the master; None while none was."""
        return self._checked

    @property
    def copied(self) -> frozenset[int]:
        """The codes of the requests whose last answer, from this master, was taken over."""
        return frozenset(self._known)

    def _master_changed(self) -> None:
        """Take nothing more from the former master."""
        self._checked = None
        self._confirmed = None
        self._known.clear()

    async def check(self) -> str:
        """Return the address of the broker that sends the log. Raises CometMQError unless it is the
        right master.

        Call this before each connection to the master's HA address: another broker may have started
        there.
        """
        unreached: CometMQError | None = None
        for address in self._master.candidates():
            if address == self._parts.address:
                raise WrongMasterError(
                    f"{address}, which is said to be the master, is this slave itself: give each "
                    "broker an address and a port of its own"
                )
            try:
                await check_master(self._client, self._parts.config, address)
            except WrongMasterError:
                self._checked = None
                raise
            except CometMQError as error:
                unreached = unreached or error
                continue
            self._era += 1
            return address
        assert unreached is not None, "a master that is followed has an address"
        raise unreached

    def trust(self, address: str) -> None:
        """Copy the tables of this broker from now on: its log was found to continue ours.

        Copy them at once: they may have changed since a round that did not reach the master.
        """
        self._checked = address
        self._copy_now()

    # -- tables --

    async def copy(self) -> None:
        """Copy all tables once, if the master is known.

        Offsets may wait long for a log that is far behind; topics and groups do not wait with them.
        """
        async with self._copying:
            self._may_be_old = False
            asked_for = self.unknown.names()
            address = self._checked
            if self._is_diverged():
                return
            if address is None:
                self.unknown.make()
                return
            has_come = await self._logged("tables", address, self._copy_from(address))
            if has_come:
                self.unknown.forget(asked_for)
            else:
                self._confirmed = None
                self.unknown.make()
        if self._offsets_copy is None or self._offsets_copy.done():
            copy = self._copy_offsets(address)
            self._offsets_copy = self._parts.tasks.spawn(copy, "copy-offsets")

    async def _logged(self, what: str, address: str, copying: Coroutine[Any, Any, None]) -> bool:
        """Await a copy, and log when copies begin to fail, and when they succeed again. Return whether
        this one did.
        """
        try:
            await copying
        except TablesRefusedError as error:
            await self._part(error)
            if what not in self._failing:
                self._failing.add(what)
                log.error(  # noqa: TRY400 - the reason says it all
                    "the master's tables are refused, and this slave keeps its own",
                    master=address,
                    reason=str(error),
                    remedy="make this slave the master; or stop the master and put the files of this "
                    "slave's config directory into its own; or, if the master is right, stop this slave "
                    "and remove its config directory",
                )
        except CometMQError as error:
            if what not in self._failing:
                self._failing.add(what)
                denied = isinstance(error, AccessDeniedError) and not is_protected(error.remark)
                log.warning(
                    "not copied from the master",
                    what=what,
                    master=address,
                    reason=str(error),
                    **({"remedy": _CREDENTIALS_REMEDY} if denied else {}),
                )
        else:
            if what in self._failing:
                self._failing.remove(what)
                log.info("copied from the master again", what=what, master=address)
            return True
        return False

    async def _part(self, error: TablesRefusedError) -> None:
        """Give this slave's tables an id of their own, because the master's counters will exceed
        theirs.
        """
        if error.parts:
            own = self._parts.randomness.randbytes(16).hex()
            try:
                await self._tables.keep_marks(id=own)
            except Refused as refused:
                log.warning("the refusal could not be written down", reason=str(refused))

    async def _copy_from(self, address: str) -> None:
        parts = self._parts
        # The master created a topic before it stored its messages, so it had the topics of our log
        # by now.
        covered = parts.store.commit_log.end
        state = await self._state(address, self._confirmed or "")
        self._refuse_others(address, state)
        await self._copy_versioned(
            address, requests.GET_ALL_TOPIC_CONFIG, lambda: parts.topics.data_version, parts.topics
        )
        if state is not None and state.deleted:
            deleted = state.deleted
            await _in_thread(lambda: parts.store.note_deletions(deleted))
        await parts.topics.written()
        self._tables.note_marks(covered=covered)
        await self._copy_versioned(
            address,
            requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            lambda: parts.groups.table.data_version,
            parts.groups,
        )
        await self._tables.groups_written()
        await self._copy_filters(address)
        await self._copy_modes(address)
        users = 0
        if self._users is not None:
            await self._copy_users(self._users, address, state)
            users = 0 if state is None else state.users
        own_id = _JAVAS if state is None else state.id
        if (self._tables.marks.id, self._tables.marks.users) != (own_id, users):
            await self._tables.keep_marks(id=own_id, users=users)
        if address == self._checked:
            self._confirmed = None if state is None else state.state
            self._follow_soon()

    async def _copy_offsets(self, address: str) -> None:
        await self._logged("offsets", address, self._copy_offsets_from(address))

    async def _copy_offsets_from(self, address: str) -> None:
        era = self._era
        offsets = await self._offsets(address)
        while self._parts.store.flushed_offset < offsets.log_end:
            await asyncio.sleep(_COVERED_PERIOD_S)
            if self._era != era:
                return
        if self._era == era and self._checked == address and not self._is_diverged():
            await self._take_over(offsets)

    async def _state(
        self, address: str, known: str = "", wait_s: float = 0.0
    ) -> TablesState | None:
        """Ask for the state of the master's tables; None for a master of Java's."""
        answer = await self._client.ask(
            address,
            requests.AWAIT_TABLES,
            AwaitTablesRequestHeader(known=known, wait_ms=int(wait_s * 1000)),
            what="the question for the state of its tables",
            timeout_s=_TIMEOUT_S + wait_s,
            also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
        )
        return answer.body if answer.code == ResponseCode.SUCCESS else None

    def _refuse_others(self, address: str, state: TablesState | None) -> None:
        """Raise TablesRefusedError if the master's tables are not a later state of those here."""
        marks = self._tables.marks
        if not marks.id or state is None:
            return
        if marks.id not in (state.id, _JAVAS):
            raise TablesRefusedError(
                f"{address} has lost its tables, or has other ones: they do not continue the "
                "tables that this slave copied"
            )
        if state.users < marks.users and self._users is not None:
            raise _OlderTablesError(
                f"{address} has the users after {state.users} changes, this slave after {marks.users}"
            )

    def _refuse_older(self, address: str, what: str, theirs: DataVersion, own: DataVersion) -> None:
        """Raise TablesRefusedError if a table of the master is older than the one here."""
        if self._tables.marks.id and theirs.counter < own.counter:
            raise _OlderTablesError(
                f"{address} has the {what} after {theirs.counter} changes, this slave after {own.counter}"
            )

    async def _copy_versioned(
        self,
        address: str,
        request_type: RequestType[NoHeader, None, NoHeader, Any],
        version: Callable[[], DataVersion],
        manager: Any,
    ) -> None:
        """Have `manager` copy a table whose data version is not the one here."""
        body = await self._ask(address, request_type)
        digest = hashlib.blake2b(body).digest()
        if self._known.get(request_type.code) == digest:
            return
        table = await self._decoded(body, request_type)
        is_new = table.data_version != version()
        _, what, _ = _ENTRIES_OF[request_type.code]
        self._refuse_older(address, what, table.data_version, version())
        if is_new and (difference := await self._compare(address)) is not None:
            raise RemoteError(f"{address} may have lost its tables: {difference}")
        if address != self._checked:
            # Another master came meanwhile: it is not known whether its table is the one here.
            return
        if is_new:
            await run_slices(manager.copy(table))
        self._known[request_type.code] = digest

    async def _decoded(self, body: bytes, request_type: RequestType[Any, Any, Any, Any]) -> Any:
        """Return the table in an answer.

        The decoder keeps the interpreter to itself until it is done, also in another thread. So the
        entries of a table of megabytes are decoded one by one, in slices.
        """
        type_, field, attribute = _ENTRIES_OF[request_type.code]
        rough: dict[str, msgspec.Raw]
        try:
            rough = await _in_thread(lambda: msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
            entries = await _in_thread(
                lambda: msgspec.json.decode(rough.pop(field), type=dict[str, msgspec.Raw])
            )
            table = request_type.answer_body.decode(msgspec.json.encode(rough))
        except (msgspec.DecodeError, KeyError):
            # In Java's dialect, which is taken apart in Python, and so lets the loop go on.
            return await _in_thread(lambda: request_type.answer_body.decode(body))
        whole = getattr(table, attribute)

        def decode() -> Iterator[None]:
            for key, raw in entries.items():
                whole[key] = decode_body(bytes(raw), type_)
                yield

        await run_slices(decode())
        return table

    async def _copy_filters(self, address: str) -> None:
        code = requests.GET_ALL_CONSUMER_FILTERS.code
        if self._known.get(code) == _NOT_SERVED:
            return
        body = await self._ask(
            address,
            requests.GET_ALL_CONSUMER_FILTERS,
            also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
        )
        digest = hashlib.blake2b(body).digest() if body else _NOT_SERVED
        if self._known.get(code) != digest:
            if body:
                table = await _in_thread(lambda: decode_body(body, ConsumerFilterTable))
                await run_slices(self._parts.filters.manager.copy(table))
            self._known[code] = digest

    async def _copy_modes(self, address: str) -> None:
        """Have the master's choice which groups pop. Java's masters before 5.0 know of none."""
        code = requests.GET_ALL_MESSAGE_REQUEST_MODE.code
        if self._known.get(code) == _NOT_SERVED:
            return
        body = await self._ask(
            address,
            requests.GET_ALL_MESSAGE_REQUEST_MODE,
            also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
        )
        digest = hashlib.blake2b(body).digest() if body else _NOT_SERVED
        if self._known.get(code) != digest and address == self._checked:
            if body:
                self.on_modes(await _in_thread(lambda: decode_body(body, MessageRequestModes)))
            self._known[code] = digest

    async def _copy_users(self, store: UserStore, address: str, state: TablesState | None) -> None:
        """Have the users and policies of the master, and no others.

        They come after the other tables: a master without users must not hold those up.
        """
        users = await self._ask(address, requests.AUTH_LIST_USER, header=ListUsersRequestHeader())
        acls = await self._ask(address, requests.AUTH_LIST_ACL, header=ListAclsRequestHeader())
        code = requests.AUTH_LIST_USER.code
        digest = hashlib.blake2b(users + b"\0" + acls).digest()
        if self._known.get(code) == digest:
            return
        book = await _in_thread(lambda: _book(users, acls))
        if address == self._checked and not self._is_diverged():
            version = 0 if state is None else state.users
            await store.change(lambda _: replace(book, version=version))
            self._known[code] = digest

    async def _offsets(self, address: str) -> _Offsets:
        asked_at = self._parts.offsets.commits_here
        consumed = await self._ask(address, requests.GET_ALL_CONSUMER_OFFSET)
        delays = await self._ask(address, requests.GET_ALL_DELAY_OFFSET)
        timer_check = b""
        if self._parts.config.timer_wheel_enable:
            # Java 4.9 has no timers, and one of 5.x may have switched them off.
            timer_check = await self._ask(
                address, requests.GET_TIMER_CHECK_POINT, also=_NO_CHECK_POINT
            )
        info = await self._ask(address, requests.GET_BROKER_RUNTIME_INFO)
        table = requests.GET_BROKER_RUNTIME_INFO.answer_body.decode(info).table
        try:
            end = int(table["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            raise RemoteError(f"{address} does not say where its log ends") from error
        return _Offsets(
            await _in_thread(lambda: requests.GET_ALL_CONSUMER_OFFSET.answer_body.decode(consumed)),
            decode_body(delays, DelayState),
            timer_check,
            end,
            asked_at,
        )

    async def _take_over(self, offsets: _Offsets) -> None:
        parts = self._parts
        await run_slices(parts.offsets.merge(offsets.consumed, offsets.asked_at))
        self._tables.save_offsets()
        if offsets.delays != self._delays:
            delays = self._delays = offsets.delays
            parts.state.soon(self._delay_file, lambda: pretty_pieces(delays))
            self._show_delays(delays)
        is_new = offsets.timer_check not in (b"", self._timer_check)
        if is_new and parts.store.max_offset(names.TIMER_TOPIC, 0):
            await _in_thread(lambda: self._write_timer_check(offsets.timer_check))
            self._timer_check = offsets.timer_check

    def _write_timer_check(self, data: bytes) -> None:
        disk = self._parts.disk
        disk.make_directory(self._timer_check_path.parent)
        disk.overwrite(self._timer_check_path, data[:TIMER_CHECK_SIZE], TIMER_CHECK_SIZE)

    async def _ask(
        self,
        address: str,
        request_type: RequestType[Any, None, NoHeader, Any],
        also: tuple[int, ...] = (),
        header: Header | None = None,
    ) -> bytes:
        """Return the body of an answer; it is empty if the answer has one of the `also` codes."""
        answer = await self._client.ask(
            address,
            request_type,
            header or NoHeader(),
            what=f"the question for its tables, {request_type.name},",
            timeout_s=_TIMEOUT_S,
            also=also,
        )
        return bytes(answer.command.body) if answer.code == ResponseCode.SUCCESS else b""


def _book(users: bytes, acls: bytes) -> Book:
    """Return the master's users and policies. Raises CometMQError."""
    state = State(
        decode_body(users, list[UserInfo]) if users else [],
        decode_body(acls, list[AclInfo]) if acls else [],
        migrated_from_v1=True,
    )
    if not all(user.password for user in state.users):
        raise RemoteError(
            "the master does not show its users' passwords: they are for Super users, so "
            + _CREDENTIALS_REMEDY
        )
    return book_of(state)


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)
