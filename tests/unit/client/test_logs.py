"""A client's log lines in an application that did not configure structlog."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from cometmq.logs.loggers import get_logger


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
    log = get_logger("cometmq.client.test")
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


def test_an_application_that_configures_structlog_gets_the_lines() -> None:
    log = get_logger("cometmq.client.test")
    with capture_logs() as lines:
        log.warning("offset not committed", offset=7)
    assert lines == [{"event": "offset not committed", "offset": 7, "log_level": "warning"}]


def test_a_line_names_the_module_and_function_that_wrote_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    get_logger("cometmq.client.test").warning("offset not committed")
    (record,) = caplog.records
    assert (record.module, record.funcName) == (
        "test_logs",
        "test_a_line_names_the_module_and_function_that_wrote_it",
    )


def test_a_traceback_is_the_applications_to_format() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    logger = logging.getLogger("cometmq.client.consuming.listeners.listening")
    logger.addHandler(handler)
    log = get_logger("cometmq.client.consuming.listeners.listening")
    try:
        try:
            raise ValueError("100 % wrong")
        except ValueError as error:
            log.warning("the listener failed", queue="t@b:0", exc_info=error)
            log.exception("so did this")
    finally:
        logger.removeHandler(handler)
    lines = stream.getvalue().splitlines()
    first = "WARNING:cometmq.client.consuming.listeners.listening:event='the listener failed' queue='t@b:0'"
    assert lines[:2] == [first, "Traceback (most recent call last):"]
    assert lines.count("ValueError: 100 % wrong") == 2
    assert "ERROR:cometmq.client.consuming.listeners.listening:event='so did this'" in lines


def test_an_exception_reaches_handlers_as_one(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("x")
    get_logger("cometmq.test").warning("failed", exc_info=error)
    info = caplog.records[0].exc_info
    assert info is not None
    assert info[1] is error
