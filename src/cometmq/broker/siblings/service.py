"""Take over the topics and groups of the brokers beside this one, and tell them of its own.

All write their changes into one file, whose order decides between changes that contradict each
other. A broker that was away reads at its start what it missed. A broker that cannot write keeps
its changes until it can; of each topic and group that is one.

Each broker has topics of its own that it does not share: those of the system, and retry and
dead-letter topics, which a group makes wherever it consumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from cometmq.broker.parts import Parts, Service
from cometmq.broker.refusal import Refused
from cometmq.broker.siblings.changes import Change, Changes, Key
from cometmq.broker.tables import BrokerTables
from cometmq.model import names
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.runtime.json_file import JsonFile

log = structlog.get_logger(__name__)

# How often a broker looks for changes of the others. Looking takes some microseconds.
PERIOD_S: Final = 0.25


class Siblings(Service):
    """Keeps this broker's tables and those of its siblings the same. For the loop's thread.

    `shared` is the file of all; `delete_topic` removes a topic with all that belongs to it.
    """

    def __init__(
        self,
        parts: Parts,
        tables: BrokerTables,
        shared: Path,
        delete_topic: Callable[[str], Awaitable[None]],
    ) -> None:
        self._topics = parts.topics
        self._groups = parts.groups
        self._tables = tables
        self._tasks = parts.tasks
        self._state = parts.state
        self._delete_topic = delete_topic
        self._changes = Changes(shared, parts.config.broker_name)
        self._worker = parts.workers.worker("siblings")
        # The number up to which this broker's tables have all changes, across starts.
        self._place = JsonFile(
            parts.store.config.store_path_root_dir / "config" / "siblings.json", files=parts.files
        )
        self._known = 0
        self._is_first = True
        self._pending: dict[Key, Change] = {}
        # What this broker is taking over, so that it does not tell it again.
        self._taking: Change | None = None
        self._fault = ""

    async def open(self) -> None:
        self._known = self._place.read(int) or 0
        self._topics.on_change.append(self._topics_changed)
        self._topics.on_removed.append(lambda name: self._note("topic", name))
        self._groups.on_put.append(lambda group: self._note("group", group.group_name, group=group))
        self._groups.on_remove.append(lambda name: self._note("group", name))

    def start(self) -> None:
        self._tasks.every(PERIOD_S, self._look, "siblings", first_s=0.0)

    def close(self) -> None:
        """Write down the last changes, if the file can be written now."""
        if self._pending and not self._is_first:
            try:
                self._worker.submit(self._write, dict(self._pending)).result()
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

    def _note(
        self,
        kind: str,
        name: str,
        topic: TopicConfig | None = None,
        group: SubscriptionGroupConfig | None = None,
    ) -> None:
        change = Change(0, "", kind, name, topic, group)
        taking = self._taking
        is_theirs = taking is not None and (taking.key, taking.is_removal) == (
            change.key,
            change.is_removal,
        )
        if not is_theirs and self._is_shared(change.key):
            self._pending[change.key] = change

    def _is_shared(self, key: Key) -> bool:
        kind, name = key
        if kind == "group":
            return not names.is_system_group(name) and name not in names.BUILT_IN_GROUPS
        own = name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX, names.LMQ_PREFIX))
        return not (own or names.is_system_topic(name) or self._topics.is_system(name))

    # -- the exchange --

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if not (self._pending or self._is_first) and not await loop.run_in_executor(
            self._worker, self._changes.has_news
        ):
            return
        pending, first = dict(self._pending), self._is_first
        if pending and not await self._are_written(pending):
            return
        self._pending = {key: one for key, one in self._pending.items() if pending.get(key) != one}
        write = self._write_first if first else self._write
        try:
            news = await loop.run_in_executor(self._worker, write, self._offered(pending, first))
        except OSError as error:
            self._pending = pending | self._pending
            if not isinstance(error, BlockingIOError):  # the next look finds the file free
                self._tell_fault(str(error))
            return
        except BaseException:
            self._pending = pending | self._pending
            raise
        self._tell_fault("")
        self._is_first = False
        for change in news.values():
            # A change made here meanwhile comes later in the file, and counts.
            if change.key not in self._pending:
                await self._take_over(change)
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

    def _offered(self, pending: dict[Key, Change], first: bool) -> dict[Key, Change]:
        """Return what the others may have to be told: at first all topics and groups."""
        if not first:
            return pending
        own = [Change(0, "", "topic", one.topic_name, topic=one) for one in self._topics.all()]
        own += [Change(0, "", "group", one.group_name, group=one) for one in self._groups.all()]
        return {change.key: change for change in own if self._is_shared(change.key)} | pending

    def _write(self, pending: dict[Key, Change]) -> dict[Key, Change]:
        """Add this broker's changes, and return those of the others that count. In the worker."""
        if not pending:
            return self._changes.read()
        news, added = self._changes.append(lambda _: pending.values())
        return {key: change for key, change in news.items() if key not in added}

    def _write_first(self, own: dict[Key, Change]) -> dict[Key, Change]:
        """Add what the others do not have yet, and return what this broker does not have.

        What it wrote or knew before is older than its own tables, and what it did not know is
        newer. A removal that it does not know takes a topic away only from a broker that has been
        here before: another one brings its topics along. A topic that is gone here comes back,
        which is better than to take away messages elsewhere.
        """

        def missing(news: dict[Key, Change]) -> Iterable[Change]:
            for key, change in own.items():
                theirs = news.get(key)
                if theirs is None or (theirs.topic, theirs.group) == (change.topic, change.group):
                    if theirs is None:
                        yield change
                elif (
                    theirs.number <= self._known
                    or theirs.broker == self._changes.broker
                    or (theirs.is_removal and not self._known)
                ):
                    yield change

        news, added = self._changes.append(missing)
        return {key: change for key, change in news.items() if key not in added}

    async def _take_over(self, change: Change) -> None:
        if not self._is_shared(change.key):
            return
        self._taking = change
        try:
            if change.topic is not None:
                self._topics.put(change.topic)
            elif change.group is not None:
                self._groups.put(change.group)
            elif change.kind == "group":
                self._groups.remove(change.name)
            elif self._topics.get(change.name) is not None:
                log.info("topic deleted by a sibling", topic=change.name, broker=change.broker)
                await self._delete_topic(change.name)
        finally:
            self._taking = None

    async def _remember(self) -> None:
        """Write down how far this broker is, once its tables are on the disk."""
        if self._changes.number == self._known:
            return
        number = self._changes.number
        if not await self._are_written([("group", "")]):
            return
        self._known = number
        self._state.soon(self._place, lambda: str(self._known))

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
