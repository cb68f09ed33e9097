"""Use other Python clients for a load: those of RocketMQ over C++, gRPC and Java, and two of Kafka.

Each client has the settings with which its library is shipped, except where the job needs others: a client
that sends one message after the other does not linger for more. `benchmarks.client_faces` declares the
adapters.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.client_faces import (
    BATCH,
    LISTENER,
    ONEWAY,
    POLLS,
    SYNC,
    AsyncioFace,
    BlockingFace,
    Meter,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from benchmarks.client_faces import Done

POLLED: Final = 500
"""The most messages of one poll of Kafka's clients (Kafka: max.poll.records)."""


class Cpp(BlockingFace):
    """Uses RocketMQ's C++ client by the Python code in its wheel (`rocketmq` 0.4.4)."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._cpp: Any = importlib.import_module("rocketmq.client")
        self._ffi: Any = importlib.import_module("rocketmq.ffi")
        self._open: list[Any] = []

    def open(self, number: int) -> None:
        producer = self._cpp.Producer(f"bench-clients-{number}", timeout=10_000)
        # Its Python code has no method for the instance name, and producers of one name share a connection.
        handle = ctypes.c_void_p(producer._handle)  # noqa: SLF001 - as its own methods do
        self._ffi.dll.SetProducerInstanceName(handle, f"bench-{number}".encode())
        # The client compresses a batch of 4 KiB as a whole, and brokers refuse that, also Java's.
        self._ffi.dll.SetProducerCompressMsgBodyOverHowmuch(handle, 1 << 20)
        producer.set_namesrv_addr(self.given.address)
        producer.start()
        self._open.append(producer)
        if self.given.job == BATCH:
            self.send(b"m")  # sends of batches do not ask for the route

    def close(self) -> None:
        """Leave the producers to the end of the process, because some shutdowns do not return.

        Meanwhile one-way messages leave the process.
        """
        time.sleep(1)

    def _message(self, body: bytes) -> Any:
        message = self._cpp.Message(self.given.topic)
        message.set_body(body.decode())
        return message

    def send(self, body: bytes) -> None:
        self._open[-1].send_sync(self._message(body))

    def send_async(self, body: bytes, done: Done) -> None:
        self._open[-1].send_async(self._message(body), lambda _: done(True), lambda _: done(False))

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        self._open[-1].send_batch([self._message(body) for body in bodies])

    def send_oneway(self, body: bytes) -> None:
        self._open[-1].send_oneway(self._message(body))

    def drain(self, job: str, meter: Meter) -> None:
        assert job == LISTENER, job

        def listen(message: Any) -> None:
            assert message.body
            meter.add(1)

        consumer = self._cpp.PushConsumer(self.given.group)
        consumer.set_namesrv_addr(self.given.address)
        consumer.subscribe(self.given.topic, listen)
        consumer.start()
        meter.wait()


class Grpc(BlockingFace):
    """Uses RocketMQ's Python client for gRPC (`rocketmq-python-client`)."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._grpc: Any = importlib.import_module("rocketmq")
        self._configuration = self._grpc.ClientConfiguration(
            given.address, self._grpc.Credentials()
        )
        self._open: list[Any] = []

    def open(self, number: int) -> None:
        del number
        producer = self._grpc.Producer(self._configuration, [self.given.topic])
        producer.startup()
        self._open.append(producer)

    def close(self) -> None:
        for producer in self._open:
            producer.shutdown()

    def _message(self, body: bytes) -> Any:
        message = self._grpc.Message()
        message.topic, message.body = self.given.topic, body
        return message

    def send(self, body: bytes) -> None:
        self._open[-1].send(self._message(body))

    def send_async(self, body: bytes, done: Done) -> None:
        future = self._open[-1].send_async(self._message(body))
        future.add_done_callback(lambda sent: done(sent.exception() is None))

    def drain(self, job: str, meter: Meter) -> None:
        grpc = self._grpc
        topics = {self.given.topic: grpc.FilterExpression("*")}
        if job == LISTENER:
            base: Any = grpc.MessageListener

            class Listener(base):  # type: ignore[misc]  # known at run time only
                def consume(self, message: Any) -> Any:
                    assert message.body
                    meter.add(1)
                    return grpc.ConsumeResult.SUCCESS

            consumer = grpc.PushConsumer(self._configuration, self.given.group, Listener(), topics)
            consumer.startup()
            meter.wait()
            return
        assert job == POLLS, job
        simple = grpc.SimpleConsumer(self._configuration, self.given.group, topics, 5)
        simple.startup()
        while True:
            messages = simple.receive(32, 60)
            for message in messages:
                simple.ack(message)
            if not meter.add(len(messages)):
                return


