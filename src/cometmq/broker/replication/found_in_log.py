"""Find the topics, queues and groups that have messages in the log, where a table lacks them.

A slave that is promoted has the log of its master, and may have tables that are older: the master's
last topics were never copied. A master may have lost its tables. Then the log says what exists, by
its consume queues, and by the messages that wait in internal topics for their own topic (delayed,
timed and half messages).

For the log below the offset `covered` the tables are complete. If all messages of a queue lie below
it and no table has the queue, its topic was deleted or has fewer queues now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.broker.delays.delivery import Delivery, UndeliverableError
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.parts import Parts
from cometmq.broker.tables import BrokerTables
from cometmq.broker.topics.topics import TopicManager
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.messages.properties import property_finder
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, ConsumeQueue
from cometmq.store.store import MessageStore

log = get_logger(__name__)

_find_real_topic: Final = property_finder(p.REAL_TOPIC)
_find_real_queue_id: Final = property_finder(p.REAL_QUEUE_ID)
_find_origin_group: Final = property_finder(p.ORIGIN_GROUP)
_MAX_QUEUE_DIGITS: Final = 9
# More than the changes of a table that can be missing on disk.
_SKIPPED: Final = 100_000
_GROUP_PREFIXES: Final = (names.RETRY_PREFIX, names.DLQ_PREFIX)


async def find_in_log(
    parts: Parts, tables: BrokerTables, waiting_from: Mapping[tuple[str, int], int]
) -> None:
    """Create the topics, queues and groups that have messages in the log but are missing in a
    table; return when they are on disk. Raises Refused if they cannot be written.

    Call it at a start, when the messages that wait are known; `waiting_from` is as in `missing_targets`.
    """
    store, topics, groups = parts.store, parts.topics, parts.groups
    end = store.commit_log.end
    covered = 0 if tables.lost else tables.marks.covered_to(end)
    if tables.lost and end:
        log.error(
            "tables are missing or older than they were; topics and groups that have messages are "
            "restored from the log, the others are lost, and slaves refuse these tables",
            files=tables.lost,
            remedy="stop this broker and put the files back, or copies from its slave; or make the "
            "slave the master",
        )
    if covered < end:
        loop = asyncio.get_running_loop()
        # In a thread, because it may read much of the log.
        found = await loop.run_in_executor(
            None,
            lambda: (
                missing_queues(store, topics, covered),
                missing_targets(store, topics, covered, waiting_from),
            ),
        )
        names_found = found[0].keys() | found[1].keys()
        make_topics(
            store,
            topics,
            groups,
            {n: max(found[0].get(n, 0), found[1].get(n, 0)) for n in sorted(names_found)},
            "the table is missing or older" if tables.lost else "it was not copied from the master",
        )
        if tables.lost:
            make_groups(store, groups, store.topics())
        await topics.written()
        await tables.groups_written()
    await _begin(parts, tables, end)


async def _begin(parts: Parts, tables: BrokerTables, end: int) -> None:
    """Note whether the tables are a master's own or copies from now on."""
    marks = tables.marks
    if not parts.replication.is_slave:
        own = marks.id or parts.randomness.randbytes(16).hex()
        if marks.covered is not None or own != marks.id:
            await tables.keep_marks(covered=None, id=own)
        if parts.store.is_after_crash:
            # A slave may have copied a change that was not on disk yet, and takes no lower version.
            parts.topics.skip_versions(_SKIPPED)
            parts.groups.skip_versions(_SKIPPED)
            await parts.topics.written()
            await tables.groups_written()
    elif marks.covered is None:
        # It was a master until now. The operator has decided that another broker's tables count.
        await tables.keep_marks(covered=end, id="")


def missing_queues(store: MessageStore, topics: TopicManager, covered: int) -> dict[str, int]:
    """Return the least number of queues of each topic that is missing in the table, or has fewer
    there.
    """
    found: dict[str, int] = {}
    for queue in store.queues:
        if not topics.is_readable(queue.topic, queue.queue_id) and _reaches(queue, covered):
            found[queue.topic] = max(queue.queue_id + 1, found.get(queue.topic, 0))
    return found


