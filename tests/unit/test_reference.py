"""The pages that are generated from the code are up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from tests.waits import WAIT_S

from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import request
from cometmq.protocol.refused_requests import REFUSED
from cometmq.remoting.client import RemotingClient
from cometmq.testing import Cluster

ROOT = Path(__file__).parents[2]
REMEDY = "run .venv-spark/bin/python scripts/config_reference.py"


def generator(name: str) -> ModuleType:
    path = ROOT / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_configuration_is_up_to_date() -> None:
    """The test also fails for a key without a meaning in meanings.toml, or a meaning without a
    key.
    """
    made = generator("config_reference")
    assert made.PAGE.read_text() == made.page(), REMEDY


def test_the_reference_of_requests_is_up_to_date() -> None:
    """The test also fails for a code that is neither served nor refused on purpose, or both."""
    made = generator("request_reference")
    remedy = "run .venv/bin/python scripts/request_reference.py"
    assert made.PAGE.read_text() == made.page(), remedy


def test_the_reference_of_metrics_is_up_to_date() -> None:
    made = generator("metrics_reference")
    assert made.PAGE.read_text() == made.page(), "run .venv/bin/python scripts/metrics_reference.py"


def test_the_reference_of_mqadmin_is_up_to_date() -> None:
    made = generator("mqadmin_reference")
    remedy = "run .venv/bin/python scripts/mqadmin_reference.py"
    assert made.PAGE.read_text() == made.page(), remedy


def test_the_reference_of_access_is_up_to_date() -> None:
    made = generator("access_reference")
    assert made.PAGE.read_text() == made.page(), "run .venv/bin/python scripts/access_reference.py"


async def test_the_reference_of_requests_says_what_the_servers_serve() -> None:
    made = generator("request_reference")
    async with Cluster() as cluster:
        (broker,), (name_server,) = cluster.brokers, cluster.name_servers
        assert made.served("broker") == broker.handlers.request_types.keys()
        assert made.served("namesrv") == name_server.handlers.request_types.keys()


async def test_a_code_that_nobody_serves_is_refused_with_the_reason() -> None:
    client = RemotingClient()
    async with Cluster() as cluster:
        for code, reason in REFUSED.items():
            for server in (cluster.brokers[0], cluster.name_servers[0]):
                answer = await client.call(f"127.0.0.1:{server.port}", request(code), WAIT_S)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert answer.remark == f" request type {int(code)} not supported: {reason}"
    await client.close()
