"""The console on Java servers of 4.9 and 5.3: its pages, and actions on topics, groups and messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.actors import Actors
from tests.console.running import Served, Visitor, running_console
from tests.interop.on_java import MARKS, name

import cometmq

__all__ = ["name"]
pytestmark = MARKS


@pytest.fixture(params=["4.9", "5.3"], scope="module")
def namesrv(request: pytest.FixtureRequest) -> str:
    """The name server of the release line that a test asks; servers start once a session."""
    servers = {"4.9": "java4_servers", "5.3": "java_servers"}[request.param]
    address: str = request.getfixturevalue(servers)
    return address


@pytest.fixture(scope="module")
def served(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running_console(namesrv, tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture
def operator(served: Served) -> Visitor:
    return Visitor(served)


@pytest.fixture
def actors(namesrv: str) -> Iterator[Actors]:
    with Actors(namesrv) as made:
        yield made


@pytest.fixture
def admin(namesrv: str) -> Iterator[cometmq.AdminClient]:
    with cometmq.AdminClient(namesrv, timeout_ms=60_000) as made:
        yield made
