"""Judge what the members of a consumer group report of themselves (Java: ConsumerRunningInfo).

Nothing here asks a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from cometmq.admin.groups.records import RunningInfo
from cometmq.errors import CometMQError
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.keyed_text import TextKey
from cometmq.model.subscription import EXPRESSION_TAG, SubscriptionData
from cometmq.protocol.codes import ResponseCode

PUSH: Final = "CONSUME_PASSIVELY"
# As in Java: a listener may take so long for the messages of one queue.
_BLOCKED_MS: Final = 60_000


class Wrong(TextKey):
    """Lists what is wrong with a group or with one of its members."""

    DIFFERENT_SUBSCRIPTIONS = (
        "its members subscribe to different things: messages that one of them has not subscribed to "
        "are lost to the group; give all members the same subscriptions"
    )
    MESSAGES_FAILED = "topic {topic}: {count} messages failed in the last hour"
    QUEUE = "topic {topic}, queue {queue} of {broker}"
    CANNOT_LOCK = "{queue}: cannot lock it, for {ms} ms; another member may hold the lock"
    CANNOT_UNLOCK = "{queue}: tried {count} times to unlock it, and still failed"
    BLOCKED = (
        "{queue}: consumed nothing for {ms} ms and has {count} messages; the listener may be blocked "
        "(the stacks of its threads show where)"
    )


class Finding(NamedTuple):
    """Says what is wrong with a group, or with one of its members."""

    group: str
    client_id: str | None
    text: str


@dataclass(frozen=True, slots=True)
class SubscriptionDifference:
    """Says what members select of a topic that they do not all select alike.

    `clients` has the members by expression, None for those that do not subscribe to the topic.
    """

    topic: str
    clients: Mapping[str | None, tuple[str, ...]]


def is_offline(error: CometMQError) -> bool:
    """Return whether an error says that no member of a group is connected."""
    return error.code == ResponseCode.CONSUMER_NOT_ONLINE


def judge(group: str, reported: Mapping[str, RunningInfo], now_ms: int) -> list[Finding]:
    """Return what is wrong with a group, by the reports of its members."""
    findings = []
    if not same_subscriptions(reported.values()):
        findings.append(Finding(group, None, Wrong.DIFFERENT_SUBSCRIPTIONS()))
    for client_id, info in reported.items():
        findings += [Finding(group, client_id, text) for text in _of_queues(info, now_ms)]
        findings += [
            Finding(
                group,
                client_id,
                Wrong.MESSAGES_FAILED(topic=topic, count=status.consume_failed_msgs),
            )
            for topic, status in info.topics.items()
            if status.consume_failed_msgs > 0
        ]
    return findings


def same_subscriptions(reported: Iterable[RunningInfo]) -> bool:
    """Return whether all push consumers of the group have the same subscriptions."""
    given = {
        frozenset(
            (data.topic, data.sub_string, data.expression_type) for data in info.subscriptions
        )
        for info in reported
        if _is_push(info)
    }
    return len(given) < 2


def subscription_differences(reported: Mapping[str, RunningInfo]) -> list[SubscriptionDifference]:
    """Return the topics that push consumers of the group select differently, sorted."""
    selected = {
        client_id: {data.topic: _expression(data) for data in info.subscriptions}
        for client_id, info in reported.items()
        if _is_push(info)
    }
    found = []
    for topic in sorted({topic for of in selected.values() for topic in of}):
        clients: dict[str | None, list[str]] = {}
        for client_id in sorted(selected):
            clients.setdefault(selected[client_id].get(topic), []).append(client_id)
        if len(clients) > 1:
            found.append(
                SubscriptionDifference(topic, {text: tuple(of) for text, of in clients.items()})
            )
    return found


def holders(reported: Mapping[str, RunningInfo]) -> dict[MessageQueue, str]:
    """Return the member that holds each queue; one that it has given up counts no more."""
    return {
        queue: client_id
        for client_id, info in reported.items()
        for queue, at in info.queues.items()
        if not at.droped
    }


def _expression(data: SubscriptionData) -> str:
    if data.expression_type == EXPRESSION_TAG:
        return data.sub_string
    return f"{data.expression_type}: {data.sub_string}"


def _is_push(info: RunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == PUSH


def _of_queues(info: RunningInfo, now_ms: int) -> Iterator[str]:
    if not _is_push(info):
        return
    ordered = info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"
    for queue, at in sorted(info.queues.items(), key=lambda item: item[0]):
        place = Wrong.QUEUE(topic=queue.topic, queue=queue.queue_id, broker=queue.broker_name)
        if ordered and not at.locked:
            since = now_ms - at.last_lock_timestamp
            yield Wrong.CANNOT_LOCK(queue=place, ms=since)
        elif ordered and at.droped and at.try_unlock_times > 0:
            yield Wrong.CANNOT_UNLOCK(queue=place, count=at.try_unlock_times)
        elif not ordered and at.cached_msg_count > 0:
            # A CometMQ client that has consumed nothing of a queue yet reports 0.
            since = now_ms - (at.last_consume_timestamp or _started_ms(info) or now_ms)
            if since > _BLOCKED_MS:
                yield Wrong.BLOCKED(queue=place, ms=since, count=at.cached_msg_count)


def _started_ms(info: RunningInfo) -> int:
    text = info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0
