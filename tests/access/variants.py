"""Requests that leave names out, or name what access control treats apart: retry topics, traces.

For each, the accounts that our servers let in are written out; they are also Java's, unless `java_1`
says why Java's brokers with ACL 1.0 let in more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.access.actors import ACTORS_1, ACTORS_2
from tests.access.samples import CLIENT, GROUP, TOPIC, Sample, sample

from cometmq.model.subscription import ConsumerData, ProducerData, SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import HeartbeatData
from cometmq.protocol.request_type import AnyRequestType

RETRY: Final = f"%RETRY%{GROUP}"
OTHER_RETRY: Final = "%RETRY%matrix-other-group"
TRACES: Final = "RMQ_SYS_TRACE_TOPIC"


class Variant(NamedTuple):
    """A request, and the accounts besides the owner that our servers with either ACL let in."""

    name: str
    sample: Sample
    let_in_1: frozenset[str]
    let_in_2: frozenset[str]
    java_1: str = ""

    def let_in(self, acl: int) -> frozenset[str]:
        return self.let_in_1 if acl == 1 else self.let_in_2


def _changed(
    row: AnyRequestType,
    ext: Mapping[str, str],
    *,
    without: tuple[str, ...] = (),
    body: bytes | None = None,
) -> Sample:
    made = sample(row)
    fields = {name: text for name, text in {**made.ext, **ext}.items() if name not in without}
    return Sample(row, fields, made.body if body is None else body)


def _heartbeat(*topics: str) -> Sample:
    consumers = [
        ConsumerData(GROUP, subscription_data_set=[SubscriptionData(topic) for topic in topics])
    ]
    data = HeartbeatData(
        CLIENT,
        consumers if topics else [],
        producer_data_set=[ProducerData("matrix-producer")],
    )
    row = requests.HEART_BEAT
    return _changed(row, {}, body=row.body.encode(data))


def _all(acl: int) -> frozenset[str]:
    return frozenset(actor.name for actor in {1: ACTORS_1, 2: ACTORS_2}[acl]) - {"owner"}


_NONE: Final = frozenset[str]()
# Whoever may consume in the group.
_MEMBERS_1: Final = frozenset({"subscriber", "group-only"})
_MEMBERS_2: Final = frozenset({"sub", "group-only"})
_OWN_GROUP: Final = "Java looks at the group that the sender says it belongs to, not at the group of the retry topic"

VARIANTS: Final = (
    Variant("heartbeat of a producer", _heartbeat(), _all(1), _all(2)),
    Variant(
        "heartbeat with the retry topic",
        _heartbeat(TOPIC, RETRY),
        frozenset({"subscriber"}),
        frozenset({"sub"}),
    ),
    Variant(
        "a producer's end",
        _changed(requests.UNREGISTER_CLIENT, {}, without=("consumerGroup",)),
        _all(1),
        _all(2),
    ),
    Variant(
        "pull of the retry topic",
        _changed(requests.PULL_MESSAGE, {"topic": RETRY}),
        _MEMBERS_1,
        _MEMBERS_2,
    ),
    Variant(
        "offset of the retry topic",
        _changed(requests.UPDATE_CONSUMER_OFFSET, {"topic": RETRY}),
        _MEMBERS_1,
        frozenset({"sub", "update", "group-only"}),
    ),
    Variant(
        "send to the retry topic by a member of the group",
        _changed(requests.SEND_MESSAGE_V2, {"b": RETRY, "a": GROUP}),
        _MEMBERS_1,
        _MEMBERS_2,
    ),
    Variant(
        "send to another group's retry topic",
        _changed(requests.SEND_MESSAGE_V2, {"b": OTHER_RETRY, "a": GROUP}),
        _NONE,
        _NONE,
        java_1=_OWN_GROUP,
    ),
    Variant(
        "trace",
        _changed(requests.SEND_MESSAGE_V2, {"b": TRACES, "a": "_INNER_TRACE_PRODUCER"}),
        _all(1),
        _NONE,
    ),
)
