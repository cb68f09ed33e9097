"""Keep the files of messages that exactly-once delivery is to send (docs/internals/spark-sink.md).

    <outbox>/lock
    <outbox>/batch-17/part-3-4f0c….arrow    messages of one attempt of one task
    <outbox>/batch-17/decided.json          which of these files count, and the marks
    <outbox>/batch-17/done                  all messages of the batch are in their topics

The directory may lie in any file system that pyarrow supports; a path without a scheme is on this
machine. The directory of a job is named after its transaction id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import fs

from cometmq.errors import ConfigError, DataLossError
from cometmq.model.queue import MessageQueue
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.runtime.state_files.file_lock import locked
from cometmq.spark.sink.columns import OUTBOUND

_DECIDED: Final = "decided.json"
_DONE: Final = "done"
_BATCH: Final = "batch-"
_JOB: Final = "job-"
_NS_PER_MS: Final = 1_000_000
# Spark's names of file systems that Arrow calls by another name.
_SCHEMES: Final = {"s3a:": "s3:", "s3n:": "s3:"}


class Mark(msgspec.Struct, frozen=True):
    """A queue, and the lowest offset that a message of the batch can have in it."""

    topic: str
    broker: str
    queue_id: int
    offset: int

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)


class Decision(msgspec.Struct, frozen=True):
    """Says what makes up a batch. `owner` is the query's id. Keys choose among a topic's marks in
    the order of this list.
    """

    owner: str
    unit: str
    parts: list[str]
    rows: int
    marks: list[Mark]


class Decided(NamedTuple):
    """The contents of the outbox: the latest batch that is decided, or a job (without a batch
    id).
    """

    owner: str
    batch_id: int | None
    done: bool


def batch_unit(batch_id: int) -> str:
    return f"{_BATCH}{batch_id}"


def job_unit(transaction_id: str) -> str:
    return f"{_JOB}{transaction_id}"


class Outbox:
    """An outbox directory, given as a path or URI. Raises ConfigError when it cannot be used."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __getstate__(self) -> dict[str, str]:
        return {"uri": self.uri}

    @cached_property
    def _place(self) -> tuple[Any, str]:
        uri = self.uri
        for theirs, ours in _SCHEMES.items():
            uri = uri.replace(theirs, ours, 1) if uri.startswith(theirs) else uri
        if uri.startswith("file:/") and not uri.startswith("file://"):
            uri = f"file://{uri.removeprefix('file:')}"
        try:
            place: tuple[Any, str] = fs.FileSystem.from_uri(uri)
            place[0].create_dir(place[1], recursive=True)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                f"the outbox {self.uri} cannot be used: {error}; give a directory that the driver and "
                "all workers can write to by the option outbox"
            ) from error
        return place

    @property
    def files(self) -> Any:
        return self._place[0]

    @property
    def root(self) -> str:
        return self._place[1]

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, fs.LocalFileSystem)

    def unit(self, name: str) -> Unit:
        return Unit(self, name)

    def latest(self) -> Decided | None:
        """Return the highest batch that is decided."""
        for number in sorted(self._batches(), reverse=True):
            unit = self.unit(batch_unit(number))
            decision = unit.decision()
            if decision is not None:
                return Decided(decision.owner, number, unit.is_done)
        return None

    def latest_marks(self) -> list[Mark]:
        """Return the queues of the latest decided batch; none for jobs, which have no order."""
        latest = self.latest()
        if latest is None or latest.batch_id is None:
            return []
        decision = self.unit(batch_unit(latest.batch_id)).decision()
        return [] if decision is None else decision.marks

    def job(self, transaction_id: str) -> Decided | None:
        """Return the job of that transaction id, if it is decided."""
        unit = self.unit(job_unit(transaction_id))
        decision = unit.decision()
        return None if decision is None else Decided(decision.owner, None, unit.is_done)

    def forget_before(self, batch_id: int) -> None:
        """Remove earlier batches; no query goes back behind a decided batch."""
        for number in self._batches():
            if number < batch_id:
                self.files.delete_dir(f"{self.root}/{batch_unit(number)}")

    def forget_jobs(self, before_ms: int, but: str) -> None:
        """Remove jobs that were done before this time, except the unit `but`. Unfinished jobs stay."""
        for info in self.files.get_file_info(fs.FileSelector(self.root)):
            if not info.base_name.startswith(_JOB) or info.base_name == but:
                continue
            done = self.files.get_file_info(f"{info.path}/{_DONE}")
            if done.type != fs.FileType.File or done.mtime_ns is None:
                continue
            if done.mtime_ns < before_ms * _NS_PER_MS:
                # The decision goes first: one without `done` would be a job to resume, of which
                # nothing is left.
                with suppress(FileNotFoundError):
                    self.files.delete_file(f"{info.path}/{_DECIDED}")
                with suppress(FileNotFoundError):  # another job forgets it, too
                    self.files.delete_dir(info.path)

    def _batches(self) -> list[int]:
        infos = self.files.get_file_info(fs.FileSelector(self.root))
        names = [info.base_name for info in infos if info.base_name.startswith(_BATCH)]
        numbers = [name.removeprefix(_BATCH) for name in names]
        return [int(number) for number in numbers if number.isdecimal()]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the senders; wait while another process on this machine sends.

        Other file systems than the local one have no lock.
        """
        if not self.is_local:
            yield
            return
        with locked(Path(self.root, "lock"), wait=True):
            yield


def _new_name() -> str:
    # Not from a parameter: Spark would copy it to every task, and with the same seed two attempts
    # at a partition would write the same file.
    return SYSTEM_RANDOMNESS.token_hex(16)


class Unit:
    """The files of one batch or job in the outbox."""

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox = outbox
        self.name = name

    @property
    def _path(self) -> str:
        return f"{self._outbox.root}/{self.name}"

    @contextmanager
    def part(self, partition: int) -> Iterator[tuple[str, Callable[[Any], None]]]:
        """Create a file for messages; yield its name, and a function that writes a batch of
        OUTBOUND to it.
        """
        files = self._outbox.files
        files.create_dir(self._path, recursive=True)
        name = f"part-{partition}-{_new_name()}.arrow"
        path = f"{self._path}/{name}"
        with (
            files.open_output_stream(path) as stream,
            pa.ipc.new_stream(stream, OUTBOUND) as writer,
        ):
            yield name, writer.write_batch
        self._sync(path)

    def read(self, part: str) -> Iterator[Any]:
        """Yield the batches of a file. Raise DataLossError when the file is gone."""
        try:
            stream = self._outbox.files.open_input_stream(f"{self._path}/{part}")
        except FileNotFoundError as error:
            raise DataLossError(
                f"the file {part} of {self.name} is gone from the outbox {self._outbox.uri}, though "
                "the batch is decided: put it back, or remove the query's checkpoint and outbox and "
                "start again"
            ) from error
        with stream, pa.ipc.open_stream(stream) as reader:
            yield from reader

    def decision(self) -> Decision | None:
        """Return the decision, or None if there is none yet."""
        try:
            with self._outbox.files.open_input_stream(f"{self._path}/{_DECIDED}") as stream:
                return msgspec.json.decode(stream.read(), type=Decision)
        except FileNotFoundError:
            return None

    def decide(self, decision: Decision) -> None:
        """Write the decision: from now on the batch counts."""
        self._write(_DECIDED, msgspec.json.encode(decision))

    @property
    def is_done(self) -> bool:
        info = self._outbox.files.get_file_info(f"{self._path}/{_DONE}")
        return bool(info.type == fs.FileType.File)

    def finish(self) -> None:
        """Note that all messages of the batch are in their topics, and remove its parts."""
        self._write(_DONE, b"")
        self._remove_parts()

    def abandon(self) -> None:
        """Remove what the tasks wrote, unless a decision says that it counts."""
        if self.decision() is None:
            with suppress(FileNotFoundError):
                self._outbox.files.delete_dir(self._path)

    # Inside

    def _remove_parts(self) -> None:
        files = self._outbox.files
        for info in files.get_file_info(fs.FileSelector(self._path)):
            if info.base_name.startswith("part-"):
                with suppress(FileNotFoundError):
                    files.delete_file(info.path)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file as a whole or not at all."""
        files = self._outbox.files
        files.create_dir(self._path, recursive=True)
        temporary = f"{self._path}/.{name}-{_new_name()}"
        with files.open_output_stream(temporary) as stream:
            stream.write(content)
        self._sync(temporary)
        files.move(temporary, f"{self._path}/{name}")
        self._sync(self._path)
        self._sync(self._outbox.root)

    def _sync(self, path: str) -> None:
        if not self._outbox.is_local:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
