"""A client's log lines in an application that did not configure structlog."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from cometmq.client.logs import use_standard_logging


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_lines_follow_the_standard_levels(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    use_standard_logging()
    log = structlog.get_logger("cometmq.client.test")
    log.debug("not to be seen")
    log.warning("offset not committed", queue="t@b:0", offset=7)
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        (
            "cometmq.client.test",
            logging.WARNING,
            "event='offset not committed' queue='t@b:0' offset=7",
        )
    ]
    assert capsys.readouterr().out == ""


def test_the_applications_own_configuration_stays() -> None:
    structlog.configure(processors=[])
    use_standard_logging()
    assert structlog.get_config()["processors"] == []
