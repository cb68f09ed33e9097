"""The broker's tables of topics, groups and offsets, without a broker around them."""

from __future__ import annotations

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.groups.offsets import ConsumerOffsetManager, describe
from cometmq.broker.topics.topics import TopicManager
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.cluster import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)

MODEL = "TBW102"


class Clock:
    def now_ms(self) -> int:
        return 1234

    def monotonic(self) -> float:
        return 0.0


class Topics:
    """A manager and a list of what it has announced."""

    def __init__(
        self, table: TopicConfigSerializeWrapper | None = None, **settings: object
    ) -> None:
        self.changed: list[str] = []
        self.removed: list[str] = []
        config = BrokerConfig(broker_name="b", broker_cluster_name="C", broker_ip1="127.0.0.1")
        for name, value in settings.items():
            setattr(config, name, value)
        self.manager = TopicManager(
            config,
            Clock(),
            table,
        )
        self.manager.on_change.append(
            lambda topics: self.changed.extend(topic.topic_name for topic in topics)
        )
        self.manager.on_remove.append(self.removed.append)


@pytest.mark.parametrize(
    ("asked", "made"), [(1, 1), (4, 4), (8, 8), (9, 8), (100, 8), (0, 0), (-1, 0)]
)
def test_a_new_topic_has_as_many_queues_as_asked_but_no_more_than_its_model(
    asked: int, made: int
) -> None:
    topics = Topics()
    topic = topics.manager.create_on_send("t", MODEL, asked)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (made, made, 6)
    assert topics.changed == ["t"]


def test_a_new_topic_takes_after_its_model() -> None:
    table = TopicConfigSerializeWrapper(
        topic_config_table={
            "model": TopicConfig(
                "model",
                perm=1 | 2,
                read_queue_nums=5,
                write_queue_nums=3,
                topic_filter_type="MULTI_TAG",
                topic_sys_flag=2,
            )
        }
    )
    topic = Topics(table).manager.create_on_send("t", "model", 16)
    assert topic == TopicConfig(
        "t",
        perm=2,
        read_queue_nums=3,
        write_queue_nums=3,
        topic_filter_type="MULTI_TAG",
        topic_sys_flag=2,
    )


@pytest.mark.parametrize("model", ["nowhere", "BenchmarkTest", "SELF_TEST_TOPIC", ""])
def test_what_is_no_model_makes_no_topic(model: str) -> None:
    topics = Topics()
    assert topics.manager.create_on_send("t", model, 4) is None
    assert topics.manager.get("t") is None
    assert topics.changed == []


def test_without_auto_creation_there_is_no_model_topic() -> None:
    topics = Topics(auto_create_topic_enable=False)
    assert topics.manager.get(MODEL) is None
    assert topics.manager.create_on_send("t", MODEL, 4) is None
    assert topics.manager.create_on_send("t", "C", 4) is not None


def test_without_auto_creation_a_model_topic_of_former_times_is_none() -> None:
    table = TopicConfigSerializeWrapper(topic_config_table={MODEL: TopicConfig(MODEL, perm=7)})
    topics = Topics(table, auto_create_topic_enable=False)
    assert topics.manager.create_on_send("t", MODEL, 4) is None


def test_a_topic_that_exists_stays_as_it_is() -> None:
    topics = Topics()
    first = topics.manager.create_on_send("t", MODEL, 4)
    assert topics.manager.create_on_send("t", MODEL, 2) is first
    assert topics.changed == ["t"]


def test_equal_configs_leave_the_version_alone() -> None:
    topics = Topics()
    topics.manager.put(TopicConfig("t"))
    version = topics.manager.data_version.counter
    topics.manager.put(TopicConfig("t"))
    assert topics.manager.data_version.counter == version == 1
    topics.manager.put(TopicConfig("t", perm=4))
    assert topics.manager.data_version.counter == 2
    assert topics.manager.data_version.timestamp == 1234


