"""Where our access control asks for a right and Java's lets every known account in.

There is no other difference between our verdicts and those of Java's brokers: 5.2 with ACL 1.0, 5.5
with ACL 2.0. tests/interop/test_access_on_java.py asks both for everything and fails for each
difference that is not listed, and for each that is listed and is none. Java's name servers have no
access control.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.access.variants import VARIANTS

from cometmq.protocol.codes import OwnRequestCode
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.request_type import ANY_ACCOUNT, AnyRequestType, ResourceKind, Right
from cometmq.protocol.requests import REQUESTS

_REPLIES: Final = (
    "it sends a message; replies, to `<cluster>_REPLY_TOPIC`, are free for any account"
)
_CONSUMES: Final = "it is a part of consuming, like PULL_MESSAGE"
_MOVES: Final = "an account that moves offsets decides which messages the group consumes"
_DECIDES: Final = "it decides what happens to a message that was sent to the topic"
_CHANGES: Final = "it changes the server for all its users"
_ACCOUNTS: Final = "an account that changes accounts makes itself an administrator"
_TELLS_ALL: Final = "it shows the server, or all topics, groups and clients"
_TELLS_GROUP: Final = "it shows what a group consumes, and its progress"
_TELLS_TOPIC: Final = (
    "it shows the topic: an account that may send to it or consume from it may ask"
)
_READS: Final = "it reads messages, or the entries of queues that lead to them"
_HOW: Final = "it decides how the group consumes the topic"
_NEW: Final = "this release of Java does not know the request"

# Java's releases with either access control take these from any account.
_INSPECTING: Final = (
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_BROKER_CONFIG,
    Code.GET_BROKER_RUNTIME_INFO,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_TIMER_CHECK_POINT,
    Code.GET_TIMER_METRICS,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.GET_BROKER_HA_STATUS,
)
# Why we ask for a right to a request that Java 5.2 takes from every account of ACL 1.0.
DIFFERENT_1: Final[Mapping[int, str]] = {
    **dict.fromkeys(_INSPECTING, _TELLS_ALL),
    **dict.fromkeys(
        (
            Code.GET_PRODUCER_CONNECTION_LIST,
            Code.GET_BROKER_CONSUME_STATS,
            Code.VIEW_BROKER_STATS_DATA,
            Code.GET_ALL_PRODUCER_INFO,
        ),
        _TELLS_ALL,
    ),
    **dict.fromkeys(
        (
            Code.CHECK_CLIENT_CONFIG,
            Code.GET_CONSUMER_CONNECTION_LIST,
            Code.GET_CONSUME_STATS,
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            Code.QUERY_CONSUME_TIME_SPAN,
            Code.GET_CONSUMER_RUNNING_INFO,
            Code.QUERY_CORRECTION_OFFSET,
            Code.QUERY_TOPICS_BY_CONSUMER,
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
            Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        ),
        _TELLS_GROUP,
    ),
    **dict.fromkeys(
        (
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_MAX_OFFSET,
            Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME,
            Code.GET_TOPIC_STATS_INFO,
            Code.QUERY_TOPIC_CONSUME_BY_WHO,
            Code.GET_TOPIC_CONFIG,
        ),
        _TELLS_TOPIC,
    ),
    **dict.fromkeys((Code.VIEW_MESSAGE_BY_ID, Code.QUERY_CONSUME_QUEUE), _READS),
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_ACL_CONFIG,
            Code.DELETE_ACL_CONFIG,
            Code.GET_BROKER_CLUSTER_ACL_INFO,
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        ),
        _ACCOUNTS,
    ),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _NEW,
    OwnRequestCode.GET_ALL_CONSUMER_FILTERS: _NEW,
    Code.QUERY_CONSUMER_OFFSET: _CONSUMES,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _NEW,
    Code.END_TRANSACTION: _DECIDES,
    Code.LOCK_BATCH_MQ: _CONSUMES,
    Code.UNLOCK_BATCH_MQ: _CONSUMES,
    Code.QUERY_ASSIGNMENT: _CONSUMES,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _MOVES,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _NEW,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGES,
    Code.CONSUME_MESSAGE_DIRECTLY: _CONSUMES,
    Code.CLONE_GROUP_OFFSET: _MOVES,
    Code.CLEAN_UNUSED_TOPIC: _CHANGES,
    Code.RESET_MASTER_FLUSH_OFFSET: _CHANGES,
    Code.RESUME_CHECK_HALF_MESSAGE: _DECIDES,
    Code.SEND_REPLY_MESSAGE: _REPLIES,
    Code.SEND_REPLY_MESSAGE_V2: _REPLIES,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGES,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _CHANGES,
    Code.LITE_PULL_MESSAGE: _CONSUMES,
    Code.RECALL_MESSAGE: _NEW,
    Code.SET_MESSAGE_REQUEST_MODE: _HOW,
    **dict.fromkeys(
        (
            Code.POP_MESSAGE,
            Code.NOTIFICATION,
            Code.POLLING_INFO,
            Code.PEEK_MESSAGE,
            Code.ACK_MESSAGE,
            Code.BATCH_ACK_MESSAGE,
            Code.CHANGE_MESSAGE_INVISIBLETIME,
        ),
        _CONSUMES,
    ),
    OwnRequestCode.REDRIVE_DEAD_LETTERS: _NEW,
    OwnRequestCode.ADMIT_SLAVE: _NEW,
    OwnRequestCode.AWAIT_TABLES: _NEW,
    OwnRequestCode.GET_POP_PROGRESS: _NEW,
}
# The same of Java 5.5 and users of ACL 2.0.
DIFFERENT_2: Final[Mapping[int, str]] = {
    **dict.fromkeys(_INSPECTING, _TELLS_ALL),
    OwnRequestCode.GET_ALL_CONSUMER_FILTERS: _NEW,
    Code.CHECK_CLIENT_CONFIG: _TELLS_GROUP,
    Code.QUERY_ASSIGNMENT: _CONSUMES,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _CHANGES,
    Code.UPDATE_BROKER_CONFIG: _CHANGES,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _CHANGES,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _CHANGES,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGES,
    Code.CLEAN_UNUSED_TOPIC: _CHANGES,
    Code.SEND_REPLY_MESSAGE: _REPLIES,
    Code.SEND_REPLY_MESSAGE_V2: _REPLIES,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGES,
    Code.LITE_PULL_MESSAGE: _CONSUMES,
    Code.SET_MESSAGE_REQUEST_MODE: _HOW,
    Code.POLLING_INFO: _CONSUMES,
    Code.BATCH_ACK_MESSAGE: _CONSUMES,
    OwnRequestCode.REDRIVE_DEAD_LETTERS: _NEW,
    OwnRequestCode.ADMIT_SLAVE: _NEW,
    OwnRequestCode.AWAIT_TABLES: _NEW,
    OwnRequestCode.GET_POP_PROGRESS: _NEW,
}
DIFFERENT: Final = {1: DIFFERENT_1, 2: DIFFERENT_2}

# Requests that servers send to clients, which have no access control.
TO_CLIENTS: Final = frozenset(
    {
        Code.CHECK_TRANSACTION_STATE,
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)

_HEAD: Final = """\
<!-- Written by scripts/access_reference.py: change the code, then run it. -->
# Access

