"""Test the proxy of `cometmq dev` and of the helpers for users' tests."""

from __future__ import annotations

import asyncio
import subprocess

from tests.integration.test_dev_json import COMMAND, dev, reported
from tests.integration.test_proxy import Client
from tests.waits import PROCESS_WAIT_S

from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.testing.local_broker import LocalBrokers


async def _code_of_a_route(endpoint: str) -> int:
    client = Client(int(endpoint.rpartition(":")[2]))
    try:
        return int((await client.call("QueryRoute", topic={"name": "missing"})).status.code)
    finally:
        await client.channel.close()


def test_dev_prints_the_endpoint_and_serves_there() -> None:
    with dev("--no-console", "--proxy-port", "0") as process:
        endpoint = reported(process)["proxy"]["endpoint"]
        assert asyncio.run(_code_of_a_route(endpoint)) == wire.TOPIC_NOT_FOUND
        process.terminate()
        assert process.wait(PROCESS_WAIT_S) == 0


def test_dev_runs_no_proxy_that_nobody_wants() -> None:
    with dev("--no-console", "--no-proxy") as process:
        assert reported(process)["proxy"] is None


def test_dev_takes_a_free_port_if_the_usual_one_is_taken() -> None:
    with dev("--no-console") as one, dev("--no-console") as other:
        endpoints = {reported(process)["proxy"]["endpoint"] for process in (one, other)}
    assert len(endpoints) == 2


def test_dev_refuses_options_that_do_not_fit() -> None:
    for options, reason in (
        (["--no-proxy", "--proxy-port", "0"], "--no-proxy and --proxy-port"),
        (["--proxy", "--no-console", "--set", "aclEnable=true"], "no account"),
    ):
        ended = subprocess.run(
            [*COMMAND, *options],
            capture_output=True,
            text=True,
            timeout=PROCESS_WAIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode != 0
        assert reason in ended.stderr


def test_the_broker_of_a_test_has_an_endpoint_also_after_a_restart() -> None:
    with LocalBrokers() as brokers, brokers.fresh() as broker:
        endpoint = broker.endpoint
        assert broker.endpoint == endpoint
        assert asyncio.run(_code_of_a_route(endpoint)) == wire.TOPIC_NOT_FOUND
        broker.restart()
        assert broker.endpoint == endpoint
        assert asyncio.run(_code_of_a_route(endpoint)) == wire.TOPIC_NOT_FOUND
