"""RocketMQ's clients for gRPC, as published, through our proxy, in front of our broker and of Java's."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.at_once import at_once
from tests.interop.conftest import need
from tests.interop.grpc_cases import (
    CLIENTS,
    CONF,
    PLACES,
    Place,
    RunningProxy,
    cases_of,
    only_waits,
    run_case,
)
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.peers import JavaBroker, JavaNamesrv, with_rust

from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TAKE_PART = [label for label in CLIENTS if label != "rust-grpc" or with_rust()]
# The cases run at both brokers at once, because the longest ones only wait.
CASES = [f"{broker}: {case}" for case in cases_of(*TAKE_PART) for broker in ("ours", "java")]


def made_place(stack: ExitStack, namesrv: str, broker: str) -> Place:
    tools = stack.enter_context(MqAdmin(5))
    proxy = stack.enter_context(RunningProxy(namesrv))
    return Place(namesrv, broker, proxy.endpoints, tools)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    need("java", "mvn")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(properties=CONF))
        namesrv = stack.enter_context(JavaNamesrv()).address
        java = stack.enter_context(JavaBroker(namesrv, conf=CONF))
        places = {
            "ours": made_place(stack, cluster.namesrv, cluster.brokers[0].address),
            "java": made_place(stack, namesrv, java.address),
        }

        def run(case: str) -> None:
            broker, _, what = case.partition(": ")
            run_case(places[broker], what)

        yield stack.enter_context(at_once(request, run, places=PLACES, only_waits=only_waits))


@pytest.mark.parametrize("case", CASES)
def test_through_the_proxy(runs: dict[str, Future[Any]], case: str) -> None:
    need(*CLIENTS[case.split(": ")[1]].tools)
    runs[case].result()
