"""Define mqadmin's commands for features of Java's brokers: slaves, cold data, RocksDB.

CometMQ's brokers refuse these commands, with the reason and the remedy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cometmq.cli.admin.command import (
    TRUTH,
    Broker,
    Cluster,
    Run,
    command,
    exactly_one,
    truth,
)
from cometmq.cli.admin.output import Column, as_time
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.admin.brokers.reports import Replication

app = typer.Typer()

_KIB: Final = 1024
_BEYOND: Final = 2**63 - 1

Interval = Annotated[
    int | None,
    typer.Option(
        "-i",
        "--interval",
        metavar="SECONDS",
        min=1,
        help="Print it again at this interval, until Ctrl-C.",
    ),
]
Group = Annotated[str, typer.Option("-g", "--consumerGroup", help="The group.")]


async def _repeated(run: Run, interval_s: int | None, show: Callable[[], Awaitable[None]]) -> None:
    while True:
        await show()
        if interval_s is None:
            return
        run.out.finish()
        await asyncio.sleep(interval_s)


@command(app, "haStatus")
async def ha_status(
    run: Run, broker: Broker = None, cluster: Cluster = None, interval_s: Interval = None
) -> None:
    """Show how far the slaves of masters are."""
    exactly_one(brokerAddr=broker, clusterName=cluster)

    async def show() -> None:
        found = await run.each(run.admin.brokers.replication(broker=broker, cluster=cluster))
        for address, state in found.items():
            _show_replication(run, address, state)

    await _repeated(run, interval_s, show)


def _show_replication(run: Run, address: str, state: Replication) -> None:
    if state.is_master:
        run.out.record(
            {
                "MasterAddr": address,
                "MasterCommitLogMaxOffset": state.max_offset,
                "SlaveNum": len(state.slaves),
                "InSyncSlaveNum": state.in_sync_slaves,
            },
            section=address,
        )
        if state.slaves:
            run.out.table(
                [
                    Column("slaveAddr", "Slave"),
                    Column("slaveAckOffset", "Ack Offset"),
                    Column("diff", "Diff"),
                    Column("kibPerS", "KiB/s"),
                    Column("status", "Status"),
                    Column("transferFromWhere", "From"),
                ],
                [
                    (
                        slave.addr,
                        slave.slave_ack_offset,
                        slave.diff,
                        slave.transferred_byte_in_second / _KIB,
                        "OK" if slave.in_sync else "Fall Behind",
                        slave.transfer_from_where,
                    )
                    for slave in state.slaves
                ],
                section=f"slaves of {address}",
            )
        return
    own = state.from_master
    if own is not None:
        run.out.record(
            {
                "MasterAddr": own.master_addr,
                "CommitLogMaxOffset": own.max_offset,
                "KiBPerS": own.transferred_byte_in_second / _KIB,
                "LastReadTime": as_time(own.last_read_timestamp),
                "LastWriteTime": as_time(own.last_write_timestamp),
                "MasterFlushOffset": own.master_flush_offset,
            },
            section=address,
        )


@command(app, "getBrokerEpoch")
async def broker_epoch(
    run: Run,
    broker: Annotated[
        str | None,
        typer.Option("-b", "--brokerName", help="The broker's name."),
    ] = None,
    cluster: Cluster = None,
    interval_s: Interval = None,
) -> None:
    """Show the range of the log that each master of a broker wrote (controller mode only)."""
    exactly_one(brokerName=broker, clusterName=cluster)

    async def show() -> None:
        caches = await run.each(
            run.admin.brokers.epochs(broker=broker, cluster=cluster, slaves=True)
        )
        run.out.table(
            [
                Column("cluster", "Cluster"),
                Column("broker", "Broker"),
                Column("address", "Address"),
                Column("id", "BID"),
                Column("epoch", "Epoch"),
                Column("startOffset", "Start Offset"),
                Column("endOffset", "End Offset"),
            ],
            [
                (
                    cache.cluster_name,
                    cache.broker_name,
                    address,
                    cache.broker_id,
                    entry.epoch,
                    entry.start_offset,
                    # The last term has not ended.
                    min(entry.end_offset, cache.max_offset)
                    if entry.end_offset < _BEYOND
                    else cache.max_offset,
                )
                for address, cache in caches.items()
                for entry in cache.epoch_list
            ],
        )

    await _repeated(run, interval_s, show)


@command(app, "resetMasterFlushOffset", changes=True)
async def reset_flush_offset(
    run: Run,
    offset: Annotated[
        int, typer.Option("-o", "--offset", min=0, help="A place in the commit log, in bytes.")
    ],
    broker: Annotated[
        str, typer.Option("-b", "--brokerAddr", metavar="HOST:PORT", help="The slave.")
    ],
) -> None:
    """Set the offset up to which a slave regards its master's log as flushed."""
    await run.change(
        f"reset the flush offset of the master to {offset}",
        [broker],
        lambda: run.admin.brokers.reset_master_flush_offset(offset, broker=broker),
    )


