"""Topics, groups and consumer offsets: the tables of a broker that lie in `config/` as JSON.

Java: ConfigManager, TopicConfigManager, SubscriptionGroupManager, ConsumerOffsetManager.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import GroupManager
from cometmq.broker.offsets import ConsumerOffsetManager, describe
from cometmq.broker.state import StateWriter
from cometmq.broker.topics import TopicManager
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from cometmq.protocol.json_dialect import decode_body, pretty
from cometmq.runtime.clock import Clock
from cometmq.runtime.json_file import JsonFile

log = structlog.get_logger(__name__)

T = TypeVar("T")


class BrokerTables:
    """Reads the three tables from `directory` and writes each after it changed; offsets when told.

    `on_topics_changed` and `on_topic_removed` are called after the table has the change. For the
    loop's thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        state: StateWriter,
        directory: Path,
        *,
        on_topics_changed: Callable[[list[TopicConfig]], None],
        on_topic_removed: Callable[[str], None],
    ) -> None:
        self._state = state
        self._on_topics_changed = on_topics_changed
        self._topics_file = JsonFile(directory / "topics.json")
        self._groups_file = JsonFile(directory / "subscriptionGroup.json")
        self._offsets_file = JsonFile(directory / "consumerOffset.json")
        self.topics = TopicManager(
            config,
            clock,
            self._topics_changed,
            on_topic_removed,
            _load(self._topics_file, TopicConfigSerializeWrapper),
            save_now=self._save_topics_now,
        )
        self.groups = GroupManager(
            config, clock, self._save_groups, _load(self._groups_file, SubscriptionGroupWrapper)
        )
        self.offsets = ConsumerOffsetManager(
            _load(self._offsets_file, ConsumerOffsetSerializeWrapper), config.max_consumer_offsets
        )
        self._ignored_count = 0

    def correct_offsets(self, queue_end: Callable[[str, int], int | None]) -> None:
        """Correct the offsets that were read from the file, where they cannot be. Blocks for the
        copy that is kept of what was there; without the copy nothing is changed.

        `queue_end` gives the end of a queue that holds, or has held, messages, else None. A crash
        that took messages from the end of a queue leaves offsets beyond it; whoever goes on from
        there skips what is sent next.
        """

        def end_of(topic: str, queue_id: int) -> int | None:
            end = queue_end(topic, queue_id)
            if end is None and self.topics.has_queue(topic, queue_id):
                return 0
            return end

        found = self.offsets.find_impossible(end_of)
        if not found:
            return
        kept = JsonFile(self._offsets_file.path.with_name("consumerOffset.uncorrected.json"))
        try:
            kept.write(pretty(self.offsets.table))
        except OSError as error:
            log.error(  # noqa: TRY400 - the reason says it all
                "consumer offsets that cannot be stay as they are, no copy of them can be written",
                path=str(kept.path),
                reason=str(error),
                **describe(found),
            )
            return
        self.offsets.correct(found)
        log.warning("consumer offsets corrected", former=str(kept.path), **describe(found))

    def save_offsets(self) -> None:
        """Write the offsets if any changed since the last time."""
        ignored = self.offsets.ignored_count - self._ignored_count
        if ignored:
            self._ignored_count += ignored
            log.warning(
                "offsets that pulls brought are not stored: they are negative, beyond the end of "
                "their queue, or too many",
                count=ignored,
                stored=self.offsets.count,
                max_consumer_offsets=self.offsets.max_count,
            )
        if self.offsets.changed:
            self.offsets.changed = False
            self._state.soon(self._offsets_file, lambda: pretty(self.offsets.table))

    def save(self) -> None:
        """Write all tables."""
        self._save_topics()
        self._save_groups()
        self.save_offsets()

    def _topics_changed(self, topics: list[TopicConfig]) -> None:
        self._save_topics()
        self._on_topics_changed(topics)

    def _save_topics(self) -> None:
        self._state.soon(self._topics_file, lambda: pretty(self.topics.table))

    def _save_topics_now(self) -> None:
        self._state.now(self._topics_file, lambda: pretty(self.topics.table))

    def _save_groups(self) -> None:
        self._state.soon(self._groups_file, lambda: pretty(self.groups.table))


def _load(file: JsonFile, type_: type[T]) -> T | None:
    decode: Callable[[str], T] = lambda text: decode_body(text.encode(), type_)  # noqa: E731
    return file.read(decode)
