"""Check the options of a read of a store, on the driver."""

from __future__ import annotations

import re
from typing import Any, Final

from cometmq.bulk.range_reader import PATIENCE_MS
from cometmq.errors import IllegalArgumentError
from cometmq.spark.options import (
    MAX_PARTITIONS,
    Options,
    gap_log,
    topic_names,
    topic_pattern,
)
from cometmq.spark.ranges.by_queue import EARLIEST, LATEST
from cometmq.spark.rows.columns import named_columns

NAME: Final = "rocketmq-store"
# The default limit of a batch: the planner has to look at every record before the first task begins.
MAX_BYTES: Final = 1024**3
_DAY_MS: Final = 24 * 3600 * 1000
_INT64_MAX: Final = 2**63 - 1
_MOST_DIGITS: Final = 18

_STREAM: Final = (
    "startingOffsets",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "timeoutMs",
)
KNOWN: Final = (
    *_STREAM,
    "path",
    "commitLogPath",
    "subscribe",
    "subscribePattern",
    "minPartitions",
    "checkCrc",
    "columns",
    "decompress",
    "brokerName",
    "failOnDataLoss",
    "pushFilters",
    "gapLog",
    "reader",
)
_AUTO: Final = "auto"
_JVM: Final = "jvm"
_READERS: Final = (_AUTO, "python", _JVM)
# Spark turns load(["/data/a", "/data/b"]) into this option.
SEVERAL: Final = "paths"


class StoreOptions:
    """The options of a read of a store. Raises IllegalArgumentError for values that do not fit.

    path: the store directory (storePathRootDir), which driver and workers see; `load` sets it.
    commitLogPath: storePathCommitLog, if it is elsewhere; several directories separated by commas.
    subscribe: topics, separated by commas; subscribePattern: a regular expression that whole topic
        names match. Without either, the rows are all records of the log, in its order.
    minPartitions: the smallest number of tasks into which a read is split, if there is enough to read.
    checkCrc: check the checksum of every body.
    columns: the columns of the rows; see `cometmq.spark.rows.columns`.
    decompress: return bodies as they were sent (default), not as they are stored.
    pushFilters: let Spark's filters narrow the read (see docs/spark.md, Filters, before you do).
    brokerName: the value of the column broker, which a store does not know.
    failOnDataLoss: fail where bytes are no record (default). With false they are left out, and
        gapLog must name a directory in which every gap is noted.
    reader: `auto` (default) reads in the JVM where the session has the jar (`cometmq.spark.jvm`) and
        the jar can, else here; `python` always reads here; `jvm` refuses to.

    Only for streams:
    startingOffsets: earliest (default), latest, or the position of a record in the commit log.
    maxMessagesPerTrigger, maxBytesPerTrigger: limits of a batch: rows, and bytes of the log (1 GiB).
    timeoutMs: for how long a stream waits where records are missing in front of later ones (60000).
    """

    def __init__(self, given: Any, *, streaming: bool | None) -> None:
        """Check the options. With `streaming=None`, accept the options of both kinds of read: `load` does
        not know yet whether it is for a stream.
        """
        if SEVERAL in given:
            raise IllegalArgumentError(
                f"the source {NAME} reads one store, and load was given several: read each one and "
                "combine the rows by union"
            )
        options = Options(NAME, given, KNOWN)
        if streaming is False:
            for name in _STREAM:
                if name in options:
                    raise options.error(name, "is for a stream, not a batch")
        self.path = options.need_path("path", "/data/store")
        self.commit_log_paths = options.paths("commitLogPath")
        self.topics: frozenset[str] | None = None
        self.pattern: re.Pattern[str] | None = None
        chosen = options.one_of("subscribe", "subscribePattern")
        if chosen == "subscribe":
            self.topics = topic_names(options)
        elif chosen is not None:
            self.pattern = topic_pattern(options)
        self.min_partitions = options.number("minPartitions", 1, MAX_PARTITIONS) or 1
        self.check_crc = options.flag("checkCrc", False)
        self.columns = named_columns(options)
        self.decompress = options.flag("decompress", True)
        self.push_filters = options.flag("pushFilters", False)
        self.broker_name = options.text("brokerName")
        self.gaps = gap_log(options)
        reader = options.text("reader") or _AUTO
        if reader not in _READERS:
            raise options.error("reader", f"is {reader!r}, it must be one of {', '.join(_READERS)}")
        self.only_jvm = reader == _JVM
        if streaming and self.only_jvm:
            raise options.error("reader", f"is {_JVM}, which cannot read streams; leave it out")
        self._read_stream(options)

    def _read_stream(self, options: Options) -> None:
        start = (options.text("startingOffsets") or EARLIEST).lower()
        is_position = start.isascii() and start.isdigit() and len(start) <= _MOST_DIGITS
        if start not in (EARLIEST, LATEST) and not is_position:
            raise options.error(
                "startingOffsets",
                f"is {start!r:.200}, it must be {EARLIEST}, {LATEST} or the position of a record in the "
                "commit log, as the column commit_log_offset has it",
            )
        self.start = start
        self.max_messages = options.number("maxMessagesPerTrigger", 1, _INT64_MAX)
        self.max_bytes = options.number("maxBytesPerTrigger", 1, _INT64_MAX) or MAX_BYTES
        timeout_ms = options.number("timeoutMs", 0, _DAY_MS)
        self.timeout_ms = PATIENCE_MS if timeout_ms is None else timeout_ms

    @property
    def by_topic(self) -> bool:
        return self.topics is not None or self.pattern is not None
