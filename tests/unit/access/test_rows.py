"""Every row of the request table says what it touches, so that none slips through access control.

The lists below are written by hand: a new row without a right fails here until somebody has said why
every known account may send it.
"""

from __future__ import annotations

from typing import get_type_hints

import pytest

from cometmq.protocol import requests as r
from cometmq.protocol.request_type import AnyRequestType, Right
from cometmq.protocol.requests import REQUESTS

# What any known account may send.
FOR_ALL = {
    # Names of topics, addresses of brokers, and the name servers' own small tables.
    r.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    r.GET_BROKER_CLUSTER_INFO,
    r.GET_BROKER_MEMBER_GROUP,
    r.GET_HAS_UNIT_SUB_TOPIC_LIST,
    r.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    r.GET_KVLIST_BY_NAMESPACE,
    r.GET_KV_CONFIG,
    r.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    r.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    r.GET_TOPICS_BY_CLUSTER,
    r.GET_UNIT_TOPIC_LIST,
    # Refused by every server of ours.
    r.REGISTER_FILTER_SERVER,
    r.REGISTER_MESSAGE_FILTER_CLASS,
    # Servers send these to clients, and serve none of them.
    r.CHECK_TRANSACTION_STATE,
    r.GET_CONSUMER_STATUS_FROM_CLIENT,
    r.NOTIFY_CONSUMER_IDS_CHANGED,
    r.PUSH_REPLY_MESSAGE_TO_CLIENT,
    r.RESET_CONSUMER_CLIENT_OFFSET,
}
# The request may name nothing, and the handler checks the topic of the message that it finds.
FOUND = {r.VIEW_MESSAGE_BY_ID, r.END_TRANSACTION, r.RESUME_CHECK_HALF_MESSAGE}
# A request that names nothing does nothing: a client without consumers, no queues to lock.
IDLE_WITHOUT_NAMES = {
    r.HEART_BEAT,
    r.UNREGISTER_CLIENT,
    r.LOCK_BATCH_MQ,
    r.UNLOCK_BATCH_MQ,
    r.CHECK_CLIENT_CONFIG,
    r.QUERY_ASSIGNMENT,
    r.BATCH_ACK_MESSAGE,
}
ROWS = list(REQUESTS.values())
NAMED = [row for row in ROWS if row.right in (Right.PUB, Right.SUB, Right.ANY)]


def test_what_any_account_may_send_is_listed_with_its_reason() -> None:
    assert {row for row in ROWS if row.right is Right.NONE} == FOR_ALL


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.name)
def test_a_right_to_a_resource_has_a_name_that_no_request_can_leave_out(
    row: AnyRequestType,
) -> None:
    fields = get_type_hints(row.header)
    required = [
        resource
        for resource in row.resources
        if resource.path and not resource.in_body and fields[resource.path] is str
    ]
    assert required or row in FOUND | IDLE_WITHOUT_NAMES


def test_exceptions_are_needed() -> None:
    assert set(NAMED) >= FOUND | IDLE_WITHOUT_NAMES


def test_every_row_has_a_resource_and_each_code_one_row() -> None:
    assert all(row.resources for row in ROWS)
    assert len({row.code for row in ROWS}) == len(ROWS)
