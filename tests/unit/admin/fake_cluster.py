"""Provides a cluster of scripted servers for tests of the administration client's rooms."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from cometmq.admin.servers import Servers
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.remoting.client import RemotingClient

NAMESRV = "namesrv:9876"
OTHER_NAMESRV = "other-namesrv:9876"
# Addresses of masters by broker name.
MASTERS = {"broker-a": "a:10911", "broker-b": "b:10911"}
A, B = MASTERS.values()

Serve = Callable[[str, RemotingCommand], RemotingCommand]


def answer(
    code: int = ResponseCode.SUCCESS, /, body: object = b"", **ext: object
) -> RemotingCommand:
    """Return an answer; a body that is not bytes is written as JSON."""
    data = body if isinstance(body, bytes) else encode_body(body)
    return response(code, "scripted", ext={k: str(v) for k, v in ext.items()}, body=data)


class FakeCluster:
    """Answers each request by `serve`, called by request code with the address and the request.

    An error that a function of `serve` raises is the failure of the call. `calls` has address and code
    of each request, in the order in which they came; `most_at_once` counts the requests that an address
    had to answer at the same time.
    """

    def __init__(self, serve: Mapping[int, Serve], *, name_servers: int = 1) -> None:
        self.calls: list[tuple[str, int]] = []
        self.requests: list[RemotingCommand] = []
        self.open: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self._serve = serve
        self.servers = Servers(
            [NAMESRV, OTHER_NAMESRV][:name_servers], cast(RemotingClient, self), 3.0, lambda: None
        )

    async def call(
        self,
        address: str,
        command: RemotingCommand,
        timeout_s: float,
    ) -> RemotingCommand:
        self.calls.append((address, command.code))
        self.requests.append(command)
        self.open[address] += 1
        self.most_at_once[address] = max(self.most_at_once[address], self.open[address])
        await asyncio.sleep(0)
        self.open[address] -= 1
        return self._serve[command.code](address, command)

    def asked(self, code: int) -> list[str]:
        """Return the addresses that got requests of this code."""
        return [address for address, asked in self.calls if asked == code]


def route(topic_queues: Mapping[str, int], order_conf: str | None = None) -> RemotingCommand:
    """Return the answer with a route; `topic_queues` has the queues by broker name."""
    return answer(
        body=msgspec.json.encode(
            {
                "brokerDatas": [
                    {"brokerName": name, "cluster": "c", "brokerAddrs": {"0": MASTERS[name]}}
                    for name in topic_queues
                ],
                "queueDatas": [
                    {"brokerName": name, "readQueueNums": n, "writeQueueNums": n, "perm": 6}
                    for name, n in topic_queues.items()
                ],
                "orderTopicConf": order_conf,
            }
        )
    )


def cluster_info() -> RemotingCommand:
    """Return the answer with all of MASTERS in one cluster."""
    return answer(
        body=msgspec.json.encode(
            {
                "brokerAddrTable": {
                    name: {"brokerName": name, "cluster": "c", "brokerAddrs": {"0": address}}
                    for name, address in MASTERS.items()
                },
                "clusterAddrTable": {"c": list(MASTERS)},
            }
        )
    )
