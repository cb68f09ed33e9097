"""Find the offsets of queues and groups, and move those of groups.

Commands of mqadmin: resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset.

Longer than 500 lines: these are the calls of one room, most of them one request each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from cometmq.admin.groups.room import Groups
from cometmq.admin.groups.stored_offsets import stored_offset
from cometmq.admin.messages.reading import settings_of
from cometmq.admin.room import Room
from cometmq.admin.routed import master_of, masters_of, reader_of
from cometmq.errors import CometMQError, IllegalArgumentError, RemoteError
from cometmq.model.measures.lag import waiting_from
from cometmq.model.names import check_group, is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.route import TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.codes import OFFSET_WAS_RESET, ResponseCode
from cometmq.protocol.fastjson.queue_table import decode_queue_table
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

# Stands for the end of every queue where a time is asked for, as in Java.
END: Final = -1
_ALL_QUEUES: Final = -1
# Java's Long.MAX_VALUE, which code 308 answers where the group to compare with is lower.
_NO_OFFSET: Final = 2**63 - 1
# A broker is asked for this many queues at once.
_QUEUES_AT_ONCE: Final = 16
_CPP: Final = "CPP"
_SERVER_SIDE: Final = "useServerSideResetOffset"


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The first and last offsets of a queue, and the offset that a group has committed there.

    Offsets count messages; the next message gets `max_offset`. `committed_offset` is None if the
    group has no offset, or if the caller named no group. Even then `from_beginning` may say that
    the group begins at the first message: it does so in its retry topic, and where it has offsets
    in other queues of the topic.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed_offset: int | None = None
    from_beginning: bool = False

    @property
    def lag(self) -> int | None:
        """Return the number of messages that the group has not consumed yet, None if it is unknown."""
        begin = waiting_from(
            self.committed_offset,
            self.min_offset,
            self.max_offset,
            from_beginning=self.from_beginning,
        )
        return None if begin is None else max(0, self.max_offset - begin)


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """An offset that a broker keeps for a group in one of the broker's queues."""

    group: str
    topic: str
    queue_id: int
    offset: int


