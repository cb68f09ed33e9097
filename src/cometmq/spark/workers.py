"""Keep readers in a Python worker of Spark from task to task, which each task would otherwise make
again.

Spark hands a worker process one task after the other, and ends it when no task came for a minute.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.spark.live.options import LiveOptions

# For how long a reader serves. Then a new one reads secrets and certificates again.
KEPT_S: Final = 300.0


@dataclass
class _Kept:
    key: tuple[Any, ...]
    reader: BlockingRangeReader
    until_s: float


class KeptReaders:
    """Lends the reader of the task before, with its connections and routes, if it would be the
    same one: the same servers, secrets, group and patience.

    For one thread, as a worker has. One reader at most is kept.
    """

    def __init__(self, clock: BlockingClock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._kept: _Kept | None = None

    @contextmanager
    def lent(self, options: LiveOptions) -> Iterator[BlockingRangeReader]:
        """Lend a started reader. One that was used when something failed is not kept."""
        # The secrets themselves, read now: a key that was changed is another key. The process,
        # because a fork has neither the thread nor the connections.
        key = (os.getpid(), options.group, options.timeout_ms, options.connecting.parameters())
        kept, self._kept = self._kept, None
        if kept is not None and (kept.key != key or self._clock.monotonic() >= kept.until_s):
            kept.reader.close()
            kept = None
        if kept is None:
            reader = options.new_reader()
            reader.start()
            kept = _Kept(key, reader, self._clock.monotonic() + KEPT_S)
        try:
            yield kept.reader
        except Exception:
            kept.reader.close()
            raise
        except GeneratorExit:
            self._keep(kept)  # the query wants no more rows
            raise
        except BaseException:
            kept.reader.close()
            raise
        self._keep(kept)

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.reader.close()

    def _keep(self, kept: _Kept) -> None:
        """Keep this reader, unless another task of this thread has left one meanwhile."""
        if self._kept is None:
            self._kept = kept
        else:
            kept.reader.close()


_of_this_process: Final = KeptReaders()
_spared = False


@contextmanager
def lent_reader(options: LiveOptions) -> Iterator[BlockingRangeReader]:
    """Lend a started reader: in a task one that may be kept, elsewhere a new one."""
    if TaskContext.get() is None:
        with options.new_reader() as reader:
            yield reader
    else:
        with _of_this_process.lent(options) as reader:
            yield reader


def spare_collections() -> None:
    """In the first task of a worker, take its imported objects out of garbage collections.

    Spark's daemon collects all garbage after each task, which walks over everything that PySpark,
    Arrow, numpy and we have imported: some 40 ms. The present objects stay until the worker ends;
    cycles among them that become garbage later are not found, which is why this is done once.
    """
    global _spared  # noqa: PLW0603 - there is one collector in a process
    if not _spared and TaskContext.get() is not None:
        _spared = True
        gc.collect()
        gc.freeze()