def test_who_holds_on_to_a_topic_learns_of_its_removal() -> None:
    topics = Topics()
    topics.manager.put(TopicConfig("t"))
    removed = topics.manager.remove("t")
    assert removed is not None
    assert topics.removed == ["t"]
    assert topics.manager.remove("t") is None
    assert topics.removed == ["t"]


def test_system_topics_are_those_of_java() -> None:
    topics = Topics()
    found = {
        topic.topic_name: (topic.write_queue_nums, topic.perm) for topic in topics.manager.all()
    }
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "b": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C_REPLY_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    } | {name: value for name, value in found.items() if name.startswith("rmq_sys_")}
    assert all(topics.manager.is_system(name) for name in found)


def test_what_an_operator_changed_in_a_system_topic_is_kept() -> None:
    table = TopicConfigSerializeWrapper(
        topic_config_table={"BenchmarkTest": TopicConfig("BenchmarkTest", write_queue_nums=3)}
    )
    found = Topics(table).manager.get("BenchmarkTest")
    assert found is not None
    assert found.write_queue_nums == 3


@pytest.mark.parametrize(("broker", "seen"), [(6, 7), (4, 4), (2, 2), (0, 0)])
def test_name_servers_see_no_more_than_the_broker_permits(broker: int, seen: int) -> None:
    topics = Topics(broker_permission=broker)
    assert topics.manager.registered(TopicConfig("t", perm=7)).perm == seen


# Groups


def groups(*, auto: bool = True) -> tuple[GroupManager, list[int]]:
    changes: list[int] = []
    config = BrokerConfig(broker_ip1="127.0.0.1", auto_create_subscription_group=auto)
    return GroupManager(config, Clock(), lambda: changes.append(1)), changes


def test_a_group_is_made_by_its_first_use() -> None:
    manager, changes = groups()
    assert manager.get("g") is None
    made = manager.find("g")
    assert made == SubscriptionGroupConfig(group_name="g")
    assert manager.find("g") is made
    assert len(changes) == 1
    assert manager.table.data_version.counter == 1


@pytest.mark.parametrize("name", ["", "a b", "g" * 121, "ä"])
def test_an_illegal_group_is_never_made(name: str) -> None:
    manager, changes = groups()
    assert manager.find(name) is None
    assert changes == []
    assert "group" in manager.unknown(name)


def test_without_auto_creation_only_system_groups_are_made() -> None:
    manager, _ = groups(auto=False)
    assert manager.find("g") is None
    assert "autoCreateSubscriptionGroup" in manager.unknown("g")
    assert manager.find("CID_RMQ_SYS_X") is not None


def test_a_removed_group_takes_its_prohibitions_along() -> None:
    manager, changes = groups()
    manager.find("g")
    manager.table.forbidden_table["g"] = {"t": 1}
    assert manager.remove("g")
    assert not manager.remove("g")
    assert manager.table.forbidden_table == {}
    assert len(changes) == 2


def test_built_in_groups_are_there_after_a_file_without_them() -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1")
    manager = GroupManager(config, Clock(), lambda: None, SubscriptionGroupWrapper())
    assert manager.get("TOOLS_CONSUMER") is not None


# Offsets


def test_offsets_are_kept_by_topic_group_and_queue() -> None:
    manager = ConsumerOffsetManager()
    assert manager.query("g", "t", 0) == -1
    manager.commit("g", "t", 0, 5)
    manager.commit("g", "t", 1, 6)
    manager.commit("h", "t", 0, 7)
    manager.commit("g", "u", 0, 8)
    assert manager.changed
    assert manager.table.offset_table == {"t@g": {0: 5, 1: 6}, "t@h": {0: 7}, "u@g": {0: 8}}
    assert manager.queues("g", "t") == {0: 5, 1: 6}
    assert manager.topics_of("g") == {"t", "u"}
    assert manager.groups_of("t") == {"g", "h"}


def test_an_offset_may_go_back() -> None:
    manager = ConsumerOffsetManager()
    manager.commit("g", "t", 0, 5)
    manager.commit("g", "t", 0, 2)
    assert manager.query("g", "t", 0) == 2


