"""RocketMQ's Python client for gRPC, as published, at our proxy in front of our broker."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.interop.peers import grpc_directory

from cometmq.aio import AdminClient
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.server import Proxy
from cometmq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TYPES = {"n": "NORMAL", "f": "FIFO", "d": "DELAY", "t": "TRANSACTION"}
PROPERTIES = {
    "recallMessageEnable": "true",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
}


async def run(program: list[str], namesrv: str) -> list[dict[str, Any]]:
    """Run a client program at a proxy, and return what it said."""
    async with AdminClient(namesrv=namesrv) as admin:
        for topic, kind in TYPES.items():
            await admin.topics.create(
                topic,
                read_queues=2,
                write_queues=2,
                cluster="DefaultCluster",
                attributes={"message.type": kind},
            )
    proxy = Proxy(ProxyConfig([namesrv], port=0, drain_s=0.5))
    await proxy.start()
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            f"127.0.0.1:{proxy.port}",
            "billing",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()[-3000:]
    finally:
        await proxy.close()
    # The client prints lines of its own.
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def check(said: list[dict[str, Any]]) -> None:
    """Compare what the client did with what it was to do."""
    assert {"what": "recalled", "same": True} in said
    assert {"what": "checked", "body": "nobody ended"} in said
    received = [(each["body"], each["attempt"]) for each in said if each["what"] == "received"]
    assert received == [("fails once", 1), ("fails once", 2)]
    assert {"what": "left", "count": 0} in said
    pushed = {(e["topic"], e["body"], e["attempt"]) for e in said if e["what"] == "pushed"}
    assert pushed == {
        ("n", "fails once", 1),
        ("n", "fails once", 2),
        *(("f", f"in order {number}", 1) for number in range(3)),
        ("d", "delayed", 1),
        ("t", "committed", 1),
        ("t", "nobody ended", 1),
    }


async def test_the_python_client_sends_and_receives_all_kinds() -> None:
    directory = await asyncio.to_thread(grpc_directory)
    program = Path(__file__).with_name("grpc_python_client.py")
    async with Cluster(properties=PROPERTIES) as cluster:
        check(await run([sys.executable, str(program), str(directory)], cluster.namesrv))
