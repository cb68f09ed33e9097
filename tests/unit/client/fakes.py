"""A cluster in memory: answers a client's calls by request code, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cometmq.client.instance import ClientInstance
from cometmq.errors import ConnectError
from cometmq.model.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connection import Connection
from cometmq.runtime.clock import SystemClock

NAMESRV = "127.0.0.1:9876"
Answer = Callable[[str, RemotingCommand], RemotingCommand]


class FakeConnection:
    closed = False
    unsent_bytes = 0
    # So that nothing is sent but by `FakeRemoting.call`.
    congested = True


class FakeRemoting(RemotingClient):
    """A remoting client without sockets. `answers` are functions by request code that get the
    address and the command; addresses in `down` refuse connections.
    """

    async def connection(self, address: str) -> Connection:
        raise ConnectError(f"no connection to {address}: a fake makes none", address=address)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.answers: dict[int, Answer] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: lambda *_: response(ResponseCode.SUCCESS),
            RequestCode.UNREGISTER_CLIENT: lambda *_: response(ResponseCode.SUCCESS),
        }
        self.routes: dict[str, TopicRouteData] = {}
        self.down: set[str] = set()
        self.calls: list[tuple[str, RemotingCommand]] = []
        self.oneways: list[RemotingCommand] = []
        self.delay_s = 0.0
        # By request code, instead of `delay_s`; these are served though nobody waits any more.
        self.late_s: dict[int, float] = {}
        self._made: dict[str, FakeConnection] = {}

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        self.calls.append((address, command))
        late_s = self.late_s.get(command.code)
        if late_s is not None:
            return await asyncio.shield(
                asyncio.ensure_future(self._serve_late(late_s, address, command))
            )
        await asyncio.sleep(self.delay_s)
        if address in self.down:
            raise ConnectError(f"no connection to {address}", address=address)
        return self.answers[command.code](address, command)

    async def _serve_late(
        self, late_s: float, address: str, command: RemotingCommand
    ) -> RemotingCommand:
        await asyncio.sleep(late_s)
        return self.answers[command.code](address, command)

    async def send_oneway(self, address: str, command: RemotingCommand) -> None:
        self.oneways.append(command)
        await self.call(address, command, 1.0)

    async def send_oneway_bounded(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> tuple[Connection, int]:
        await self.call(address, command, timeout_s)
        connection = self.connected(address)
        assert connection is not None
        return connection, len(command.body)

    def connected(self, address: str) -> Connection | None:
        if address in self.down:
            self.lose(address)
            return None
        return self._made.setdefault(address, FakeConnection())  # type: ignore[return-value]  # the fake stands for a connection

    def lose(self, address: str) -> None:
        """Break the connection to `address`; its next use makes another one."""
        made = self._made.pop(address, None)
        if made is not None:
            made.closed = True

    def called(self, code: int) -> list[str]:
        """Return the addresses that were asked with `code`, in order."""
        return [address for address, command in self.calls if command.code == code]

    def sent(self, code: int) -> list[RemotingCommand]:
        return [command for _, command in self.calls if command.code == code]

    def _route(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        route = self.routes.get(command.ext["topic"])
        if route is None:
            return response(ResponseCode.TOPIC_NOT_EXIST, "no route")
        return response(ResponseCode.SUCCESS, body=encode_body(route))


def route(*brokers: str, queues: int = 4, perm: int = 6) -> TopicRouteData:
    """Make a route over masters named `brokers`, each at the address `<name>:1`."""
    return TopicRouteData(
        [BrokerData(name, "c", {0: f"{name}:1"}) for name in brokers],
        [QueueData(name, queues, queues, perm) for name in brokers],
    )


class SettableClock(SystemClock):
    """The system's clock, set back by `behind_ms`."""

    behind_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - self.behind_ms


class FakeInstance:
    """A client instance over a FakeRemoting; close it at the end."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self.instance = ClientInstance(
            "127.0.0.1@test", "127.0.0.1", [NAMESRV], FakeRemoting, clock=self.clock
        )
        remoting = self.instance.remoting
        assert isinstance(remoting, FakeRemoting)
        self.remoting = remoting

    async def close(self) -> None:
        await self.instance.close()


def send_ok(_address: str, command: RemotingCommand) -> RemotingCommand:
    ext = {"msgId": "7F000001", "queueId": command.ext["e"], "queueOffset": "7"}
    return response(ResponseCode.SUCCESS, ext=ext)


def refuse(code: int) -> Answer:
    return lambda *_: response(code, "refused by the test")
