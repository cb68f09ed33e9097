"""Define mqadmin's commands for users and policies (ACL 2.0)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, Protocol

import typer

from cometmq.admin.access.records import Acl, AclEntry, User
from cometmq.cli.admin.command import Broker, Cluster, Run, command, exactly_one
from cometmq.cli.admin.output import Column, as_text
from cometmq.errors import ServersFailedError

app = typer.Typer()

UserName = Annotated[str, typer.Option("-u", "--username", metavar="NAME", help="The user.")]
Subject = Annotated[
    str,
    typer.Option("-s", "--subject", metavar="User:NAME", help="The user."),
]
Resources = Annotated[
    str,
    typer.Option(
        "-r",
        "--resources",
        metavar="Topic:NAME,Group:PREFIX*",
        help="The resources.",
    ),
]
Actions = Annotated[
    str,
    typer.Option(
        "-a",
        "--actions",
        metavar="Pub,Sub,…",
        help="One or more of Pub, Sub, Create, Update, Delete, Get, List, All.",
    ),
]
SourceIp = Annotated[
    str | None,
    typer.Option("-i", "--sourceIp", metavar="IP,…", help="Only requests from these addresses."),
]
Decision = Annotated[
    str,
    typer.Option("-d", "--decision", metavar="Allow|Deny", help="Allow or deny."),
]
_PASSWORD: Final = typer.Option("-p", "--password", help="The secret key of the user.")
_USER_TYPE: Final = typer.Option(
    "-t", "--userType", metavar="Super|Normal", help="Super may do everything."
)
_FromBroker = Annotated[
    str,
    typer.Option("-f", "--fromBroker", metavar="HOST:PORT", help="The broker to copy from."),
]
_ToBroker = Annotated[
    str, typer.Option("-t", "--toBroker", metavar="HOST:PORT", help="The broker to copy to.")
]


def _joined(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else as_text(value)


_USERS: Final = (
    Column("username", "UserName"),
    Column("password", "Password"),
    Column("userType", "UserType"),
    Column("userStatus", "UserStatus"),
    Column("brokerAddr", "Broker"),
)
_ACLS: Final = (
    Column("subject", "Subject"),
    Column("policyType", "PolicyType"),
    Column("resource", "Resource"),
    Column("actions", "Actions", _joined),
    Column("sourceIps", "SourceIp", _joined),
    Column("decision", "Decision"),
    Column("brokerAddr", "Broker"),
)


def parts(text: str | None) -> list[str]:
    """Return the parts of a list with commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


async def servers(run: Run, cluster: str | None, broker: str | None) -> list[str]:
    """Return the brokers to change: the cluster's masters and slaves, or the one broker."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    if broker is not None:
        return [broker]
    return [at.address for at in await run.admin.brokers.addresses(cluster=cluster)]


# Users


@command(app, "createUser", changes=True)
async def create_user(
    run: Run,
    name: UserName,
    password: Annotated[str, _PASSWORD],
    kind: Annotated[str, _USER_TYPE] = "Normal",
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Make a user."""
    await run.change(
        f"create user {name}",
        await servers(run, cluster, broker),
        lambda: run.admin.access.create_user(
            name, password, kind=kind, cluster=cluster, broker=broker
        ),
    )


@command(app, "updateUser", changes=True)
async def update_user(
    run: Run,
    name: UserName,
    password: Annotated[str | None, _PASSWORD] = None,
    kind: Annotated[str | None, _USER_TYPE] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "-s",
            "--userStatus",
            metavar="enable|disable",
            help="Whether it may connect.",
        ),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Change the given fields of a user."""
    await run.change(
        f"change user {name}",
        await servers(run, cluster, broker),
        lambda: run.admin.access.update_user(
            name, password=password, kind=kind, state=state, cluster=cluster, broker=broker
        ),
    )


@command(app, "deleteUser", changes=True)
async def delete_user(
    run: Run, name: UserName, cluster: Cluster = None, broker: Broker = None
) -> None:
    """Delete a user."""
    asked = await servers(run, cluster, broker)
    with suppress(ServersFailedError):  # they fail again below, where each failure is printed
        # Say so if there is none.
        await run.admin.access.user(name, cluster=cluster, broker=broker)
    await run.change(
        f"delete user {name}",
        asked,
        lambda: run.admin.access.delete_user(name, cluster=cluster, broker=broker, missing_ok=True),
        destroys=True,
    )


@command(app, "getUser")
async def get_user(
    run: Run, name: UserName, cluster: Cluster = None, broker: Broker = None
) -> None:
    """Show a user at each broker that has it, with its password."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    found = await run.each(run.admin.access.user(name, cluster=cluster, broker=broker))
    # Where a server failed, the results of the others have None for brokers without the user.
    _show_users(run, {at: [user] for at, user in found.items() if user is not None})


