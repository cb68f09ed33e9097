"""Ask brokers for their reports: statistics, progress, delays, slaves.

Commands of mqadmin: statsAll, brokerConsumeStats, haStatus, getBrokerEpoch,
checkRocksdbCqWriteProgress.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from cometmq.admin.groups.records import GroupProgress, queue_progress
from cometmq.admin.room import Room
from cometmq.admin.topics.queue_bodies import queue_table_and_rate
from cometmq.errors import ProtocolError, RemoteError
from cometmq.protocol import java_requests, requests
from cometmq.protocol.bodies.inspection import BrokerStatsItem, OffsetWrapper
from cometmq.protocol.bodies.overview import (
    EpochEntryCache,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import with_text_keys
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    CheckRocksdbCqWriteProgressRequestHeader,
    GetConsumeStatsInBrokerHeader,
    ViewBrokerStatsDataRequestHeader,
)

# As mqadmin gives brokerConsumeStats: a broker may have very many groups.
_PROGRESS_TIMEOUT_S: Final = 50.0
_GROUPS_A_TURN: Final = 20
_TIMER_CHECK: Final = struct.Struct(">4q")


@dataclass(frozen=True, slots=True)
class Growth:
    """Says how much a counter grew, how much per second, and by how much each time."""

    total: int
    per_s: float
    average: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Says how much a counter grew in the last minute, hour and day."""

    minute: Growth
    hour: Growth
    day: Growth


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """Shows how far each group is in the queues of one broker.

    The sums cover the groups that have queues there, and are None if one of them is unknown.
    """

    groups: tuple[GroupProgress, ...]

    @property
    def lag(self) -> int | None:
        return _sum(group.lag for group in self.groups if group.queues)

    @property
    def in_flight(self) -> int | None:
        return _sum(group.in_flight for group in self.groups if group.queues)


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """Says how far a broker has delivered timed messages.

    Messages that were due before `delivered_ms` (in ms since the epoch) are delivered. The broker
    has read the timer's queue up to `queue_offset`; `master_queue_offset` is that of its master.
    """

    delivered_ms: int
    queue_offset: int
    master_queue_offset: int


@dataclass(frozen=True, slots=True)
class Replication:
    """Says how far the slaves of a broker are.

    A master has a record for each slave that is connected; a slave has one of its own,
    `from_master`.
    """

    is_master: bool
    max_offset: int
    in_sync_slaves: int
    slaves: tuple[HAConnectionRuntimeInfo, ...]
    from_master: HAClientRuntimeInfo | None


class RocksdbCheck(Enum):
    """Names the outcome of a check of queues in RocksDB."""

    OK = 0
    NOT_OK = 1
    # Its result will be in the broker's log.
    IN_PROGRESS = 2
    FAILED = 3


_CHECKS: Final = {check.value: check for check in RocksdbCheck}