@command(app, "getColdDataFlowCtrInfo")
async def cold_data(run: Run, broker: Broker = None, cluster: Cluster = None) -> None:
    """Show how many bytes of cold data groups may read, and how many they have read."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    found = await run.each(
        run.admin.brokers.cold_data_thresholds(broker=broker, cluster=cluster, slaves=True)
    )
    for address, reported in found.items():
        run.out.record(_readable(reported), section=address)


def _readable(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return a broker's report of cold data with JSON in texts decoded."""
    values = {}
    for key, value in reported.items():
        try:
            values[key] = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            values[key] = value
    return values


@command(app, "updateColdDataFlowCtrGroupConfig", changes=True)
async def set_cold_data(
    run: Run,
    group: Group,
    threshold: Annotated[int, typer.Option("-v", "--threshold", min=0, help="Bytes of cold data.")],
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Bound how many bytes of cold data a group may read."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    await run.change(
        f"set the threshold of group {group} to {threshold}",
        await run.masters(cluster, broker),
        lambda: run.admin.brokers.set_cold_data_threshold(
            group, threshold, broker=broker, cluster=cluster
        ),
    )


@command(app, "removeColdDataFlowCtrGroupConfig", changes=True)
async def remove_cold_data(
    run: Run, group: Group, broker: Broker = None, cluster: Cluster = None
) -> None:
    """Remove a group's own threshold for reads of cold data."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    await run.change(
        f"remove the threshold of group {group}",
        await run.masters(cluster, broker),
        lambda: run.admin.brokers.remove_cold_data_threshold(group, broker=broker, cluster=cluster),
    )


class ReadAhead(Enum):
    """Java: LibC.MADV_NORMAL and MADV_RANDOM."""

    ON = "0"
    OFF = "1"


@command(app, "setCommitLogReadAheadMode", changes=True)
async def read_ahead(
    run: Run,
    mode: Annotated[
        ReadAhead,
        typer.Option("-m", "--commitLogReadAheadMode", help="0 to read ahead, 1 not to."),
    ],
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Have brokers read the commit log ahead, or not."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    enabled = mode is ReadAhead.ON
    await run.change(
        f"{'begin' if enabled else 'cease'} to read the commit log ahead",
        await run.masters(cluster, broker),
        lambda: run.admin.brokers.set_read_ahead(enabled, broker=broker, cluster=cluster),
    )


@command(app, "checkRocksdbCqWriteProgress")
async def check_rocksdb(
    run: Run,
    cluster: Annotated[str, typer.Option("-c", "--cluster", help="The cluster.")],
    topic: Annotated[
        str,
        typer.Option("-t", "--topic", help="The topic. Default: all topics."),
    ] = "",
    since_ms: Annotated[
        int,
        typer.Option(
            "-cf", "--checkFrom", metavar="MS", min=0, help="Only messages stored since then."
        ),
    ] = 0,
) -> None:
    """Compare the queues of topics with their copies in RocksDB."""
    from cometmq.admin.brokers.reports import RocksdbCheck

    found = await run.each(
        run.admin.brokers.check_rocksdb_queues(topic, since_ms=since_ms, cluster=cluster)
    )
    run.out.table(
        [Column("broker", "Broker"), Column("status", "Status"), Column("result", "Result")],
        [(address, status.name, text) for address, (status, text) in found.items()],
    )
    for address, (status, _) in found.items():
        if status in (RocksdbCheck.NOT_OK, RocksdbCheck.FAILED):
            run.failed(address, f"the check ended with {status.name}")


@command(app, "rocksDBConfigToJson", changes=True)
async def export_rocksdb(
    run: Run,
    kinds: Annotated[
        str,
        typer.Option("-t", "--configType", metavar="KIND;KIND", help="The kind of data to export."),
    ] = "topics;subscriptionGroups;consumerOffsets",
    path: Annotated[
        str | None,
        typer.Option("-p", "--configPath", hidden=True),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("-e", "--exportFile", hidden=True),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "-j", "--jsonEnable", metavar=TRUTH, parser=truth, help="Brokers write JSON always."
        ),
    ] = True,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="The cluster.")] = None,
    broker: Broker = None,
) -> None:
    """Have brokers write what they keep in RocksDB to JSON files beside it."""
    del as_json  # a broker that is asked over the network writes nothing else
    if path is not None or file is not None:
        raise ConfigError(
            "--configPath and --exportFile read RocksDB's own files, which takes RocksDB: use "
            "mqadmin beside the broker, or ask the running broker with --brokerAddr or --cluster"
        )
    exactly_one(brokerAddr=broker, cluster=cluster)
    chosen = [kind.strip() for kind in kinds.split(";") if kind.strip()]
    await run.change(
        f"export {', '.join(chosen)} of RocksDB",
        await run.masters(cluster, broker),
        lambda: run.admin.brokers.export_rocksdb_config(chosen, broker=broker, cluster=cluster),
    )
