"""How long a test may take: as long as it would on a machine that is ten times slower, and more.

A deadline inside a test, such as `client_faces.WAIT_S`, says what was missing; this limit is only for
tests that hang.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LIMIT_S = 300.0
# Suites of other rooms have limits of their own, of the command line or of the module.
_ROOMS = [Path(__file__).parent / name for name in ("unit", "integration")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_these = any(room in item.path.parents for room in _ROOMS)
        if of_these and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))
