"""Test what an operator asks of the members of a group through their broker, by both faces."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import eventually

from cometmq import ConsumeFromWhere, Message, MessageQueue
from cometmq.client.cluster.namesrv_api import NamesrvApi
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.fastjson.queue_table import decode_queue_table
from cometmq.protocol.headers import (
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.remoting.client import RemotingClient

FIRST = ConsumeFromWhere.FIRST_OFFSET


pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"})]


def fill(face: Face, topic: str, per_queue: int, word: bytes = b"m") -> list[MessageQueue]:
    """Send `per_queue` messages to each of the topic's four queues; return the queues."""
    producer = face.producer(f"{topic}-fill-{time.monotonic_ns()}")
    queues = [MessageQueue(topic, "broker-a", i) for i in range(4)]
    for queue in queues:
        for i in range(per_queue):
            producer.send(Message(topic, b"%s-%d-%d" % (word, queue.queue_id, i)), queue=queue)
    return queues


def ask(namesrv: str, topic: str, command: RemotingCommand) -> RemotingCommand:
    """Return the broker's answer to `command`."""

    async def call() -> RemotingCommand:
        remoting = RemotingClient()
        try:
            route = await NamesrvApi(remoting, [namesrv]).topic_route(topic)
            address = route.broker_datas[0].master()
            assert address is not None
            return await remoting.call(address, command, 10.0)
        finally:
            await remoting.close()

    answer = asyncio.run(call())
    assert answer.code == 0, answer.remark
    return answer


def test_a_broker_understands_what_a_consumer_tells(face: Face, name: str, namesrv: str) -> None:
    queues = fill(face, name, 3)
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(12)
    # The broker decodes the consumer's answer to 221 to put it into its own.
    header = GetConsumerStatusRequestHeader(name, name)
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    def status() -> bytes:
        return bytes(ask(namesrv, name, request(code, header)).body)

    for queue in queues:
        # The keys of this table are objects, which each broker writes in its own way. The listener
        # has all messages before the last of them counts as consumed.
        pattern = rb'queueId\\*":%d' % queue.queue_id
        eventually(partial(lambda pattern: re.search(pattern, status()), pattern))
    assert consumer.client_id.encode() in status()
    info_header = GetConsumerRunningInfoRequestHeader(name, consumer.client_id)
    info = ask(namesrv, name, request(RequestCode.GET_CONSUMER_RUNNING_INFO, info_header))
    assert set(queues) <= set(decode_queue_table(bytes(info.body), "mqTable", dict[str, Any]))


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_reset_by_time_has_the_later_messages_consumed_again(
    face: Face, name: str, namesrv: str, orderly: bool
) -> None:
    fill(face, name, 3, b"early")
    time.sleep(0.02)  # store times are whole milliseconds
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.02)
    fill(face, name, 2, b"late")
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST, orderly=orderly)
    received.wait_for(20)
    header = ResetOffsetRequestHeader(name, name, between_ms, True)
    ask(namesrv, name, request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header))
    # A Java broker tells only the next pull of the reset, and pulls that wait for a message wait
    # on.
    fill(face, name, 1, b"after")

    def times(word: bytes) -> Counter[int]:
        return Counter(Counter(b for b in received.bodies if b.startswith(word)).values())

    eventually(lambda: times(b"late") == {2: 8} and sum(times(b"after").values()) == 4)
    assert times(b"early") == {1: 12}