This page lists the rights that each request needs once access control is on ([Security](../security.md) describes it). A
request that is not signed by a known account is refused, whatever it asks for. An admin account (ACL 1.0) and a Super user
(ACL 2.0) may send everything.

The column *ACL 1.0* shows the permission that the account needs on each topic and group that the request names; `admin`
means that only admin accounts may send it. The column *ACL 2.0* shows the actions of which a policy must allow one, on each
resource that the request names; if it names none, on the cluster. *Known* means any account.

Our verdicts are those of Java's brokers, 5.2 with ACL 1.0 and 5.5 with ACL 2.0, except for the requests in the second table,
which Java's brokers take from any known account. Java's name servers have no access control; ours have the same as our brokers.

"""


def page(rows: Iterable[AnyRequestType] = tuple(REQUESTS.values())) -> str:
    """Return the text of docs/reference/access.md."""
    asked = sorted((row for row in rows if row.code not in TO_CLIENTS), key=lambda row: row.code)
    lines = [
        "## Rights\n",
        "| code | name | names | ACL 1.0 | ACL 2.0 |",
        "| ---: | --- | --- | --- | --- |",
        *(
            f"| {int(row.code)} | {row.name} | {_names(row)} | {_right_1(row)} | {_right_2(row)} |"
            for row in asked
        ),
        "\n## Where Java lets any account in\n",
        "| code | name | at | why ours asks for a right |",
        "| ---: | --- | --- | --- |",
        *_differences(asked),
        *_in_variants(),
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _in_variants() -> Iterator[str]:
    for variant in VARIANTS:
        if variant.java_1:
            sample = variant.sample
            yield (
                f"| {sample.code} | {sample.row.name}, {variant.name} | 5.2, ACL 1.0 | "
                f"{variant.java_1} |"
            )


def _names(row: AnyRequestType) -> str:
    kinds = dict.fromkeys(
        resource.kind.name.lower()
        for resource in row.resources
        if resource.path and resource.kind is not ResourceKind.CLUSTER
    )
    return ", ".join(kinds)


def _right_1(row: AnyRequestType) -> str:
    if row.right is Right.NONE:
        return "known"
    rights = {Right.PUB: "PUB", Right.SUB: "SUB", Right.ANY: "PUB or SUB"}
    return rights.get(row.right, "admin")


def _right_2(row: AnyRequestType) -> str:
    if row.actions == ANY_ACCOUNT:
        return "known"
    return " or ".join(action.value for action in row.actions)


def _differences(rows: Iterable[AnyRequestType]) -> Iterator[str]:
    for row in rows:
        by_reason: dict[str, list[str]] = {}
        for release, table in (("5.2, ACL 1.0", DIFFERENT_1), ("5.5, ACL 2.0", DIFFERENT_2)):
            if row.code in table:
                by_reason.setdefault(table[row.code], []).append(release)
        for reason, releases in by_reason.items():
            yield f"| {int(row.code)} | {row.name} | {'; '.join(releases)} | {reason} |"