def ends(topic: str, queue_id: int) -> int | None:
    """Return the end of a queue: the topic t has the queues 0 and 1, which end at 10 and 0."""
    return {("t", 0): 10, ("t", 1): 0}.get((topic, queue_id))


def test_offsets_beyond_the_end_and_of_no_queue_are_corrected() -> None:
    table = {
        "t@g": {0: 10, 1: 0},
        "t@lost": {0: 13, 1: 2},
        "t@attack": {0: 2**60, 7: 1, -1: 1},
        "t@negative": {0: -5},
        "gone@g": {0: 3},
        "nonsense": {0: 3},
    }
    manager = ConsumerOffsetManager(ConsumerOffsetSerializeWrapper(offset_table=table))
    found = manager.find_impossible(ends)
    assert describe(found) | {"examples": len(describe(found)["examples"])} == {  # type: ignore[arg-type]  # `describe` gives values of several types
        "beyond_the_end": 3,
        "negative": 1,
        "of_no_queue": 4,
        "examples": 5,
    }
    manager.correct(found)
    assert manager.table.offset_table == {
        "t@g": {0: 10, 1: 0},
        "t@lost": {0: 10, 1: 0},
        "t@attack": {0: 10},
    }
    assert manager.count == 5
    assert manager.changed
    assert manager.find_impossible(ends) == []


def test_offsets_that_can_be_are_left_alone() -> None:
    table = {"t@g": {0: 10, 1: 0}, "t@h": {0: 0}}
    manager = ConsumerOffsetManager(ConsumerOffsetSerializeWrapper(offset_table=table))
    manager.correct(manager.find_impossible(ends))
    assert not manager.changed


def test_a_million_commits_of_invented_queues_took_all_memory() -> None:
    manager = ConsumerOffsetManager(max_count=3)
    assert all(manager.commit("g", "t", queue_id, 1) for queue_id in range(3))
    assert not manager.commit("g", "t", 3, 1)
    assert not manager.commit("h", "t", 0, 1)
    assert not manager.reset("h", "t", 0, 1)
    assert manager.commit("g", "t", 0, 2), "what is known may move"
    assert manager.count == 3
    assert manager.table.offset_table == {"t@g": {0: 2, 1: 1, 2: 1}}
    manager.remove_group("g")
    assert manager.count == 0
    assert manager.commit("h", "t", 0, 1)


def test_a_pull_brings_an_offset_within_its_queue_or_none_is_stored() -> None:
    manager = ConsumerOffsetManager()
    for offset in (-1, 11, 2**60):
        manager.commit_of_pull("g", "t", 0, offset, 10)
    assert manager.query("g", "t", 0) == -1
    assert manager.ignored_count == 3
    manager.commit_of_pull("g", "t", 0, 10, 10)
    assert manager.query("g", "t", 0) == 10


def test_offsets_go_with_their_topic_or_group() -> None:
    manager = ConsumerOffsetManager()
    for group, topic in (("g", "t"), ("h", "t"), ("g", "u"), ("h", "u")):
        manager.commit(group, topic, 0, 1)
    manager.changed = False
    manager.remove_topic("nothing")
    assert not manager.changed
    manager.remove_topic("t")
    manager.remove_group("h")
    assert manager.table.offset_table == {"u@g": {0: 1}}
    assert manager.changed


def test_offsets_of_one_queue_go_alone() -> None:
    manager = ConsumerOffsetManager()
    for group, queue_id in (("g", 0), ("g", 1), ("h", 0)):
        manager.commit(group, "t", queue_id, 7)
    manager.reset("g", "t", 0, 3)
    manager.changed = False
    manager.remove_queue("t", 2)
    assert not manager.changed
    manager.remove_queue("t", 0)
    assert manager.table.offset_table == {"t@g": {1: 7}}
    assert manager.moved_to("g", "t", 0, 7, "a connection") is None
    assert (manager.count, manager.groups_of("t"), manager.changed) == (1, {"g"}, True)
