"""One cluster and one console serve all modules of the directory; each test uses names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.console.running import Served, Visitor, chromium, running_console
from tests.longest_first import begin_with
from tests.waits import JVM_WAIT_S

from cometmq import AdminClient
from cometmq.testing import Cluster

# Each takes a quarter of a minute or more.
LONGEST = (
    "test_journeys",
    "test_accessible",
    "test_outside",
    "test_limits",
    "test_limits_named",
    "test_broken_cluster",
    "test_groups",
    "test_live",
    "test_hostile",
    "test_links",
    "test_feel",
    "test_messages",
    "test_letters",
    "test_topics",
    "test_overview",
    "test_safety",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that take longest, and have a test in a browser that takes too long end
    its process.

    By a signal the test would end amid Playwright's loop, and closing the browser would wait for
    ever. Playwright's own calls give up after WAIT_S.
    """
    begin_with(LONGEST, Path(__file__).parent, items)
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(JVM_WAIT_S, method="thread"), append=False)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Iterator[AdminClient]:
    with AdminClient(cluster.namesrv) as made:
        yield made


@pytest.fixture(scope="session")
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running_console(cluster.namesrv, tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture(scope="session")
def operator(served: Served) -> Visitor:
    return Visitor(served)


@pytest.fixture(scope="session")
def reader(served: Served) -> Visitor:
    return Visitor(served, "reader")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made
