"""A cluster in one process and in simulated time: a name server, and a broker that stores nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.simulated import LoopClock, MemoryNetwork

from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol import headers, requests
from cometmq.protocol.bodies.cluster import (
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
)
from cometmq.protocol.bodies.registration import body_crc, encode_register_body
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, request, response
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import encode_record
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.randomness import Randomness

T = TypeVar("T")

BROKER: Final = "10.0.0.1:10911"
_HOST: Final = pack_host("10.0.0.1", 10911)


@asynccontextmanager
async def name_server(directory: Path, network: MemoryNetwork) -> AsyncIterator[str]:
    config = NamesrvConfig(
        listen_port=9876,
        kv_config_path=directory / "kvConfig.json",
        config_store_path=directory / "namesrv.properties",
    )
    server = NameServer(config, clock=LoopClock(), network=network)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()


async def register(client: RemotingClient, address: str, queues: int = 16) -> None:
    # Two, because one topic alone is refused until all of a broker's have come.
    topics = {
        name: TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues)
        for name in ("orders", "payments")
    }
    wrapper = TopicConfigSerializeWrapper(DataVersion(1), topic_config_table=topics)
    body = encode_register_body(RegisterBrokerBody([], wrapper), compressed=False)
    header = headers.RegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr=BROKER,
        cluster_name="C",
        ha_server_addr=BROKER,
        broker_id=0,
        compressed=False,
        body_crc32=body_crc(body),
    )
    answer = await client.call(address, request(RequestCode.REGISTER_BROKER, header, body), 3.0)
    assert answer.code == ResponseCode.SUCCESS


def simulated_client(
    new: Callable[..., T],
    *args: Any,
    network: MemoryNetwork,
    randomness: Randomness,
    **options: Any,
) -> T:
    """Make a client in simulated time. Type checkers are not shown that it takes these."""
    return new(*args, clock=LoopClock(), network=network, randomness=randomness, **options)


class MemoryBroker:
    """Keeps the messages of one queue of topic `orders` in memory, and one offset.

    `heard` says when which client said what.
    """

    def __init__(self, network: MemoryNetwork, namesrv: str) -> None:
        self.heard: list[tuple[float, str, str]] = []
        self.sends: list[headers.SendMessageRequestHeaderV2] = []
        self.offset: int | None = 0
        self.searched_ms: list[int] = []
        self._namesrv = namesrv
        self._clock = LoopClock()
        self._records: list[bytes] = []
        self._arrived = asyncio.Event()
        self._client = RemotingClient(network=network)
        self._registering: asyncio.Task[None] | None = None
        handlers = Handlers()
        handlers.register(requests.SEND_MESSAGE_V2, self._send)
        handlers.register(requests.PULL_MESSAGE, self._pull)
        handlers.register(requests.HEART_BEAT, self._beat)
        handlers.register(requests.UNREGISTER_CLIENT, self._unregister)
        handlers.register(requests.CHECK_CLIENT_CONFIG, self._ok)
        handlers.register(requests.GET_CONSUMER_LIST_BY_GROUP, self._members)
        handlers.register(requests.QUERY_CONSUMER_OFFSET, self._query_offset)
        handlers.register(requests.UPDATE_CONSUMER_OFFSET, self._update_offset)
        handlers.register(requests.SEARCH_OFFSET_BY_TIMESTAMP, self._search_offset)
        self._server = RemotingServer(
            "10.0.0.1", 10911, handlers, network=network, monotonic=self._clock.monotonic
        )
        self._consumers: list[str] = []

    async def start(self) -> None:
        await self._server.start()
        await register(self._client, self._namesrv, queues=1)
        self._registering = asyncio.get_running_loop().create_task(self._register())

    async def close(self) -> None:
        assert self._registering is not None, "set by start"
        self._registering.cancel()
        await self._server.close()
        await self._client.close()

    async def _register(self) -> None:
        while True:
            await asyncio.sleep(30)
            await register(self._client, self._namesrv, queues=1)

    def _send(
        self, _connection: Connection, call: Request[headers.SendMessageRequestHeaderV2]
    ) -> RemotingCommand:
        header, offset = call.header, len(self._records)
        self.sends.append(header)
        self._records.append(
            encode_record(
                topic=header.topic.encode(),
                body=bytes(call.body),
                properties=(header.properties or "").encode(),
                queue_id=header.queue_id,
                queue_offset=offset,
                physical_offset=offset * 1000,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=_HOST,
                store_timestamp=self._clock.now_ms(),
                store_host=_HOST,
            )
        )
        self._arrived.set()
        answer = headers.SendMessageResponseHeader(
            msg_id=f"{offset:032X}", queue_id=header.queue_id, queue_offset=offset
        )
        return response(ResponseCode.SUCCESS, header=answer)

    async def _pull(
        self, _connection: Connection, call: Request[headers.PullMessageRequestHeader]
    ) -> RemotingCommand:
        start = call.header.queue_offset
        try:
            async with asyncio.timeout(call.header.suspend_timeout_millis / 1000):
                while start >= len(self._records):
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass
        found = self._records[start:]
        header = headers.PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=start + len(found),
            min_offset=0,
            max_offset=len(self._records),
        )
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        return response(code, header=header, body=b"".join(found))

    def _beat(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        data = decode_body(call.body, HeartbeatData)
        self.heard.append((self._clock.monotonic(), "heartbeat", data.client_id))
        if data.consumer_data_set and data.client_id not in self._consumers:
            self._consumers.append(data.client_id)
        return response(ResponseCode.SUCCESS)

    def _unregister(
        self, _connection: Connection, call: Request[headers.UnregisterClientRequestHeader]
    ) -> RemotingCommand:
        self.heard.append((self._clock.monotonic(), "unregister", call.header.client_id))
        return response(ResponseCode.SUCCESS)

    def _ok(self, _connection: Connection, _call: AnyRequest) -> RemotingCommand:
        return response(ResponseCode.SUCCESS)

    def _members(self, _connection: Connection, _call: AnyRequest) -> RemotingCommand:
        body = encode_body(GetConsumerListByGroupResponseBody(self._consumers))
        return response(ResponseCode.SUCCESS, body=body)

    def _query_offset(self, _connection: Connection, _call: AnyRequest) -> RemotingCommand:
        if self.offset is None:
            return response(ResponseCode.QUERY_NOT_FOUND)
        header = headers.OffsetResponseHeader(offset=self.offset)
        return response(ResponseCode.SUCCESS, header=header)

    def _search_offset(
        self, _connection: Connection, call: Request[headers.SearchOffsetRequestHeader]
    ) -> RemotingCommand:
        self.searched_ms.append(call.header.timestamp)
        return response(ResponseCode.SUCCESS, header=headers.OffsetResponseHeader(offset=0))

    def _update_offset(
        self, _connection: Connection, call: Request[headers.UpdateConsumerOffsetRequestHeader]
    ) -> RemotingCommand:
        assert call.header.commit_offset is not None
        self.offset = call.header.commit_offset
        self.heard.append((self._clock.monotonic(), "commit", str(self.offset)))
        return response(ResponseCode.SUCCESS)
