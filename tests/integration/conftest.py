from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import log_lines
from tests.integration.client_faces import patient_starts
from tests.integration.fixtures import (
    chosen_face,
    cluster,
    driver,
    face,
    face_name,
    keeps_notes,
    name,
    namesrv,
    own_cluster,
    parametrize_faces,
    real_cluster,
)
from tests.integration.patience import be_thorough

from cometmq.client.membership import offset_store
from cometmq.client.pulling import puller

__all__ = [
    "chosen_face",
    "cluster",
    "driver",
    "face",
    "face_name",
    "keeps_notes",
    "name",
    "namesrv",
    "own_cluster",
    "patient_starts",
    "real_cluster",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_faces(metafunc, can_be_virtual=True)


# Half a second otherwise, for each consumer that is closed.
SERVED_S = 0.02


@pytest.fixture(autouse=True, scope="module")
def requests_of_a_connection_served_in_order() -> Iterator[None]:
    """Have consumers that close commit soon behind their last pull and commit.

    They wait until a Java broker has served these, which it does in other threads. Ours serves the
    requests of a connection in their order.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(puller, "PULL_SERVED_S", SERVED_S)
        patch.setattr(offset_store, "COMMIT_SERVED_S", SERVED_S)
        yield


@pytest.fixture(autouse=True, scope="module")
def queries_of_the_whole_index() -> Iterator[None]:
    """Have the module's brokers index all messages before they answer a query (`be_thorough`)."""
    with pytest.MonkeyPatch.context() as patch:
        be_thorough(patch.setattr)
        yield


@pytest.fixture(autouse=True, scope="module")
def log_lines_as_before() -> Iterator[None]:
    """Undo what a module's clients do to log lines, which later modules of this process would keep."""
    with log_lines.as_before():
        yield
