"""`cometmq doctor --endpoint` against proxies that serve, refuse, hang and are none."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.routes import until_routed
from tests.integration.test_proxy_access import ADMIN, GUARDED, guarded
from tests.integration.test_proxy_port import Certificates
from tests.waits import WAIT_S
from typer.testing import CliRunner

from cometmq import Credentials
from cometmq.aio import AdminClient
from cometmq.cli.main import app
from cometmq.model.reports.finding import Finding, Severity
from cometmq.proxy.checkup import EndpointCheckup
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.proxy.server import Proxy
from cometmq.runtime.clock import SystemClock
from cometmq.testing import Cluster
from cometmq.testing.ports import HeldPort
from cometmq.tls.contexts import Tls

pytestmark = pytest.mark.real_time


class LateClock(SystemClock):
    def __init__(self, by_ms: int) -> None:
        self.by_ms = by_ms

    def now_ms(self) -> int:
        return super().now_ms() - self.by_ms


# The certificates of tests end in two days.
WEEKS_AGO = LateClock(21 * 86_400_000)


@asynccontextmanager
async def proxy_of(cluster: Cluster, front: FrontConfig | None = None) -> AsyncIterator[str]:
    proxy = Proxy(
        ProxyConfig([str(cluster.namesrv)], port=0, drain_s=0.2, front=front or FrontConfig())
    )
    await proxy.start()
    try:
        yield f"127.0.0.1:{proxy.port}"
    finally:
        await proxy.close()


async def checked(endpoint: str, **options: Any) -> dict[str, Finding]:
    found = await EndpointCheckup(endpoint, **{"timeout_s": WAIT_S, **options}).check()
    return {finding.check.partition(": ")[2]: finding for finding in found}


async def test_a_proxy_that_serves_is_well_and_says_its_version_and_its_time() -> None:
    async with Cluster() as cluster, proxy_of(cluster) as endpoint:
        found = await checked(endpoint)
        assert {each.severity for each in found.values()} == {Severity.OK}, found
        assert found["version"].value.startswith("CometMQ ")
        assert "answered in" in found["QueryRoute"].value
        assert found["plain text"].value == "served"
        assert found["TLS"].value.startswith("not served: Java, Go")
        found = await checked(endpoint, clock=LateClock(100_000))
        assert found["clock"].severity is Severity.ERROR
        assert "s ahead" in found["clock"].value

        found = await checked(endpoint, topic="orders")
        assert found["topic orders"].severity is Severity.ERROR
        assert "TOPIC_NOT_FOUND" in found["topic orders"].value
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create("orders", cluster="DefaultCluster")
        await until_routed(cluster, "orders", "broker-a")
        found = await checked(endpoint, topic="orders")
        assert "at broker-a, for NORMAL messages" in found["topic orders"].value


async def test_a_port_that_speaks_tls_only_is_judged_by_its_certificate(tmp_path: Path) -> None:
    async with Cluster() as cluster:
        certificates = Certificates(tmp_path)
        async with proxy_of(cluster, certificates.config("enforcing")) as endpoint:
            trusted = Tls(ca_file=str(certificates.authority.certificate))
            found = await checked(endpoint, tls=trusted)
            assert found["plain text"].value == "refused: clients need TLS"
            assert found["TLS"].severity is Severity.WARNING
            assert "its certificate ends in 2 days" in found["TLS"].value
            assert found["QueryRoute"].severity is Severity.OK
            found = await checked(endpoint)
            assert found["TLS"].severity is Severity.WARNING
            assert "certificate is refused" in found["TLS"].value
            assert found["QueryRoute"].severity is Severity.ERROR
        async with proxy_of(cluster, certificates.config()) as endpoint:
            found = await checked(endpoint, tls=trusted, clock=WEEKS_AGO)
            assert found["plain text"].value == "served"
            assert "its certificate is trusted" in found["TLS"].value


async def test_a_proxy_with_access_control_says_which_credentials_it_wants() -> None:
    async with (
        Cluster(properties=GUARDED, namesrv_properties=GUARDED) as cluster,
        guarded(cluster) as proxy,
    ):
        endpoint = f"127.0.0.1:{proxy.port}"
        found = await checked(endpoint)
        assert "UNAUTHORIZED" in found["QueryRoute"].value
        assert "--accessKey" in found["QueryRoute"].remedy
        found = await checked(endpoint, credentials=Credentials("admin", "wrong"))
        assert "secret key" in found["QueryRoute"].remedy
        found = await checked(endpoint, credentials=ADMIN)
        assert found["QueryRoute"].severity is Severity.OK


async def test_what_is_no_proxy_is_named() -> None:
    async with Cluster() as cluster:
        found = await checked(cluster.namesrv)
        assert found["QueryRoute"].severity is Severity.ERROR
        assert "speak another protocol" in found["QueryRoute"].remedy

        # Its connections are made, and nobody reads them.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            found = await checked(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.5)
        assert found["QueryRoute"].severity is Severity.ERROR


def test_the_command_says_that_nobody_listens() -> None:
    with HeldPort() as port:
        result = CliRunner().invoke(
            app, ["doctor", "--endpoint", f"127.0.0.1:{port.port}", "-o", "json"]
        )
    assert result.exit_code == 2
    (finding,) = (
        each for each in json.loads(result.stdout)["findings"] if each["area"] == "Endpoint"
    )
    assert "start a proxy there" in finding["remedy"]


def test_a_topic_without_an_endpoint_is_refused() -> None:
    result = CliRunner().invoke(app, ["doctor", "--topic", "orders"])
    assert result.exit_code == 2
    assert "--topic needs --endpoint" in result.output
