"""Write and read the op topic, whose records name the half messages of ended transactions.

Java: TransactionalOpBatchService, TransactionalMessageServiceImpl.deletePrepareMessage. A record's
body has queue offsets of half messages, each followed by a comma. Releases before 5.1 wrote one
number without a comma, which the same reader understands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.errors import StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.properties import encode_properties
from cometmq.runtime.clock import Clock
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.store import MessageStore

log = get_logger(__name__)

REMOVE_TAG: Final = "d"
_TAGS_CODE: Final = java_hash(REMOVE_TAG)
_PROPERTIES: Final = encode_properties({p.WAIT_STORE_MSG_OK: "true", p.TAGS: REMOVE_TAG}).encode()
# The offset in a record that names no half message. Such a record only says that all transactions
# that ended before it are named by it or by earlier op records.
_NOTHING: Final = -1
# Far below any reasonable maxMessageSize.
_MAX_BODY_BYTES: Final = 64 * 1024
# How many offsets each op record but the last names when one record cannot name all that wait.
_PART: Final = _MAX_BODY_BYTES // 20


def named_offsets(body: bytes) -> list[int]:
    """Return the queue offsets in a record's body; leave out parts that are no number."""
    parts = body.decode("ascii", "replace").split(",")
    return [int(part) for part in parts if part.isdecimal() and len(part) < 20]


def may_be_part(offsets: list[int]) -> bool:
    """Say whether more records may have been meant to follow the one that names these offsets.

    Such a record does not say that all transactions that ended before it are named.
    """
    return len(offsets) == _PART


class OpQueue:
    """Writes op records and knows which of them are still needed. For the loop's thread only.

    Added offsets wait until they take transactionOpMsgMaxSize bytes, or until `flush`, which then writes all of them.
    So a commit that lies in the log before `last_position` is named in an op record.
    """

    def __init__(
        self, store: MessageStore, clock: Clock, host: bytes, config: BrokerConfig
    ) -> None:
        self._store = store
        self._clock = clock
        self._host = host
        self._config = config
        self._waiting: list[int] = []
        self._waiting_bytes = 0
        # Is called when offsets wait to be written.
        self.on_waiting: Callable[[], None] = lambda: None
        # By op record: its queue offset, and the highest offset that it names.
        self._kept: deque[tuple[int, int]] = deque()
        last = self._queue.last_message()
        # Commit-log offset of the last op record behind which nothing waited.
        self.last_position = last.physical_offset if last is not None else 0

    @property
    def _queue(self) -> ConsumeQueue:
        return self._store.queue(names.TRANS_OP_HALF_TOPIC, 0)

    @property
    def waiting_count(self) -> int:
        """How many offsets are not written yet."""
        return len(self._waiting)

    def found(self, queue_offset: int, offsets: Iterable[int]) -> None:
        """Take in an op record that was found at the start. Call this in queue order."""
        self._kept.append((queue_offset, max(offsets, default=_NOTHING)))

    def add(self, offsets: Iterable[int]) -> None:
        """Take in the queue offsets of half messages whose transactions have ended."""
        for offset in offsets:
            self._waiting.append(offset)
            self._waiting_bytes += len(str(offset)) + 1
        self.on_waiting()
        if self._waiting_bytes >= self._config.transaction_op_msg_max_size:
            self.flush()

    def add_nothing(self) -> None:
        """Write a record even if no transaction has ended, which moves `last_position` on."""
        if not self._waiting:
            self.add([_NOTHING])
        self.flush()

    def flush(self) -> None:
        """Write the waiting offsets. If the store refuses them, a later call writes them."""
        while self._waiting:
            count = len(self._waiting)
            if self._waiting_bytes > _MAX_BODY_BYTES:
                count = min(count, _PART)
            offsets = self._waiting[:count]
            body = "".join(f"{offset}," for offset in offsets).encode()
            try:
                queue_offset, position = self._store.append(
                    self._queue,
                    body,
                    _PROPERTIES,
                    _TAGS_CODE,
                    self._clock.now_ms(),
                    self._host,
                )
            except StoreError as error:
                log.warning("op record not written", offsets=len(self._waiting), reason=str(error))
                return
            del self._waiting[:count]
            self._waiting_bytes -= len(body)
            self.found(queue_offset, offsets)
            if not self._waiting and not may_be_part(offsets):
                self.last_position = position

    def needed_from(self, half_offset: int) -> int:
        """Return the queue offset of the first op record that is still needed: the first one that
        names a half message at `half_offset` or behind it.
        """
        while self._kept and self._kept[0][1] < half_offset:
            self._kept.popleft()
        return self._kept[0][0] if self._kept else self._queue.next_offset
