"""Define the rules for topic and group names, and the names that RocketMQ itself uses.

Java: TopicValidator, Validators, MixAll.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from cometmq.errors import IllegalArgumentError

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
# The topic of CometMQ's own records that have no queue; see `cometmq.store.delivery_note`.
DELIVERY_NOTE_TOPIC: Final = "rmq_sys_delivery_note"
# The pops and acknowledgements of groups; see docs/internals/pop.md.
POP_LOG_TOPIC: Final = "rmq_sys_pop_log"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_EVENT_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
# Queues of topics with this prefix hold messages of other topics (Java: MixAll.LMQ_PREFIX).
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
        CHECKPOINT_TOPIC,
    }
)

# Java: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET
FORBIDDEN_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)
# To these no client sends: Java's broker also refuses sends to the topic of its timer, and the
# topics of notes and of pops are ours.
CLOSED_TOPICS: Final = FORBIDDEN_SEND_TOPICS | {TIMER_TOPIC, DELIVERY_NOTE_TOPIC, POP_LOG_TOPIC}

# Messages of all topics wait in these; the property REAL_TOPIC names the topic of each.
WAITING_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC}
)

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
# Every broker creates these groups at start (Java: SubscriptionGroupManager.init).
BUILT_IN_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"

MAX_TOPIC_LENGTH: Final = 127
MAX_RETRY_TOPIC_LENGTH: Final = 255
MAX_GROUP_LENGTH: Final = 120

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """Return the name of the topic that holds a group's messages to be consumed again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the name of the topic that holds the messages that a group gave up."""
    return DLQ_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def groups_of_retry_topics(topics: Iterable[str], groups: Collection[str]) -> list[str]:
    """Return the groups that have retry topics among `topics`, in their order. `groups` are those that brokers know:
    the retry topic of a group that pops has the name of the group and of a topic.
    """
    found: dict[str, None] = {}
    for topic in topics:
        if topic.startswith(RETRY_PREFIX):
            name = topic.removeprefix(RETRY_PREFIX)
            ends = [] if name in groups else [at for at, char in enumerate(name) if char in "_+"]
            found[next((name[:at] for at in reversed(ends) if name[:at] in groups), name)] = None
    return list(found)


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group in BUILT_IN_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def topic_fault(topic: object) -> str | None:
    """Say why `topic` is no legal topic name; None if it is one (Java: TopicValidator)."""
    if not isinstance(topic, str):
        return f"the topic name {topic!r} is a {type(topic).__name__}; give text"
    if not topic or topic.isspace():
        return "the topic name is blank; give 1 to 127 characters"
    limit = (
        MAX_RETRY_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    )
    return _name_fault("topic", topic, limit)


def group_fault(group: object) -> str | None:
    """Say why `group` is no legal group name; None if it is one (Java: Validators.checkGroup)."""
    if not isinstance(group, str):
        return f"the group name {group!r} is a {type(group).__name__}; give text"
    if not group or group.isspace():
        return f"the group name is blank; give 1 to {MAX_GROUP_LENGTH} characters"
    return _name_fault("group", group, MAX_GROUP_LENGTH)


def check_topic(topic: str) -> None:
    """Raise IllegalArgumentError unless `topic` is a legal topic name."""
    if fault := topic_fault(topic):
        raise IllegalArgumentError(fault)


def check_group(group: str) -> None:
    """Raise IllegalArgumentError unless `group` is a legal group name."""
    if fault := group_fault(group):
        raise IllegalArgumentError(fault)


def _name_fault(kind: str, name: str, limit: int) -> str | None:
    if len(name) > limit:
        return f"the {kind} name has {len(name)} characters, the limit is {limit}: {name[:40]!r}…"
    if not _LEGAL.fullmatch(name):
        return f"the {kind} name {name!r} has characters outside ^[%|a-zA-Z0-9_-]+$"
    return None