class BrokerReports(Room):
    """Asks brokers for reports. The results are by address."""

    async def statistics(
        self,
        name: str,
        key: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, Statistics | None]:
        """Return how much a counter grew at each broker, None where it has counted nothing yet.

        `name` is Java's name of the counter. The key of TOPIC_PUT_NUMS and TOPIC_PUT_SIZE is the
        topic, that of GROUP_GET_NUMS, GROUP_GET_SIZE, GROUP_GET_LATENCY and SNDBCK_PUT_NUMS is
        `topic@group`, that of BROKER_PUT_NUMS and BROKER_GET_NUMS is the cluster. A CometMQ broker
        refuses a name that it does not know, a Java broker counts nothing under it.
        """
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        what = f"the statistics {name} of {key}"

        async def ask(address: str) -> Statistics | None:
            try:
                answer = await self._servers.ask(
                    address, requests.VIEW_BROKER_STATS_DATA, header, what=what
                )
            except RemoteError as error:
                if _counted_nothing(error):
                    return None
                raise
            data = answer.body
            return Statistics(
                _growth(data.stats_minute), _growth(data.stats_hour), _growth(data.stats_day)
            )

        return await self._at_brokers(ask, what, cluster=cluster, broker=broker)

    async def progress(
        self,
        *,
        ordered_only: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, BrokerProgress]:
        """Return how far all groups are at each broker, with `ordered_only` in ordered topics only.

        This is much work for a broker with many groups; ask for one of them by `groups.progress`.
        """
        header = GetConsumeStatsInBrokerHeader(is_order=ordered_only, with_subscribed=True)
        what = "the progress of all groups"

        async def ask(address: str) -> BrokerProgress:
            answer = await self._servers.ask(
                address,
                requests.GET_BROKER_CONSUME_STATS,
                header,
                what=what,
                timeout_s=max(_PROGRESS_TIMEOUT_S, self._servers.timeout_s),
            )
            return await _broker_progress(answer.body)

        return await self._at_brokers(ask, what, cluster=cluster, broker=broker)

    async def delay_offsets(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, dict[int, int]]:
        """Return how far each broker has delivered delayed messages: the offset by delay level.

        A level that no message has used yet is left out.
        """
        what = "the offsets of delay levels"
        return await self._ask_brokers(
            requests.GET_ALL_DELAY_OFFSET,
            NoHeader(),
            what=what,
            read=lambda answer: answer.body.offset_table,
            cluster=cluster,
            broker=broker,
        )

    async def timer_progress(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TimerProgress]:
        """Return how far each broker has delivered timed messages.

        Brokers before 5.0 have none, and those with timerWheelEnable=false refuse.
        """
        what = "the progress of timed messages"

        async def ask(address: str) -> TimerProgress:
            answer = await self._servers.ask(
                address, requests.GET_TIMER_CHECK_POINT, NoHeader(), what=what
            )
            if len(answer.body) < _TIMER_CHECK.size:
                raise ProtocolError(
                    f"{address} answered {what} with {len(answer.body)} bytes, which are no checkpoint "
                    "of a timer"
                )
            delivered_ms, _, offset, master = _TIMER_CHECK.unpack_from(answer.body)
            return TimerProgress(delivered_ms, offset, master)

        return await self._at_brokers(ask, what, cluster=cluster, broker=broker)

    async def replication(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = False
    ) -> dict[str, Replication]:
        """Return how far the slaves of each broker are. Brokers before 5.0 do not report it."""
        what = "the state of the slaves"
        return await self._ask_brokers(
            requests.GET_BROKER_HA_STATUS,
            NoHeader(),
            what=what,
            read=lambda answer: _replication(answer.body),
            cluster=cluster,
            broker=broker,
            slaves=slaves,
        )

    async def epochs(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = False
    ) -> dict[str, EpochEntryCache]:
        """Return the range of the log that each master of a broker wrote.

        Only Java brokers to which a controller gives their roles (enableControllerMode) answer;
        others refuse.
        """
        what = "the terms of its masters"
        return await self._ask_brokers(
            java_requests.GET_BROKER_EPOCH_CACHE,
            NoHeader(),
            what=what,
            read=lambda answer: answer.body,
            cluster=cluster,
            broker=broker,
            slaves=slaves,
        )

    async def check_rocksdb_queues(
        self,
        topic: str = "",
        *,
        since_ms: int = 0,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, tuple[RocksdbCheck, str]]:
        """Have brokers compare the queues of a topic, or of all, with their copies in RocksDB.

        Only messages that were stored since `since_ms` (in ms since the epoch) are looked at. Return
        what became of the check, and the broker's words. Brokers without RocksDB find nothing wrong.
        Brokers before 5.3.2 do not know the request.
        """
        header = CheckRocksdbCqWriteProgressRequestHeader(topic=topic, check_store_time=since_ms)
        what = "the check of queues in RocksDB"

        async def ask(address: str) -> tuple[RocksdbCheck, str]:
            answer = await self._servers.ask(
                address, requests.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, header, what=what
            )
            status = answer.body.check_status
            if status not in _CHECKS:
                raise ProtocolError(f"{address} answered {what} with the unknown status {status}")
            return _CHECKS[status], answer.body.check_result or ""

        return await self._at_brokers(ask, what, cluster=cluster, broker=broker)


def _replication(info: HARuntimeInfo) -> Replication:
    return Replication(
        info.master,
        info.master_commit_log_max_offset,
        info.in_sync_slave_nums,
        tuple(info.ha_connection_info),
        None if info.master else info.ha_client_runtime_info,
    )


def _counted_nothing(error: RemoteError) -> bool:
    remark = error.remark or ""
    return (
        error.code == ResponseCode.SYSTEM_ERROR
        and "not exist" in remark
        and "this broker keeps" not in remark  # it does not know the name
    )


def _growth(item: BrokerStatsItem) -> Growth:
    return Growth(item.sum, item.tps, item.avgpt)


async def _broker_progress(body: bytes) -> BrokerProgress:
    """Return the progress by group: a broker reports it by group and topic.

    Of many groups this takes seconds, so others on the loop have turns in between.
    """
    found = decode_body(with_text_keys(body), dict[str, msgspec.Raw]).get("consumeStatsList")
    listed: list[dict[str, list[msgspec.Raw]]] = (
        [] if found is None else decode_body(bytes(found), list[dict[str, list[msgspec.Raw]]])
    )
    by_group: dict[str, list[msgspec.Raw]] = {}
    for groups in listed:
        for group, of_topics in groups.items():
            by_group.setdefault(group, []).extend(of_topics)
    progresses = []
    for number, group in enumerate(sorted(by_group)):
        if number % _GROUPS_A_TURN == 0:
            await asyncio.sleep(0)
        progresses.append(_group_progress(group, by_group[group]))
    return BrokerProgress(tuple(progresses))


def _group_progress(group: str, of_topics: list[msgspec.Raw]) -> GroupProgress:
    tables = [queue_table_and_rate(bytes(each), OffsetWrapper, "consumeTps") for each in of_topics]
    queues = {queue: at for table, _ in tables for queue, at in table.items()}
    return GroupProgress(group, sum(rate for _, rate in tables), queue_progress(queues))
