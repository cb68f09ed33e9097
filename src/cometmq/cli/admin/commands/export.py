"""Define mqadmin's commands that export topics, groups, settings and metrics of a cluster to JSON
files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cometmq.cli.admin.command import TRUTH, Broker, Cluster, Run, command, exactly_one, truth
from cometmq.cli.admin.output import Column
from cometmq.errors import CometMQError, ConfigError
from cometmq.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from cometmq.model.group import SubscriptionGroupConfig
    from cometmq.model.topic import TopicConfig

app = typer.Typer()

# The settings that mqadmin exports.
_SETTINGS: Final = (
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
)
_PERMISSIONS: Final = range(8)  # Java: PermName.isValid
_EXPORTED: Final = (Column("path", "Path"), Column("result", "Result"))
# By their names in the export: the topics by whose counters it knows these kinds of messages.
_KINDS: Final = {"trans": "RMQ_SYS_TRANS_HALF_TOPIC", "schedule": "SCHEDULE_TOPIC_XXXX"}

_ClusterToExport = Annotated[str, typer.Option("-c", "--clusterName", help="The cluster.")]
_Directory = Annotated[
    Path | None,
    typer.Option(
        "-f",
        "--filePath",
        metavar="DIRECTORY",
        help="Where the file is written. Default: rocketmq/export below the temporary directory.",
    ),
]


@command(app, "exportMetadata")
async def export_metadata(
    run: Run,
    cluster: Cluster = None,
    broker: Broker = None,
    directory: _Directory = None,
    only_topics: Annotated[bool, typer.Option("-t", "--topic", help="Only topics.")] = False,
    only_groups: Annotated[
        bool, typer.Option("-g", "--subscriptionGroup", help="Only groups.")
    ] = False,
    special: Annotated[
        bool,
        typer.Option("-s", "--specialTopic", help="With the topics of retries and dead letters."),
    ] = False,
) -> None:
    """Export the topics and groups of a cluster or broker, without those of the system.

    Numbers of queues are the sums of all brokers.
    """
    exactly_one(brokerAddr=broker, clusterName=cluster)
    if only_topics and only_groups:
        raise ConfigError("--topic and --subscriptionGroup: give one of them, or none for both")
    document: dict[str, object] = {}
    name = "metadata"
    if not only_groups:
        name = "topic" if only_topics else name
        document["topicConfigTable"] = _builtins(await _topics(run, cluster, broker, special))
    if not only_topics:
        name = "subscriptionGroup" if only_groups else name
        document["subscriptionGroupTable"] = _builtins(await _groups(run, cluster, broker))
    document["exportTime"] = SYSTEM_CLOCK.now_ms()
    _write(run, directory, f"{name}.json", document)


@command(app, "exportConfigs")
async def export_configs(run: Run, cluster: _ClusterToExport, directory: _Directory = None) -> None:
    """Export the main settings of a cluster's masters, and how many servers it has."""
    configs = await run.each(run.admin.brokers.config(cluster=cluster))
    brokers = await run.admin.brokers.addresses(cluster=cluster, slaves=True)
    masters = {at.broker_name for at in brokers if at.broker_id == 0}
    document = {
        "brokerConfigs": {
            config.get("brokerName", address): {
                key: config[key] for key in _SETTINGS if key in config
            }
            for address, config in configs.items()
        },
        "clusterScale": {
            "namesrvSize": len(_name_servers(run)),
            "masterBrokerSize": len(masters),
            "slaveBrokerSize": sum(at.broker_id != 0 for at in brokers),
        },
    }
    _write(run, directory, "configs.json", document)


@command(app, "exportMetrics")
async def export_metrics(run: Run, cluster: _ClusterToExport, directory: _Directory = None) -> None:
    """Export how much a cluster's masters hold and do, and which clients they have."""
    brokers = await run.admin.brokers.addresses(cluster=cluster, slaves=False)
    run.lacks(await run.admin.brokers.missing(cluster=cluster))
    report: dict[str, object] = {}
    tps = dict.fromkeys(
        ("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps"), 0.0
    )
    day = dict.fromkeys(
        ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum"), 0
    )
    for at in brokers:
        [info] = (await run.admin.brokers.runtime_info(broker=at.address)).values()
        [config] = (await run.admin.brokers.config(broker=at.address)).values()
        groups = await _groups(run, None, at.address)
        topics = await _topics(run, None, at.address, special=False)
        rates, counts = await _traffic(run, at.address, info)
        for name, rate in rates.items():
            tps[f"total{name[0].upper()}{name[1:]}"] += rate
        for name, count in counts.items():
            day[name] += count
        report[at.broker_name] = {
            "runtimeEnv": {
                "cpuNum": config.get("clientCallbackExecutorThreads"),
                "totalMemKBytes": info.get("totalMemKBytes"),
            },
            "runtimeQuota": {
                "diskRatio": {
                    key: info.get(key) for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")
                },
                "tps": rates,
                "oneDayNum": counts,
                "messageAverageSize": info.get("putMessageAverageSize"),
                "topicSize": len(topics),
                "groupSize": len(groups),
            },
            "runtimeVersion": {
                "rocketmqVersion": info.get("brokerVersionDesc"),
                "clientInfo": await _clients(run, groups),
            },
        }
    document = {
        "evaluateReport": report,
        "totalData": {"totalTps": tps, "totalOneDayNum": day},
    }
    _write(run, directory, "metrics.json", document)


