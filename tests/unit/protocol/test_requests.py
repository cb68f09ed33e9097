from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import pytest

from cometmq.errors import ProtocolError
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import HeartbeatData, LockBatchRequestBody, MessageQueueBean
from cometmq.protocol.codes import OwnRequestCode, RequestCode
from cometmq.protocol.fastjson.dialect import MAX_DIALECT_REQUEST_LENGTH
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
)
from cometmq.protocol.request_type import AnyRequestType, JsonBody, RequestType, Resource
from cometmq.testing import Account, Cluster


def rows() -> list[AnyRequestType]:
    return [value for value in vars(requests).values() if isinstance(value, RequestType)]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_a_row_is_found_by_its_code_and_called_by_its_name(row: AnyRequestType) -> None:
    assert requests.REQUESTS[row.code] is row
    assert getattr(requests, row.name) is row
    assert row.code in set(RequestCode) | set(OwnRequestCode)


async def test_every_row_is_served_by_a_broker_a_name_server_or_a_client() -> None:
    served: set[int] = set()
    # The requests about accounts and users are served with the access control that has them.
    with_users = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
    for cluster in (
        Cluster(),
        Cluster(accounts=[Account("somebody")]),
        Cluster(properties=with_users),
    ):
        async with cluster:
            for broker in cluster.brokers:
                served |= broker.handlers.request_types.keys()
            for name_server in cluster.name_servers:
                served |= name_server.handlers.request_types.keys()
    to_clients = {39, 40, 220, 221, 326}
    assert served | to_clients == requests.REQUESTS.keys()


def type_at(owner: Any, path: str) -> Any:
    """Return the type of the field that `path` leads to, ignoring lists on the way."""
    for name in path.split("."):
        owner = get_type_hints(owner)[name]
        if get_origin(owner) is list:
            (owner,) = get_args(owner)
    return owner


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_the_names_of_what_a_request_touches_are_fields_of_it(row: AnyRequestType) -> None:
    assert row.resources
    for resource in row.resources:
        if not resource.path:
            continue
        owner = row.header
        if resource.in_body:
            assert isinstance(row.body, JsonBody)
            owner = row.body.type
        assert type_at(owner, resource.path) in (str, str | None)


def found(resources: tuple[Resource, ...], header: Any, body: Any = None) -> list[str]:
    return [
        f"{resource.kind.name} {name}"
        for resource in resources
        for name in resource.names(header, body)
    ]


def test_names_are_found_in_headers_whatever_they_are_called_on_the_wire() -> None:
    send = SendMessageRequestHeaderV2(
        topic="orders", queue_id=1, sys_flag=0, born_timestamp=1, flag=0
    )
    assert found(requests.SEND_MESSAGE_V2.resources, send) == ["TOPIC orders"]
    pull = PullMessageRequestHeader("g", "orders", 1, 2, 32, 7, 5, 15000, 9)
    assert found(requests.PULL_MESSAGE.resources, pull) == ["TOPIC orders", "GROUP g"]


def test_a_name_that_was_left_out_is_none() -> None:
    header = UnregisterClientRequestHeader("client", producer_group="p")
    assert found(requests.UNREGISTER_CLIENT.resources, header) == []


def test_names_are_found_in_bodies_all_of_a_list() -> None:
    heartbeat = HeartbeatData(
        "client",
        [
            ConsumerData("g", subscription_data_set=[SubscriptionData("a"), SubscriptionData("b")]),
            ConsumerData("h"),
        ],
    )
    assert found(requests.HEART_BEAT.resources, NoHeader(), heartbeat) == [
        "GROUP g",
        "GROUP h",
        "TOPIC a",
        "TOPIC b",
    ]
    locks = LockBatchRequestBody("client", "g", [MessageQueueBean("broker", 1, "a")])
    assert found(requests.LOCK_BATCH_MQ.resources, NoHeader(), locks) == ["GROUP g", "TOPIC a"]


def test_a_call_is_made_of_header_and_body() -> None:
    locks = LockBatchRequestBody("client", "g", [MessageQueueBean("broker", 1, "a")])
    command = requests.LOCK_BATCH_MQ.command(NoHeader(), locks)
    assert (command.code, command.ext) == (41, {})
    assert requests.LOCK_BATCH_MQ.body.decode(command.body) == locks


def test_what_any_client_may_send_has_a_bound_in_the_dialect_too() -> None:
    body = b'{"clientID":"%b",1:2}' % (b"c" * MAX_DIALECT_REQUEST_LENGTH)
    with pytest.raises(ProtocolError, match=str(MAX_DIALECT_REQUEST_LENGTH)):
        requests.HEART_BEAT.body.decode(body)
    # Answers come from a server that was asked.
    assert requests.GET_BROKER_RUNTIME_INFO.answer_body.decode(
        b'{"table":{"%b":"x"},1:2}' % (b"k" * MAX_DIALECT_REQUEST_LENGTH)
    )
