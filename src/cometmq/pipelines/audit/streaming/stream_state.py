"""Keep on disk what an audit stream has judged, and what it has to judge again.

    <state>/_state.json     the last round: how far it read, the sums of what is judged, and the
                            names of the tables that belong to it
    <state>/open-…          Parquet: messages without a verdict yet
    <state>/judged-…        Parquet: messages that one round has judged, for a while
    <state>/pending-…       Parquet: ids of sends and consumptions without a message yet
    <state>/_lock           held by the stream

A round writes tables under names that nobody else uses, syncs them, and then replaces
`_state.json`, which names them: before that nothing of the round counts, and from then on all of it.
Tables that `_state.json` does not name were left by a killed round, and are removed. Needs no
Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.audit.found import Found
from cometmq.pipelines.audit.settings import Config
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.runtime.state_files.durable import sync, write_atomically
from cometmq.runtime.state_files.file_lock import locked

_VERSION: Final = 1
# The settings on which a verdict depends. If they changed, the sums would mix two kinds of verdicts.
_ASKED: Final = (
    "topics",
    "groups",
    "archive",
    "sent",
    "consumed",
    "trace_topic",
    "business_key",
    "subscriptions",
    "rules",
    "fail_on",
    "resend_window_s",
    "delay_levels",
)


class Place(msgspec.Struct, frozen=True):
    """How far a queue was read: from `first` to below `to`. `low` was the lowest offset of its
    log. `mark` is a message that was read, to recognise a topic that was created again
    (`cometmq.spark.live.identity`); states of earlier versions have none.
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    to: int
    low: int
    mark: tuple[int, int] | None = None

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)


class Judged(msgspec.Struct, frozen=True):
    """A table of messages that the round with this cut has judged."""

    name: str
    cut_ms: int


class State(msgspec.Struct, frozen=True):
    """Holds the state after a round.

    read_ms: everything stored before this time was read.
    judged_ms: sends and consumptions before this time have a verdict, or are pending.
    since_ms: older evidence is about nothing that waits for a verdict.
    hours_from: sums of earlier hours, counted from the epoch, are no longer kept by hour.
    """

    asked: dict[str, Any]
    started_ms: int
    version: int = _VERSION
    rounds: int = 0
    cut_ms: int = 0
    read_ms: int = 0
    judged_ms: int | None = None
    since_ms: int | None = None
    queues: tuple[Place, ...] = ()
    first_sent_ms: dict[str, int] = {}
    expired_ms: dict[str, int] = {}
    has_batches: bool = False
    open: str = ""
    pending: str = ""
    judged: tuple[Judged, ...] = ()
    totals: tuple[Found, ...] = ()
    hours_from: int | None = None

    def by_queue(self) -> dict[MessageQueue, Place]:
        return {place.queue: place for place in self.queues}

    @property
    def tables(self) -> set[str]:
        return {name for name in (self.open, self.pending) if name} | {j.name for j in self.judged}


class StateDirectory:
    """The directory of one stream. Raises ConfigError for one that cannot be used."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._file = self.path / "_state.json"
        self._synced: set[str] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other streams out."""
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.path / "_lock"))
            except BlockingIOError as error:
                raise ConfigError(
                    f"state is {str(self.path)!r}, where another audit is at work: stop it, or give "
                    "this one another directory"
                ) from error
            except OSError as error:
                raise ConfigError(
                    f"state is {str(self.path)!r}, where nothing can be written: "
                    f"{error.strerror or error}; name a directory that this user can write to"
                ) from error
            yield

    def load(self, config: Config, now_ms: int) -> State:
        """Return the state of the last round, a new one if there was none, and remove what killed
        rounds left.

        Raise ConfigError if that state was made with settings that judge otherwise.
        """
        asked = asked_of(config)
        try:
            state = msgspec.json.decode(self._file.read_bytes(), type=State)
        except FileNotFoundError:
            state = State(asked, now_ms)
        except (msgspec.DecodeError, OSError) as error:
            raise ConfigError(
                f"{self._file} cannot be read ({error}): restore it from a copy, or give the audit "
                "another state, with which it begins again"
            ) from error
        if state.version != _VERSION:
            raise ConfigError(
                f"{self._file} is of version {state.version}, this is for {_VERSION}: use the "
                "CometMQ that wrote it, or a newer one"
            )
        for name in _ASKED:
            if state.asked.get(name) != asked[name]:
                raise ConfigError(
                    f"{name}: the audit in {self.path} was begun with {state.asked.get(name)!r}, not "
                    f"{asked[name]!r}; give it as it was to go on, or give this audit another state"
                )
        self._remove_others(state)
        self._synced = state.tables
        return state

    def new_table(self, kind: str) -> Path:
        """Return a directory name that nobody else uses; the directory does not exist yet."""
        return self.path / f"{kind}-{SYSTEM_RANDOMNESS.token_hex(16)}"

    def commit(self, state: State) -> None:
        """Make the state count, with the tables that it names. Raise OSError; then it does not."""
        for name in state.tables - self._synced:
            _sync_below(self.path / name)
        sync(self.path)
        self._synced = state.tables
        write_atomically(self._file, msgspec.json.encode(state))
        self._remove_others(state)

    def _remove_others(self, state: State) -> None:
        kept = state.tables
        for path in self.path.iterdir():
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def asked_of(config: Config) -> dict[str, Any]:
    """Return the settings that a verdict depends on, as they look when they are read from a file."""
    asked = {name: getattr(config, name) for name in _ASKED}
    stored: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(asked))
    return stored


def oldest_first(times: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Return the lower time of each topic."""
    return {
        topic: min(time for time in (times.get(topic), others.get(topic)) if time is not None)
        for topic in {*times, *others}
    }


def _sync_below(directory: Path) -> None:
    """Sync a table that Spark has written."""
    for path in directory.rglob("*"):
        sync(path)
    sync(directory)
