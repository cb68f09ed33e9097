"""The actions of requests, beside those of RocketMQ 5.3.3."""

from __future__ import annotations

from typing import Final

import pytest

from cometmq.protocol import requests
from cometmq.protocol.request_type import (
    ANY_ACCOUNT,
    CLUSTER,
    NO_BODY,
    RequestType,
    ResourceKind,
    Right,
)

# By code, what 5.3.3 asks policies: DefaultAuthorizationContextBuilder, and for all others the
# annotation RocketMQAction of the header that RequestHeaderRegistry has for the code.
JAVA: Final = {
    10: "Pub", 310: "Pub", 320: "Pub", 370: "Pub", 37: "Pub",
    11: "Sub", 36: "Sub", 34: "Sub", 35: "Sub", 41: "Sub", 42: "Sub",
    12: "Sub,Get", 14: "Sub,Get", 38: "Sub,Get", 15: "Sub,Update", 105: "Pub,Sub,Get",
    314: "Update", 222: "Update", 323: "Update", 309: "Sub",
    30: "Get", 31: "Get", 29: "Get", 32: "Get", 33: "Get", 321: "Get", 354: "Get",
    351: "Get", 352: "Get", 202: "Get", 208: "Get", 203: "Get", 204: "Get", 317: "Get",
    303: "Get", 315: "Get", 300: "Get", 343: "Get", 345: "Get", 223: "Get", 328: "Get",
    308: "Get", 307: "Get",
    17: "Create", 215: "Delete", 207: "Delete", 353: "Update",
    103: "Update", 104: "Update", 322: "Update", 904: "Update", 217: "Update", 901: "Get",
    205: "Update", 327: "Update", 216: "Update", 100: "Update", 102: "Update",
    101: "Get", 219: "Get",
    3001: "Update", 3002: "Update", 3003: "Update", 3004: "Get", 3005: "Get",
    3006: "Update", 3007: "Update", 3008: "Update", 3009: "Get", 3010: "Get",
}  # fmt: skip


def test_the_golden_codes_are_ours() -> None:
    assert JAVA.keys() <= requests.REQUESTS.keys(), sorted(JAVA.keys() - requests.REQUESTS.keys())


@pytest.mark.parametrize("code", JAVA)
def test_actions_are_those_of_java(code: int) -> None:
    found = {action.value for action in requests.REQUESTS[code].actions}
    assert found == set(JAVA[code].split(","))


def test_what_takes_no_policy_is_what_all_accounts_may_send() -> None:
    without = {code for code, row in requests.REQUESTS.items() if row.actions == ANY_ACCOUNT}
    assert not without & JAVA.keys()
    assert {requests.REQUESTS[code].right for code in without} == {Right.NONE}


def test_a_row_that_does_not_say_its_actions_cannot_be_made() -> None:
    parts = (901, CLUSTER_HEADER, NO_BODY, CLUSTER_HEADER, NO_BODY)
    with pytest.raises(AssertionError, match="say which actions"):
        RequestType(*parts, Right.NONE, CLUSTER)
    with pytest.raises(AssertionError, match="has no resource"):
        RequestType(*parts, Right.ADMIN)
    for right in Right:
        if right is not Right.NONE:
            assert RequestType(*parts, right, CLUSTER).actions


def test_brokers_name_their_cluster() -> None:
    for row in (requests.REGISTER_BROKER, requests.UNREGISTER_BROKER, requests.BROKER_HEARTBEAT):
        (resource,) = row.resources
        assert (resource.kind, resource.path) == (ResourceKind.CLUSTER, "cluster_name")


def test_each_part_of_a_list_in_one_text_is_named() -> None:
    header = requests.GET_CONSUME_STATS.header("g", None, "a;b;")
    found = [
        name for resource in requests.GET_CONSUME_STATS.resources for name in resource.names(header)
    ]
    assert found == ["g", "a", "b"]


CLUSTER_HEADER = requests.GET_BROKER_CONFIG.header