@command(app, "exportPopRecord", changes=True)
async def export_pop_records(
    run: Run,
    cluster: Cluster = None,
    broker: Broker = None,
    dry: Annotated[
        bool,
        typer.Option("-d", "--dryRun", parser=truth, metavar=TRUTH, help="Like --dry-run."),
    ] = False,
) -> None:
    """Have Java brokers move their records of pop consumers from RocksDB to files.

    CometMQ's brokers keep these records in the log, and refuse the request.
    """
    exactly_one(brokerAddr=broker, clusterName=cluster)
    run.dry_run = run.dry_run or bool(dry)
    found = await run.admin.brokers.addresses(cluster=cluster, slaves=True) if cluster else []
    servers = [broker] if broker is not None else [at.address for at in found]
    await run.change(
        "export records of pop consumers",
        servers,
        lambda: run.admin.brokers.export_pop_records(cluster=cluster, broker=broker),
    )


async def _topics(
    run: Run, cluster: str | None, broker: str | None, special: bool
) -> dict[str, TopicConfig]:
    """Return the topics of users, with the queues of all brokers."""
    from cometmq.model.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

    tables = await run.each(run.admin.topics.configs(cluster=cluster, broker=broker))
    system = await run.each(run.admin.topics.system_topics(cluster=cluster, broker=broker))
    merged: dict[str, TopicConfig] = {}
    for address, table in sorted(tables.items()):
        own = frozenset(system.get(address, ()))
        for name, config in sorted(table.items()):
            if name in own or is_system_topic(name) or config.perm not in _PERMISSIONS:
                continue
            if not special and name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                continue
            if (before := merged.get(name)) is not None:
                config.read_queue_nums += before.read_queue_nums
                config.write_queue_nums += before.write_queue_nums
            merged[name] = config
    return merged


async def _groups(
    run: Run, cluster: str | None, broker: str | None
) -> dict[str, SubscriptionGroupConfig]:
    """Return the groups of users, with the retry queues of all brokers."""
    from cometmq.model.names import is_system_group

    tables = await run.each(run.admin.groups.configs(cluster=cluster, broker=broker))
    merged: dict[str, SubscriptionGroupConfig] = {}
    for _, table in sorted(tables.items()):
        for name, config in sorted(table.items()):
            if is_system_group(name):
                continue
            if (before := merged.get(name)) is not None:
                config.retry_queue_nums += before.retry_queue_nums
            merged[name] = config
    return merged


async def _traffic(
    run: Run, address: str, info: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, int]]:
    """Return a broker's rates of the last minute, and its messages of one day."""
    rates = {
        "normalInTps": _first_number(info.get("putTps")),
        "normalOutTps": _first_number(info.get("getTransferredTps")),
    }
    counts = {
        f"normalOneDay{name}Num": int(info.get(f"msg{key}TotalTodayMorning", 0))
        - int(info.get(f"msg{key}TotalYesterdayMorning", 0))
        for name, key in (("In", "Put"), ("Out", "Get"))
    }
    for kind, topic in _KINDS.items():
        found = await run.admin.brokers.statistics("TOPIC_PUT_NUMS", topic, broker=address)
        [counted] = found.values()
        rates[f"{kind}InTps"] = 0.0 if counted is None else counted.minute.per_s
        # As mqadmin: the longest period that has a count.
        counts[f"{kind}OneDayInNum"] = (
            0
            if counted is None
            else counted.day.total or counted.hour.total or counted.minute.total
        )
    return rates, counts


async def _clients(run: Run, groups: Iterable[str]) -> list[str]:
    """Return the languages and versions of the groups' members: `JAVA%V5_3_3`."""
    found = set()
    for group in groups:
        try:
            online = await run.admin.groups.connections(group)
        except CometMQError:  # the group is not online
            continue
        for client in online.clients:
            version = client.version.replace(".", "_").replace("-", "_")
            found.add(f"{client.language}%V{version}")
    return sorted(found)


def _name_servers(run: Run) -> list[str]:
    from cometmq.client.limits import namesrv_addresses

    return namesrv_addresses(run.connection.namesrv)


def _first_number(text: str | None) -> float:
    """Return the first of some numbers separated by blanks, the newest rate; 0 if there is none."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return 0.0


def _builtins(table: Mapping[str, object]) -> Any:
    import msgspec

    return msgspec.to_builtins(dict(table))


def _write(run: Run, directory: Path | None, name: str, document: object) -> None:
    import json

    from cometmq.runtime.state_files.durable import make_directories, write_atomically

    where = Path(tempfile.gettempdir(), "rocketmq", "export") if directory is None else directory
    path = where / name
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        make_directories(where)
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; give a directory by --filePath"
        ) from error
    run.out.table(_EXPORTED, [(str(path), "success")])
