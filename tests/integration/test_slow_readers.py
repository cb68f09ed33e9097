"""Test a peer that asks for much and reads nothing: its data is bounded, and nobody else waits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.integration.raw_client import RawClient, json_request, pull_ext
from tests.waits import eventually

import cometmq
from cometmq import Message, MessageQueue
from cometmq.remoting.connection import DEFAULT_LIMITS
from cometmq.testing import Cluster

PULL, GET_MAX_OFFSET = 11, 30
PULLS = 400
BODY = b"x" * 10_000
# An answer has at most this size (maxTransferBytesOnMessageInMemory) and its header.
ANSWER = 256 * 1024 + 1024


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        with cometmq.Producer("p", namesrv=cluster.namesrv) as producer:
            queue = MessageQueue("t", "broker-a", 0)
            producer.send_batch([Message("t", BODY) for _ in range(20)], queue=queue)
            producer.send_batch([Message("t", BODY) for _ in range(20)], queue=queue)
        yield cluster


def test_answers_wait_with_the_requests_and_not_in_memory(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    with RawClient(broker.address) as slow, RawClient(broker.address) as other:
        ext = pull_ext("t")
        requests = [json_request(PULL, ext, opaque=opaque) for opaque in range(PULLS)]
        slow.socket.sendall(b"".join(requests))

        def unsent() -> int:
            # The broker's loop adds and discards connections meanwhile; it may have none yet.
            return max((each.unsent_bytes for each in list(broker.listener.connections)), default=0)

        eventually(lambda: unsent() > 0)
        for _ in range(20):  # the other goes on, and the slow one's answers do not pile up
            assert other.ask(GET_MAX_OFFSET, {"topic": "t", "queueId": 0}).ext["offset"] == "40"
            assert unsent() <= DEFAULT_LIMITS.write_buffer_high + 2 * ANSWER
            time.sleep(0.01)
        sizes = set()
        for opaque in range(PULLS):
            answer = slow.receive()
            assert (answer.opaque, answer.code) == (opaque, 0)
            sizes.add(len(answer.body))
        (size,) = sizes
        assert len(BODY) * 20 < size <= ANSWER
