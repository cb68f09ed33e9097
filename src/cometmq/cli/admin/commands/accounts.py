"""Define mqadmin's commands for accounts (ACL 1.0), which Java's brokers of 4.x keep."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cometmq.admin.access.accounts import AccountFiles
from cometmq.cli.admin.command import TRUTH, Broker, Cluster, Run, command, exactly_one, truth
from cometmq.cli.admin.commands.access import parts, servers
from cometmq.cli.admin.output import Column, as_time
from cometmq.model.topic import DataVersion

app = typer.Typer()

# mqadmin gives the account these names, so the keys that sign the request come from --credentials or
# from the environment.
Account = Annotated[str, typer.Option("-a", "--accessKey", metavar="NAME", help="The account.")]
_PERMISSION = "DENY|PUB|SUB|PUB|SUB|ANY"


def _permissions(text: str) -> dict[str, str]:
    """Parse `topicA=DENY,topicB=PUB|SUB`."""
    found = {}
    for part in parts(text):
        name, equals, permission = part.partition("=")
        if not (name and equals and permission):
            raise typer.BadParameter(
                f"{part!r:.80} is no permission of a name; give them as in orders=PUB|SUB,bills=SUB"
            )
        found[name] = permission
    return found


def _perms(letter: str, name: str, help_: str) -> Any:
    return typer.Option(
        letter,
        f"--{name}",
        metavar="NAME=PERM,…",
        parser=_permissions,
        help=help_,
    )


@command(app, "updateAclConfig", changes=True)
async def update_acl_config(
    run: Run,
    *,
    account: Account,
    secret: Annotated[
        str,
        typer.Option("-s", "--secretKey", help="The secret key that the account signs with."),
    ],
    white: Annotated[
        str | None,
        typer.Option(
            "-w",
            "--whiteRemoteAddress",
            metavar="ADDRESSES",
            help="Addresses that need no signature.",
        ),
    ] = None,
    topic_default: Annotated[
        str | None,
        typer.Option(
            "-i",
            "--defaultTopicPerm",
            metavar=_PERMISSION,
            help="The permission for topics that are not named.",
        ),
    ] = None,
    group_default: Annotated[
        str | None,
        typer.Option(
            "-u",
            "--defaultGroupPerm",
            metavar=_PERMISSION,
            help="The permission for groups that are not named.",
        ),
    ] = None,
    topics: Annotated[Any, _perms("-t", "topicPerms", "For topics.")] = None,
    groups: Annotated[Any, _perms("-g", "groupPerms", "For groups.")] = None,
    admin: Annotated[
        Any,
        typer.Option(
            "-m",
            "--admin",
            metavar=TRUTH,
            parser=truth,
            help="Whether the account may do everything.",
        ),
    ] = "false",
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Make an account, or change the given fields of one."""
    await run.change(
        f"set account {account}",
        await servers(run, cluster, broker),
        lambda: run.admin.access.put_account(
            account,
            secret,
            admin=admin,
            white_address=white,
            default_topic_permission=topic_default,
            default_group_permission=group_default,
            topic_permissions=topics,
            group_permissions=groups,
            cluster=cluster,
            broker=broker,
        ),
    )


@command(app, "deleteAclConfig", changes=True)
async def delete_acl_config(
    run: Run, account: Account, cluster: Cluster = None, broker: Broker = None
) -> None:
    """Delete an account."""
    await run.change(
        f"delete account {account}",
        await servers(run, cluster, broker),
        lambda: run.admin.access.delete_account(account, cluster=cluster, broker=broker),
        destroys=True,
    )


@command(app, "updateGlobalWhiteAddr", changes=True)
async def update_global_white_addr(
    run: Run,
    addresses: Annotated[
        str,
        typer.Option(
            "-g",
            "--globalWhiteRemoteAddresses",
            metavar="10.10.103.*,…",
            help="Addresses that need no signature; they replace the present ones.",
        ),
    ],
    file: Annotated[
        str,
        typer.Option(
            "-p",
            "--aclFileFullPath",
            metavar="PATH",
            help="The account file at the brokers. Default: conf/plain_acl.yml.",
        ),
    ] = "",
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Set the addresses from which requests need no signature."""
    await run.change(
        f"set the white addresses to {addresses}",
        await servers(run, cluster, broker),
        lambda: run.admin.access.set_white_addresses(
            parts(addresses), file=file, cluster=cluster, broker=broker
        ),
    )


@command(app, "clusterAclConfigVersion")
async def cluster_acl_config_version(
    run: Run, cluster: Cluster = None, broker: Broker = None
) -> None:
    """Show which versions the account files of brokers have."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    found = await run.each(run.admin.access.account_files(cluster=cluster, broker=broker))
    run.out.table(
        (
            Column("clusterName", "Cluster Name"),
            Column("brokerName", "Broker Name"),
            Column("brokerAddr", "Broker Addr"),
            Column("aclFilePath", "AclFilePath"),
            Column("aclConfigVersionNum", "AclConfigVersionNum"),
            Column("aclLastUpdateTime", "AclLastUpdateTime", as_time),
        ),
        [
            (
                *(files.cluster, files.broker_name, files.address),
                *(path, version.counter, version.timestamp),
            )
            for files in found.values()
            for path, version in _versions(files)
        ],
    )


def _versions(files: AccountFiles) -> list[tuple[str | None, DataVersion]]:
    # Brokers of 5.x report only the version of their main file, and not its path.
    return [*files.versions.items()] or [(None, files.version)]