class Offsets(Room):
    """Asks the brokers for offsets and caches none. Calls that move a group's offsets return the
    new ones by queue.
    """

    async def of_topic(
        self, topic: str, group: str | None = None, *, cluster: str | None = None
    ) -> list[QueueOffsets]:
        """Return the offsets of every readable queue of `topic`, in the order of the queues.

        Of a topic that several clusters have, `cluster` chooses one.
        """
        route = await self._servers.route(topic, cluster=cluster)
        by_reader: dict[str, list[MessageQueue]] = {}
        for queue, address in _readers(route, topic).items():
            by_reader.setdefault(address, []).append(queue)

        async def ask(address: str) -> list[QueueOffsets]:
            queues, found = by_reader[address], []
            for begin in range(0, len(queues), _QUEUES_AT_ONCE):
                some = queues[begin : begin + _QUEUES_AT_ONCE]
                # When one of them raises its error, none of the others is still under way.
                outcomes = await asyncio.gather(
                    *(self._queue_offsets(address, queue, group) for queue in some),
                    return_exceptions=True,
                )
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome
                    found.append(outcome)
            if group is not None and (
                is_retry_topic(topic) or any(at.committed_offset is not None for at in found)
            ):
                found = [replace(at, from_beginning=True) for at in found]
            return found

        offsets = await self._servers.each(
            by_reader,
            ask,
            f"the offsets of topic {topic}",
            missing=self._servers.missing_of(route),
        )
        return sorted((at for found in offsets.values() for at in found), key=lambda at: at.queue)

    async def of_queue(self, queue: MessageQueue, group: str | None = None) -> QueueOffsets:
        """Return the offsets of one queue, from the master of its broker."""
        return await self._queue_offsets(await self._master(queue), queue, group)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset whose message was stored at this time or later.

        The time is in ms since the epoch; END stands for the end of the queue.
        """
        return await self._at_time(await self._master(queue), queue, timestamp_ms)

    async def earliest_ms(self, queue: MessageQueue) -> int:
        """Return when the first message of a queue was stored, in ms since the epoch; -1 for an
        empty queue.
        """
        answer = await self._servers.ask(
            await self._master(queue),
            requests.GET_EARLIEST_MSG_STORETIME,
            GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the time of the first message of {queue}",
        )
        return answer.header.timestamp

    async def of_brokers(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, list[StoredOffset]]:
        """Return every offset that each broker keeps, sorted by group, topic and queue.

        This is much for a broker with many groups; ask for those of one by `of_topic`.
        """
        what = "the offsets of all groups"
        return await self._ask_brokers(
            requests.GET_ALL_CONSUMER_OFFSET,
            NoHeader(),
            what=what,
            read=lambda answer: _stored_offsets(answer.body.offset_table),
            cluster=cluster,
            broker=broker,
        )

    async def lowest(self, topic: str, compare_group: str) -> dict[MessageQueue, int | None]:
        """Return by queue the lowest offset that any group has in a topic.

        It is None where the offset of `compare_group` is lower. Queues without an offset are left
        out. The request has a field for groups to leave out, but a Java broker deletes the
        offsets of these groups.
        """
        check_group(compare_group)
        route = await self._servers.route(topic)
        header = QueryCorrectionOffsetHeader(topic=topic, compare_group=compare_group)
        what = f"the lowest offsets in topic {topic}"
        masters, missing = self._servers.masters_and_missing(route)
        names = {address: name for name, address in masters.items()}

        async def ask(address: str) -> dict[MessageQueue, int | None]:
            answer = await self._servers.ask(
                address, requests.QUERY_CORRECTION_OFFSET, header, what=what
            )
            return {
                MessageQueue(topic, names[address], queue_id): None if at == _NO_OFFSET else at
                for queue_id, at in answer.body.correction_offsets.items()
            }

        found = await self._servers.each(masters.values(), ask, what, missing=missing)
        return dict(sorted((queue, at) for table in found.values() for queue, at in table.items()))

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset of one queue. Members that are online commit theirs over it."""
        await self._commit(await self._master(queue), group, queue, offset)

    async def reset_to_time(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        force: bool = True,
        for_cpp: bool = False,
        cluster: str | None = None,
    ) -> dict[MessageQueue, int]:
        """Have a group go on with the messages that were stored at a time or later.

        The time is in ms since the epoch; END stands for the end of every queue. Brokers of 5 and of
        CometMQ move the offsets themselves. Older ones have the members move them; where no member
        is online, the offsets are stored as by `store_reset`. Without `force` no offset moves
        ahead; brokers of 5 and of CometMQ ignore this. `for_cpp` makes older brokers write to the
        members in the form that C++ clients read. Of a topic that several clusters have, `cluster`
        chooses one.
        """
        _check_time(timestamp_ms)
        check_group(group)
        route = await self._servers.route(topic, cluster=cluster)
        header = ResetOffsetRequestHeader(
            group=group,
            topic=topic,
            timestamp=timestamp_ms,
            is_force=force,
            queue_id=_ALL_QUEUES,
            offset=-1,
        )

        async def reset(address: str) -> dict[MessageQueue, int]:
            answer = await self._servers.ask(
                address,
                requests.INVOKE_BROKER_TO_RESET_OFFSET,
                header,
                what=f"the reset of group {group} in topic {topic}",
                also=(ResponseCode.CONSUMER_NOT_ONLINE,),
                language=_CPP if for_cpp else None,
            )
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return await self._store_reset_at(address, route, group, topic, timestamp_ms, force)
            return decode_queue_table(answer.body, "offsetTable", int)

        return await self._merged(
            masters_of(route, topic).values(),
            reset,
            f"the reset of group {group}",
            self._servers.missing_of(route),
        )

    async def store_reset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Store the offsets of a time for a group that is not online (the old way).

        Members that are online commit theirs over it. Without `force` no offset moves ahead; those
        that would are left out of the result. Raises RemoteError if a broker has no such group.
        """
        _check_time(timestamp_ms)
        check_group(group)
        route = await self._servers.route(topic)
        return await self._merged(
            masters_of(route, topic).values(),
            lambda address: self._store_reset_at(address, route, group, topic, timestamp_ms, force),
            f"the reset of group {group}",
            self._servers.missing_of(route),
        )

    async def reset_queue(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Have a group go on at `offset` in one queue.

        Brokers of 5 and of CometMQ see to it that members which are online go on there. Other
        brokers only store the offset: stop the members first, since they commit theirs over it.
        """
        address = await self._master(queue)
        # A broker that moves no offsets itself would reset all queues. A caller without the right to
        # read the configuration is refused before the offset has moved.
        moves_offsets = await self._moves_offsets(address)
        await self._commit(address, group, queue, offset)
        if not moves_offsets:
            return
        await self._reset_at(address, group, queue, offset)

    async def skip(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Have a group go on at the end of every queue: it gets only messages to come."""
        return await self.reset_to_time(group, topic, END)

    async def clone(self, source: str, target: str, topic: str) -> dict[MessageQueue, int]:
        """Give a group the offsets that another one has in a topic.

        Members of `target` that are online overwrite it when they commit. Raises what `to_clone`
        raises.
        """
        check_group(target)
        offsets = await self.to_clone(source, topic)
        route = await self._servers.route(topic)

        async def copy(address: str) -> dict[MessageQueue, int]:
            await Groups(self._servers).config(target, broker=address)
            cloned = {}
            for at in offsets:
                if master_of(route, topic, at.queue.broker_name) == address:
                    assert at.committed_offset is not None
                    await self._commit(address, target, at.queue, at.committed_offset)
                    cloned[at.queue] = at.committed_offset
            return cloned

        masters = {master_of(route, topic, at.queue.broker_name) for at in offsets}
        return await self._merged(sorted(masters), copy, f"cloning to group {target}")

    async def to_clone(self, source: str, topic: str) -> list[QueueOffsets]:
        """Return the offsets that `clone` copies: those of queues in which the group has one.

        Raises RemoteError (QUERY_NOT_FOUND) if it has none, for example because no such group
        exists.
        """
        check_group(source)
        found = [at for at in await self.of_topic(topic, source) if at.committed_offset is not None]
        # A broker before 5.0 answers 0 where a group has no offset.
        if any(at.committed_offset for at in found):
            return found
        if found and source in await Groups(self._servers).of_topic(topic):
            return found
        raise RemoteError(
            f"group {source} has no offset in topic {topic}, so there is nothing to clone; check "
            "both names (groups.of_topic() has the groups of a topic)",
            code=ResponseCode.QUERY_NOT_FOUND,
        )

    async def clone_at_brokers(
        self, source: str, target: str, topic: str, *, offline: bool = False
    ) -> list[str]:
        """Have the brokers of a topic give a group the offsets of another one; return the addresses
        of the brokers where the other group has any.

        The brokers copy the offsets themselves, while `clone` stores them one by one and returns
        them. Unless `offline`, nothing is cloned while `source` is online without a subscription to
        the topic. Members of `target` that are online overwrite it when they commit. Raises what
        `to_clone` raises.
        """
        check_group(target)
        names = {at.queue.broker_name for at in await self.to_clone(source, topic)}
        route = await self._servers.route(topic)
        header = CloneGroupOffsetRequestHeader(
            src_group=source, dest_group=target, topic=topic, offline=offline
        )
        what = f"cloning group {source} to group {target}"

        async def copy(address: str) -> None:
            # A Java broker would store offsets of a group that nobody has made.
            await Groups(self._servers).config(target, broker=address)
            await self._servers.ask(address, requests.CLONE_GROUP_OFFSET, header, what=what)

        masters = {master_of(route, topic, name) for name in names}
        return list(await self._servers.each(sorted(masters), copy, what))

    # Inside

    async def _merged(
        self,
        addresses: Iterable[str],
        move: Callable[[str], Awaitable[dict[MessageQueue, int]]],
        what: str,
        missing: Mapping[str, CometMQError] = MappingProxyType({}),
    ) -> dict[MessageQueue, int]:
        moved = await self._servers.each(addresses, move, what, missing=missing)
        return dict(sorted((queue, to) for table in moved.values() for queue, to in table.items()))

    async def _store_reset_at(
        self,
        address: str,
        route: TopicRouteData,
        group: str,
        topic: str,
        timestamp_ms: int,
        force: bool,
    ) -> dict[MessageQueue, int]:
        # A broker of 4.x would store offsets of a group that nobody has made.
        await Groups(self._servers).config(group, broker=address)
        moved = {}
        for queue, master in _queues(route, topic).items():
            if master != address:
                continue
            target = await self._at_time(address, queue, timestamp_ms)
            before = await stored_offset(self._servers, address, group, queue)
            if force or before is None or target <= before:
                await self._commit(address, group, queue, target)
                moved[queue] = target
        return moved

    async def _moves_offsets(self, address: str) -> bool:
        answer = await self._servers.ask(
            address, requests.GET_BROKER_CONFIG, NoHeader(), what="the configuration"
        )
        config = settings_of(answer.body, address)
        return config.get(_SERVER_SIDE) == "true"

    async def _master(self, queue: MessageQueue) -> str:
        route = await self._servers.route(queue.topic)
        return master_of(route, queue.topic, queue.broker_name)

    async def _queue_offsets(
        self, address: str, queue: MessageQueue, group: str | None
    ) -> QueueOffsets:
        lowest = await self._servers.ask(
            address,
            requests.GET_MIN_OFFSET,
            GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the min offset of {queue}",
        )
        highest = await self._max_offset(address, queue)
        committed = (
            None if group is None else await stored_offset(self._servers, address, group, queue)
        )
        return QueueOffsets(queue, lowest.header.offset, highest, committed)

    async def _max_offset(self, address: str, queue: MessageQueue) -> int:
        answer = await self._servers.ask(
            address,
            requests.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the max offset of {queue}",
        )
        return answer.header.offset

    async def _at_time(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        if timestamp_ms == END:
            return await self._max_offset(address, queue)
        answer = await self._servers.ask(
            address,
            requests.SEARCH_OFFSET_BY_TIMESTAMP,
            SearchOffsetRequestHeader(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
            ),
            what=f"the offset of {queue} at {timestamp_ms}",
        )
        return answer.header.offset

    async def _commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        answer = await self._servers.ask(
            address,
            requests.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offset,
            ),
            what=f"the offset {offset} of group {group} at {queue}",
        )
        if answer.command.remark != OFFSET_WAS_RESET:
            return
        # The broker ignored the offset: after a reset it ignores offsets until a member pulls, and a
        # group that is not online never does. A reset to this offset replaces the earlier one.
        await self._reset_at(address, group, queue, offset)

    async def _reset_at(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Reset one queue at a broker that keeps track of resets and passes them on to members
        itself.
        """
        await self._servers.ask(
            address,
            requests.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffsetRequestHeader(
                group=group,
                topic=queue.topic,
                timestamp=0,
                is_force=True,
                queue_id=queue.queue_id,
                offset=offset,
            ),
            what=f"the reset of group {group} in {queue}",
        )


def _stored_offsets(table: Mapping[str, Mapping[int, int]]) -> list[StoredOffset]:
    # A topic has no @ in its name.
    named = [(*key.partition("@"), of) for key, of in table.items()]
    return sorted(
        (
            StoredOffset(group, topic, queue_id, offset)
            for topic, _, group, of in named
            for queue_id, offset in of.items()
        ),
        key=lambda at: (at.group, at.topic, at.queue_id),
    )


def stored(offsets: Iterable[QueueOffsets]) -> int:
    """Return how many messages these queues have taken since they were created."""
    return sum(queue.max_offset for queue in offsets)


def _queues(route: TopicRouteData, topic: str) -> dict[MessageQueue, str]:
    """Return the master of each readable queue."""
    return {
        queue: master_of(route, topic, queue.broker_name) for queue in route.subscribe_queues(topic)
    }


def _readers(route: TopicRouteData, topic: str) -> dict[MessageQueue, str]:
    """Return where each readable queue is read: at its master, or at a slave if there is none."""
    return {
        queue: reader_of(route, topic, queue.broker_name) for queue in route.subscribe_queues(topic)
    }


def _check_time(timestamp_ms: int) -> None:
    if type(timestamp_ms) is not int or timestamp_ms < END:
        raise IllegalArgumentError(
            f"timestamp_ms is {timestamp_ms!r:.80}; give ms since the epoch, or offsets.END (-1) for "
            "the end of every queue"
        )
