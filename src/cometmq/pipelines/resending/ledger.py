"""Keep on disk how far a replay or redrive is: its plan, made when it began, and its progress.

    <state>/<id>/plan.json       written once, before anything is sent
    <state>/<id>/progress.json   replaced before each chunk and at the end
    <state>/<id>/lock            held by the run at work

Only the driver reads and writes these files.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from cometmq.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.resending.timeline import Timeline
from cometmq.runtime.state_files.file_lock import locked
from cometmq.runtime.state_files.json_file import JsonFile

P = TypeVar("P", bound="Plan")


class Plan(msgspec.Struct, kw_only=True):
    """The base of the plan that is made when the work begins.

    asked: the configuration that the plan was made for. Another one under the same id is refused.
    """

    asked: dict[str, Any]


class ResendPlan(Plan):
    """The base of the plans of a replay and a redrive.

    targets: the queues to send to, in an order that never changes: a target's number is its place
        here.
    timeline: when the counted messages were stored.
    """

    targets: list[MessageQueue]
    timeline: Timeline

    @property
    @abstractmethod
    def chosen(self) -> int:
        """Return how many messages are to be sent."""


class Progress(msgspec.Struct, kw_only=True):
    """How far the work is.

    chunks_done: how many chunks are finished.
    bases: for each target queue, the offset from which on its log may hold messages that the chunk
        in progress has sent.

    The counts are those of finished chunks. `ended` is when the last one was.
    """

    chunks_done: int = 0
    bases: list[int] = []
    sent: int = 0
    already_there: int = 0
    refused: int = 0
    reasons: list[str] = []
    finished: bool = False
    ended: datetime | None = None

    def add(self, outcome: Any) -> None:
        """Add the outcomes of a target's messages, a `lanes.Outcome`."""
        self.sent += outcome.sent
        self.already_there += outcome.already_there
        self.refused += outcome.refused
        if outcome.reason and outcome.reason not in self.reasons:
            self.reasons.append(outcome.reason)


class Ledger(Generic[P]):
    """The directory of one id below `state`. Raises ConfigError for files that cannot be used."""

    def __init__(self, state: str, name: str, kind: type[P]) -> None:
        self._directory = Path(state) / name
        self._kind = kind
        self._id = name
        self._plan = JsonFile(self._directory / "plan.json")
        self._progress = JsonFile(self._directory / "progress.json")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs of this id out. Raise ConfigError when one is at work."""
        path = self._directory / "lock"
        with ExitStack() as stack:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(locked(path))
            except BlockingIOError as error:
                raise ConfigError(
                    f"id: {self._id} is being run by {path.read_text().strip() or 'somebody else'}; "
                    "wait for it, or choose another id"
                ) from error
            except OSError as error:
                raise ConfigError(
                    f"state: {self._directory} cannot be written to: {error.strerror or error}; "
                    "name a directory that can"
                ) from error
            file.truncate(0)
            file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
            file.flush()
            yield

    def plan(self, asked: Mapping[str, Any]) -> P | None:
        """Return the plan that was decided before, None for a new id.

        Raise ConfigError if the plan was made for settings other than those `asked` for now.
        """
        plan = self._plan.read(lambda text: msgspec.json.decode(text, type=self._kind))
        if plan is None:
            return None
        before, now = plan.asked, _as_stored(asked)
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise ConfigError(
                    f"{name}: the id {self._id} was begun with {before.get(name)!r}, not "
                    f"{now.get(name)!r}; give it as it was to go on, or choose another id"
                )
        return plan

    def begin(self, plan: P) -> P:
        """Keep a new plan, and return it."""
        plan.asked = _as_stored(plan.asked)
        self._write(self._plan, plan)
        return plan

    def progress(self) -> Progress:
        found = self._progress.read(lambda text: msgspec.json.decode(text, type=Progress))
        return found or Progress()

    def save(self, progress: Progress) -> None:
        self._write(self._progress, progress)

    def _write(self, file: JsonFile, value: msgspec.Struct) -> None:
        try:
            file.write(msgspec.json.encode(value).decode())
        except OSError as error:
            raise ConfigError(
                f"state: {file.path} cannot be written: {error.strerror or error}"
            ) from error


def _as_stored(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as they look when they are read from a file."""
    stored: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(asked))
    return stored
