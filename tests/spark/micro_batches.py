"""A Python source driven as Spark's micro batches do it, without a JVM.

As in MicroBatchExecution and PythonMicroBatchStream: an offset goes through JSON each time, the end of
a batch is logged before it runs, tasks and their readers are pickles, and what a task gave counts only
when it came to its end. After a restart a batch that was logged and not committed is run again from
the end of the one before, the first one from a new `initialOffset`.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource_internal import ReadLimitRegistry

from cometmq.spark.live.source import RocketMQSource

LIMITS = ReadLimitRegistry()
Place = tuple[str, str, int, int]
Offset = dict[str, Any]


class CrashError(Exception):
    """The end of the driver, where the test wants it."""


class MicroBatches:
    """A query; of its tasks a share of `failures` fails, `between` is called where other things may
    happen.
    """

    def __init__(
        self,
        rng: random.Random,
        between: Callable[[], None],
        *,
        failures: float = 0.2,
        source: Any = RocketMQSource,
    ) -> None:
        self._class = source
        self._failures = failures
        self._rng = rng
        self._between = between
        # Called once, behind the first rows of a task.
        self.between_chunks: Callable[[], None] | None = None
        self._reader: Any = None
        self._source: Any = None
        self._available_now = False
        self.offset_log: list[str] = []
        self.committed = 0
        self.first: Offset = {}
        # What the sink has of each batch: a second run of one replaces the first.
        self.output: dict[int, list[Place]] = {}

    def start(self, options: dict[str, str], *, available_now: bool = False) -> None:
        """A new driver with a new planner."""
        self.stop()
        self._source = self._class(options)
        self._reader = self._new_reader()
        self._available_now = available_now
        if available_now:
            self._reader.prepareForTriggerAvailableNow()

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def trigger(self, crash: str | None = None) -> bool:
        """Run one batch, if there is anything new. Raises CrashError at the place named, if it is reached."""
        start = self._start()
        if len(self.offset_log) == self.committed:
            end = self._planned(start)
            if self.committed and end == start:
                return False
            if crash == "planned":
                raise CrashError
            self.offset_log.append(json.dumps(end))
            if len(self.offset_log) == 1:
                self.first = start
            else:
                self._reader.commit(start)
        else:
            end = json.loads(self.offset_log[-1])
        if crash == "logged":
            raise CrashError
        self._between()
        self.output[self.committed] = self._run(start, end)
        if crash == "run":
            raise CrashError
        self.committed += 1
        return True

    def drain(self, options: dict[str, str]) -> None:
        self.start(options, available_now=True)
        while self.trigger():
            pass
        self.stop()

    # Inside

    def _new_reader(self) -> Any:
        assert self._source is not None
        return self._source.streamReader(self._source.schema())

    def _start(self) -> Offset:
        if self.committed:
            return through_json(json.loads(self.offset_log[self.committed - 1]))
        return through_json(self._reader.initialOffset())

    def _planned(self, start: Offset) -> Offset:
        limit = self._reader.getDefaultReadLimit()
        given = dataclasses.asdict(limit) | {"_type": type(limit).__name__}
        limit = LIMITS.get(json.loads(json.dumps(given)))
        return through_json(self._reader.latestOffset(start, limit))

    def _run(self, start: Offset, end: Offset) -> list[Place]:
        tasks = [cloudpickle.dumps(part) for part in self._reader.partitions(start, end)]
        self._rng.shuffle(tasks)
        reader = cloudpickle.dumps(self._new_reader())
        places: list[Place] = []
        for task in tasks:
            self._between()
            while self._rng.random() < self._failures:
                self._fail(reader, task)
            places += self._read(reader, task)
        return places

    def _fail(self, reader: bytes, task: bytes) -> None:
        """A task that dies at its first rows, or in front of them."""
        rows = cloudpickle.loads(reader).read(cloudpickle.loads(task))
        if self._rng.random() < 0.5:
            next(rows, None)
        self._between()
        rows.close()

    def _read(self, reader: bytes, task: bytes) -> list[Place]:
        places: list[Place] = []
        for batch in cloudpickle.loads(reader).read(cloudpickle.loads(task)):
            names = ("topic", "broker", "queue_id", "queue_offset")
            places += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            act, self.between_chunks = self.between_chunks, None
            if act is not None:
                act()
        return places


def through_json(table: Offset) -> Offset:
    copy: Offset = json.loads(json.dumps(table))
    return copy
