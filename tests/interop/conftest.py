"""Servers of the interop suite, which modules share, and the order of the modules."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.client_faces import patient_starts
from tests.integration.fixtures import chosen_face, face, face_name, parametrize_faces
from tests.interop.java4 import Java4Broker, Java4Namesrv
from tests.interop.peers import JavaBroker, JavaNamesrv, missing_cpp, missing_tools

from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["chosen_face", "face", "face_name", "patient_starts"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_faces(metafunc, can_be_virtual=False)


# The modules that take longest, in the order in which lanes take them: one that began last would run
# alone at the end. Left to itself, pytest-xdist begins with the modules of most tests.
LONGEST_FIRST = (
    "test_replication_on_java",
    "test_store_after_kills",
    "test_waiting_messages",
    "test_transactions",
    "test_delayed_exchange",
    "test_access_on_java",
    "test_access_on_ours",
    "test_index_exchange",
    "test_store_exchange",
    "test_prometheus",
    "test_relay_to_java",
    "test_grpc_clients",
    "test_grpc_java_proxy",
    "test_grpc_guarded",
    "test_pop_clients",
    "test_differential_pop",
    "test_mqadmin",
    "test_scenarios",
    "test_payloads_on_java",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}

    @cache
    def rank(module: Path) -> tuple[bool, int]:
        return _shares_java_servers(module), ranks.get(module.stem, len(ranks))

    items.sort(key=lambda item: rank(item.path))


def _shares_java_servers(module: Path) -> bool:
    """Return whether a module uses `java_servers`.

    Such modules come last, so that the servers start late: an idle Java broker takes 2.4 s of a processor a minute.
    """
    text = module.read_text()
    return "java_servers" in text or "tests.interop.on_java" in text


Namesrv = str

# What the scenarios ask of a broker: selection by SQL92, retries and checks of transactions that
# come soon, and new groups that begin where they say also in young queues.
JAVA_BROKER_CONF = {
    "enablePropertyFilter": "true",
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": "100",
    "transactionCheckInterval": "150",
    # A producer has two seconds to come and answer before its message is given up.
    "transactionCheckMax": "15",
    "accessMessageInMemoryMaxRatio": "0",
    # As the broker ships: without its timers Java 5 answers each deletion of a topic with an error.
    "timerWheelEnable": "true",
}


def need(*tools: str) -> None:
    """Skip the test, naming what is missing; in CI, where nothing may be missing, fail it."""
    _need(missing_tools(*tools))


def need_cpp() -> None:
    """The same for the C++ client."""
    _need(missing_cpp())


def _need(sentence: str | None) -> None:
    if sentence is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def comet_servers() -> Iterator[Namesrv]:
    """CometMQ's name server and broker."""
    with Cluster() as cluster:
        yield cluster.namesrv


@pytest.fixture
def comet_namesrv() -> Iterator[Namesrv]:
    """CometMQ's name server, without a broker."""
    with Cluster(brokers=0) as cluster:
        yield cluster.namesrv


@pytest.fixture(scope="session")
def java_servers() -> Iterator[Namesrv]:
    """The Java name server and broker, its heap capped at 512 MiB."""
    need("java", "mvn")
    with (
        JavaNamesrv() as namesrv,
        JavaBroker(namesrv.address, conf=JAVA_BROKER_CONF) as broker,
    ):
        assert broker.heap_mib == 512
        yield namesrv.address


@pytest.fixture(scope="module")
def java4_servers() -> Iterator[Namesrv]:
    """The Java name server and broker of 4.9.

    They end with the module, because few modules use them: a start takes as much of a processor as an idle minute.
    """
    need("java", "mvn", "cc")
    with (
        Java4Namesrv() as namesrv,
        Java4Broker(namesrv.address, conf=JAVA_BROKER_CONF),
    ):
        yield namesrv.address


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes a topic or group name that no other test uses."""
    allowed = "".join(char if char.isalnum() else "-" for char in request.node.name)
    return lambda word: f"{word}-{allowed}"
