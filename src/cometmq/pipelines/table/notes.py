"""Pass notes from a driver to its supervisor: lines of JSON in a pipe.

Each note is a sign of life. The driver inherits the pipe, and finds its number in an environment variable.
In the other direction there is one signal only: the supervisor closes the driver's standard input, and the
driver finishes its batch and ends. So when the supervisor ends, for any reason, the driver ends, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from cometmq.errors import CometMQError, ConfigError, DataLossError

VARIABLE: Final = "COMETMQ_TABLE_SUPERVISOR"
_STANDARD_INPUT: Final = 0
# The supervisor's line names the cause; the driver writes the whole text to standard error.
_MOST_LETTERS: Final = 300


class TopicFigures(msgspec.Struct, frozen=True):
    """A topic of the tables.

    rows: in the tables. missing: gone before they could be archived. lag: messages that the log had
    beyond the tables at the last look, at brokers that answered. complete_until_ms: the tables have all
    that was stored before this time, in ms since the epoch; None while that is unknown. undecodable: rows
    of the decoded tables for bodies that do not fit; undecoded: archived messages that wait for their
    decoding; both None for a topic without [decode].
    """

    topic: str
    rows: int
    missing: int
    lag: int
    complete_until_ms: int | None
    files: int
    bytes: int
    undecodable: int | None = None
    undecoded: int | None = None


class TableFigures(msgspec.Struct, frozen=True):
    """A published table. problem: the reason why it is behind, if it is."""

    format: str
    snapshots: int
    problem: str | None


class Figures(msgspec.Struct, frozen=True):
    """The tables after a round of a driver. batches: archived by this driver. problems: found by its last
    proof.
    """

    topics: tuple[TopicFigures, ...]
    tables: tuple[TableFigures, ...]
    batches: int
    problems: int


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """failed: the reason why the driver ends. is_final: no restart could help.
    is_given_wrong: the configuration does not fit, or a place that it names cannot be reached.
    """

    figures: Figures | None = None
    failed: str | None = None
    is_final: bool = False
    is_given_wrong: bool = False


class Notes:
    """Writes to the supervisor from any thread; does nothing where there is none."""

    def __init__(self) -> None:
        number = os.environ.get(VARIABLE)
        self._file = None if number is None else os.fdopen(int(number), "wb", closefd=False)
        self._lock = threading.Lock()

    @property
    def has_supervisor(self) -> bool:
        return self._file is not None

    def write(self, note: Note) -> None:
        if self._file is not None:
            with self._lock, suppress(OSError):  # the end of standard input has the same meaning
                self._file.write(msgspec.json.encode(note) + b"\n")
                self._file.flush()

    @contextmanager
    def failure_noted(self) -> Iterator[None]:
        """Note an error that the context raises, and raise it again."""
        try:
            yield
        except Exception as error:
            text = " ".join(str(error).split())
            if not isinstance(error, CometMQError):
                text = f"{type(error).__name__}: {text}"
            if len(text) > _MOST_LETTERS:
                text = f"{text[:_MOST_LETTERS]}…"
            self.write(
                Note(
                    failed=text,
                    # The next driver would find the same gap.
                    is_final=isinstance(error, DataLossError),
                    is_given_wrong=isinstance(error, ConfigError) and not _is_held(error),
                )
            )
            raise


def _is_held(error: BaseException | None) -> bool:
    """Return whether another process has what the driver needs: for now, as a driver whose supervisor was
    killed, and which finishes its batch.
    """
    while error is not None and not isinstance(error, BlockingIOError):
        error = error.__cause__
    return error is not None


def stop_with_input(stopped: threading.Event) -> None:
    """Set the event when standard input ends."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(_STANDARD_INPUT, 1024):
                pass
        stopped.set()

    threading.Thread(target=wait, name="standard-input", daemon=True).start()


def notes_of(line: bytes) -> Note | None:
    """Return the note of a line, None for a line that a killed driver left unfinished."""
    try:
        return msgspec.json.decode(line, type=Note)
    except msgspec.DecodeError:
        return None
