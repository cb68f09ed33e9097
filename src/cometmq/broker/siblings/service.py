"""Take over the topics and groups of the brokers beside this one, and tell them of its own. So with
the users and policies of access control.

All write their changes into one file, whose order decides between changes that contradict each
other. A broker that was away reads at its start what it missed. A broker that cannot write keeps
its changes until it can; of each topic and group that is one.

Each broker has topics of its own that it does not share: those of the system, and retry and
dead-letter topics, which a group makes wherever it consumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from cometmq.access.users.book import SUBJECT_PREFIX, Book, changes_between
from cometmq.access.users.store import UserStore
from cometmq.broker.parts import Parts, Service
from cometmq.broker.refusal import Refused
from cometmq.broker.siblings.changes import Change, Changes, Key, News, note
from cometmq.broker.tables import BrokerTables
from cometmq.errors import CometMQError, StoreBusyError
from cometmq.model import names
from cometmq.model.topic import TopicConfig
from cometmq.runtime.json_file import JsonFile
from cometmq.runtime.surroundings import current

log = structlog.get_logger(__name__)

# How often a broker looks for changes of the others. Looking takes some microseconds.
PERIOD_S: Final = 0.25
# How often, in pauses of 50 ms, a broker that stops tries to tell its last changes while others write.
_LAST_TRIES: Final = 20


class _Place(msgspec.Struct):
    """Says which changes of the file this broker's tables have, across starts.

    They have all up to the number `known`, and of each kind and name in `removed` the removal of
    that number: what was sent to a topic that was made again must stay.
    """

    known: int = 0
    removed: dict[str, dict[str, int]] = {}


class Siblings(Service):
    """Keeps this broker's tables and those of its siblings the same. For the loop's thread.

    `shared` is the file of all; `delete_topic` removes a topic with all that belongs to it. `users`
    are those of this broker's access control, if it has any.
    """

    def __init__(
        self,
        parts: Parts,
        tables: BrokerTables,
        shared: Path,
        delete_topic: Callable[[str], Awaitable[None]],
        users: UserStore | None = None,
    ) -> None:
        self._topics = parts.topics
        self._groups = parts.groups
        self._tables = tables
        self._tasks = parts.tasks
        self._state = parts.state
        self._delete_topic = delete_topic
        self._users = users
        self._changes = Changes(shared, parts.config.broker_name)
        self._worker = parts.workers.worker("siblings")
        self._sleep = current().clock.sleep
        self._place_file = JsonFile(
            parts.store.config.store_path_root_dir / "config" / "siblings.json", files=parts.files
        )
        self._place = _Place()
        self._is_first = True
        self._pending: News = {}
        # What the others changed and this broker has still to take over.
        self._news: News = {}
        # What this broker is taking over, so that it does not tell it again.
        self._taking: Change | None = None
        self._fault = ""

    async def open(self) -> None:
        self._place = (
            self._place_file.read(lambda text: msgspec.json.decode(text, type=_Place)) or _Place()
        )
        self._topics.on_change.append(self._topics_changed)
        self._topics.on_removed.append(lambda name: self._note("topic", name))
        self._groups.on_put.append(lambda group: self._note("group", group.group_name, group=group))
        self._groups.on_remove.append(lambda name: self._note("group", name))
        if self._users is not None:
            self._users.on_change.append(self._users_changed)

    def start(self) -> None:
        self._tasks.every(PERIOD_S, self._look, "siblings", first_s=0.0)

    def close(self) -> None:
        """Write down the last changes, if the file can be written now."""
        if self._pending and not self._is_first:
            try:
                self._worker.submit(self._write_last, dict(self._pending)).result()
            except OSError as error:
                log.warning(
                    "siblings not told of changes", count=len(self._pending), why=str(error)
                )
        self._worker.submit(self._changes.close).result()
        self._worker.shutdown(wait=True)

    # -- this broker's changes --

    def _topics_changed(self, topics: Iterable[TopicConfig]) -> None:
        for topic in topics:
            self._note("topic", topic.topic_name, topic=topic)

    def _users_changed(self, before: Book, after: Book) -> None:
        users, subjects = changes_between(before, after)
        for name in users:
            self._note("user", name, user=after.users.get(name))
        for subject in subjects:
            self._note("acl", subject, acl=after.acls.get(subject))

    def _note(self, kind: str, name: str, **value: Any) -> None:
        change = Change(0, "", kind, name, **value)
        taking = self._taking
        is_theirs = taking is not None and (taking.key, taking.is_removal) == (
            change.key,
            change.is_removal,
        )
        if kind in ("user", "acl") and taking is not None:
            # A change of this broker's own may have become durable together with theirs.
            is_theirs = is_theirs and taking.value == change.value
        # Taking over the removal of a user removes what is said of him, too.
        is_theirs = is_theirs or (
            taking is not None
            and change.kind == "acl"
            and change.is_removal
            and taking.kind == "user"
            and taking.is_removal
            and name == SUBJECT_PREFIX + taking.name
        )
        if not is_theirs and self._is_shared(change.key):
            note(self._pending, change)
            self._news.pop(change.key, None)  # which is older

    def _is_shared(self, key: Key) -> bool:
        kind, name = key
        if kind in ("user", "acl"):
            return self._users is not None
        if kind == "group":
            return not names.is_system_group(name) and name not in names.BUILT_IN_GROUPS
        own = name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX, names.LMQ_PREFIX))
        return not (own or names.is_system_topic(name) or self._topics.is_system(name))

    # -- the exchange --

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if not (self._pending or self._is_first or self._news) and not await loop.run_in_executor(
            self._worker, self._changes.has_news
        ):
            return
        pending, first = dict(self._pending), self._is_first
        if pending and not await self._are_written(pending):
            return
        self._pending = _without(self._pending, pending)
        write = self._write_first if first else self._write
        try:
            news = await loop.run_in_executor(self._worker, write, self._offered(pending, first))
        except OSError as error:
            self._pending = _joined(pending, self._pending)
            if not isinstance(error, BlockingIOError):  # the next look finds the file free
                self._tell_fault(str(error))
            return
        except BaseException:
            self._pending = _joined(pending, self._pending)
            raise
        self._is_first = False
        # A change made here meanwhile comes later in the file, and counts.
        news = {key: changes for key, changes in news.items() if key not in self._pending}
        self._news = _joined(self._news, news)
        if await self._take_over_all():
            self._tell_fault("")
            await self._remember()

    async def _are_written(self, changed: Iterable[Key]) -> bool:
        """Wait until this broker's own disk has its tables; say whether it has.

        So what the file says of this broker is never newer than the broker's tables.
        """
        try:
            await self._topics.written()
            if any(kind == "group" for kind, _ in changed):
                await self._tables.groups_written()
        except Refused as error:
            self._tell_fault(str(error))
            return False
        return True

    def _offered(self, pending: News, first: bool) -> News:
        """Return what the others may have to be told: at first all topics and groups."""
        if not first:
            return pending
        own = [Change(0, "", "topic", one.topic_name, topic=one) for one in self._topics.all()]
        own += [Change(0, "", "group", one.group_name, group=one) for one in self._groups.all()]
        if self._users is not None:
            book = self._users.book
            own += [Change(0, "", "user", name, user=one) for name, one in book.users.items()]
            own += [Change(0, "", "acl", name, acl=one) for name, one in book.acls.items()]
        return {change.key: [change] for change in own if self._is_shared(change.key)} | pending

    def _write(self, pending: News) -> News:
        """Add this broker's changes, and return those of the others that count. In the worker."""
        if not pending:
            return self._changes.read()
        news, added = self._changes.append(lambda _: chain.from_iterable(pending.values()))
        return {key: changes for key, changes in news.items() if key not in added}

    def _write_last(self, pending: News) -> None:
        """Add the last changes; all brokers of a supervisor stop at once. In the worker."""
        for tries_left in reversed(range(_LAST_TRIES)):
            try:
                self._write(pending)
            except BlockingIOError:
                if not tries_left:
                    raise
                self._sleep(0.05)
            else:
                return

    def _write_first(self, own: News) -> News:
        """Add what the others do not have yet, and return what this broker does not have.

        What it wrote or knew before is older than its own tables, and what it did not know is
        newer. A removal that it does not know takes a topic away only from a broker that has been
        here before: another one brings its topics along. A topic that is gone here comes back,
        which is better than to take away messages elsewhere.
        """

        def is_new(change: Change) -> bool:
            return (
                change.number > self._place.known
                and change.broker != self._changes.broker
                and not (change.is_removal and not self._place.known)
            )

        def missing(news: News) -> Iterable[Change]:
            for key, mine in own.items():
                theirs = news.get(key)
                if theirs is None or (
                    not is_new(theirs[-1])
                    and (mine[0].is_removal or not _are_equal(mine[-1], theirs[-1]))
                ):
                    yield from mine

        news, added = self._changes.append(missing)
        return {
            key: list(filter(is_new, changes)) if key in own else changes
            for key, changes in news.items()
            if key not in added
        }

    async def _take_over_all(self) -> bool:
        """Take over the news, and return whether all are. What fails is tried at the next look."""
        failed: News = {}
        while self._news:
            key = next(iter(self._news))
            changes = self._news.pop(key)
            try:
                for change in changes:
                    if key not in self._pending:
                        await self._take_over(change)
            except CometMQError as error:
                if key not in self._pending:
                    failed[key] = changes
                if not isinstance(error, StoreBusyError):  # its administrator deletes it, too
                    self._tell_fault(str(error))
        self._news = failed
        return not failed

    async def _take_over(self, change: Change) -> None:
        if not self._is_shared(change.key):
            return
        self._taking = change
        try:
            if change.topic is not None:
                self._topics.put(change.topic)
            elif change.group is not None:
                self._groups.put(change.group)
            elif self._users is not None and change.user is not None:
                user = change.user
                await self._users.change(lambda book: book.with_user(user))
            elif self._users is not None and change.acl is not None:
                acl = change.acl
                await self._users.change(lambda book: book.with_acl(acl))
            elif change.number > self._place.removed.get(change.kind, {}).get(change.name, 0):
                await self._remove(change)
        finally:
            self._taking = None
        mine = self._pending.get(change.key)
        if mine and (topic := mine[-1].topic) is not None:  # made again while it was deleted
            self._topics.put(topic)

    async def _remove(self, change: Change) -> None:
        """Remove a topic or group, and write that down before it can be made again.

        Raises CometMQError when either cannot be done; both may be tried again.
        """
        if self._users is not None and change.kind in ("user", "acl"):
            name, is_user = change.name, change.kind == "user"
            await self._users.change(
                lambda book: book.without_user(name) if is_user else book.without_acl(name)
            )
        elif change.kind == "group":
            self._groups.remove(change.name)
        elif self._topics.get(change.name) is not None:
            log.info("topic deleted by a sibling", topic=change.name, broker=change.broker)
            await self._delete_topic(change.name)
        self._place.removed.setdefault(change.kind, {})[change.name] = change.number
        try:
            await self._state.save(self._place_file, self._captured_place)
        except OSError as error:
            del self._place.removed[change.kind][change.name]
            raise CometMQError(f"{self._place_file.path} could not be written: {error}") from error

    async def _remember(self) -> None:
        """Write down how far this broker is, once its tables are on the disk."""
        number = self._changes.number
        if number == self._place.known or not await self._are_written([("group", "")]):
            return
        self._place = _Place(number)
        self._state.soon(self._place_file, self._captured_place)

    def _captured_place(self) -> str:
        return msgspec.json.encode(self._place).decode()

    def _tell_fault(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            if fault:
                log.error(
                    "topics are not shared with siblings",
                    path=str(self._changes.path),
                    why=fault,
                    remedy="see that the disk has room and works; the broker tries again by itself",
                )
            else:
                log.info("topics are shared with siblings again")


def _are_equal(one: Change, other: Change) -> bool:
    return one.value == other.value


def _joined(older: News, newer: News) -> News:
    news = dict(older)
    for change in chain.from_iterable(newer.values()):
        note(news, change)
    return news


def _without(news: News, told: News) -> News:
    """Return the news without the changes in `told`."""
    left = {
        key: [one for one in changes if not any(one is other for other in told.get(key, ()))]
        for key, changes in news.items()
    }
    return {key: changes for key, changes in left.items() if changes}
