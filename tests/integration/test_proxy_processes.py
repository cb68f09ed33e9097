"""Test several proxies at one port, and clients that move from one proxy to another."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.integration.routes import until_routed
from tests.integration.test_proxy import Client, message_to
from tests.waits import PROCESS_WAIT_S, WAIT_S, eventually, until

from cometmq.aio import AdminClient
from cometmq.protocol.pop.handle import PopHandle
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.testing import Cluster
from cometmq.testing.ports import HeldPort

pytestmark = pytest.mark.real_time

COMMAND = [sys.executable, "-m", "cometmq", "proxy"]


@contextmanager
def _proxies(namesrv: str, count: int, log: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with HeldPort() as held, log.open("w") as errors:
        command = [*COMMAND, "-n", namesrv, "--port", str(held.port)]
        command += ["--processes", str(count), "--log-format", "json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(count + 1)]
            assert f"All proxies boot success: {count}" in lines[-1], log.read_text()
            yield process, held.port
        finally:
            process.terminate()
            try:
                process.wait(PROCESS_WAIT_S)
            finally:
                process.kill()
                if process.stdout is not None:
                    process.stdout.close()


async def _code_of_a_route(port: int) -> int:
    client = Client(port)
    try:
        return int((await client.call("QueryRoute", topic={"name": "missing"})).status.code)
    finally:
        await client.channel.close()


def _pids(log: Path) -> dict[str, int]:
    found = re.findall(
        r'"proxy process started".*?"proxy": "([\w-]+)", "pid": (\d+)', log.read_text()
    )
    return {name: int(pid) for name, pid in found}


def test_a_process_that_dies_is_started_again_while_others_serve(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Cluster(brokers=0) as cluster, _proxies(cluster.namesrv, 2, log) as (process, port):
        before = _pids(log)
        assert sorted(before) == ["proxy-0", "proxy-1"]
        for _ in range(4):
            assert asyncio.run(_code_of_a_route(port)) == wire.TOPIC_NOT_FOUND
        os.kill(before["proxy-1"], signal.SIGKILL)
        eventually(lambda: '"proxy serves again"' in log.read_text(), wait_s=PROCESS_WAIT_S)
        after = _pids(log)
        assert after["proxy-0"] == before["proxy-0"]
        assert after["proxy-1"] != before["proxy-1"]
        assert asyncio.run(_code_of_a_route(port)) == wire.TOPIC_NOT_FOUND
        process.terminate()
        assert process.wait(PROCESS_WAIT_S) == 0
    for pid in after.values():
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--processes", "2", "--port", "0"], "--processes needs a port"),
        (["--processes", "65"], "the limit is 64"),
        (["--processes", "2", "--process", "2"], "--process 2 needs --processes"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], reason: str) -> None:
    command = [*COMMAND, "-n", "127.0.0.1:9876", *options]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PROCESS_WAIT_S, check=False
    )
    assert ended.returncode != 0
    assert reason in ended.stderr


def test_the_port_of_a_stranger_is_not_shared() -> None:
    with Cluster(brokers=0) as cluster:
        command = [*COMMAND, "-n", cluster.namesrv, "--processes", "2"]
        command += ["--port", cluster.namesrv.rpartition(":")[2]]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=PROCESS_WAIT_S, check=False
        )
    assert ended.returncode != 0
    assert "choose another port" in ended.stderr


async def _send_through(port: int, stop: asyncio.Event, done: set[bytes]) -> None:
    """Send until `stop`, and note what was acknowledged; a new connection follows a failure."""
    client = Client(port, "producer")
    number = 0
    try:
        while not stop.is_set():
            body = b"%d" % number
            number += 1
            try:
                if (await client.send(message_to("normal", body))).status.code == wire.OK:
                    done.add(body)
            except grpc.aio.AioRpcError:
                await client.channel.close()
                client = Client(port, "producer")
    finally:
        await client.channel.close()


async def test_killed_processes_lose_nothing_that_was_acknowledged(
    cluster: Cluster, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    done: set[bytes] = set()
    stop = asyncio.Event()
    with _proxies(cluster.namesrv, 2, log) as (_, port):
        sending = asyncio.create_task(_send_through(port, stop, done))
        for kills in range(1, 4):
            before = len(done)
            async with asyncio.timeout(PROCESS_WAIT_S):
                while len(done) < before + 30:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)
            os.kill(_pids(log)["proxy-0" if kills % 2 else "proxy-1"], signal.SIGKILL)
            async with asyncio.timeout(PROCESS_WAIT_S):
                while log.read_text().count('"proxy serves again"') < kills:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)
        stop.set()
        await sending
    assert len(done) >= 90
    stored = {message.body for message in await cluster.messages("normal")}
    assert done <= stored


# Clients that move


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create(
                "normal", read_queues=4, write_queues=4, cluster="DefaultCluster"
            )
        await until_routed(cluster, "normal", "broker-a")
        yield cluster


async def _proxy(cluster: Cluster, settings: ProxySettings | None = None) -> Proxy:
    proxy = Proxy(ProxyConfig([cluster.namesrv], port=0, settings=settings or ProxySettings()))
    await proxy.start()
    return proxy


async def test_a_process_serves_calls_of_a_client_whose_stream_is_in_another_one(
    cluster: Cluster,
) -> None:
    first, second = await _proxy(cluster), await _proxy(cluster)
    here, there = Client(first.port), Client(second.port)
    await here.consume("normal")
    for _ in range(4):
        assert (await there.send(message_to("normal"))).status.code == wire.OK
    messages = await there.receive_some("normal")
    # A handle is good at each proxy.
    for message in messages:
        assert (await here.ack(message)).status.code == wire.OK
    answers = await there.answers(
        "ReceiveMessage",
        group={"name": "billing"},
        message_queue={"topic": {"name": "normal"}},
        auto_renew=True,
    )
    assert answers[0].status.code == wire.UNRECOGNIZED_CLIENT_TYPE
    assert "Telemetry" in answers[0].status.message
    here.stream.cancel()
    for client, proxy in ((here, first), (there, second)):
        await client.channel.close()
        await proxy.close()


async def test_a_client_that_opens_its_stream_again_keeps_its_messages(cluster: Cluster) -> None:
    proxy = await _proxy(cluster)
    client = Client(proxy.port)
    await client.consume("normal")
    await client.send(message_to("normal"))
    messages: list[wire.Message] = []
    async with asyncio.timeout(WAIT_S):
        while not messages:
            messages = await client.receive("normal", auto_renew=True)
    assert len(proxy.handles) == 1
    client.stream.cancel()
    async with asyncio.timeout(WAIT_S):
        while proxy.clients.stream_count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    await proxy.handles.scan()
    assert len(proxy.handles) == 1
    await client.consume("normal")
    assert (await client.ack(messages[0])).status.code == wire.OK
    client.stream.cancel()
    await client.channel.close()
    await proxy.close()


async def test_a_handle_that_a_stopped_proxy_has_renewed_is_good_at_the_next_one(
    cluster: Cluster,
) -> None:
    # The least time for which messages may be hidden, so that the handle's own time is over soon.
    settings = ProxySettings(default_invisible_time_mills=11_000, renew_schedule_period_millis=100)
    first, second = await _proxy(cluster, settings), await _proxy(cluster)
    here, there = Client(first.port), Client(second.port)
    await here.consume("normal")
    await here.send(message_to("normal"))
    messages: list[wire.Message] = []
    async with asyncio.timeout(WAIT_S):
        while not messages:
            messages = await here.receive("normal", auto_renew=True)
    await until(lambda: first.handles.outcomes["renewed"] == 1)
    await first.close()
    assert first.handles.outcomes["renewed"] == 2
    handle = PopHandle.decode(messages[0].system_properties.receipt_handle)
    await until(
        lambda: SYSTEM_CLOCK.now_ms() > handle.pop_time + handle.invisible_time, wait_s=WAIT_S + 11
    )
    assert (await there.ack(messages[0])).status.code == wire.OK
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        (progress,) = await admin.groups.popped("billing") or []
    assert (progress.in_flight, progress.revived_count) == (0, 0)
    answer = await there.ack(messages[0])
    assert answer.status.code == wire.INVALID_RECEIPT_HANDLE
    for client in (here, there):
        await client.channel.close()
    await second.close()


# A call that was under way when its server stopped is cancelled.
_GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


class _Consumer:
    """Consumes as an official push consumer does: it goes on at the next proxy once one ends its stream or is away."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._clients: list[Client] = []
        self.received: list[bytes] = []
        self.acknowledged: set[bytes] = set()
        self.refused: list[wire.Status] = []
        # How many messages were received at one proxy and acknowledged at another one.
        self.moved = 0

    async def run(self, wanted: int) -> None:
        held: list[wire.Message] = []
        for port in self._ports:
            client = Client(port)
            self._clients.append(client)
            await client.consume("normal")
            self.moved += len(held)
            left = asyncio.create_task(self._is_left(client))
            while len(self.acknowledged) < wanted and not left.done():
                try:
                    await self._ack(client, held)
                    held += await client.receive("normal", auto_renew=True, timeout_s=30.0)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _GONE:
                        raise
                    break
                self.received += [message.body for message in held]
            left.cancel()

    async def close(self) -> None:
        for client in self._clients:
            client.stream.cancel()
            await client.channel.close()

    async def _is_left(self, client: Client) -> None:
        command = await client.stream.read()
        assert command.WhichOneof("command") == "reconnect_endpoints_command"

    async def _ack(self, client: Client, messages: list[wire.Message]) -> None:
        while messages:
            status = (await client.ack(messages[0])).status
            if status.code == wire.OK:
                self.acknowledged.add(messages[0].body)
            else:
                self.refused.append(status)
            messages.pop(0)


async def test_a_proxy_that_stops_under_load_loses_nothing_and_spoils_no_handle(
    cluster: Cluster,
) -> None:
    first, second = await _proxy(cluster), await _proxy(cluster)
    sent: set[bytes] = set()
    sender = Client(second.port, "producer")
    consumer = _Consumer([first.port, second.port])
    count = 300

    async def send() -> None:
        for number in range(count):
            body = b"%d" % number
            assert (await sender.send(message_to("normal", body))).status.code == wire.OK
            sent.add(body)

    async def stop_the_first() -> None:
        while len(consumer.received) < 50:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
        await first.close()

    async with asyncio.timeout(WAIT_S + 30):
        await asyncio.gather(send(), consumer.run(count), stop_the_first())
    assert consumer.moved > 0
    assert consumer.refused == []
    assert consumer.acknowledged == sent
    assert sorted(consumer.received) == sorted(sent)  # and none of them twice
    await consumer.close()
    await sender.channel.close()
    await second.close()
