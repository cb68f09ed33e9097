"""Define mqadmin's commands for name servers."""

from __future__ import annotations

from typing import Annotated

import typer

from cometmq.cli.admin.command import Run, command
from cometmq.cli.admin.commands.brokers import BrokerName
from cometmq.cli.admin.output import Column

app = typer.Typer()

Namespace = Annotated[str, typer.Option("-s", "--namespace", help="The namespace of the entry.")]
Key = Annotated[str, typer.Option("-k", "--key", help="The key.")]
Value = Annotated[str, typer.Option("-v", "--value", help="Its new value.")]


@command(app, "getNamesrvConfig")
async def namesrv_config(run: Run) -> None:
    """Show all settings that are in force at each name server."""
    configs = await run.each(run.admin.name_servers.config())
    for address, config in configs.items():
        run.out.record(dict(sorted(config.items())), section=address)


@command(app, "updateNamesrvConfig", changes=True)
async def update_config(run: Run, key: Key, value: Value) -> None:
    """Change a setting of every name server."""
    await run.change(
        f"set {key} to {value}",
        await run.name_servers(),
        lambda: run.admin.name_servers.update_config({key: value}),
    )


@command(app, "updateKvConfig", changes=True)
async def put_entry(run: Run, namespace: Namespace, key: Key, value: Value) -> None:
    """Set an entry that name servers keep for clients."""
    await run.change(
        f"set the entry {key} of {namespace} to {value}",
        await run.name_servers(),
        lambda: run.admin.name_servers.put_entry(namespace, key, value),
    )


@command(app, "deleteKvConfig", changes=True)
async def delete_entry(run: Run, namespace: Namespace, key: Key) -> None:
    """Delete an entry that name servers keep for clients."""
    await run.change(
        f"delete the entry {key} of {namespace}",
        await run.name_servers(),
        lambda: run.admin.name_servers.delete_entry(namespace, key),
        destroys=True,
    )


@command(app, "wipeWritePerm", changes=True)
async def wipe_write_permission(run: Run, broker: BrokerName) -> None:
    """Keep producers from choosing a broker, until the broker registers a change."""
    await _permit(run, broker, wiped=True)


@command(app, "addWritePerm", changes=True)
async def add_write_permission(run: Run, broker: BrokerName) -> None:
    """Let producers choose a broker again."""
    await _permit(run, broker, wiped=False)


async def _permit(run: Run, broker: str, *, wiped: bool) -> None:
    brokers = run.admin.brokers
    call = brokers.wipe_write_permission if wiped else brokers.add_write_permission
    what = f"{'wipe' if wiped else 'add'} the write permission of {broker}"
    if run.dry_run:
        await run.change(what, await run.name_servers(), lambda: call(broker))
        return
    changed = await run.each(call(broker))
    run.out.table(
        [Column("server", "Server"), Column("result", "Result"), Column("topics", "Topics")],
        [(address, f"done: {what}", count) for address, count in changed.items()],
    )
