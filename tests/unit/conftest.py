"""Fixtures for all unit tests: no test leaves its configuration of log lines to the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import log_lines


@pytest.fixture(autouse=True)
def log_lines_as_before() -> Iterator[None]:
    """Undo what clients do to log lines when they start, and what tests configure."""
    with log_lines.as_before():
        yield
