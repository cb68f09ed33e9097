"""Keep the broker's table of topics (Java: TopicConfigManager)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from cometmq.broker.config import BrokerConfig
from cometmq.broker.refusal import Refused
from cometmq.broker.topics.creation_limits import CreationLimit
from cometmq.broker.topics.journal import TopicChange, TopicJournal
from cometmq.errors import LimitError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.sysflag import PERM_INHERIT, PERM_READ, PERM_RW, PERM_WRITE
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies.cluster import TopicConfigSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.clock import Clock

log = get_logger(__name__)

# Java: TopicConfigManager and MixAll. A topic with perm INHERIT may be the model of new topics.
_PERM_ALL = PERM_RW | PERM_INHERIT
_DEFAULT_QUEUE_NUMS_OF_CLUSTER_TOPIC = 16
_BENCHMARK_QUEUE_NUMS = 1024


class TopicManager:
    """Keeps the topics by name. For the loop's thread only.

    The functions in `on_change` are called with the configs that were made or changed. When a topic is
    removed, those in `on_remove` are called with its name, and then those in `on_change` with no
    configs. The functions in `on_remove` are also called when only its queues go; the functions in
    `on_removed` are not.

    A message in a new topic must not be acknowledged before `is_written` says that the disk has the
    topic. If the broker were killed right after the acknowledgement, it would not know the topic at
    the next start, and nobody could read the message (Java persists there, too). Without a journal
    every topic counts as written.

    Configs are replaced, never changed in place: other threads read them when they write the
    journal and the state files.

    With `is_copy`, which a slave sets, the table is that of a master and has its version. A topic that
    the broker itself adds, such as a group's retry topic, then leaves the version as it is, until the
    master's table says otherwise.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        table: TopicConfigSerializeWrapper | None = None,
        *,
        journal: TopicJournal | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self.is_copy = False
        self.on_change: list[Callable[[list[TopicConfig]], None]] = []
        self.on_remove: list[Callable[[str], None]] = []
        self.on_removed: list[Callable[[str], None]] = []
        self._journal = journal
        # Topics made lately: the journal's position that must be on disk, by name; and both in the
        # order of positions.
        self._unwritten: dict[str, int] = {}
        self._unwritten_order: deque[tuple[int, str]] = deque()
        self._limit = CreationLimit(
            "topic",
            clock,
            "maxTopicsMadePerSecond",
            lambda: config.max_topics_made_per_second,
            "maxTopics",
            lambda: config.max_topics,
        )
        self.table = table or TopicConfigSerializeWrapper()
        self._system = self._add_system_topics()
        # How many queues all topics have.
        self.queue_count = sum(_queues_of(each) for each in self.all())

    @property
    def data_version(self) -> DataVersion:
        return self.table.data_version

    def get(self, topic: str) -> TopicConfig | None:
        return self.table.topic_config_table.get(topic)

    def all(self) -> Collection[TopicConfig]:
        return self.table.topic_config_table.values()

    @property
    def system_topics(self) -> frozenset[str]:
        """The topics that the broker itself makes at every start."""
        return self._system

    def is_system(self, topic: str) -> bool:
        """Say whether the broker itself makes the topic at every start."""
        return topic in self._system

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Say whether a topic, as configured now, has a queue of this id to write or to read."""
        config = self.get(topic)
        return config is not None and 0 <= queue_id < max(
            config.read_queue_nums, config.write_queue_nums
        )

    def is_readable(self, topic: str, queue_id: int) -> bool:
        """Say whether consumers that follow a topic's route read this queue."""
        config = self.get(topic)
        return config is not None and queue_id < config.read_queue_nums

    def is_written(self, topic: str) -> bool:
        """Say whether the disk has the topic, perhaps with an older config."""
        if not self._unwritten:
            return True
        assert self._journal is not None, "there is one if anything is unwritten"
        order = self._unwritten_order
        while order and order[0][0] <= self._journal.durable:
            position, name = order.popleft()
            if self._unwritten.get(name) == position:
                del self._unwritten[name]
        return topic not in self._unwritten

    async def written(self) -> None:
        """Return when the disk has all topics made so far. Raises Refused if writing fails."""
        if self._journal is None:
            return
        try:
            await self._journal.written()
        except OSError as error:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"a new topic cannot be written to {self._journal.path}: "
                f"{error.strerror or error}; see that the disk has room and works, then send again",
            ) from error

    def put(self, topic: TopicConfig) -> None:
        """Make or change a topic. A config equal to the stored one changes nothing."""
        if not self._set(topic):
            return
        log.info(
            "topic set",
            topic=topic.topic_name,
            read_queues=topic.read_queue_nums,
            write_queues=topic.write_queue_nums,
            perm=topic.perm,
        )
        self._notify_changed([topic])

    def put_all(self, topics: list[TopicConfig]) -> None:
        """Make or change topics, with one line in the log for all.

        Listeners hear of them once all are in the table.
        """
        changed: list[TopicConfig] = []
        try:
            changed.extend(topic for topic in topics if self._set(topic))
        finally:
            if changed:
                log.info("topics set", count=len(changed), first=changed[0].topic_name)
                self._notify_changed(changed)

    def _set(self, topic: TopicConfig) -> bool:
        existing = self.get(topic.topic_name)
        if existing == topic:
            return False
        self.table.topic_config_table[topic.topic_name] = topic
        self.queue_count += _queues_of(topic) - (0 if existing is None else _queues_of(existing))
        self._next_version()
        if self._journal is not None:
            position = self._journal.add(TopicChange(self.data_version, topic))
            if existing is None:
                self._unwritten[topic.topic_name] = position
                self._unwritten_order.append((position, topic.topic_name))
        return True

    def copy(self, master: TopicConfigSerializeWrapper) -> Iterator[None]:
        """Make the table that of the master, in steps; its version comes last.

        The topics that the broker itself makes stay. The queues of a removed topic stay, too, as on
        Java's slaves: a version has no place in the log, so it is unknown which messages there
        belong to a topic that was made again under the same name.
        """
        wanted = master.topic_config_table
        gone = [
            t for t in self.table.topic_config_table if t not in wanted and t not in self._system
        ]
        for topic in gone:
            self.remove(topic)
            yield
        count = 0
        for config in wanted.values():
            if self._set(config):
                count += 1
                self._notify_changed([config])
            yield
        self.table.data_version = msgspec.structs.replace(master.data_version)
        if self._journal is not None:
            self._journal.add(TopicChange(self.data_version))
        log.info("topics copied from the master", changed=count, removed=len(gone))

    def remove(self, topic: str) -> TopicConfig | None:
        """Take a topic out of the table; the caller removes its queues and offsets."""
        removed = self.table.topic_config_table.pop(topic, None)
        if removed is not None:
            self.queue_count -= _queues_of(removed)
            self._unwritten.pop(topic, None)
            self._next_version()
            if self._journal is not None:
                self._journal.add(TopicChange(self.data_version, removed=topic))
            self.queues_removed(topic)
            for listener in self.on_removed:
                listener(topic)
            self._notify_changed([])
        return removed

    def queues_removed(self, topic: str) -> None:
        """Call every listener that remembers queues of the topic, because these are gone."""
        for listener in self.on_remove:
            listener(topic)

    def create_on_send(self, topic: str, default_topic: str, queue_nums: int) -> TopicConfig | None:
        """Return the topic; make it after the model `default_topic` if it does not exist.

        Returns None if that model may not be inherited from. The number of queues is the smaller of
        the client's `queue_nums` and the model's. Java: createTopicInSendMessageMethod. Raises
        Refused or LimitError when clients make too many topics.
        """
        if (existing := self.get(topic)) is not None:
            return existing
        model = self.get(default_topic)
        if model is None:
            return None
        if default_topic == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        if not model.perm & PERM_INHERIT:
            return None
        count = max(0, min(queue_nums, model.write_queue_nums))
        max_queues = self._config.max_queues
        if 0 < max_queues < self.queue_count + count:
            raise LimitError(
                f"queues would be those of all topics with {topic}",
                self.queue_count + count,
                "maxQueues",
                max_queues,
                "remove topics, or raise it",
                code=ResponseCode.SYSTEM_BUSY,
            )
        self._limit.take(topic, len(self.table.topic_config_table))
        created = TopicConfig(
            topic_name=topic,
            perm=model.perm & ~PERM_INHERIT,
            read_queue_nums=count,
            write_queue_nums=count,
            topic_filter_type=model.topic_filter_type,
            topic_sys_flag=model.topic_sys_flag,
        )
        self.put(created)
        return created

    def create_for_group(self, topic: str, queue_nums: int, perm: int = PERM_RW) -> TopicConfig:
        """Return a topic that the broker itself needs, such as a retry topic; make it on demand.

        Java: createTopicInSendMessageBackMethod.
        """
        if (existing := self.get(topic)) is not None:
            return existing
        created = _topic(topic, queue_nums, perm)
        self.put(created)
        return created

    def create_for_groups(self, queue_nums: Mapping[str, int]) -> None:
        """Make those of the topics that are not there, such as many retry topics, all at once."""
        self.put_all(
            [_topic(topic, nums) for topic, nums in queue_nums.items() if self.get(topic) is None]
        )

    def registered(self, topic: TopicConfig) -> TopicConfig:
        """Return the config as name servers get it: the broker's permission limits the topic's."""
        if self._config.broker_permission & PERM_RW == PERM_RW:
            return topic
        return msgspec.structs.replace(topic, perm=topic.perm & self._config.broker_permission)

    def permission_changed(self) -> None:
        """Have the topics registered again, because the broker's permission has changed."""
        self._next_version()
        if self._journal is not None:
            self._journal.add(TopicChange(self.data_version))
        self._notify_changed([])

    def skip_versions(self, count: int) -> None:
        """Move the version beyond any that others can have seen before a crash."""
        self.data_version.counter += count
        self.permission_changed()

    def _next_version(self) -> None:
        if not self.is_copy:
            self.data_version.next(self._clock.now_ms())

    def _notify_changed(self, topics: list[TopicConfig]) -> None:
        for listener in self.on_change:
            listener(topics)

    def _add_system_topics(self) -> frozenset[str]:
        """Make the built-in topics that are missing; keep those that the file has, as they are."""
        config = self._config
        topics = [
            _topic(names.SELF_TEST_TOPIC, 1),
            _topic(names.BENCHMARK_TOPIC, _BENCHMARK_QUEUE_NUMS),
            _topic(
                config.broker_cluster_name,
                _DEFAULT_QUEUE_NUMS_OF_CLUSTER_TOPIC,
                _PERM_ALL if config.cluster_topic_enable else PERM_INHERIT,
            ),
            _topic(
                config.broker_name, 1, _PERM_ALL if config.broker_topic_enable else PERM_INHERIT
            ),
            _topic(names.OFFSET_MOVED_EVENT_TOPIC, 1),
            _topic(names.SCHEDULE_TOPIC, 18),
            _topic(f"{config.broker_cluster_name}_{names.REPLY_TOPIC_POSTFIX}", 1),
            _topic(names.TRANS_HALF_TOPIC, 1),
            _topic(names.TRANS_OP_HALF_TOPIC, 1),
        ]
        if config.auto_create_topic_enable:
            # Clients send to a topic that has no route over the route of this one.
            topics.append(
                _topic(names.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, _PERM_ALL)
            )
        if config.timer_wheel_enable:
            topics.append(_topic(names.TIMER_TOPIC, 1))
        if config.trace_topic_enable:
            topics.append(_topic(config.msg_trace_topic_name, 1))
        for topic in topics:
            self.table.topic_config_table.setdefault(topic.topic_name, topic)
        return frozenset(topic.topic_name for topic in topics)


def _queues_of(topic: TopicConfig) -> int:
    return max(topic.read_queue_nums, topic.write_queue_nums, 0)


def _topic(name: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
    return TopicConfig(
        topic_name=name, perm=perm, read_queue_nums=queue_nums, write_queue_nums=queue_nums
    )
