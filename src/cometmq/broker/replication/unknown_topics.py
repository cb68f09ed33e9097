"""Keep a slave's messages readable whose topics it could not copy from its master."""

from __future__ import annotations

from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.replication.found_in_log import make_topics
from cometmq.broker.topics.topics import TopicManager
from cometmq.store.store import MessageStore


class UnknownTopics:
    """Notes the topics that the log has messages of and no table knew. For the loop's thread only."""

    def __init__(self, store: MessageStore, topics: TopicManager, groups: GroupManager) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        # How many queues each has at least.
        self._queue_counts: dict[str, int] = {}

    def note(self, topic: str, queue_id: int) -> bool:
        """Note a queue that has just been made; return whether no reader knows it."""
        if topic not in self._queue_counts and self._topics.is_readable(topic, queue_id):
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
        make_topics(
            self._store,
            self._topics,
            self._groups,
            self._queue_counts,
            "it could not be copied from the master",
        )
