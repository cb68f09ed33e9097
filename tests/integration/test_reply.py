"""Test request and reply through the broker: what asking client and replier get."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from tests.integration.raw_client import (
    RESPONSE,
    RawClient,
    json_request,
    properties,
    pull_ext,
    send_ext,
)

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.messages.record import decode_records
from cometmq.testing import Cluster

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "TTL": "3000"}


@pytest.fixture
def requester(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[0].address) as client:
        beat = {"clientID": "asks@1", "producerDataSet": [{"groupName": "asking"}]}
        assert client.ask(RequestCode.HEART_BEAT, None, json.dumps(beat).encode()).code == 0
        yield client


@pytest.fixture
def replier(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[0].address) as client:
        yield client


def reply_ext(client_id: str | None, *, letters: bool = True, **more: object) -> dict[str, str]:
    values = dict(PROPERTIES)
    if client_id is not None:
        values["REPLY_TO_CLIENT"] = client_id
    return send_ext(REPLY_TOPIC, letters=letters, properties=properties(values), **more)


def take_push(requester: RawClient, code: int = 0) -> dict[str, str]:
    """Answer the push as a client does; return its ext fields and, under "", its body."""
    push = requester.push(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    requester.socket.sendall(json_request(code, opaque=push.opaque, flag=RESPONSE))
    return {**push.ext, "": push.body.decode()}


@pytest.mark.parametrize(
    ("code", "letters"),
    [(RequestCode.SEND_REPLY_MESSAGE, False), (RequestCode.SEND_REPLY_MESSAGE_V2, True)],
)
def test_a_reply_reaches_the_client_that_asked(
    requester: RawClient, replier: RawClient, code: int, letters: bool
) -> None:
    opaque = replier.send(
        code, reply_ext("asks@1", letters=letters, flag=5, queueId=-1), b"the answer"
    )
    push = take_push(requester)
    answer = replier.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert push[""] == "the answer"
    assert (push["topic"], push["flag"], push["producerGroup"]) == (
        REPLY_TOPIC,
        "5",
        "raw-producer",
    )
    names = dict(entry.split("\x01") for entry in push["properties"].split("\x02") if entry)
    assert names.items() >= PROPERTIES.items()
    assert int(names["PUSH_REPLY_TIME"]) == int(push["storeTimestamp"])
    host, port = replier.socket.getsockname()
    assert push["bornHost"] == f"{host}:{port}"
    peer_host, peer_port = replier.socket.getpeername()
    assert push["storeHost"] == f"{peer_host}:{peer_port}"
    # The reply is stored, too, as it was sent.
    offset = int(answer.ext["queueOffset"])
    replier.settle()
    pull = replier.ask(RequestCode.PULL_MESSAGE, pull_ext(REPLY_TOPIC, queueOffset=offset))
    stored = list(decode_records(pull.body))[-1]
    assert stored.body == b"the answer"
    assert "PUSH_REPLY_TIME" not in stored.properties
    assert int(answer.ext["msgId"][16:], 16) == stored.physical_offset
    assert answer.ext["queueId"] == "0"


@pytest.mark.parametrize(
    ("client_id", "reason"),
    [("gone@2", "channel of <gone@2> not found"), (None, "REPLY_TO_CLIENT] is null")],
)
def test_a_reply_that_reaches_nobody_is_answered_with_the_reason(
    replier: RawClient, client_id: str | None, reason: str
) -> None:
    answer = replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, reply_ext(client_id), b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert reason in (answer.remark or "")


def test_a_client_that_does_not_take_the_reply(requester: RawClient, replier: RawClient) -> None:
    opaque = replier.send(RequestCode.SEND_REPLY_MESSAGE_V2, reply_ext("asks@1"), b"x")
    take_push(requester, code=1)
    answer = replier.answer(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "fail" in (answer.remark or "")


def test_a_client_that_leaves_before_it_takes_the_reply(
    requester: RawClient, replier: RawClient
) -> None:
    opaque = replier.send(RequestCode.SEND_REPLY_MESSAGE_V2, reply_ext("asks@1"), b"x")
    requester.push(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    closing = threading.Thread(target=requester.close)
    closing.start()
    answer = replier.answer(opaque)
    closing.join()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "closed before the answer came" in (answer.remark or "")


def test_the_checks_of_a_send_hold_for_a_reply(replier: RawClient) -> None:
    answer = replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, reply_ext("asks@1", queueId=77), b"x")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    forbidden = {**reply_ext("asks@1"), "b": "SCHEDULE_TOPIC_XXXX"}
    answer = replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, forbidden, b"x")
    assert answer.code == ResponseCode.NO_PERMISSION


def test_replies_need_not_be_stored() -> None:
    with (
        Cluster(properties={"storeReplyMessageEnable": "false"}) as cluster,
        RawClient(cluster.brokers[0].address) as requester,
        RawClient(cluster.brokers[0].address) as replier,
    ):
        beat = {"clientID": "asks@1", "producerDataSet": [{"groupName": "asking"}]}
        requester.ask(RequestCode.HEART_BEAT, None, json.dumps(beat).encode())
        opaque = replier.send(RequestCode.SEND_REPLY_MESSAGE_V2, reply_ext("asks@1"), b"x")
        take_push(requester)
        answer = replier.answer(opaque)
        assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
        assert cluster.brokers[0].store.max_offset(REPLY_TOPIC, 0) == 0
