"""Provide what most modules need: a cluster, a client's face to it, and a name of the test's own.

The layers' conftest modules export these fixtures; `pytestmark = pytest.mark.cluster(brokers=2,
properties={…})` in a module sets up its cluster in another way, with the parameters of `Cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.client_faces import Face, open_face

from cometmq.testing import Cluster

FACES = ("blocking", "asyncio")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run the module's cluster: one broker as it ships, unless `pytest.mark.cluster` says otherwise."""
    mark = request.node.get_closest_marker("cluster")
    with Cluster(**(mark.kwargs if mark else {})) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def namesrv(cluster: Cluster) -> str:
    return cluster.namesrv


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, namesrv: str) -> Iterator[Face]:
    with open_face(request.param, namesrv) as face:
        yield face


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a topic and group name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)
