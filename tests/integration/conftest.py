from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from tests.integration.client_faces import patient_starts
from tests.integration.fixtures import (
    chosen_face,
    cluster,
    driver,
    face,
    face_name,
    name,
    namesrv,
    own_cluster,
    parametrize_faces,
    real_cluster,
)

__all__ = [
    "chosen_face",
    "cluster",
    "driver",
    "face",
    "face_name",
    "name",
    "namesrv",
    "own_cluster",
    "patient_starts",
    "real_cluster",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_faces(metafunc, can_be_virtual=True)


@pytest.fixture(autouse=True, scope="module")
def log_lines_as_before() -> Iterator[None]:
    """Undo what a module's clients do to structlog, which later modules of this process would keep."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    if before is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**before)
