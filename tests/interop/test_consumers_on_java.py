"""Our consumers' further kinds against a Java broker: orderly, broadcasting, lite pull, inspection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received, eventually, open_face
from tests.interop.conftest import Namesrv

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
)
from cometmq.client.namesrv_api import NamesrvApi
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.headers import (
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from cometmq.protocol.queue_table import decode_queue_table
from cometmq.remoting.client import RemotingClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture(params=("blocking", "asyncio"))
def face(request: pytest.FixtureRequest, java_servers: Namesrv) -> Iterator[Face]:
    with open_face(request.param, java_servers) as face:
        yield face


def fill(face: Face, topic: str, per_queue: int) -> list[MessageQueue]:
    """Messages `0`, `1`, … in each queue of the topic; returns the queues."""
    producer = face.producer(f"{topic}-fill-{time.monotonic_ns()}")
    producer.send(Message(topic, b"first"))
    queues: list[MessageQueue] = eventually(lambda: producer.queues(topic))
    for queue in queues:
        for i in range(per_queue):
            producer.send(Message(topic, b"%d" % i), queue=queue)
    return queues


def test_orderly_members_share_queues_without_overlap(
    face: Face, fresh: Callable[[str], str]
) -> None:
    topic = fresh("orderly")
    queues = fill(face, topic, 100)
    seen: dict[int, list[int]] = defaultdict(list)
    refused: set[int] = set()
    inside: set[int] = set()
    overlaps: list[int] = []
    lock = threading.Lock()

    def handle(messages: list[MessageExt]) -> ConsumeResult:
        (message,) = messages
        with lock:
            if message.queue_id in inside:
                overlaps.append(message.queue_id)
            inside.add(message.queue_id)
        time.sleep(0.002)
        with lock:
            inside.discard(message.queue_id)
            if message.body == b"50" and message.queue_id not in refused:
                refused.add(message.queue_id)
                return ConsumeResult.SUSPEND
            seen[message.queue_id].append(message.queue_offset)
        return ConsumeResult.SUCCESS

    options = {"orderly": True, "consume_from": FIRST, "suspend_current_queue_time_ms": 10}
    first = face.consumer(topic, topic, handle, **options)
    face.consumer(topic, topic, handle, **options)
    eventually(lambda: any(offsets for offsets in seen.values()))
    first.close()
    eventually(lambda: sum(map(len, seen.values())) >= 100 * len(queues) + 1, 60)
    assert overlaps == []
    assert len(refused) == len(queues)
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values())


def test_broadcasting(face: Face, fresh: Callable[[str], str], tmp_path: Path) -> None:
    topic = fresh("broadcasting")
    count = len(fill(face, topic, 5)) * 5 + 1
    received = [Received(), Received()]
    for index, each in enumerate(received):
        face.consumer(
            topic,
            topic,
            each.handle,
            consume_from=FIRST,
            message_model=MessageModel.BROADCASTING,
            local_offset_dir=tmp_path,
            instance_name=f"{topic}-{index}",
        )
    for each in received:
        each.wait_for(count)
        assert len({(m.queue_id, m.queue_offset) for m in each.messages}) == count


def test_lite_pull(face: Face, fresh: Callable[[str], str]) -> None:
    topic = fresh("lite")
    queues = fill(face, topic, 20)
    consumer = face.new_lite_pull_consumer(topic, consume_from=FIRST)
    consumer.subscribe(topic)
    face.started(consumer)
    seen: set[tuple[int, int]] = set()

    def complete() -> bool:
        seen.update((m.queue_id, m.queue_offset) for m in consumer.poll(500))
        return len(seen) == 20 * len(queues) + 1

    eventually(complete, 30)
    consumer.commit()
    queue = queues[-1]
    end = consumer.max_offset(queue)
    assert consumer.committed(queue) == end
    consumer.seek(queue, end - 3)
    messages = eventually(lambda: consumer.poll(500))
    assert messages[0].queue_offset == end - 3
    assert consumer.pull(queue, 2, 5).messages[0].queue_offset == 2


async def ask_broker(namesrv: str, topic: str, command: RemotingCommand) -> RemotingCommand:
    remoting = RemotingClient()
    try:
        route = await NamesrvApi(remoting, [namesrv]).topic_route(topic)
        address = route.broker_datas[0].master()
        assert address is not None
        return await remoting.call(address, command, 10.0)
    finally:
        await remoting.close()


def test_a_java_broker_understands_what_a_consumer_tells(
    face: Face, fresh: Callable[[str], str], java_servers: Namesrv
) -> None:
    topic = fresh("inspected")
    queues = fill(face, topic, 3)
    received = Received()
    consumer = face.consumer(topic, topic, received.handle, consume_from=FIRST)
    received.wait_for(3 * len(queues) + 1)

    def ask(command: RemotingCommand) -> Any:
        return asyncio.run(ask_broker(java_servers, topic, command))

    # The broker decodes the consumer's answer to 221 to put it into its own.
    header = GetConsumerStatusRequestHeader(topic, topic)
    status = ask(request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header))
    assert status.code == 0, status.remark
    for queue in queues:
        assert b'"queueId":%d' % queue.queue_id in bytes(status.body)
    assert consumer.client_id.encode() in bytes(status.body)
    info_header = GetConsumerRunningInfoRequestHeader(topic, consumer.client_id)
    info = ask(request(RequestCode.GET_CONSUMER_RUNNING_INFO, info_header))
    assert info.code == 0, info.remark
    assert set(queues) <= set(decode_queue_table(bytes(info.body), "mqTable", dict[str, Any]))
