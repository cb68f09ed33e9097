"""Ask the members of a consumer group, and go on when some servers or members do not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.admin.groups.findings import is_offline
from cometmq.admin.groups.records import (
    GroupConnections,
    GroupProgress,
    RunningInfo,
    joined,
    merged,
)
from cometmq.cli.admin.command import Run
from cometmq.cli.admin.output import Column
from cometmq.errors import CometMQError, RemoteError
from cometmq.protocol.codes import ResponseCode

FINDING: Final = (
    Column("group", "Group"),
    Column("clientId", "ClientId"),
    Column("finding", "Finding"),
)


class Members(NamedTuple):
    """The reports of a group's members, by client id, and the errors of members that did not
    answer.
    """

    reports: Mapping[str, RunningInfo]
    errors: Mapping[str, CometMQError]


async def online(run: Run, group: str, broker: str | None = None) -> GroupConnections:
    """Return the members of a group at the brokers that answer, and name the others.

    Raises RemoteError: SUBSCRIPTION_GROUP_NOT_EXIST for a group that no broker has,
    CONSUMER_NOT_ONLINE for one without a member.
    """
    try:
        members = await _online(run, group, broker)
    except RemoteError as error:
        if is_offline(error):
            await run.admin.groups.need(group)
        raise
    if members is None:
        raise RemoteError(
            f"group {group} has no member at the brokers that answer; start one",
            code=ResponseCode.CONSUMER_NOT_ONLINE,
        )
    return members


async def online_or_none(run: Run, group: str) -> GroupConnections | None:
    """Return the members of a group, None if no broker that answers knows any."""
    try:
        return await _online(run, group)
    except RemoteError as error:
        if is_offline(error):
            return None
        raise


async def _online(run: Run, group: str, broker: str | None = None) -> GroupConnections | None:
    return await run.reached(
        run.admin.groups.connections(group, broker=broker),
        lambda results: joined(group, results.values()),
    )


async def progress_of(
    run: Run, group: str, topic: str | None = None, cluster: str | None = None
) -> GroupProgress:
    """Return a group's progress at the brokers that answer, and name the others; then it is not
    `complete`.
    """
    return await run.reached(
        run.admin.groups.progress(group, topic, cluster=cluster),
        lambda results: merged(group, results.values(), complete=False),
    )


async def ask_members(run: Run, group: GroupConnections, *, stacks: bool = False) -> Members:
    """Ask every member about itself, one after another."""
    reports: dict[str, RunningInfo] = {}
    errors: dict[str, CometMQError] = {}
    for client in group.clients:
        try:
            reports[client.client_id] = await run.admin.groups.running_info(
                group.group, client.client_id, stacks=stacks
            )
        except CometMQError as error:  # the others may answer
            errors[client.client_id] = error
    return Members(reports, errors)
