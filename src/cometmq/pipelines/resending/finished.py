"""Remember finished replays and redrives in a line each, and drop their ledgers after a while.

    <state>/_finished.jsonl   a line for each id whose ledger was dropped
    <state>/_finished.lock    held while that file is replaced

An id of a dropped ledger can never be used again, because nothing is left to show which messages
were sent. A ledger that is not finished, or that a run holds, is never dropped.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from cometmq.errors import CometMQError, ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.resending.ledger import Ledger, Plan
from cometmq.runtime.state_files.durable import write_atomically
from cometmq.runtime.state_files.file_lock import locked

log = get_logger(__name__)

# Ids have neither dots nor a leading underscore with a dot behind it.
_TABLE: Final = "_finished.jsonl"
_LOCK: Final = "_finished.lock"
_REMOVED: Final = ".removed-"


class Line(msgspec.Struct, frozen=True):
    """Holds the rest of the ledger of a finished replay or redrive."""

    id: str
    ended: datetime
    sent: int
    already_there: int
    refused: int


class Finished:
    """The finished ids of a state directory whose ledgers were dropped."""

    def __init__(self, state: str) -> None:
        self._state = Path(state)

    def check(self, name: str) -> None:
        """Raise ConfigError for an id that was finished, and whose ledger is no longer there."""
        line = self._lines().get(name)
        if line is not None:
            raise ConfigError(
                f"id: {name} was finished on {line.ended:%Y-%m-%d} with "
                f"{line.sent + line.already_there:,} messages in their targets, and its ledger was "
                "dropped after keep_days; choose another id"
            )

    def drop(self, keep_days: int, now: datetime, but: str) -> list[str]:
        """Drop the ledgers of ids that were finished more than `keep_days` ago, and return their
        ids; the ledger of `but` stays. Failures are logged, since the next run tries it again.
        """
        dropped = []
        try:
            for path in sorted(self._state.iterdir()):
                if path.name.startswith(_REMOVED):
                    shutil.rmtree(path, ignore_errors=True)
                elif path.is_dir() and path.name != but and self._drop(path, keep_days, now):
                    dropped.append(path.name)
        except (OSError, CometMQError) as error:
            log.warning("old ledgers are not dropped", state=str(self._state), reason=str(error))
        return dropped

    # Inside

    def _drop(self, path: Path, keep_days: int, now: datetime) -> bool:
        """Drop a ledger if it is finished for long enough and nobody holds it."""
        # Checked without a lock first, because most ledgers are kept.
        if self._ended(path, now - timedelta(days=keep_days)) is None:
            return False
        with suppress(BlockingIOError), locked(path / "lock"):
            line = self._ended(path, now - timedelta(days=keep_days))
            if line is None:
                return False
            self._add(line)
            # From here on the line counts. The next run repeats the rest if need be.
            removed = path.with_name(f"{_REMOVED}{path.name}")
            shutil.rmtree(removed, ignore_errors=True)
            path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
            return True
        return False

    def _ended(self, path: Path, before: datetime) -> Line | None:
        """Return the line of a ledger that was finished before this time, else None."""
        if not (path / "progress.json").exists():
            return None
        progress = Ledger(str(self._state), path.name, Plan).progress()
        ended = progress.ended
        if ended is None:  # written by a version that did not note it
            ended = datetime.fromtimestamp((path / "progress.json").stat().st_mtime, UTC)
        if not progress.finished or ended >= before:
            return None
        return Line(path.name, ended, progress.sent, progress.already_there, progress.refused)

    def _add(self, line: Line) -> None:
        with locked(self._state / _LOCK, wait=True):
            lines = self._lines() | {line.id: line}
            content = msgspec.json.Encoder().encode_lines(list(lines.values()))
            write_atomically(self._state / _TABLE, content)

    def _lines(self) -> dict[str, Line]:
        """Return the lines by id. Raise ConfigError for a damaged file."""
        path = self._state / _TABLE
        try:
            content = path.read_bytes()
            lines = msgspec.json.Decoder(Line).decode_lines(content)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"state: {path} cannot be read ({error}); it says which ids were used: restore it "
                "from a copy, or give another state"
            ) from error
        return {line.id: line for line in lines}
