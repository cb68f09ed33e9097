"""Clients of other languages on our servers that talk TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.interop.clients import GoClient, JavaClient, NodeClient
from tests.interop.conftest import need

from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_FOR_CLIENTS = {"tls.server.need.client.auth": "require"}
_PERMISSIVE = {"tls.server.mode": "permissive"}


@pytest.fixture(scope="module")
def enforcing() -> Iterator[Cluster]:
    """All servers refuse plain connections, and clients without a certificate of theirs."""
    with Cluster(tls=True, properties=_FOR_CLIENTS, namesrv_properties=_FOR_CLIENTS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def permissive() -> Iterator[Cluster]:
    with Cluster(tls=True, properties=_PERMISSIVE, namesrv_properties=_PERMISSIVE) as cluster:
        yield cluster


def java(line: int, cluster: Cluster, *, certificate: bool = True) -> JavaClient:
    """A Java client that checks the servers' certificate, and shows one of its own."""
    files = cluster.directory / "tls"
    if certificate:
        flags = [f"-Dtls.config.file={files / 'java-client.properties'}"]
    else:
        flags = [
            "-Dtls.config.file=/none",
            "-Dtls.test.mode.enable=false",
            "-Dtls.client.authServer=true",
            f"-Dtls.client.trustCertPath={files / 'ca.pem'}",
        ]
    return JavaClient(line, jvm_flags=flags)


def round_trip(client: JavaClient | GoClient | NodeClient, namesrv: str, **more: object) -> None:
    topic = f"tls-{client.label}"
    sent = client.produce(namesrv=namesrv, topic=topic, mode="sync", count=5, size=5000, **more)
    assert len(sent) == 5
    group = f"{topic}-group"
    events = client.run("consume", namesrv=namesrv, topic=topic, group=group, expected=5, **more)
    assert len({event["key"] for event in events if event["event"] == "message"}) == 5


@pytest.mark.parametrize("line", [4, 5])
def test_java_talks_tls_and_shows_its_certificate(enforcing: Cluster, line: int) -> None:
    need("java", "mvn")
    round_trip(java(line, enforcing), enforcing.namesrv, tls=True)


def test_java_without_a_certificate_is_refused(enforcing: Cluster) -> None:
    need("java", "mvn")
    client = java(5, enforcing, certificate=False)
    with client.start(
        "produce",
        namesrv=enforcing.namesrv,
        topic="tls-none",
        mode="sync",
        count=1,
        may_fail=True,
        tls=True,
    ) as running:
        events = running.wait_for(
            lambda events: any(event["event"] in ("failed", "summary") for event in events)
        )
        running.kill()
    assert not [event for event in events if event["event"] == "sent"]


def test_java_may_do_without_a_certificate_where_none_is_asked_for(permissive: Cluster) -> None:
    need("java", "mvn")
    client = java(5, permissive, certificate=False)
    round_trip(client, permissive.namesrv, tls=True)


@pytest.mark.parametrize("make", [GoClient, NodeClient])
def test_clients_without_tls_are_served_beside(
    permissive: Cluster, make: Callable[[], GoClient | NodeClient]
) -> None:
    client = make()
    need(*client.tools)
    round_trip(client, permissive.namesrv)
