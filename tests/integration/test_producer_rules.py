"""Test producers over two brokers, one of which stops: retries, keys, back-pressure, closing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.raw_client import json_frame
from tests.integration.test_client_scenarios import create_topic
from tests.waits import WAIT_S, eventually

import cometmq.aio
from cometmq import ConsumeFromWhere, Message, MessageQueue, SendStatus, split_batches
from cometmq.errors import (
    CometMQError,
    ConnectError,
    IllegalArgumentError,
    RemotingError,
    RouteNotFoundError,
    TooManyRequestsError,
)
from cometmq.model.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.requests import GET_ROUTEINFO_BY_TOPIC, HEART_BEAT
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.portal import LoopThread
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET
BOTH = ("broker-a", "broker-b")


pytestmark = [pytest.mark.cluster(brokers=2, properties={"accessMessageInMemoryMaxRatio": "0"})]


@pytest.fixture
def a_down(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Return a function that stops broker-a; the end of the test starts the broker again."""
    stopped: list[bool] = []

    def stop() -> None:
        stopped.append(True)
        cluster.call("stop_broker", 0)

    yield stop
    if stopped:
        cluster.call("start_broker", 0)


def result_of(outcome: Any) -> Any:
    return outcome.result(WAIT_S) if hasattr(outcome, "result") else outcome


def test_every_mode_finds_the_broker_that_is_left(
    face: Face, name: str, a_down: Callable[[], None]
) -> None:
    create_topic(face, name, BOTH)
    producer = face.producer(name)
    sync = [producer.send(Message(name, b"%d" % i)).queue.broker_name for i in range(16)]
    assert set(sync) == set(BOTH)
    a_down()
    for _ in range(8):
        assert producer.send(Message(name, b"sync")).queue.broker_name == "broker-b"
        result = result_of(producer.send_async(Message(name, b"async")))
        assert result.queue.broker_name == "broker-b"
    batch = [Message(name, b"batch") for _ in range(3)]
    assert producer.send_batch(batch).queue.broker_name == "broker-b"


def test_without_retries_the_failure_is_the_callers(
    face: Face, name: str, a_down: Callable[[], None]
) -> None:
    create_topic(face, name, BOTH)
    producer = face.producer(name, retry_times=0, retry_times_async=0)
    queue = next(q for q in producer.queues(name) if q.broker_name == "broker-a")
    producer.send(Message(name, b"x"), queue=queue)
    a_down()
    with pytest.raises(CometMQError):
        producer.send(Message(name, b"x"), queue=queue)


def test_latency_faults_keep_sends_away_from_a_broker_that_came_back(
    face: Face, name: str, cluster: Cluster
) -> None:
    create_topic(face, name, BOTH)
    producer = face.producer(name, send_latency_fault_enable=True)
    for _ in range(16):
        producer.send(Message(name, b"x"))
    cluster.call("stop_broker", 0)
    try:
        # Soon one send meets the broker that is gone. Then the producer avoids that broker for ten
        # seconds.
        for _ in range(16):
            assert producer.send(Message(name, b"x")).queue.broker_name == "broker-b"
    finally:
        cluster.call("start_broker", 0)
    assert producer.send(Message(name, b"x")).status is SendStatus.SEND_OK


@pytest.mark.faces("virtual", "blocking", seeds=2)
def test_a_key_keeps_its_queue_while_a_broker_is_away_and_when_it_is_back(
    face: Face, name: str, cluster: Cluster
) -> None:
    create_topic(face, name, BOTH)
    producer = face.producer(name)
    keys = [f"order-{i}" for i in range(24)]

    def queue_of(key: str) -> MessageQueue:
        queue: MessageQueue = producer.send(Message(name, b"x"), key=key).queue
        return queue

    before = {key: queue_of(key) for key in keys}
    assert {queue.broker_name for queue in before.values()} == set(BOTH)
    cluster.call("stop_broker", 0)
    try:
        eventually(lambda: {q.broker_name for q in producer.queues(name)} == {"broker-b"})
        for key, queue in before.items():
            if queue.broker_name == "broker-b":
                assert queue_of(key) == queue
            else:
                with pytest.raises((RouteNotFoundError, RemotingError)):
                    queue_of(key)
    finally:
        cluster.call("start_broker", 0)
    eventually(lambda: {q.broker_name for q in producer.queues(name)} == set(BOTH))
    assert {key: queue_of(key) for key in keys} == before


def test_batches_keep_their_rules(face: Face, name: str) -> None:
    producer = face.producer(name, max_message_size_bytes=10_000)
    good = Message(name, b"x")
    for batch, rule in [
        ([], "at least one message"),
        ([good, Message(f"{name}-other", b"x")], "one topic"),
        ([good, Message(name, b"x", wait_store_ok=False)], "wait_store_ok"),
        ([good, Message(name, b"x", delay_level=1)], "delayed messages"),
        ([Message(f"%RETRY%{name}", b"x")], "retry topic"),
        ([Message(name, b"x" * 3000) for _ in range(4)], "max_message_size_bytes is 10000"),
    ]:
        with pytest.raises(IllegalArgumentError, match=rule):
            producer.send_batch(batch)
    large = [Message(name, b"x" * 3000) for _ in range(10)]
    parts = split_batches(large, 10_000)
    assert [len(part) for part in parts] == [3, 3, 3, 1]
    for part in parts:
        assert producer.send_batch(part).status is SendStatus.SEND_OK


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_pending_sends": 2}, r"max_pending_sends = 2"),
        ({"max_pending_bytes": 2500}, r"2000 bytes are under way and 1000 .* = 2500"),
    ],
)
def test_what_is_under_way_is_bounded_and_the_limit_is_named(
    cluster: Cluster, name: str, limits: dict[str, Any], reason: str
) -> None:
    async def main() -> None:
        async with cometmq.aio.Producer(name, namesrv=cluster.namesrv, **limits) as producer:
            pending = [producer.send_async(Message(name, b"x" * 1000)) for _ in range(2)]
            with pytest.raises(TooManyRequestsError, match=reason):
                producer.send_async(Message(name, b"x" * 1000))
            await asyncio.gather(*pending)
            await producer.send_async(Message(name, b"x" * 5000))  # alone it may be larger

    asyncio.run(main())


