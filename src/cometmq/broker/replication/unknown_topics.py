"""Keep a slave's messages readable whose topics it could not copy from its master."""

from __future__ import annotations

import structlog

from cometmq.broker.topics.topics import TopicManager
from cometmq.model.topic import TopicConfig

log = structlog.get_logger(__name__)


class UnknownTopics:
    """Notes the topics that the log has messages of and no table knew. For the loop's thread only."""

    def __init__(self, topics: TopicManager) -> None:
        self._topics = topics
        # How many queues each has at least.
        self._queue_counts: dict[str, int] = {}

    def note(self, topic: str, queue_id: int) -> bool:
        """Note a queue that has just been made; return whether its topic is unknown."""
        if topic not in self._queue_counts and self._topics.get(topic) is not None:
            return False
        self._queue_counts[topic] = max(queue_id + 1, self._queue_counts.get(topic, 0))
        return True

    def names(self) -> tuple[str, ...]:
        return tuple(self._queue_counts)

    def forget(self, names: tuple[str, ...]) -> None:
        """Forget topics, because the master's table has come since they were noted."""
        for topic in names:
            self._queue_counts.pop(topic, None)

    def make(self) -> None:
        """Make the topics, with the queues that are seen here.

        If the master never comes back, this slave is promoted as it is, and nobody could read these
        messages. The master's table replaces what is made here as soon as it is copied.
        """
        for topic, count in self._queue_counts.items():
            known = self._topics.get(topic)
            if known is None or known.read_queue_nums < count:
                log.warning(
                    "a topic that could not be copied from the master is made, because the log has its "
                    "messages",
                    topic=topic,
                    queues=count,
                )
                self._topics.put(TopicConfig(topic, read_queue_nums=count, write_queue_nums=count))
