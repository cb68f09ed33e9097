"""Ask brokers what a group has popped and not acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cometmq.admin.servers import Servers
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.pop.bodies import PopProgress, PopTopic
from cometmq.protocol.pop.headers import PopProgressRequestHeader

POP = "POP"


@dataclass(frozen=True, slots=True)
class PoppedTopic:
    """Reports a group's messages in flight of a topic at the brokers that were asked, retry topics included.

    `modes` are PULL, POP or both. `oldest_ms` is the time since which the oldest message is in flight, `late_ms`
    how long ago the first one should have become visible again; both are 0 if there is none. `again_count`
    messages in flight were delivered before. `retry_count` messages wait in retry topics to be popped.
    `revived_count` messages were delivered again since the brokers' start.
    """

    topic: str
    modes: tuple[str, ...]
    in_flight: int
    again_count: int
    oldest_ms: int
    late_ms: int
    revived_count: int
    retry_count: int

    @property
    def pops(self) -> bool:
        return POP in self.modes


async def ask_pops(
    servers: Servers,
    address: str,
    group: str,
    *,
    topic: str = "",
    queue_id: int = -1,
    offset: int = -1,
) -> PopProgress | None:
    """Return a broker's answer, or None if it does not know the request, as Java's brokers do not."""
    answer = await servers.ask(
        address,
        requests.GET_POP_PROGRESS,
        PopProgressRequestHeader(group, topic, queue_id, offset),
        what=f"what group {group} has popped",
        also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
    )
    return answer.body if answer.code == ResponseCode.SUCCESS else None


def popped_topics(parts: Iterable[PopProgress]) -> list[PoppedTopic]:
    """Join the answers of several brokers, by topic."""
    by_topic: dict[str, list[tuple[PopTopic, int]]] = {}
    for part in parts:
        for each in part.topics:
            by_topic.setdefault(each.topic, []).append((each, part.now_ms))
    return [_joined(topic, found) for topic, found in sorted(by_topic.items())]


def _joined(topic: str, found: list[tuple[PopTopic, int]]) -> PoppedTopic:
    return PoppedTopic(
        topic,
        tuple(sorted({each.mode for each, _ in found})),
        sum(each.in_flight for each, _ in found),
        sum(each.again_count for each, _ in found),
        max(_age(each.oldest_popped_ms, now_ms) for each, now_ms in found),
        max(_age(each.next_visible_ms, now_ms) for each, now_ms in found),
        sum(each.revived_count for each, _ in found),
        sum(each.retry_count for each, _ in found),
    )


def _age(at_ms: int, now_ms: int) -> int:
    return max(now_ms - at_ms, 0) if at_ms else 0


def joined_pops(parts: Iterable[Iterable[PoppedTopic]]) -> list[PoppedTopic]:
    """Join the answers of brokers that were asked one after the other, by topic."""
    by_topic: dict[str, list[PoppedTopic]] = {}
    for part in parts:
        for each in part:
            by_topic.setdefault(each.topic, []).append(each)
    return [
        PoppedTopic(
            topic,
            tuple(sorted({mode for each in found for mode in each.modes})),
            sum(each.in_flight for each in found),
            sum(each.again_count for each in found),
            max(each.oldest_ms for each in found),
            max(each.late_ms for each in found),
            sum(each.revived_count for each in found),
            sum(each.retry_count for each in found),
        )
        for topic, found in sorted(by_topic.items())
    ]