def test_close_waits_for_what_was_sent_asynchronously(face: Face, name: str) -> None:
    producer = face.new_producer(name)
    face.started(producer)
    reported: list[Any] = []
    bodies = [b"%d" % i for i in range(200)]
    for body in bodies:
        sending = producer.send_async(
            Message(name, body), lambda result, _: reported.append(result)
        )
        del sending
    producer.close()
    assert all(result.status is SendStatus.SEND_OK for result in reported)
    assert len(reported) == 200
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    assert sorted(m.body for m in received.wait_for(200)) == sorted(bodies)


def test_close_flushes_one_way_messages(face: Face, name: str) -> None:
    create_topic(face, name)
    producer = face.new_producer(name)
    face.started(producer)
    bodies = [b"%d" % i for i in range(500)]
    for body in bodies:
        producer.send_oneway(Message(name, body))
    producer.close()
    assert producer.unsent == []
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    assert set(bodies) <= {message.body for message in received.wait_for(501)}


class DeafBroker:
    """Answers the heartbeat that a connection begins with, and reads nothing more from it.

    Without that answer the client drops the connection as silent after three seconds. A busy
    machine may need as long to fill it, and a message that waits for room would then be refused
    because the connection is lost.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def _serve(self) -> None:
        try:
            self._connection, _ = self._socket.accept()
        except OSError:  # closed before anybody came
            return
        with self._connection.makefile("rb") as stream:
            code = None
            while code != HEART_BEAT.code:
                length, header_length = struct.unpack(">II", stream.read(8))
                header = json.loads(stream.read(length - 4)[:header_length])
                code = header["code"]
        self._connection.sendall(json_frame({"code": 0, "flag": 1, "opaque": header["opaque"]}))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        if self._connection is not None:
            self._connection.close()


@contextmanager
def name_server(broker_port: int) -> Iterator[str]:
    """Run a name server that has every topic at a broker `far` on that port; yield its address."""
    address = f"127.0.0.1:{broker_port}"
    route = TopicRouteData([BrokerData("far", "c", {0: address})], [QueueData("far", 1, 1, 6)])
    body = encode_body(route)
    handlers = Handlers()
    handlers.register(
        GET_ROUTEINFO_BY_TOPIC,
        lambda *_: response(ResponseCode.SUCCESS, body=body),
    )
    thread = LoopThread("name-server")
    thread.start()

    async def serve() -> RemotingServer:
        server = RemotingServer("127.0.0.1", 0, handlers)
        await server.start()
        return server

    server = thread.call(serve())
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        thread.call(server.close())
        thread.stop()


@pytest.mark.parametrize("size", [1_000_000, 50_000])
def test_one_way_messages_that_never_left_are_given_back(face: Face, name: str, size: int) -> None:
    deaf = DeafBroker()
    try:
        with name_server(deaf.port) as namesrv:
            # Nothing is compressed: on a busy machine that took so long that the unanswered
            # heartbeat ended the connection first.
            producer = face.new_producer(
                name, namesrv=namesrv, send_timeout_ms=1500, compress_over_bytes=2**31 - 1
            )
            face.started(producer)
            noise = os.urandom(size)
            sent = 0
            refusal = None
            while refusal is None and sent < 2000:
                try:
                    producer.send_oneway(Message(name, noise, properties={"n": str(sent)}))
                    sent += 1
                except RemotingError as error:
                    refusal = error
            assert "write_buffer_high = 4194304" in str(refusal)
            assert 4 <= sent < 2000
            producer.close()
            unsent = [int(message.properties["n"]) for message in producer.unsent]
            assert unsent
            assert unsent == list(range(sent - len(unsent), sent))
    finally:
        deaf.close()


@contextmanager
def port_above(cluster: Cluster) -> Iterator[int]:
    """Yield the second port above that of one of the brokers, held so that nobody listens there."""
    with ExitStack() as held:

        def hold(port: int) -> bool:
            holder = held.enter_context(socket.socket())
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

        yield next(b.port + 2 for b in cluster.brokers if hold(b.port + 2))


def test_the_vip_channel_is_the_second_port(face: Face, name: str, cluster: Cluster) -> None:
    create_topic(face, name, BOTH)
    with port_above(cluster) as port, name_server(port) as namesrv:
        queue = MessageQueue(name, "far", 0)
        producer = face.producer(name, namesrv=namesrv, vip_channel_enabled=True)
        assert producer.send(Message(name, b"x"), queue=queue).status is SendStatus.SEND_OK
        without = face.producer(name, namesrv=namesrv)
        with pytest.raises(ConnectError):
            without.send(Message(name, b"x"), queue=queue)
