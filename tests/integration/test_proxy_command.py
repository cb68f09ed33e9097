"""Test the command `cometmq proxy` in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from tests.certificates import Authority
from tests.waits import PROCESS_WAIT_S

from cometmq.proxy.calls import MESSAGING
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.testing import Cluster

COMMAND = [sys.executable, "-m", "cometmq", "proxy"]


def _code_of_a_route(channel: grpc.Channel) -> int:
    call = channel.unary_unary(
        f"/{MESSAGING}/QueryRoute",
        request_serializer=wire.QueryRouteRequest.SerializeToString,
        response_deserializer=wire.QueryRouteResponse.FromString,
    )
    request = wire.QueryRouteRequest(topic=wire.Resource(name="missing"))
    answer = call(request, metadata=(("x-mq-client-id", "c"),), timeout=PROCESS_WAIT_S)
    return int(answer.status.code)


def test_the_command_says_its_endpoint_serves_and_stops() -> None:
    with Cluster() as cluster:
        command = [*COMMAND, "-n", cluster.namesrv, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"gRPC at (\S+), without TLS", process.stdout.readline())
            assert found is not None
            with grpc.insecure_channel(found[1]) as channel:
                code = _code_of_a_route(channel)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PROCESS_WAIT_S) == 0
    assert code == wire.TOPIC_NOT_FOUND


def test_options_override_the_file_and_keys_without_effect_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    with Cluster(brokers=0) as cluster:
        file.write_text(
            f'{{"namesrvAddr": "{cluster.namesrv}", "grpcServerPort": 1, "grpcThreadPoolNums": 4}}'
        )
        command = [*COMMAND, "-pc", str(file), "--port", "0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            ready = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=PROCESS_WAIT_S)
        assert cluster.namesrv in ready
    assert "127.0.0.1:1," not in ready
    assert "grpcThreadPoolNums" in log


def test_a_file_with_a_certificate_serves_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.sign("server", "IP:127.0.0.1")
    file = tmp_path / "rmq-proxy.json"
    entries = {"tlsTestModeEnable": False, "tlsCertPath": str(pair.certificate)}
    file.write_text(json.dumps({**entries, "tlsKeyPath": str(pair.key)}))
    trusted = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with Cluster(brokers=0) as cluster:
        command = [*COMMAND, "-pc", str(file), "-n", cluster.namesrv, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"gRPC at (\S+), with and without TLS", process.stdout.readline())
            assert found is not None
            with (
                grpc.secure_channel(found[1], trusted) as encrypted,
                grpc.insecure_channel(found[1]) as plain,
            ):
                codes = [_code_of_a_route(channel) for channel in (encrypted, plain)]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PROCESS_WAIT_S) == 0
    assert codes == [wire.TOPIC_NOT_FOUND] * 2


def test_a_file_that_asks_for_the_local_mode_is_refused_with_the_command(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    file.write_text('{"proxyMode": "LOCAL"}')
    ended = subprocess.run(
        [*COMMAND, "--config", str(file), "-n", "127.0.0.1:9876"],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    assert ended.returncode != 0
    assert "cometmq broker --enable-proxy" in ended.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-n", "127.0.0.1:9876", "--host", "0.0.0.0"], "--open"),
        (["-n", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(options: list[str], reason: str) -> None:
    ended = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=PROCESS_WAIT_S, check=False
    )
    assert ended.returncode != 0
    assert reason in ended.stderr
