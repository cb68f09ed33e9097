"""Servers, and messages, that mean harm to our clients."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.integration.raw_client import RawClient, send_ext
from tests.waits import WAIT_S

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt
from cometmq.aio import Producer, PushConsumer
from cometmq.errors import CometMQError
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.messages.compression import CompressionType, compress
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.testing import Cluster

MIB = 1 << 20


@asynccontextmanager
async def name_server(body: bytes) -> AsyncIterator[str]:
    """Run what gives everybody the same route."""

    def answer(_connection: Any, _request: Any) -> RemotingCommand:
        return response(ResponseCode.SUCCESS, body=body)

    handlers = Handlers()
    handlers.register(requests.GET_ROUTEINFO_BY_TOPIC, answer)
    server = RemotingServer("127.0.0.1", 0, handlers)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()


def route(queues: Any, brokers: Any) -> bytes:
    return json.dumps({"queueDatas": queues, "brokerDatas": brokers}).encode()


def queues(name: str = "b", count: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "brokerName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6,
        "topicSysFlag": 0, **more,
    }  # fmt: skip


def broker(address: Any, name: str = "b", broker_id: str = "0") -> dict[str, Any]:
    return {"brokerName": name, "cluster": "c", "brokerAddrs": {broker_id: address}}


POISON = {
    "a billion queues": route([queues(count=10**9)], [broker("127.0.0.1:1")]),
    "a number that is none": route([queues(count=10**40)], [broker("127.0.0.1:1")]),
    "minus a billion queues": route([queues(count=-(10**9))], [broker("127.0.0.1:1")]),
    "many brokers with many queues": route(
        [queues(f"b{i}", 10_000) for i in range(2000)],
        [broker("127.0.0.1:1", f"b{i}") for i in range(2000)],
    ),
    "a nobody's queues": route([queues("ghost")], [broker("127.0.0.1:1")]),
    "queues of wrong types": route({"x": 1}, [broker("127.0.0.1:1")]),
    "brokers of wrong types": route([queues()], "brokers"),
    "an address that is a number": route([queues()], [broker(7)]),
    "an address that is none": route([queues()], [broker("no address")]),
    "a port beyond all": route([queues()], [broker("127.0.0.1:99999999")]),
    "an address with control characters": route([queues()], [broker("127.0.0.1\r\nX: y:1")]),
    "an address of this client": route([queues()], [broker("127.0.0.1:9")]),
    "an empty address": route([queues()], [broker("")]),
    "a long address": route([queues()], [broker("x" * 100_000 + ":1")]),
    "an id beyond 64 bits": route([queues()], [broker("127.0.0.1:1", broker_id=str(2**70))]),
    "an id that is a word": route([queues()], [broker("127.0.0.1:1", broker_id="master")]),
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "no text": b"\xff\xfe" * 100,
    "deep nesting": b'{"queueDatas":' + b"[" * 100_000,
    "a megabyte without an end": b'{"queueDatas":[{"brokerName":"' + b"x" * MIB,
}  # fmt: skip


@pytest.mark.parametrize("what", POISON)
async def test_a_poisoned_route_is_refused_in_bounds(what: str) -> None:
    async with name_server(POISON[what]) as address:
        tracemalloc.start()
        began_s = time.process_time()
        try:
            producer = Producer("p", namesrv=address, send_timeout_ms=500)
            async with producer:
                with pytest.raises(CometMQError) as raised:
                    await producer.send(Message("orders", b"x"))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 100 * MIB
    assert time.process_time() - began_s < 20
    assert str(raised.value)


async def test_bombs_do_not_fill_a_consumers_memory() -> None:
    """32 messages of some KiB that would take 1.5 GiB, and an honest one behind them."""
    kind = CompressionType.ZSTD  # the fastest; unit tests have the others
    bomb = compress(bytes(48 * MIB), kind)
    assert len(bomb) < 300_000
    flags = COMPRESSED | kind.sys_flag
    read: dict[bytes, int] = {}
    done = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            key = message.keys[0].encode() if message.keys else b""
            read[key] = len(message.body)
            if key == b"honest":
                assert message.body == b"y" * 100_000
                done.set()
        return ConsumeResult.SUCCESS

    with Cluster(properties={"defaultTopicQueueNums": "1"}) as cluster:
        with RawClient(f"127.0.0.1:{cluster.brokers[0].port}") as raw:
            for number in range(32):
                keys = f"KEYS\x01bomb-{number}\x02"
                ext = send_ext("orders", sysFlag=flags, properties=keys)
                assert raw.ask(10, ext, bomb).code == 0
            ext = send_ext("orders", sysFlag=flags, properties="KEYS\x01honest\x02")
            assert raw.ask(10, ext, compress(b"y" * 100_000, kind)).code == 0
        tracemalloc.start()
        try:
            consumer = PushConsumer(
                "billing",
                listen,
                namesrv=cluster.namesrv,
                consume_from=ConsumeFromWhere.FIRST_OFFSET,
            )
            consumer.subscribe("orders")
            async with consumer, asyncio.timeout(WAIT_S):
                await done.wait()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(read) == 33
    assert peak < 450 * MIB
