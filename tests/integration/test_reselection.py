"""Test a subscription that changes while a pull waits: the pull must not keep the old tags."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.integration.raw_client import RawClient, heartbeat_body, java_hash, pull_ext, send_ext

from cometmq.testing import Cluster

SEND, PULL, HEART_BEAT = 10, 11, 34
SUSPEND = 2


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with Cluster(properties={"accessMessageInMemoryMaxRatio": "0"}) as cluster:
        yield cluster.brokers[0].address


def beat(client: RawClient, topic: str, tag: str, version: int) -> None:
    body = json.loads(heartbeat_body("c@1", {topic: [topic]}, sub_version=version))
    (subscription,) = body["consumerDataSet"][0]["subscriptionDataSet"]
    subscription |= {"subString": tag, "tagsSet": [tag], "codeSet": [java_hash(tag)]}
    assert client.ask(HEART_BEAT, body=json.dumps(body).encode()).code == 0


def wait_for_messages(client: RawClient, topic: str) -> int:
    """Send a pull that the broker holds for a minute; return its opaque."""
    fields = {"subscription": None, "sysFlag": SUSPEND, "suspendTimeoutMillis": 60_000}
    return client.send(PULL, pull_ext(topic, consumerGroup=topic, queueOffset=1, **fields))


def test_a_pull_that_waits_with_old_tags_is_answered_at_once(broker: str) -> None:
    topic = "reselected"
    with RawClient(broker) as client, RawClient(broker) as waiting:
        client.ask(SEND, send_ext(topic), b"first")
        beat(client, topic, "old", 1)
        opaque = wait_for_messages(waiting, topic)
        beat(client, topic, "old", 2)  # nothing else is selected: the pull waits on
        assert waiting.silent(0.2)
        beat(client, topic, "new", 3)
        assert waiting.answer(opaque).code == 19
        opaque = wait_for_messages(waiting, topic)
        client.ask(SEND, send_ext(topic, properties="TAGS\x01new\x02"), b"second")
        assert b"second" in waiting.answer(opaque).body