@command(app, "listUser")
async def list_user(
    run: Run,
    filter_: Annotated[
        str | None,
        typer.Option("-f", "--filter", metavar="TEXT", help="A part of the names."),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Show the users of each broker, with their passwords."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    found = await run.each(run.admin.access.users(filter_, cluster=cluster, broker=broker))
    _show_users(run, found)


@command(app, "copyUser", changes=True)
async def copy_user(
    run: Run,
    source: _FromBroker,
    target: _ToBroker,
    names: Annotated[
        str | None,
        typer.Option("-u", "--usernames", metavar="NAME,…", help="Default: all."),
    ] = None,
) -> None:
    """Copy users from one broker to another, and change the users that exist there already."""
    chosen = parts(names) or None
    await run.change(
        f"copy {_named('user', chosen)} from {source}",
        [target],
        lambda: run.admin.access.copy_users(source, target, chosen),
    )


# Policies


def _acl_command(name: str, verb: str, change: Callable[[Run], _SetPolicies], text: str) -> None:
    """Register one of the two commands that bring policies; both have the same options."""

    async def set_policies(
        run: Run,
        *,
        subject: Subject,
        resources: Resources,
        actions: Actions,
        decision: Decision,
        source_ip: SourceIp = None,
        cluster: Cluster = None,
        broker: Broker = None,
    ) -> None:
        entries = _entries(resources, actions, decision, source_ip)
        await run.change(
            f"{verb} the policies of {subject} for {resources}",
            await servers(run, cluster, broker),
            lambda: change(run)(subject, entries, cluster=cluster, broker=broker),
        )

    set_policies.__doc__ = text
    command(app, name, changes=True)(set_policies)


_acl_command(
    "createAcl",
    "create",
    lambda run: run.admin.access.create_acl,
    "Add policies: what a user may do with resources.",
)
_acl_command(
    "updateAcl",
    "change",
    lambda run: run.admin.access.update_acl,
    "Change what a user may do with resources; the user's other policies stay.",
)


@command(app, "deleteAcl", changes=True)
async def delete_acl(
    run: Run,
    subject: Subject,
    resource: Annotated[
        str | None,
        typer.Option(
            "-r",
            "--resources",
            metavar="Topic:NAME",
            help="One resource. Default: all.",
        ),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Delete policies of a user."""
    about = "" if resource is None else f" for {resource}"
    await run.change(
        f"delete the policies of {subject}{about}",
        await servers(run, cluster, broker),
        lambda: run.admin.access.delete_acl(subject, resource, cluster=cluster, broker=broker),
        destroys=True,
    )


@command(app, "getAcl")
async def get_acl(
    run: Run, subject: Subject, cluster: Cluster = None, broker: Broker = None
) -> None:
    """Show the policies of a user at each broker that has any."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    found = await run.each(run.admin.access.acl(subject, cluster=cluster, broker=broker))
    _show_acls(run, {at: [acl] for at, acl in found.items() if acl is not None})


@command(app, "listAcl")
async def list_acl(
    run: Run,
    subject: Annotated[
        str | None,
        typer.Option("-s", "--subject", metavar="TEXT", help="A part of the subjects."),
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option("-r", "--resource", metavar="TEXT", help="A part of the resources."),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Show the policies of each broker."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    found = await run.each(run.admin.access.acls(subject, resource, cluster=cluster, broker=broker))
    _show_acls(run, found)


@command(app, "copyAcl", changes=True)
async def copy_acl(
    run: Run,
    source: _FromBroker,
    target: _ToBroker,
    subjects: Annotated[
        str | None,
        typer.Option("-s", "--subjects", metavar="User:NAME,…", help="Default: all."),
    ] = None,
) -> None:
    """Copy policies from one broker to another, and change the policies that exist there already."""
    chosen = parts(subjects) or None
    await run.change(
        f"copy {_named('policy', chosen)} from {source}",
        [target],
        lambda: run.admin.access.copy_acls(source, target, chosen),
    )


# Inside


class _SetPolicies(Protocol):
    """Brings policies of a subject to brokers: `create_acl` and `update_acl` of the client."""

    def __call__(
        self,
        subject: str,
        entries: Sequence[AclEntry],
        /,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Awaitable[list[str]]: ...


def _named(kind: str, chosen: list[str] | None) -> str:
    if chosen is None:
        return {"user": "all users", "policy": "all policies"}[kind]
    return {"user": "users", "policy": "the policies of"}[kind] + f" {', '.join(chosen)}"


def _entries(resources: str, actions: str, decision: str, source_ip: str | None) -> list[AclEntry]:
    return [
        AclEntry(resource, tuple(parts(actions)), decision, tuple(parts(source_ip)))
        for resource in parts(resources)
    ]


def _show_users(run: Run, found: Mapping[str, Iterable[User]]) -> None:
    run.out.table(
        _USERS,
        [
            (user.name, user.password, user.kind, user.state, address)
            for address, users in found.items()
            for user in users
        ],
    )


def _show_acls(run: Run, found: Mapping[str, Iterable[Acl]]) -> None:
    run.out.table(
        _ACLS,
        [
            (
                *(acl.subject, entry.policy, entry.resource, list(entry.actions)),
                *(list(entry.source_ips), entry.decision, address),
            )
            for address, acls in found.items()
            for acl in acls
            for entry in acl.entries
        ],
    )
