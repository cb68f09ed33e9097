"""Hold the options that push and lite pull consumers share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cometmq.client.consuming.listeners.undecodable import OnUndecodable, check_on_undecodable
from cometmq.client.limits import check_callable, check_flag, check_range
from cometmq.client.membership.allocation import AllocationStrategy, allocate_averagely
from cometmq.client.membership.callbacks import QueueCallback
from cometmq.client.membership.offset_store import local_directory
from cometmq.client.options import choice
from cometmq.client.tracing.traced_client import TracedOptions
from cometmq.model.durations import Milliseconds, OptionalEpochMs
from cometmq.model.results import ConsumeFromWhere, MessageModel
from cometmq.payloads.codec import Codec
from cometmq.payloads.codecs import Codecs, codecs_of

# Java: consumeTimestamp, half an hour before the consumer was made.
DEFAULT_TIMESTAMP_AGE_MS: Final = 30 * 60 * 1000
PULL_THRESHOLD_SIZE_BYTES: Final = 100 * 1024 * 1024


@dataclass(repr=False, kw_only=True)
class GroupOptions(TracedOptions):
    """Holds the options of every consumer; PushConsumer explains them."""

    consume_from: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: OptionalEpochMs = OptionalEpochMs(None)
    message_model: MessageModel = MessageModel.CLUSTERING
    local_offset_dir: str | os.PathLike[str] | None = None
    allocation: AllocationStrategy = allocate_averagely
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue_bytes: int = PULL_THRESHOLD_SIZE_BYTES
    consume_max_span: int = 2000
    note_failures: bool = True
    on_assigned: QueueCallback | None = None
    on_revoked: QueueCallback | None = None
    rebalance_callback_timeout_ms: Milliseconds = Milliseconds(30_000)
    codecs: Codecs | Mapping[str, Codec[Any]] | None = None
    on_undecodable: OnUndecodable = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("pull_threshold_for_queue", self.pull_threshold_for_queue, 1, 65535)
        size_bytes = self.pull_threshold_size_for_queue_bytes
        check_range("pull_threshold_size_for_queue_bytes", size_bytes, 1, 1024**3)
        check_flag("note_failures", self.note_failures)
        self.codecs = codecs_of(self.codecs)
        check_on_undecodable(self.on_undecodable)
        check_range("consume_max_span", self.consume_max_span, 1, 65535)
        if self.consume_timestamp_ms is not None:
            check_range("consume_timestamp_ms", self.consume_timestamp_ms, 0, 2**63 - 1)
        called = "a function, or a coroutine function, that takes a list of MessageQueues"
        for name in ("on_assigned", "on_revoked"):
            if (callback := getattr(self, name)) is not None:
                check_callable(name, callback, called)
        limit_ms = self.rebalance_callback_timeout_ms
        check_range("rebalance_callback_timeout_ms", limit_ms, 1, 15 * 60 * 1000)
        strategy = "an allocation strategy, such as allocate_averagely"
        check_callable("allocation", self.allocation, strategy)
        self.message_model = choice("message_model", self.message_model, MessageModel)
        self.consume_from = choice("consume_from", self.consume_from, ConsumeFromWhere)
        self.offset_directory = local_directory(self.local_offset_dir)

    @property
    def timestamp_ms(self) -> int:
        """Return the time that was given, else that of half an hour ago."""
        if self.consume_timestamp_ms is not None:
            return self.consume_timestamp_ms
        return self.clock.now_ms() - DEFAULT_TIMESTAMP_AGE_MS
