from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE

import pytest
import structlog

from cometmq.errors import ConfigError
from cometmq.runtime.logging import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


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


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="loud is none of debug, info, warning, error"):
        configure_logging("loud")


def test_a_line_does_not_come_back_when_a_client_configures_structlog_anew() -> None:
    """The same line was logged again and again, longer each time, until the process had no memory
    left.
    """
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import structlog
from cometmq.client.logs import use_standard_logging
from cometmq.runtime.logging import configure_logging
configure_logging()
structlog.reset_defaults()
use_standard_logging()
structlog.get_logger("cometmq.store").error("the disk is full")
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as running:
        # A process that ends waits for its lines for a second only.
        assert running.stderr is not None
        first = running.stderr.readline()
        _, rest = running.communicate("\n", timeout=120)
        assert (running.returncode, rest) == (0, "")
    line = json.loads(first)
    assert (line["level"], line["event"]) == ("error", "event='the disk is full'")
    assert line["logger"] == "cometmq.store"
