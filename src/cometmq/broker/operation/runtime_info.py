"""Answer code 28 with a broker's figures about itself.

Java: AdminBrokerProcessor.prepareRuntimeInfo, RunningStats. Besides Java's keys there are our own.
`nextDeletedFile`, `nextDeletionTimeStamp` and `nextDeletionReason` say what `cometmq store explain`
does of the file that retention takes next; `fileDeletions` names the oldest files by their first
offsets, each with when it can be deleted (`0:1760000000000 1073741824:`; nothing for a file that
stays), and `commitLogFiles` counts all of them. `refusing` says why no messages are taken now, and
`refused_<cause>` how many messages were refused for that cause. `delayPending_<level>` counts the
messages that wait by level, `timerPending` those that wait for a time of their own,
`delayDelivered` those delivered since the start, and `transactionsUnresolved` the half messages
without a verdict. `consumeQueueUnitsRepaired` counts the damaged units that were repaired from the
log, and `messagesFoundLost` the messages that readers pass over because their records in the log
are damaged; both since the start. `restartLogBytes` and `restartLogBytesAfterCrash` say how much of
the log the next start reads, after a clean stop and after a crash, `restartQueues` how many consume
queues it opens. `recoveredBytes` and `recoveryMillis` say what the last start read and how long
that took. `consumersOnline` and `producersOnline` count the clients that a restart disconnects.

One loop serves all requests, so there are no thread pools and nothing waits in their queues. Tools
read Java's keys for those all the same. The sizes are 0. The capacities are Java's defaults,
because tools divide by them. The waiting times say how late the loop was when it last took a
sample.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from cometmq._version import __version__
from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.operation.shared_making import SharedMaking
from cometmq.broker.parts import Parts
from cometmq.broker.pulls.waiter import State
from cometmq.broker.traffic import Traffic
from cometmq.broker.transactions.service import TransactionService
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import KVTable
from cometmq.protocol.codes import CURRENT_VERSION, MQVersion, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.store.retention.retention import Plan

_UNITS: Final = "KMGTPE"
# Java: BrokerConfig.
_POOL_CAPACITIES: Final = {
    "sendThreadPoolQueue": 10_000,
    "pullThreadPoolQueue": 100_000,
    "litePullThreadPoolQueue": 100_000,
    "queryThreadPoolQueue": 20_000,
    "ackThreadPoolQueue": 100_000,
}
_END_TRANSACTION_CAPACITY: Final = 100_000
# A start after a clean stop checks this many of the newest files. See `Recoverer`.
_CHECKED_FILES: Final = 3
_LOOKED_AT_FILES: Final = 8
# Of how many files of the log the table says when they are deleted, the oldest ones.
_REPORTED_FILES: Final = 100


class RuntimeInfo:
    """Answers requests for run-time information. For the loop's thread only."""

    def __init__(
        self,
        parts: Parts,
        delayed: DelayedMessages,
        transactions: TransactionService,
        traffic: Traffic,
    ) -> None:
        self._predicates = parts.predicates
        self._traffic = traffic
        self._is_slave = parts.replication.is_slave
        self._store = parts.store
        self._disk = parts.disk
        self._clock = parts.clock
        self._waiting = parts.waiting
        self._clients = parts.clients
        self._delayed = delayed
        self._transactions = transactions
        self._started_ms = parts.clock.now_ms()
        self._log_end_at_start = parts.store.commit_log.end
        # Each request had a reading of its own: thousands of them a second kept the loop's thread waiting
        # for the interpreter's lock.
        self._table = SharedMaking(self._encoded_table, parts.tasks, "runtime-info")

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_BROKER_RUNTIME_INFO, self.show)

    async def show(self, _connection: Connection, _request: Request[NoHeader]) -> RemotingCommand:
        """Return the table of all keys."""
        return response(ResponseCode.SUCCESS, body=await self._table.get())

    async def _encoded_table(self) -> bytes:
        """Encode the table of all keys. A thread beside the loop reads what concerns the disk."""
        of_disk = await asyncio.get_running_loop().run_in_executor(None, self._of_disk)
        self._traffic.look()
        table = {
            **self._of_broker(),
            **self._of_store(),
            **self._of_traffic(),
            **self._of_puts(),
            **self._of_pools(),
            **self._of_what_waits(),
            **self._of_restart(),
            **self._predicates.counts(),
            **of_disk,
        }
        return encode_body(KVTable(table=table))

    def _of_broker(self) -> dict[str, str]:
        now = self._clock.now_ms()
        return {
            "brokerVersion": str(CURRENT_VERSION),
            # Both are RocketMQ's, because its protocol is spoken.
            "brokerVersionDesc": MQVersion(CURRENT_VERSION).name,
            "cometmqVersion": __version__,
            "brokerActive": "false" if self._is_slave else "true",
            "bootTimestamp": str(self._started_ms),
            "startAcceptSendRequestTimeStamp": "0",
            "runtime": _runtime(now - self._started_ms),
            "pullHoldCount": str(self._waiting.count(State.MESSAGES)),
        }

    def _of_store(self) -> dict[str, str]:
        store, log = self._store, self._store.commit_log
        refusal = store.refusal
        table = {
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.readable_end),
            "dispatchBehindBytes": str(log.readable_end - log.dispatched_end),
            "earliestMessageTimeStamp": str(log.store_timestamp_at(log.min_offset)),
            # One thread appends, so nobody waits for a lock.
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": str(log.free_buffer_count),
            "remainHowManyDataToFlush": _bytes(log.end - store.flushed_offset),
            "indexBehindBytes": str(store.index.lag_bytes),
            "refusing": "" if refusal is None else str(refusal),
        }
        if store.config.uses_transient_pool:
            table["remainHowManyDataToCommit"] = _bytes(log.end - log.readable_end)
        table["consumeQueueUnitsRepaired"] = str(store.mender.mended_count)
        table["messagesFoundLost"] = str(store.mender.lost_count)
        for cause, count in store.refusals.counts.items():
            table[f"refused_{cause.value}"] = str(count)
        return table

    def _of_traffic(self) -> dict[str, str]:
        traffic = self._traffic
        transferred = _rates(traffic.transferred_rates())
        both = zip(traffic.found_rates(), traffic.missed_rates(), strict=True)
        return {
            "putTps": _rates(traffic.put_rates()),
            "getFoundTps": _rates(traffic.found_rates()),
            "getMissTps": _rates(traffic.missed_rates()),
            # As in Java, only this rate is 0 where it is not known yet.
            "getTotalTps": _rates([(found or 0.0) + (missed or 0.0) for found, missed in both]),
            "getTransferredTps": transferred,
            # The spelling of Java 4.9, which its tools read.
            "getTransferedTps": transferred,
            "msgPutTotalYesterdayMorning": str(traffic.put_mornings[0]),
            "msgPutTotalTodayMorning": str(traffic.put_mornings[1]),
            "msgPutTotalTodayNow": str(traffic.user_put()),
            "msgGetTotalYesterdayMorning": str(traffic.taken_mornings[0]),
            "msgGetTotalTodayMorning": str(traffic.taken_mornings[1]),
            "msgGetTotalTodayNow": str(traffic.user_taken),
        }

    def _of_puts(self) -> dict[str, str]:
        store, traffic = self._store, self._traffic
        # As in Java, the count is 1 before the first message.
        count = store.appended_count or 1
        size = store.commit_log.end - self._log_end_at_start
        times = "".join(f"{name}:{number} " for name, number in traffic.put_time_counts())
        return {
            "putMessageTimesTotal": str(count),
            "putMessageFailedTimes": str(sum(store.refusals.counts.values())),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / count),
            "putMessageEntireTimeMax": str(store.longest_append_ms),
            "putMessageDistributeTime": times,
            "putLatency99": f"{traffic.put_time_ms(0.99):.2f}",
            "putLatency999": f"{traffic.put_time_ms(0.999):.2f}",
            "getMessageEntireTimeMax": str(int(traffic.longest_get_s * 1000)),
            # Nothing waits between the log and the queues.
            "dispatchMaxBuffer": "0",
        }

    def _of_pools(self) -> dict[str, str]:
        wait_ms = str(int(self._traffic.loop_delay_s * 1000))
        table = {
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": str(_END_TRANSACTION_CAPACITY),
        }
        for name, capacity in _POOL_CAPACITIES.items():
            table[f"{name}Size"] = "0"
            table[f"{name}Capacity"] = str(capacity)
            table[f"{name}HeadWaitTimeMills"] = wait_ms
        return table

    def _of_what_waits(self) -> dict[str, str]:
        levels, timers = self._delayed.levels, self._delayed.timers
        late_s = timers.late_ms(self._clock.now_ms()) // 1000
        enqueue_tps, dequeue_tps = self._traffic.timer_rates()
        table = {
            # Java: seconds behind, messages not yet read from the timer topic, and how many wait.
            "timerReadBehind": str(late_s),
            "timerOffsetBehind": "0",
            "timerCongestNum": str(timers.pending),
            "timerEnqueueTps": str(enqueue_tps),
            "timerDequeueTps": str(dequeue_tps),
            "timerPending": str(timers.pending),
            "delayDelivered": str(self._delayed.delivered_count),
            "transactionsUnresolved": str(self._transactions.unresolved_count),
        }
        ends = levels.ends()
        for level, offset in levels.offsets().items():
            if level in ends:
                table[f"scheduleMessageOffset_{level}"] = f"{offset},{ends[level]}"
        for level, count in levels.pending().items():
            table[f"delayPending_{level}"] = str(count)
        return table

    def _of_restart(self) -> dict[str, str]:
        """Return what a restart would have to read. See `Recoverer` for where it begins."""
        store, log = self._store, self._store.commit_log
        files = log.files.files
        end = log.end
        checked = files[-_CHECKED_FILES:][0].base if files else end
        trusted_ms = store.checkpoint.min_timestamp
        start = log.min_offset
        # The checkpoint is seconds old, so the newest files decide. Looking at older ones could wait
        # for the disk.
        for file in files[: -_LOOKED_AT_FILES - 1 : -1]:
            start = file.base
            if 0 < log.store_timestamp_at(file.base) <= trusted_ms:
                break
        return {
            "restartLogBytes": str(end - checked),
            "restartLogBytesAfterCrash": str(end - start),
            "restartQueues": str(len(store.queues)),
            "recoveredBytes": str(store.recovered_bytes),
            "recoveryMillis": str(round(store.recovery_s * 1000)),
            "consumersOnline": str(self._clients.consumer_count),
            "producersOnline": str(self._clients.producer_count),
        }

    def _of_disk(self) -> dict[str, str]:
        """Return what concerns the disk. Blocks; for any thread."""
        config = self._store.config
        plan = self._store.cleaner.explain()
        space = self._disk.usage(config.store_path_root_dir)
        return {
            "commitLogDiskRatio": str(plan.disks.log_ratio),
            f"commitLogDiskRatio_{config.commit_log_path}": str(plan.disks.log_ratio),
            "consumeQueueDiskRatio": str(plan.disks.queue_ratio),
            "commitLogDirCapacity": f"Total : {_bytes(space.total_bytes)}, "
            f"Free : {_bytes(space.free_bytes)}.",
            **self._next_deletion(plan),
        }

    def _next_deletion(self, plan: Plan) -> dict[str, str]:
        if not plan.verdicts:
            return {
                "nextDeletedFile": "",
                "nextDeletionReason": "there is no file",
                "fileDeletions": "",
            }
        # Files go oldest first.
        first = plan.verdicts[0]
        path = self._store.config.commit_log_path / f"{first.file.base:020d}"
        table = {"nextDeletedFile": str(path), "nextDeletionReason": first.reason}
        if first.when_ms is not None:
            table["nextDeletionTimeStamp"] = str(first.when_ms)
        table["commitLogFiles"] = str(len(plan.verdicts))
        table["fileDeletions"] = " ".join(
            f"{verdict.file.base}:{'' if verdict.when_ms is None else verdict.when_ms}"
            for verdict in plan.verdicts[:_REPORTED_FILES]
        )
        return table


def _bytes(count: int) -> str:
    """Format a size as Java's MixAll.humanReadableByteCount does."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}iB"


def _rates(rates: Sequence[float | None]) -> str:
    """Join three rates with blanks as Java does; a rate that is not known yet is left out."""
    return " ".join("" if rate is None else str(rate) for rate in rates)


def _runtime(span_ms: int) -> str:
    span = timedelta(milliseconds=span_ms)
    hours, seconds = divmod(span.seconds, 3600)
    return f"[ {span.days} days, {hours} hours, {seconds // 60} minutes, {seconds % 60} seconds ]"
