"""Define mqadmin's commands for brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

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
from cometmq.cli.admin.output import Column, Form
from cometmq.errors import CometMQError, ConfigError

app = typer.Typer()


BrokerName = Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")]
SomeCluster = Annotated[
    str | None,
    typer.Option("-c", "--cluster", help="The cluster. Default: all clusters."),
]


@command(app, "brokerStatus")
async def broker_status(run: Run, broker: Broker = None, cluster: Cluster = None) -> None:
    """Show the state that brokers report, masters and slaves."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    infos = await run.each(
        run.admin.brokers.runtime_info(broker=broker, cluster=cluster, slaves=True)
    )
    if broker is not None and run.out.form is Form.TABLE:
        for info in infos.values():
            run.out.record(dict(sorted(info.items())))
        return
    run.out.table(
        [Column("broker", "Broker"), Column("key", "Key"), Column("value", "Value")],
        [
            (address, key, value)
            for address, info in infos.items()
            for key, value in sorted(info.items())
        ],
    )


@command(app, "updateBrokerConfig", changes=True)
async def update_config(
    run: Run,
    key: Annotated[str, typer.Option("-k", "--key", help="The key.")],
    value: Annotated[str, typer.Option("-v", "--value", help="Its new value.")],
    broker: Broker = None,
    cluster: Cluster = None,
    all_brokers: Annotated[
        bool,
        typer.Option(
            "-a",
            "--updateAllBroker",
            metavar=TRUTH,
            parser=truth,
            help="Slaves of the cluster, too.",
        ),
    ] = False,
) -> None:
    """Change a setting of running brokers, and in their configuration files."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    servers = [broker] if broker else await run.brokers(cluster, slaves=all_brokers)
    await run.change(
        f"set {key} to {value}",
        servers,
        lambda: run.admin.brokers.update_config(
            {key: value}, broker=broker, cluster=cluster, slaves=all_brokers
        ),
    )


@command(app, "getBrokerConfig")
async def broker_config(run: Run, broker: Broker = None, cluster: Cluster = None) -> None:
    """Show all settings that are in force, at masters and slaves."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    configs = await run.each(run.admin.brokers.config(broker=broker, cluster=cluster, slaves=True))
    for address, config in configs.items():
        run.out.record(dict(sorted(config.items())), section=address)


@command(app, "cleanExpiredCQ", changes=True)
async def clean_queues(run: Run, broker: Broker = None, cluster: SomeCluster = None) -> None:
    """Delete files of queues whose messages have left the commit log."""
    await _clean(
        run, "clean expired queues", broker, cluster, run.admin.brokers.clean_expired_queues
    )


@command(app, "cleanUnusedTopic", changes=True)
async def clean_topics(run: Run, broker: Broker = None, cluster: SomeCluster = None) -> None:
    """Delete the queues of topics that brokers do not have any more."""
    await _clean(run, "clean unused topics", broker, cluster, run.admin.brokers.clean_unused_topics)


@command(app, "deleteExpiredCommitLog", changes=True)
async def delete_files(run: Run, broker: Broker = None, cluster: SomeCluster = None) -> None:
    """Delete expired files of the commit log soon, at any hour of the day."""
    await _clean(
        run, "delete expired files", broker, cluster, run.admin.brokers.delete_expired_files
    )


async def _clean(
    run: Run,
    what: str,
    broker: str | None,
    cluster: str | None,
    call: Callable[..., Awaitable[list[str]]],
) -> None:
    """Clean one broker, the masters of a cluster, or those of all clusters."""
    if broker is not None and cluster is not None:
        raise ConfigError("--brokerAddr and --cluster: give one of them, or none for all clusters")
    if broker is not None:
        await run.change(what, [broker], lambda: call(broker=broker))
        return
    clusters = [cluster] if cluster is not None else await run.admin.brokers.clusters()
    for name in clusters:
        try:
            await run.change(what, await run.masters(name), partial(call, cluster=name))
        except CometMQError as error:
            if cluster is not None:
                raise
            run.failed(name, error)  # and go on with the other clusters
