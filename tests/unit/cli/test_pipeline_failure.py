"""The messages about a pipeline that could not begin, or ended half-way."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.pipeline.failure import StoppedError, sentence_of, stoppable
from cometmq.errors import CometMQError, ConfigError, StoreLockedError

FILE = Path("/etc/pipeline.toml")


class SparkError(Exception):
    """An error like pyspark's own, which is not installed here."""

    __module__ = "pyspark.errors.exceptions.captured"


def said_of(error: Exception) -> CometMQError:
    said = sentence_of(error, FILE, "replay")
    assert said is not None
    return said


def test_a_mistake_is_said_with_the_file_and_the_table() -> None:
    said = said_of(ConfigError("where is '1', which Spark's SQL does not take"))
    assert isinstance(said, ConfigError)
    assert str(said).startswith("/etc/pipeline.toml, table [replay]: where is '1'")
    said = said_of(ConfigError("no name server is given: set namesrv in the table [cluster]"))
    assert str(said).startswith("/etc/pipeline.toml: no name server is given")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "[CAST_INVALID_INPUT] The value 'x' cannot be cast. SQLSTATE: 22018\n== SQL ==\nx\n",
            "[CAST_INVALID_INPUT] The value 'x' cannot be cast. SQLSTATE: 22018",
        ),
        (
            (
                "An error occurred while calling z:org.apache.spark.api.python.collectAndServe.\n"
                ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed\n"
                "\tat org.apache.spark.Some(Some.scala:7)\n"
                "Caused by: java.io.IOException: No space left on device\n\tat x.Y(Z.java:1)"
            ),
            "No space left on device",
        ),
        (
            (
                "Job aborted due to stage failure: Traceback (most recent call last):\n"
                '  File "lanes.py", line 1, in send\n'
                "cometmq.errors.ConnectError: no connection to 127.0.0.1:1: refused\n\n\tat a.B(C.java)"
            ),
            "no connection to 127.0.0.1:1: refused",
        ),
        ("", "Spark does not say why"),
    ],
)
def test_of_sparks_traces_the_cause_is_said(text: str, cause: str) -> None:
    said = str(said_of(SparkError(text)))
    assert said.startswith(f"replay ended before it was done: {cause} (repair this")
    assert "\n" not in said


def test_our_own_error_in_a_worker_keeps_its_class_and_so_the_exit_status() -> None:
    error = SparkError(
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):\n"
        '  File "store_source.py", line 132, in partitions\n'
        "cometmq.errors.StoreLockedError: /data/store is being written by a broker\n"
    )
    said = said_of(error)
    assert type(said) is StoreLockedError
    assert str(said) == "/data/store is being written by a broker"


def test_what_shows_itself_is_left_as_it_is() -> None:
    assert sentence_of(ValueError("a defect of ours"), FILE, "replay") is None
    assert sentence_of(StoreLockedError("is in use"), FILE, "replay") is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_is_told_how_it_goes_on(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    try:
        with pytest.raises(StoppedError, match="replay was stopped; run it again") as stopped:
            _stop_within(number)
    finally:
        logging.disable(logging.NOTSET)
    assert stopped.value.exit_status == 128 + number
    assert signal.getsignal(number) is before


def _stop_within(number: signal.Signals) -> None:
    with stoppable("replay"):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as error:
            # As py4j makes of it in the middle of a call.
            raise SparkError("Error while sending or receiving") from error


def test_what_nobody_stopped_is_left_as_it_is() -> None:
    with pytest.raises(ValueError, match="of ours"), stoppable("replay"):
        raise ValueError("a defect of ours")


class Py4JNetworkError(Exception):
    """The error of py4j, which is not installed here, for a call during which Java went away."""


class Py4JError(Exception):
    """Another one, for an empty answer of Java."""


def refused_in(module: str) -> ConnectionRefusedError:
    """Return the error of a call that found no process, made by a function of this module."""
    scope: dict[str, Any] = {"__name__": module}
    exec("def connect():\n    raise ConnectionRefusedError(111, 'Connection refused')", scope)
    with pytest.raises(ConnectionRefusedError) as raised:
        scope["connect"]()
    return raised.value


@pytest.mark.parametrize(
    "error",
    [
        refused_in("py4j.clientserver"),
        Py4JNetworkError("Error while sending or receiving"),
        Py4JError("An error occurred while calling o51.setJobGroup"),
    ],
)
def test_a_lost_java_is_named(error: Exception) -> None:
    assert "Spark's Java process is gone" in str(said_of(error))


def test_a_refused_connection_of_others_is_shown_as_it_is() -> None:
    assert sentence_of(refused_in("boto"), FILE, "replay") is None
    other = Py4JError("An error occurred while calling o1.x. Trace: Method x does not exist")
    assert "gone" not in str(sentence_of(other, FILE, "replay"))
