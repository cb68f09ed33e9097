"""Fixtures for all unit tests: no test leaves its configuration of log lines to the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def log_lines_as_before() -> Iterator[None]:
    """Undo what clients do to structlog when they start, and what tests configure."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    if before is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**before)
