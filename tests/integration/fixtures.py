"""Provide what most modules need: a cluster, a client's face to it, and a name of the test's own.

The layers' conftest modules export these fixtures and choose the faces by `parametrize_faces`.
`pytestmark = pytest.mark.cluster(brokers=2, properties={…})` in a module sets up its cluster in
another way, with the parameters of `Cluster`.

`pytest.mark.faces(…)` on a module or a test names the faces that it runs with; without it these are
the blocking and the asyncio one, over real sockets. `virtual` is the asyncio face in virtual time: it
has a cluster of its own for each test, and for each of `seeds` (`pytest.mark.faces("virtual", seeds=3)`).
A test without a client, which takes only `cluster` or `namesrv`, runs over real sockets, in virtual
time, or in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import pytest
from tests.integration.client_faces import BlockingFace, Face, open_face
from tests.integration.patience import be_prompt
from tests.integration.virtual import Driver, driven

from cometmq.testing import Cluster

REAL_FACES = ("blocking", "asyncio")


class ChosenFace(NamedTuple):
    """Names the face of a test, and the seed where it is virtual."""

    name: str
    seed: int = 0

    @property
    def is_virtual(self) -> bool:
        return self.name == "virtual"

    def __str__(self) -> str:
        return f"{self.name}-{self.seed}" if self.is_virtual else self.name


def parametrize_faces(metafunc: pytest.Metafunc, *, can_be_virtual: bool) -> None:
    """Run a test once for each of its faces; for real ones where the servers are not ours."""
    if "chosen_face" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("faces")
    names = list(mark.args if mark else REAL_FACES)
    if not can_be_virtual and "virtual" in names:
        names = list(REAL_FACES)
    if "face_name" not in metafunc.fixturenames:
        kinds = ["virtual" if name == "virtual" else "real" for name in names]
        names = list(dict.fromkeys(kinds))
        if names == ["real"]:
            return
    seeds = range(1, 1 + (mark.kwargs.get("seeds", 1) if mark else 1))
    faces = [
        ChosenFace(name, seed) for name in names for seed in (seeds if name == "virtual" else [0])
    ]
    metafunc.parametrize("chosen_face", faces, indirect=True, ids=str)


@pytest.fixture
def chosen_face(request: pytest.FixtureRequest) -> ChosenFace:
    return getattr(request, "param", ChosenFace("real"))


@pytest.fixture(scope="module")
def real_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run the module's cluster: one broker as it ships, unless `pytest.mark.cluster` says otherwise."""
    with Cluster(**_options(request)) as cluster:
        yield cluster


@pytest.fixture
def driver(request: pytest.FixtureRequest, chosen_face: ChosenFace) -> Iterator[Driver | None]:
    """Have the test drive a virtual cluster of its own, where its face is virtual."""
    if not chosen_face.is_virtual:
        yield None
        return
    cluster = Cluster(clock="virtual", seed=chosen_face.seed, **_options(request))
    with driven(cluster) as driver:
        yield driver


@pytest.fixture
def cluster(request: pytest.FixtureRequest, driver: Driver | None) -> Cluster:
    """Provide the module's cluster, or the virtual one of the test."""
    found: Cluster = request.getfixturevalue("real_cluster") if driver is None else driver.cluster
    return found


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    mark = request.node.get_closest_marker("cluster")
    return mark.kwargs if mark else {}


@pytest.fixture
def namesrv(cluster: Cluster) -> str:
    return cluster.namesrv


@pytest.fixture
def keeps_notes() -> bool:
    """Say whether a message that the broker delivers again has the note why the delivery before failed."""
    return True


@pytest.fixture
def face_name(chosen_face: ChosenFace) -> str:
    """Return the name of the test's face; a test that needs it runs once for each of its faces."""
    return chosen_face.name


@pytest.fixture
def face(request: pytest.FixtureRequest, face_name: str, namesrv: str) -> Iterator[Face]:
    driver = request.getfixturevalue("driver") if face_name == "virtual" else None
    with open_face(face_name, namesrv, driver) as face:
        yield face


class OwnCluster(Protocol):
    def __call__(self, **options: Any) -> AbstractContextManager[tuple[Cluster, Face]]:
        """Run a cluster of these options, and give it and the test's face to it."""


@pytest.fixture
def own_cluster(chosen_face: ChosenFace, face_name: str) -> OwnCluster:
    """Return what runs a cluster of the test's own, for tests that need it in another way."""

    @contextmanager
    def run(**options: Any) -> Iterator[tuple[Cluster, Face]]:
        if not chosen_face.is_virtual:
            with Cluster(**options) as cluster, open_face(face_name, cluster.namesrv) as face:
                yield cluster, face
            return
        cluster = Cluster(clock="virtual", seed=chosen_face.seed, **options)
        with driven(cluster) as driver, open_face(face_name, cluster.namesrv, driver) as face:
            yield cluster, face

    return run


@pytest.fixture
def prompt_face(namesrv: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockingFace]:
    """Provide the blocking face for tests of brokers' reports on clients.

    Its consumers commit, and its traces leave, in a moment.
    """
    be_prompt(monkeypatch.setattr)
    face = BlockingFace(namesrv)
    yield face
    face.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a topic and group name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)