def _reaches(queue: ConsumeQueue, covered: int) -> bool:
    last = queue.last_message()
    queue.release()
    return last is not None and last.physical_offset >= covered


def missing_targets(
    store: MessageStore,
    topics: TopicManager,
    covered: int,
    waiting_from: Mapping[tuple[str, int], int],
) -> dict[str, int]:
    """Do the same for the topics and queues that waiting messages name.

    `waiting_from` has, by internal topic and queue, the queue offset of the first message that may
    still wait. Messages below `covered` are not read, so the time of a start depends only on newer
    messages.
    """
    found: dict[str, int] = {}
    delivery = Delivery(store)
    for (waiting_topic, waiting_queue_id), first in waiting_from.items():
        queue = store.queues.find(waiting_topic, waiting_queue_id)
        if queue is None or not _reaches(queue, covered):
            continue
        for offset in range(max(first, _first_at(store, queue, covered)), queue.next_offset):
            unit = store.mender.unit(queue, offset)
            if unit is None or unit.size == PLACEHOLDER_SIZE:
                continue
            try:
                text = delivery.read(unit.physical_offset, unit.size).text
            except UndeliverableError:
                continue  # its delivery reports that
            topic, queue_id = _find_real_topic(text), _find_real_queue_id(text) or ""
            if (
                topic is None
                or not queue_id.isdecimal()
                or len(queue_id) > _MAX_QUEUE_DIGITS
                or names.topic_fault(topic)
                or topics.is_readable(topic, int(queue_id))
                or unit.physical_offset < store.deleted_at(topic)
            ):
                continue
            found[topic] = max(int(queue_id) + 1, found.get(topic, 0))
        queue.release()
    return found


def _first_at(store: MessageStore, queue: ConsumeQueue, covered: int) -> int:
    """Return the queue offset of the first message at or behind a commit-log offset."""

    def place_at(queue_offset: int) -> int:
        unit = store.mender.unit(queue, queue_offset)
        assert unit is not None, "the queue is searched where it has units"
        return unit.physical_offset

    return queue.find_offset(place_at, covered) if covered else queue.min_offset


def make_topics(
    store: MessageStore,
    topics: TopicManager,
    groups: GroupManager,
    found: Mapping[str, int],
    reason: str,
) -> None:
    """Create topics with the given numbers of queues to read, and the groups of retry topics.

    A topic that is there keeps its permission and its queues to write to.
    """
    for name, count in found.items():
        known = topics.get(name)
        if known is None:
            made = TopicConfig(name, read_queue_nums=count, write_queue_nums=count)
        elif known.read_queue_nums < count:
            made = msgspec.structs.replace(known, read_queue_nums=count)
        else:
            continue
        log.warning(
            "a topic is created, or gets more queues, because the log has its messages",
            topic=name,
            queues=count,
            reason=reason,
        )
        topics.put(made)
    make_groups(store, groups, found)


def make_groups(store: MessageStore, groups: GroupManager, topics: Iterable[str]) -> None:
    """Create the missing groups of retry topics and dead-letter topics."""
    for name in topics:
        if not name.startswith(_GROUP_PREFIXES):
            continue
        group = _group_of(store, name)
        if groups.get(group) is None and names.group_fault(group) is None:
            log.warning(
                "a consumer group is created, because the log has its messages",
                group=group,
                topic=name,
            )
            groups.put(SubscriptionGroupConfig(group_name=group))


def _group_of(store: MessageStore, topic: str) -> str:
    """Return the group of a retry topic or a dead-letter topic. The retry topic of a group that pops has the name of
    the group and of a topic, and its messages have the group's.
    """
    group = topic.removeprefix(names.RETRY_PREFIX).removeprefix(names.DLQ_PREFIX)
    if not names.is_retry_topic(topic) or not {"_", "+"}.intersection(group):
        return group
    for queue in store.queues:
        last = queue.last_message() if queue.topic == topic else None
        if last is None:
            continue
        queue.release()
        try:
            text = Delivery(store).read(last.physical_offset, last.size).text
        except UndeliverableError:
            continue
        origin = _find_origin_group(text) or ""
        if origin and group.startswith((f"{origin}_", f"{origin}+")):
            return origin
    return group
