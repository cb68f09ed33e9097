"""Judges what the members of a consumer group tell about themselves (Java: ConsumerRunningInfo)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from cometmq.admin.group_records import (
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

PUSH: Final = "CONSUME_PASSIVELY"
# As in Java: a listener may take so long for the messages of one queue.
_BLOCKED_MS: Final = 60_000


FINDING: Final = (
    Column("group", "Group"),
    Column("clientId", "ClientId"),
    Column("finding", "Finding"),
)


class Finding(NamedTuple):
    """Says what is wrong with a group, or with one of its members."""

    group: str
    client_id: str | None
    text: str


class Members(NamedTuple):
    """What the members of a group told, by client id, and what those said that did not answer."""

    told: Mapping[str, RunningInfo]
    errors: Mapping[str, CometMQError]


async def online(run: Run, group: str, broker: str | None = None) -> GroupConnections:
    """Return the members of a group at the brokers that answer, and tell of the others."""
    members = await _online(run, group, broker)
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
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
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
    """Return how far a group is at the brokers that answer, and tell of the others."""
    return await run.reached(
        run.admin.groups.progress(group, topic, cluster=cluster),
        lambda results: merged(group, results.values()),
    )


async def ask_members(run: Run, group: GroupConnections, *, stacks: bool = False) -> Members:
    """Ask every member about itself, one after another."""
    told: dict[str, RunningInfo] = {}
    errors: dict[str, CometMQError] = {}
    for client in group.clients:
        try:
            told[client.client_id] = await run.admin.groups.running_info(
                group.group, client.client_id, stacks=stacks
            )
        except CometMQError as error:  # the others may answer
            errors[client.client_id] = error
    return Members(told, errors)


def judge(group: str, told: Mapping[str, RunningInfo], now_ms: int) -> list[Finding]:
    """Return what is wrong with a group by what its members told."""
    findings = []
    if not same_subscriptions(told.values()):
        findings.append(
            Finding(
                group,
                None,
                "its members subscribe to different things: messages that one of them has not "
                "subscribed to are lost to the group; give all members the same subscriptions",
            )
        )
    for client_id, info in told.items():
        findings += [Finding(group, client_id, text) for text in _of_queues(info, now_ms)]
        findings += [
            Finding(
                group,
                client_id,
                f"topic {topic}: {status.consume_failed_msgs} messages failed in the last hour",
            )
            for topic, status in info.topics.items()
            if status.consume_failed_msgs > 0
        ]
    return findings


def same_subscriptions(told: Iterable[RunningInfo]) -> bool:
    """Return whether all members that are pushed messages subscribe to the same."""
    given = {
        frozenset(
            (data.topic, data.sub_string, data.expression_type) for data in info.subscriptions
        )
        for info in told
        if _is_push(info)
    }
    return len(given) < 2


def _is_push(info: RunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == PUSH


def _of_queues(info: RunningInfo, now_ms: int) -> Iterator[str]:
    if not _is_push(info):
        return
    ordered = info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"
    for queue, at in sorted(info.queues.items(), key=lambda item: item[0]):
        place = f"topic {queue.topic}, queue {queue.queue_id} of {queue.broker_name}"
        if ordered and not at.locked:
            since = now_ms - at.last_lock_timestamp
            yield f"{place}: cannot lock it, for {since} ms; another member may hold the lock"
        elif ordered and at.droped and at.try_unlock_times > 0:
            yield f"{place}: tried {at.try_unlock_times} times to unlock it, and still failed"
        elif not ordered and at.cached_msg_count > 0:
            since = now_ms - at.last_consume_timestamp
            if since > _BLOCKED_MS:
                yield (
                    f"{place}: consumed nothing for {since} ms and has {at.cached_msg_count} messages; "
                    "the listener may be blocked (consumerStatus -i CLIENT -s shows its threads)"
                )
