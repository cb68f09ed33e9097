"""Java's proxy of 5.5 in cluster mode in front of our broker: clients for gRPC do what they do at Java's broker."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.at_once import at_once
from tests.interop.conftest import need
from tests.interop.grpc_cases import (
    CLIENTS,
    CONF,
    PLACES,
    PROXY_CONF,
    Place,
    cases_of,
    only_waits,
    run_case,
)
from tests.interop.java4 import loopback_library
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.peers import JavaProxy

from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    need("java", "mvn", "cc")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tools = stack.enter_context(MqAdmin(5))
        cluster = stack.enter_context(Cluster(properties=CONF))
        proxy = stack.enter_context(
            JavaProxy(cluster.namesrv, loopback_library(directory), conf=PROXY_CONF)
        )
        place = Place(cluster.namesrv, cluster.brokers[0].address, proxy.endpoints, tools)
        yield stack.enter_context(
            at_once(
                request, lambda case: run_case(place, case), places=PLACES, only_waits=only_waits
            )
        )


@pytest.mark.parametrize("case", cases_of("java-grpc", "python-grpc", "node-grpc", "go-grpc"))
def test_through_javas_proxy(runs: dict[str, Future[Any]], case: str) -> None:
    need(*CLIENTS[case.partition(": ")[0]].tools)
    runs[case].result()
