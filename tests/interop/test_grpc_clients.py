"""RocketMQ's clients for gRPC, as published, through our proxy, in front of our broker and of Java's."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.at_once import at_once
from tests.interop.conftest import need
from tests.interop.grpc_cases import CLIENTS, CONF, Place, RunningProxy, cases_of, run_case
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.peers import JavaBroker, JavaNamesrv, with_rust

from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TAKE_PART = [label for label in CLIENTS if label != "rust-grpc" or with_rust()]


@pytest.fixture(scope="module", params=["ours", "java"])
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    need("java", "mvn")
    with ExitStack() as stack:
        tools = stack.enter_context(MqAdmin(5))
        if request.param == "ours":
            cluster = stack.enter_context(Cluster(properties=CONF))
            namesrv, broker = cluster.namesrv, cluster.brokers[0].address
        else:
            namesrv = stack.enter_context(JavaNamesrv()).address
            broker = stack.enter_context(JavaBroker(namesrv, conf=CONF)).address
        proxy = stack.enter_context(RunningProxy(namesrv))
        place = Place(namesrv, broker, proxy.endpoints, tools)
        yield stack.enter_context(at_once(request, lambda case: run_case(place, case), places=6))


@pytest.mark.parametrize("case", cases_of(*TAKE_PART))
def test_through_the_proxy(runs: dict[str, Future[Any]], case: str) -> None:
    need(*CLIENTS[case.partition(": ")[0]].tools)
    runs[case].result()
