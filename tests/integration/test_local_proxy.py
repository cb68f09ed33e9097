"""Test a proxy in the process of its broker, which it reaches without a socket."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.routes import until_routed
from tests.integration.test_proxy import Client, message_to
from tests.waits import PROCESS_WAIT_S, WAIT_S

from cometmq.aio import AdminClient
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.local import LocalProxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.testing import Cluster

pytestmark = pytest.mark.real_time


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=2) as cluster:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create(
                "orders", read_queues=2, write_queues=2, cluster="DefaultCluster"
            )
        await until_routed(cluster, "orders", "broker-a", "broker-b")
        yield cluster


@pytest.fixture
async def local(cluster: Cluster) -> LocalProxy:
    local = LocalProxy(cluster.brokers[0], ProxyConfig([], port=0))
    await local.start()
    return local


@pytest.fixture
async def client(local: LocalProxy) -> AsyncIterator[Client]:
    client = Client(local.proxy.port)
    yield client
    if client.stream is not None:
        client.stream.cancel()
    await client.channel.close()


async def test_the_own_broker_is_reached_within_the_process_and_others_over_the_network(
    cluster: Cluster, local: LocalProxy, client: Client
) -> None:
    sent = {f"body-{number}".encode() for number in range(8)}
    for body in sent:
        answer = await client.send(message_to("orders", body))
        assert answer.status.code == wire.OK
    await client.consume("orders")
    got: set[bytes] = set()
    async with asyncio.timeout(WAIT_S):
        while got != sent:
            for broker in ("broker-a", "broker-b"):
                for message in await client.receive("orders", broker=broker):
                    assert (await client.ack(message)).status.code == wire.OK
                    got.add(message.body)
    own, other = (broker.address for broker in cluster.brokers)
    remoting = local.proxy.instance.remoting
    for address, is_within in ((own, True), (other, False)):
        connection = remoting.connected(address)
        assert connection is not None
        # Within one process there is no socket.
        assert (connection.descriptor == -1) is is_within


async def test_routes_name_the_proxys_own_endpoint(local: LocalProxy, client: Client) -> None:
    far = wire.Endpoints(scheme=wire.IPv4, addresses=[wire.Address(host="192.0.2.1", port=1)])
    route = await client.call("QueryRoute", topic={"name": "orders"}, endpoints=far)
    assigned = await client.call(
        "QueryAssignment", topic={"name": "orders"}, group={"name": "billing"}, endpoints=far
    )
    named = [queue.broker.endpoints for queue in route.message_queues]
    named += [each.message_queue.broker.endpoints for each in assigned.assignments]
    own = wire.Address(host="127.0.0.1", port=local.proxy.port)
    assert len(named) == 6
    assert all(list(each.addresses) == [own] for each in named)


async def test_a_broker_that_stops_ends_waiting_receives_at_once(
    cluster: Cluster, local: LocalProxy, client: Client
) -> None:
    await client.consume("orders")
    waiting = asyncio.create_task(
        client.receive("orders", long_polling_timeout={"seconds": 20}, timeout_s=40)
    )
    async with asyncio.timeout(WAIT_S):
        while not local.proxy.receives.waiting:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
    began = asyncio.get_running_loop().time()
    await cluster.stop_broker(0)
    assert await waiting == []
    # The receive would have waited for 20 s.
    assert asyncio.get_running_loop().time() - began < 10


def test_the_command_runs_both_and_stops_both(tmp_path: Path) -> None:
    with Cluster(brokers=0) as cluster:
        file = tmp_path / "broker.conf"
        file.write_text(
            f"listenPort=0\nhaListenPort=0\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\n"
            f"storePathRootDir={tmp_path / 'store'}\n"
        )
        command = [sys.executable, "-m", "cometmq", "broker", "-c", str(file), "-n"]
        command += [cluster.namesrv, "--enable-proxy", "--proxy-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"gRPC at 127.0.0.1:(\d+)", process.stdout.readline())
            assert found is not None
            asyncio.run(_asks(int(found[1])))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PROCESS_WAIT_S) == 0


async def _asks(port: int) -> None:
    client = Client(port)
    answer = await client.call("QueryRoute", topic={"name": "missing"})
    assert answer.status.code == wire.TOPIC_NOT_FOUND
    await client.channel.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--proxy-port", "0"], "--enable-proxy"),
        (["--enable-proxy", "--processes", "2"], "--processes"),
        (["--enable-proxy"], "namesrvAddr"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"listenPort=0\nhaListenPort=0\nstorePathRootDir={tmp_path / 'store'}\n")
    ended = subprocess.run(
        [sys.executable, "-m", "cometmq", "broker", "-c", str(file), *options],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    assert ended.returncode != 0
    assert reason in ended.stderr


def test_a_broker_without_a_proxy_does_not_load_grpc(tmp_path: Path) -> None:
    code = (
        "import sys; import cometmq.cli.servers.broker, cometmq.broker.server; "
        "print('grpc' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=True,
    )
    assert ended.stdout.strip() == "False"
