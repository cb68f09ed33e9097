"""Load a gRPC proxy: one process, a closed loop per client, each client with a connection of its own.

    python -m benchmarks.proxy_load --endpoint 127.0.0.1:8081 --topic bench --requests sends --clients 16 \
        --seconds 5 --pid PROXY --pid BROKER

Requests are `sends` of one message, or `receives` of at most MESSAGES messages, which are acknowledged
by one call. Like official clients each client introduces itself over Telemetry first. All proxies meet this
same process. Requests are made before the measurement; answers are decoded. The result is one line of JSON
(`ProxyLoad`) with counts of messages, and latencies of sends or receives; a receive that finds the topic
empty ends a load early.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc.aio
import uvloop

from benchmarks.delays import cpu_seconds
from benchmarks.frames import unique_prefix
from cometmq.proxy.wire import messaging_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Sequence

SENDS, RECEIVES = "sends", "receives"
MESSAGES: Final = 32
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
PREPARED: Final = 2_000
INVISIBLE_S: Final = 300
# A call that takes longer ends the run as failed; a receive of Java's proxy may wait for 5 s.
CALL_LIMIT_S: Final = 20.0
# Java's proxy reads the headers of official clients.
CLIENT: Final = (("x-mq-language", "JAVA"), ("x-mq-client-version", "5.0.8"))


@dataclass(slots=True)
class ProxyLoad:
    """Holds the figures of the measured seconds. `cpu_seconds` has one number for each process that was named."""

    messages: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_seconds: list[float] = field(default_factory=list)
    generator_cpu_seconds: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)


class Load:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._is_measured = False
        self._is_over = False
        self._latencies_s: list[float] = []
        self._last_s = 0.0
        self.found = ProxyLoad()

    async def run(self) -> ProxyLoad:
        options, found = self._options, self.found
        clients = [Client(options, number) for number in range(options.clients)]
        await asyncio.gather(*(client.introduce() for client in clients))
        loops = [asyncio.create_task(self._loop(client)) for client in clients]
        ending = asyncio.gather(*loops)
        await asyncio.wait([ending], timeout=options.ramp_seconds)
        gc.collect()
        gc.freeze()
        before = [cpu_seconds(pid) for pid in options.pid]
        own_before = time.process_time()
        self._is_measured = True
        began_s = time.perf_counter()
        await asyncio.wait([ending], timeout=options.seconds)
        self._is_measured = False
        ended_s = self._last_s if self._is_over else time.perf_counter()
        found.cpu_seconds = [
            cpu_seconds(pid) - old for pid, old in zip(options.pid, before, strict=True)
        ]
        found.generator_cpu_seconds = time.process_time() - own_before
        found.seconds = ended_s - began_s
        self._is_over = True
        await ending
        await asyncio.gather(*(client.close() for client in clients))
        ordered = sorted(self._latencies_s) or [0.0]
        found.p50_ms = ordered[len(ordered) // 2] * 1e3
        found.p99_ms = ordered[len(ordered) * 99 // 100] * 1e3
        return found

    async def _loop(self, client: Client) -> None:
        step = client.send if self._options.requests == SENDS else client.receive
        while not self._is_over:
            began_s = time.perf_counter()
            is_measured = self._is_measured
            code, count, ended_s = await step()
            if code == wire.MESSAGE_NOT_FOUND:
                self._is_over = True
            elif code != wire.OK:
                name = wire.Code.Name(code)
                self.found.errors[name] = self.found.errors.get(name, 0) + 1
            if is_measured and self._is_measured and code == wire.OK:
                self.found.messages += count
                self._latencies_s.append(ended_s - began_s)
                self._last_s = time.perf_counter()


class Client:
    """One client with its own connection. A step returns a code, how many messages it moved, and when it ended."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self._options = options
        self._channel = grpc.aio.insecure_channel(
            options.endpoint, [("grpc.use_local_subchannel_pool", 1)]
        )
        self._metadata = (("x-mq-client-id", f"host@1@{number}@{unique_prefix()}"), *CLIENT)
        self._topic = wire.Resource(name=options.topic)
        self._send: Any = self._channel.unary_unary(SERVICE + "SendMessage")
        self._receive: Any = self._channel.unary_stream(SERVICE + "ReceiveMessage")
        self._ack: Any = self._channel.unary_unary(SERVICE + "AckMessage")
        self._stream: Any = None
        self._requests: list[bytes] = []
        self._next = 0

    async def introduce(self) -> None:
        """Send the client's settings as official clients do, and read the answer."""
        options = self._options
        settings = wire.Settings()
        if options.requests == SENDS:
            settings.client_type = wire.PRODUCER
            settings.publishing.topics.add().CopyFrom(self._topic)
            self._requests = [
                self._message(number) for number in range(max(PREPARED // options.clients, 16))
            ]
        else:
            settings.client_type = wire.SIMPLE_CONSUMER
            settings.subscription.group.name = options.group
            entry = settings.subscription.subscriptions.add()
            entry.topic.CopyFrom(self._topic)
            entry.expression.expression = "*"
            self._requests = [self._request()]
        telemetry: Any = self._channel.stream_stream(SERVICE + "Telemetry")
        self._stream = telemetry(metadata=self._metadata)
        await self._stream.write(wire.TelemetryCommand(settings=settings).SerializeToString())
        answer = await asyncio.wait_for(self._stream.read(), CALL_LIMIT_S)
        if answer is grpc.aio.EOF:
            raise SystemExit(f"{options.endpoint} ended the Telemetry stream")

    async def send(self) -> tuple[wire.Code, int, float]:
        self._next = (self._next + 1) % len(self._requests)
        raw = await self._send(
            self._requests[self._next], metadata=self._metadata, timeout=CALL_LIMIT_S
        )
        answer = wire.SendMessageResponse.FromString(raw)
        return answer.status.code, 1, time.perf_counter()

    async def receive(self) -> tuple[wire.Code, int, float]:
        code: wire.Code = wire.OK
        entries = []
        call = self._receive(self._requests[0], metadata=self._metadata, timeout=CALL_LIMIT_S)
        async for raw in call:
            part = wire.ReceiveMessageResponse.FromString(raw)
            if part.HasField("status"):
                code = part.status.code
            elif part.HasField("message"):
                system = part.message.system_properties
                entries.append(
                    wire.AckMessageEntry(
                        message_id=system.message_id, receipt_handle=system.receipt_handle
                    )
                )
        ended_s = time.perf_counter()
        if entries:
            group = wire.Resource(name=self._options.group)
            request = wire.AckMessageRequest(group=group, topic=self._topic, entries=entries)
            raw = await self._ack(
                request.SerializeToString(), metadata=self._metadata, timeout=CALL_LIMIT_S
            )
            acked = wire.AckMessageResponse.FromString(raw)
            code = acked.status.code
        return code, len(entries), ended_s

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()

    def _message(self, number: int) -> bytes:
        message = wire.Message(topic=self._topic, body=b"m" * self._options.body_bytes)
        message.system_properties.message_id = f"01{unique_prefix()}{number:010X}"
        message.system_properties.message_type = wire.NORMAL
        message.system_properties.born_host = "host"
        message.system_properties.born_timestamp.GetCurrentTime()
        return bytes(wire.SendMessageRequest(messages=[message]).SerializeToString())

    def _request(self) -> bytes:
        request = wire.ReceiveMessageRequest(
            group=wire.Resource(name=self._options.group), batch_size=MESSAGES
        )
        request.message_queue.topic.CopyFrom(self._topic)
        request.message_queue.broker.name = self._options.broker
        request.filter_expression.type = wire.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = INVISIBLE_S
        request.long_polling_timeout.seconds = 5
        return bytes(request.SerializeToString())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="")
    parser.add_argument("--broker", default="")
    parser.add_argument("--requests", choices=[SENDS, RECEIVES], required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--ramp-seconds", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pid", type=int, action="append", default=[])
    options = parser.parse_args(arguments)
    uvloop.install()
    found = asyncio.run(Load(options).run())
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()
