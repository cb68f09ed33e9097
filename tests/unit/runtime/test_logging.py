from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from subprocess import PIPE
from typing import Any

import pytest
import structlog
from tests import log_lines
from tests.waits import PROCESS_WAIT_S

from cometmq.errors import ConfigError
from cometmq.logs.setup import MAX_LOGGED_CHARACTERS, change_log_level, configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_no_test_leaves_its_handler_to_the_log_lines_of_the_next() -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    with log_lines.as_before():
        configure_logging()
        assert root.handlers != before
    assert root.handlers == before


def test_one_json_object_a_line_where_nobody_reads() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    log = structlog.get_logger("x")
    log.debug("hidden")
    log.warning("broker expired", broker="broker-a", timeout_ms=120000)
    try:
        raise ValueError("inner")
    except ValueError:
        log.exception("handler failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["event"] == "broker expired"
    assert (first["level"], first["broker"], first["timeout_ms"]) == ("warning", "broker-a", 120000)
    assert "ValueError: inner" in second["exception"]


def test_lines_for_people_on_a_terminal() -> None:
    stream = io.StringIO()
    configure_logging("debug", json=False, stream=stream)
    structlog.get_logger("x").debug("broker registered", broker="broker-a")
    assert "broker registered" in stream.getvalue()
    assert "broker=broker-a" in stream.getvalue()


def test_a_traceback_for_people_shows_no_variables() -> None:
    """With structlog's own formatter a password of any frame stood in the log."""
    stream = io.StringIO()
    configure_logging(json=False, stream=stream)

    def log_in(password: str) -> None:
        raise ValueError(f"no account has {len(password)} characters")

    try:
        log_in("hush" * 2)
    except ValueError:
        structlog.get_logger("x").exception("handler failed")
    text = stream.getvalue()
    assert "Traceback" in text
    assert "ValueError: no account has 8 characters" in text
    assert "hushhush" not in text
    assert "\x1b" not in text


def test_a_client_cannot_move_the_cursor_of_who_reads_the_log() -> None:
    """Errors quote what clients sent, also in tracebacks."""
    stream = io.StringIO()
    configure_logging(json=False, stream=stream)
    sent = "\x1b]0;owned\x07\x1b[2J\rforged"
    log = structlog.get_logger("x")
    log.warning(sent, client=sent)
    try:
        raise ValueError(sent)
    except ValueError:
        log.exception("handler failed")
    text = stream.getvalue()
    assert text.count("forged") == 3
    assert text.count("Traceback") == 1
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("json", [True, False], ids=["json", "text"])
def test_a_text_of_a_megabyte_is_cut(json: bool) -> None:
    """A client may write it, and to escape it holds up the loop."""
    stream = io.StringIO()
    configure_logging(json=json, stream=stream)
    log = structlog.get_logger("x")
    log.warning("request refused", why="\x01" * 1_000_000, peer="127.0.0.1:1")
    log.warning("y" * 1_000_000)
    lines = stream.getvalue().splitlines()
    assert all(len(line) < 8 * MAX_LOGGED_CHARACTERS for line in lines)
    for line in lines:
        assert re.search(r"(… |u2026 )\(1000000 characters\)", line), line[-200:]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="loud is none of debug, info, warning, error"):
        configure_logging("loud")


def test_a_line_does_not_come_back_when_structlog_is_reset() -> None:
    """The same line was logged again and again, longer each time, until the process had no memory
    left.
    """
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import structlog
from cometmq.logs.loggers import get_logger
from cometmq.logs.setup import configure_logging
configure_logging()
structlog.reset_defaults()
get_logger("cometmq.store").error("the disk is full")
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as running:
        # A process that ends waits for its lines for a second only.
        assert running.stderr is not None
        first = running.stderr.readline()
        _, rest = running.communicate("\n", timeout=PROCESS_WAIT_S)
        assert (running.returncode, rest) == (0, "")
    line = json.loads(first)
    assert (line["level"], line["event"]) == ("error", "event='the disk is full'")
    assert line["logger"] == "cometmq.store"


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_names_time_level_logger_and_message_first() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    structlog.get_logger("cometmq.store.flush").info("flushed", size=3)
    (line,) = lines_of(stream)
    assert list(line) == ["timestamp", "level", "logger", "event", "size"]
    assert (line["level"], line["logger"]) == ("info", "cometmq.store.flush")
    written = datetime.fromisoformat(line["timestamp"])
    assert written.utcoffset() == timedelta(0)


def test_a_changed_level_counts_for_loggers_that_exist() -> None:
    stream = io.StringIO()
    configure_logging("warning", stream=stream)
    log = structlog.get_logger("cometmq.store.flush")
    log.info("one")
    change_log_level("info")
    log.info("two")
    log.debug("three")
    change_log_level("error")
    log.warning("four")
    assert [line["event"] for line in lines_of(stream)] == ["two"]


def test_a_part_has_a_level_of_its_own() -> None:
    stream = io.StringIO()
    configure_logging("warning,cometmq.store=debug, cometmq.store.flush = error", stream=stream)
    for name in ("cometmq.broker.server", "cometmq.store.get", "cometmq.store.flush", "x"):
        log = structlog.get_logger(name)
        log.debug("low")
        log.warning("high")
    assert [(line["logger"], line["event"]) for line in lines_of(stream)] == [
        ("cometmq.broker.server", "high"),
        ("cometmq.store.get", "low"),
        ("cometmq.store.get", "high"),
        ("x", "high"),
    ]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "the log level  is none of debug, info, warning, error"),
        ("info,cometmq.store=loud", "the log level loud is none of"),
        ("info,cometmq.stroe=debug", "'cometmq.stroe=debug' does not fit"),
        ("info,cometmq", "'cometmq' does not fit"),
        ("info,asyncio=debug", "as in info,cometmq.store=debug"),
        ("info,cometmq.../x=debug", "does not fit"),
        ("info" + ",cometmq=info" * 51, "names 51 loggers, the limit is 50"),
    ],
)
def test_levels_that_do_not_fit_are_refused_and_change_nothing(text: str, reported: str) -> None:
    stream = io.StringIO()
    configure_logging("error", stream=stream)
    with pytest.raises(ConfigError, match=re.escape(reported)):
        change_log_level(text)
    structlog.get_logger("cometmq").warning("x")
    assert lines_of(stream) == []


def test_a_log_that_the_application_set_up_keeps_its_level() -> None:
    structlog.reset_defaults()  # what tests of other directories set up in this process
    with pytest.raises(ConfigError, match="change the level there"):
        change_log_level("debug")
    assert not structlog.is_configured()


def test_secrets_are_hidden_also_in_changed_keys() -> None:
    stream = io.StringIO()
    configure_logging("info", stream=stream)
    changed = {
        "tlsServerKeyPassword": "hush-1",
        "tls.server.keyPasword": "hush-4",
        "fileReservedTime": "72",
        "initAuthenticationUser": '{"username":"rocketmq","password":"hush-3"}',
    }
    structlog.get_logger("x").info("updated", changed=changed, secret_key="hush-2")
    (line,) = lines_of(stream)
    assert "hush" not in stream.getvalue()
    assert line["changed"]["fileReservedTime"] == "72"
    assert changed["tlsServerKeyPassword"] == "hush-1"
