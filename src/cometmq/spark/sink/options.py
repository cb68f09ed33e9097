"""Check on the driver what a write was asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from cometmq.bulk.producer import IN_FLIGHT, PATIENCE_MS, BlockingBulkProducer
from cometmq.bulk.range_reader import TOOLS_GROUP, BlockingRangeReader
from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES, check_client_group
from cometmq.client.producing.encoding import COMPRESS_OVER_BYTES
from cometmq.protocol.messages.compression import CompressionType
from cometmq.spark.connecting import CONNECTING, Connecting
from cometmq.spark.live.options import NAME, SINK_ONLY
from cometmq.spark.options import Options
from cometmq.spark.sink.columns import check_sink_topic
from cometmq.spark.sink.packing import Packing, QueuesOf

GROUP: Final = "cometmq-spark-sink"
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
FAIL: Final = "fail"
DEAD_LETTER: Final = "deadLetter"
BATCH_BYTES: Final = 256 * 1024
# The outbox's directory below the checkpoint, beside Spark's own.
OUTBOX: Final = "rocketmq-sink"

KNOWN: Final = (
    *CONNECTING,
    "group",
    "timeoutMs",
    *SINK_ONLY,
)
_JOB: Final = ("transactionId", "outboxKeepDays")
_STREAM: Final = ("checkpointLocation", "queryName")
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class SinkOptions:
    """The options of a write. Raises IllegalArgumentError for values that do not fit.

    namesrv, namespace, accessKey, tls and so on: see Connecting. group: the producer group
        (cometmq-spark-sink).
    topic: for all rows, in place of the column.
    delivery: at-least-once (default) or exactly-once; see docs/internals/spark-sink.md.
    outbox: for exactly-once, a directory that the driver and all workers see, for this query alone.
        A stream keeps it in its checkpoint if `checkpointLocation` is given as an option.
    transactionId: names an exactly-once job; writing it again resumes it, or does nothing if it is
        done.
    outboxKeepDays: for how many days an outbox remembers jobs that are done; 0 (default) is for ever.
    keepOrigin: whether topic, place, id and times of the source become properties.
    badRows: fail (default), or deadLetter: rows that cannot be messages go to deadLetterTopic with
        the reason, see `cometmq.spark.sink.bad_rows`, and the job goes on.
    compression: none (default), zlib, lz4 or zstd, for bodies of compressOverBytes (4096) and more;
        these are sent one by one.
    batchBytes: how much one request takes (262144). sendsInFlight: of each task (32).
    timeoutMs: for how long a broker that does not answer is tried again (60000).
    """

    def __init__(self, given: Any, *, streaming: bool) -> None:
        self._options = options = Options(NAME, given, KNOWN, kind="sink")
        for name in _JOB if streaming else _STREAM:
            if name in options:
                kind = "a batch, not a stream" if streaming else "a stream, not a batch"
                raise options.error(name, f"is for {kind}")
        self.connecting = Connecting(options)
        self.group = options.text("group") or GROUP
        check_client_group(self.group)
        self.topic = options.text("topic")
        if self.topic is not None:
            check_sink_topic(self.topic)
        self.keep_origin = options.flag("keepOrigin", False)
        self.dead_letter_topic = self._dead_letter_topic()
        self.compression = self._compression()
        over = options.number("compressOverBytes", 1, MAX_MESSAGE_SIZE_BYTES)
        self.compress_over_bytes = over or COMPRESS_OVER_BYTES
        self.batch_bytes = options.number("batchBytes", 1, MAX_MESSAGE_SIZE_BYTES) or BATCH_BYTES
        self.in_flight = options.number("sendsInFlight", 1, 10_000) or IN_FLIGHT
        timeout_ms = options.number("timeoutMs", 0, 24 * 3600 * 1000)
        self.timeout_ms = PATIENCE_MS if timeout_ms is None else timeout_ms
        self.exactly_once = self._delivery() == EXACTLY_ONCE
        self.transaction_id = self._transaction_id()
        self.outbox = self._outbox(streaming)
        self.keep_days = options.number("outboxKeepDays", 0, 36_500) or 0

    def new_producer(self) -> BlockingBulkProducer:
        return BlockingBulkProducer(
            self.group,
            in_flight=self.in_flight,
            patience_ms=self.timeout_ms,
            **self.connecting.parameters(),
        )

    def new_reader(self) -> BlockingRangeReader:
        return BlockingRangeReader(
            TOOLS_GROUP, patience_ms=self.timeout_ms, **self.connecting.parameters()
        )

    def new_packing(self, queues_of: QueuesOf) -> Packing:
        return Packing(queues_of, self.batch_bytes, self.compression, self.compress_over_bytes)

    # Inside

    def _delivery(self) -> str:
        delivery = self._options.text("delivery") or AT_LEAST_ONCE
        if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
            raise self._options.error(
                "delivery", f"is {delivery!r}, it must be {AT_LEAST_ONCE} or {EXACTLY_ONCE}"
            )
        return delivery

    def _dead_letter_topic(self) -> str | None:
        """Return where bad rows go; None if they end the job."""
        options = self._options
        bad_rows = options.text("badRows") or FAIL
        if bad_rows.lower() not in (FAIL, DEAD_LETTER.lower()):
            raise options.error("badRows", f"is {bad_rows!r}, it must be {FAIL} or {DEAD_LETTER}")
        topic = options.text("deadLetterTopic")
        if bad_rows.lower() == FAIL:
            if topic is not None:
                raise options.error("deadLetterTopic", f"is for badRows={DEAD_LETTER}")
            return None
        if topic is None:
            raise options.error(
                "badRows",
                f"is {DEAD_LETTER}, so give deadLetterTopic, a topic that exists, for such rows and "
                "the reasons",
            )
        check_sink_topic(topic)
        if topic == self.topic:
            raise options.error(
                "deadLetterTopic", f"is {topic}, where the good rows go: give another topic"
            )
        return topic

    def _compression(self) -> CompressionType | None:
        name = (self._options.text("compression") or "none").upper()
        if name == "NONE":
            return None
        if name not in CompressionType.__members__:
            known = ", ".join(["none", *(m.lower() for m in CompressionType.__members__)])
            raise self._options.error(
                "compression", f"is {name.lower()!r}, it must be one of {known}"
            )
        return CompressionType[name]

    def _transaction_id(self) -> str | None:
        name = self._options.text("transactionId")
        if name is not None and not _ID.fullmatch(name):
            raise self._options.error(
                "transactionId",
                f"is {name!r:.120}, it must be 1 to 100 letters, digits, dots, hyphens, underscores",
            )
        return name

    def _outbox(self, streaming: bool) -> str | None:
        options = self._options
        outbox = options.text("outbox")
        if not self.exactly_once:
            for name in ("outbox", "transactionId", "outboxKeepDays"):
                if name in options:
                    raise options.error(name, f"is for delivery={EXACTLY_ONCE}")
            return None
        if outbox is None and streaming:
            checkpoint = options.text("checkpointLocation")
            outbox = None if checkpoint is None else f"{checkpoint.rstrip('/')}/{OUTBOX}"
        if outbox is None:
            where = "checkpointLocation as an option of the query, or " if streaming else ""
            raise options.error(
                "delivery",
                f"is {EXACTLY_ONCE}, so give {where}outbox, a directory that the driver and all "
                "workers see and no other query uses",
            )
        if not streaming and self.transaction_id is None:
            raise options.error(
                "delivery",
                f"is {EXACTLY_ONCE}, so give transactionId, a name for this write: one that is "
                "written again is not sent twice",
            )
        return outbox if ":" in outbox.split("/")[0] else str(Path(outbox).absolute())