class Bridged(BlockingFace):
    """Uses Java's client inside this process (`pyrocketmq`, over JPype)."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        jpype: Any = importlib.import_module("jpype")
        jpype.startJVM("-Drocketmq.client.logLevel=ERROR", classpath=given.class_path.split(":"))
        importlib.import_module("jpype.imports")
        self._message_class: Any = importlib.import_module("pyrocketmq.common.message").Message
        self._producers: Any = importlib.import_module("pyrocketmq.client.producer")
        self._open: list[Any] = []

    def open(self, number: int) -> None:
        producer = self._producers.Producer(f"bench-clients-{number}")
        producer.setNamesrvAddr(self.given.address)
        producer.setInstanceName(f"bench-{number}")
        producer.setSendMsgTimeout(10_000)
        producer.start()
        self._open.append(producer)

    def close(self) -> None:
        """Do as Cpp.close does."""
        time.sleep(1)

    def _message(self, body: bytes) -> Any:
        return self._message_class(topic=self.given.topic, body=body)

    def send(self, body: bytes) -> None:
        self._open[-1].send(self._message(body))

    def send_async(self, body: bytes, done: Done) -> None:
        base: Any = self._producers.SendCallback

        class Callback(base):  # type: ignore[misc]  # known at run time only
            def _onSuccess(self, _: Any) -> None:  # noqa: N802 - its name
                done(True)

            def _onException(self, _: Any) -> None:  # noqa: N802 - its name
                done(False)

        self._open[-1].send(self._message(body), send_callback=Callback())

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        self._open[-1].send([self._message(body) for body in bodies])

    def send_oneway(self, body: bytes) -> None:
        self._open[-1].sendOneway(self._message(body))

    def drain(self, job: str, meter: Meter) -> None:
        assert job == LISTENER, job
        listeners: Any = importlib.import_module("pyrocketmq.client.consumer.listener")
        consumers: Any = importlib.import_module("pyrocketmq.client.consumer.consumer")
        success = listeners.ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        class Listener(listeners.MessageListenerConcurrently):  # type: ignore[misc]  # as above
            def _consumeMessage(self, messages: Any, _: Any) -> Any:  # noqa: N802 - its name
                assert messages[0].body
                meter.add(len(messages))
                return success

        consumer = consumers.PushConsumer(self.given.group)
        consumer.setNamesrvAddr(self.given.address)
        consumer.registerMessageListener(Listener())
        consumer.subscribe(self.given.topic, "*")
        consumer.start()
        meter.wait()


class Aiokafka(AsyncioFace):
    """Uses Kafka's client for asyncio."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._kafka: Any = importlib.import_module("aiokafka")

    @contextlib.asynccontextmanager
    async def _producer(self) -> AsyncIterator[Any]:
        acks = 0 if self.given.job == ONEWAY else 1
        producer = self._kafka.AIOKafkaProducer(
            bootstrap_servers=self.given.address, acks=acks, enable_idempotence=False
        )
        async with producer:
            yield producer

    def producer(self, number: int) -> AbstractAsyncContextManager[Any]:
        del number
        return self._producer()

    async def send(self, producer: Any, body: bytes) -> None:
        await producer.send_and_wait(self.given.topic, body)

    async def send_async(self, producer: Any, body: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = await producer.send(self.given.topic, body)
        return future

    async def send_oneway(self, producer: Any, body: bytes) -> None:
        await producer.send(self.given.topic, body)

    async def drain(self, job: str, meter: Meter) -> None:
        given = self.given
        consumer = self._kafka.AIOKafkaConsumer(
            given.topic, bootstrap_servers=given.address, group_id=given.group,
            auto_offset_reset="earliest",
        )  # fmt: skip
        async with consumer:
            if job == POLLS:
                while True:
                    found = await consumer.getmany(timeout_ms=1000, max_records=POLLED)
                    if not meter.add(sum(map(len, found.values()))):
                        return
            async for _ in consumer:
                if not meter.add(1):
                    return


class Confluent(BlockingFace):
    """Uses Kafka's client over librdkafka."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._kafka: Any = importlib.import_module("confluent_kafka")
        self._open: list[Any] = []
        self._ended = threading.Event()
        self._poller: threading.Thread | None = None

    def open(self, number: int) -> None:
        del number
        conf: dict[str, Any] = {"bootstrap.servers": self.given.address}
        conf["acks"] = 0 if self.given.job == ONEWAY else 1
        if self.given.job in (SYNC, "memory"):
            conf["linger.ms"] = 0
        self._open.append(self._kafka.Producer(conf))
        if self._poller is None and self.given.job == "async":
            self._poller = threading.Thread(target=self._poll, daemon=True)
            self._poller.start()

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._open[-1].poll(0.1)

    def close(self) -> None:
        self._ended.set()
        for producer in self._open:
            producer.flush(10)

    def send(self, body: bytes) -> None:
        self._open[-1].produce(self.given.topic, body)
        self._open[-1].flush()

    def send_async(self, body: bytes, done: Done) -> None:
        self._open[-1].produce(
            self.given.topic, body, on_delivery=lambda error, _: done(error is None)
        )

    def send_oneway(self, body: bytes) -> None:
        while True:
            try:
                self._open[-1].produce(self.given.topic, body)
            except BufferError:  # its queue is full
                self._open[-1].poll(0.01)
            else:
                break
        self._open[-1].poll(0)

    def drain(self, job: str, meter: Meter) -> None:
        given = self.given
        conf = {"bootstrap.servers": given.address, "group.id": given.group}
        consumer = self._kafka.Consumer({**conf, "auto.offset.reset": "earliest"})
        consumer.subscribe([given.topic])
        while True:
            if job == POLLS:
                if not meter.add(len(consumer.consume(POLLED, 1.0))):
                    break
            elif consumer.poll(1.0) is not None and not meter.add(1):
                break
        consumer.close()


FACES: Final[dict[str, type[AsyncioFace | BlockingFace]]] = {
    "cpp": Cpp,
    "grpc": Grpc,
    "pyrocketmq": Bridged,
    "aiokafka": Aiokafka,
    "confluent": Confluent,
}
