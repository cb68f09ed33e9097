"""Say in one sentence why a pipeline could not begin or ended half-way.

A mistake in the file is reported with the file and its table. An error in Spark comes wrapped in
Python's and Java's traces, of which only the cause helps the user; Spark's own log has the rest.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq import errors
from cometmq.errors import CometMQError, ConfigError

# Matches the line of one of our errors at the end of a worker's trace.
_OURS: Final = re.compile(r"^(?:\S+: )?cometmq\.errors\.(\w+): (.+)$", re.MULTILINE)
# Match the lines of a cause that Spark and Java begin with: [CONDITION] text, or
# some.java.Exception: text.
_SPARKS: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .+")
_JAVAS: Final = re.compile(r"^(?:Caused by: |: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_WRAPPERS: Final = ("Job aborted", "[PYTHON_DATA_SOURCE_ERROR]", "An exception was thrown from")
_MOST_LETTERS: Final = 600


class StoppedError(CometMQError):
    """The pipeline was stopped by the signal `number`."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(
            f"{name} was stopped; run it again with the same file, and it goes on where it was"
        )
        self.exit_status = 128 + number


@contextmanager
def stoppable(name: str) -> Iterator[None]:
    """Have SIGINT and SIGTERM end the context by a StoppedError, whatever other errors they cause.

    pyspark's own handler would talk to Java in the middle of another call, and leave the traces of
    both.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    got: list[int] = []

    def stop(number: int, _frame: object) -> None:
        got.append(number)
        # Otherwise py4j would log the call that was under way, and its whole trace.
        logging.disable(logging.CRITICAL)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException as error:
        if got:
            raise StoppedError(name, got[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def said_in_a_sentence(file: Path, table: str) -> Iterator[None]:
    """Replace an error in the context by the one that `sentence_of` makes of it, if any."""
    try:
        yield
    except Exception as error:
        if (said := sentence_of(error, file, table)) is None:
            raise
        raise said from error


def sentence_of(error: Exception, file: Path, table: str) -> CometMQError | None:
    """Return the error to show instead of `error` of the pipeline `table`; None to show `error`."""
    if isinstance(error, ConfigError):
        text = str(error)
        where = f"{file}" if "[cluster]" in text else f"{file}, table [{table}]"
        return ConfigError(f"{where}: {text}")
    if _is_of_lost_java(error):
        return CometMQError(
            f"{table} ended before it was done: Spark's Java process is gone: it crashed or was killed, "
            "perhaps because the machine ran out of memory (see the system log). Run the command again with the same file: it goes on where it "
            "was"
        )
    if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
        return None
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        name, said = ours[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, ConfigError | errors.StoreError):
            # An error of the same class, because the class decides on the exit status.
            return kind(said)
    else:
        said = _cause(text)
    return CometMQError(
        f"{table} ended before it was done: {said[:_MOST_LETTERS]} (repair this, and run it again "
        "with the same file)"
    )


def _is_of_lost_java(error: Exception) -> bool:
    """Return whether a call to Java found no process, or lost it."""
    name = type(error).__name__
    # For an empty answer py4j raises its plain error, without Java's text.
    if name == "Py4JNetworkError" or (name == "Py4JError" and "Trace" not in str(error)):
        return True
    if not isinstance(error, ConnectionError):
        return False
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("py4j.")


def _cause(text: str) -> str:
    """Return the first cause that does not only wrap another one, else the last line.

    Causes that Spark names come before those of Java.
    """
    for pattern, group in ((_SPARKS, 0), (_JAVAS, 1)):
        for found in pattern.finditer(text):
            if not found[0].startswith(_WRAPPERS) and not found[group].startswith(_WRAPPERS):
                return found[group].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "Spark does not say why"
