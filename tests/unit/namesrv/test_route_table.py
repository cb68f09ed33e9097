from __future__ import annotations

import pytest
from tests.unit.namesrv.route_table_fixtures import (
    FakeClock,
    FakeLink,
    new_table,
    registration,
)

from cometmq.model.route import BrokerData, QueueData, TopicRouteData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.namesrv import route_table
from cometmq.namesrv.route_table import (
    DEFAULT_LIVE_TIMEOUT_MS,
    FLAG_UNIT,
    FLAG_UNIT_SUB,
    BrokerKey,
    RegisterResult,
    RouteTable,
)
from cometmq.protocol.bodies.registration import StaticTopicMapping

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"
KEY = BrokerKey("C", MASTER)


def route_of(table: RouteTable, topic: str) -> TopicRouteData:
    route = table.route(topic)
    assert route is not None
    return route


def perm_of(table: RouteTable, topic: str = "t1") -> int:
    return route_of(table, topic).queue_datas[0].perm


def addresses(table: RouteTable, topic: str = "t1") -> dict[int, str]:
    return route_of(table, topic).broker_datas[0].broker_addrs


def is_empty(table: RouteTable) -> bool:
    info = table.cluster_info()
    return not (info.broker_addr_table or info.cluster_addr_table or table.topics())


# Registration


def test_a_registered_broker_serves_its_topics() -> None:
    table = new_table()
    config = TopicConfig("t1", read_queue_nums=4, write_queue_nums=2, perm=6, topic_sys_flag=1)
    result = table.register(registration({"t1": config, "t2": TopicConfig("t2")}), FakeLink())
    assert result == RegisterResult(accepted=True, is_new=True, changed_topics=2)
    route = route_of(table, "t1")
    assert route.broker_datas == [BrokerData("broker-a", "C", {0: MASTER})]
    assert route.queue_datas == [QueueData("broker-a", 4, 2, 6, 1)]
    assert table.route("unknown") is None
    assert table.topics() == ["t1", "t2"]
    assert table.cluster_info().cluster_addr_table == {"C": ["broker-a"]}


def test_a_heartbeat_changes_nothing() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    assert table.register(registration(), FakeLink()) == RegisterResult()


def test_a_single_topic_before_the_first_registration_is_refused_and_leaves_no_trace() -> None:
    table = new_table()
    assert table.register(registration(["t1"]), FakeLink()) is None
    assert is_empty(table)


def test_a_single_topic_is_merged() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    result = table.register(registration(["t3"], counter=2), FakeLink())
    assert result is not None
    assert result.changed_topics == 1
    assert table.topics() == ["t1", "t2", "t3"]
    assert table.data_version(KEY) == DataVersion(2, 0, 0)


def test_topics_missing_from_a_full_registration_stay() -> None:
    table = new_table()
    table.register(registration(["t1", "t2", "t3"]), FakeLink())
    table.register(registration(["t1", "t2"], counter=2), FakeLink())
    assert table.topics() == ["t1", "t2", "t3"]


def test_topics_missing_from_a_registration_go_when_configured() -> None:
    table = new_table(delete_topic_with_broker_registration=True)
    table.register(registration(["t1", "t2", "t3"]), FakeLink())
    table.register(
        registration(["t2", "t3"], name="broker-b", address="10.0.0.9:10911"), FakeLink()
    )
    table.register(registration(["t1", "t2"], counter=2), FakeLink())
    assert table.topics() == ["t1", "t2", "t3"]
    assert [data.broker_name for data in route_of(table, "t3").queue_datas] == ["broker-b"]


def test_a_changed_topic_counts_only_under_a_new_data_version() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    changed = {"t1": TopicConfig("t1", perm=4), "t2": TopicConfig("t2")}
    table.register(registration(changed), FakeLink())
    assert perm_of(table) == 6
    result = table.register(registration(changed, counter=2), FakeLink())
    assert result is not None
    assert result.changed_topics == 1
    assert perm_of(table) == 4


@pytest.mark.parametrize("field", ["counter", "state_version", "timestamp"])
def test_every_field_of_the_data_version_counts(field: str) -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    later = registration({"t1": TopicConfig("t1", perm=4), "t2": TopicConfig("t2")})
    setattr(later.data_version, field, 77)
    table.register(later, FakeLink())
    assert perm_of(table) == 4


def test_a_topic_the_table_lost_comes_back_under_the_same_data_version() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    assert table.delete_topic("t1")
    result = table.register(registration(), FakeLink())
    assert result is not None
    assert result.changed_topics == 1
    assert table.topics() == ["t1", "t2"]


# Masters and slaves


def test_a_slave_is_told_its_master_and_brings_no_topics() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    result = table.register(
        registration(["t1", "t9"], broker_id=1, address=SLAVE, acting=False), FakeLink()
    )
    assert result == RegisterResult(is_new=True, master_address=MASTER, ha_address=f"{MASTER}-ha")
    assert table.topics() == ["t1", "t2"]
    assert addresses(table) == {0: MASTER, 1: SLAVE}


def test_an_old_slave_without_master_brings_no_topics() -> None:
    table = new_table()
    table.register(registration(broker_id=1, address=SLAVE), FakeLink())
    assert table.topics() == []


def test_the_first_slave_of_5x_without_master_brings_topics_readable_only_if_it_may_act() -> None:
    table = new_table()
    table.register(registration(broker_id=1, address=SLAVE, acting=False), FakeLink())
    assert perm_of(table) == 6
    table = new_table()
    table.register(registration(broker_id=1, address=SLAVE, acting=True), FakeLink())
    assert perm_of(table) == 4


def test_when_the_master_goes_the_acting_slaves_serve_reads_until_it_is_back() -> None:
    table = new_table(support_acting_master=True)
    master = FakeLink()
    table.register(registration(acting=True), master)
    table.register(registration(broker_id=1, address=SLAVE, acting=True), FakeLink())
    assert perm_of(table) == 6
    table.link_closed(master)
    assert perm_of(table) == 4
    assert addresses(table) == {0: SLAVE}
    assert table.member_group("C", "broker-a").broker_addrs == {1: SLAVE}
    table.register(registration(acting=True), master)
    assert perm_of(table) == 6
    assert addresses(table) == {0: MASTER, 1: SLAVE}


def test_no_acting_master_is_shown_unless_configured() -> None:
    table = new_table()
    table.register(registration(broker_id=1, address=SLAVE, acting=True), FakeLink())
    assert addresses(table) == {1: SLAVE}


def test_an_address_moves_to_another_id() -> None:
    table = new_table()
    table.register(registration(broker_id=1, acting=False), FakeLink())
    table.register(registration(broker_id=0), FakeLink())
    assert addresses(table) == {0: MASTER}


def test_an_id_moves_to_another_address() -> None:
    clock = FakeClock()
    table = new_table(clock)
    table.register(registration(), FakeLink())
    clock.now_s += 60
    result = table.register(registration(address=SLAVE), FakeLink())
    assert result is not None
    assert result.accepted
    assert addresses(table) == {0: SLAVE}
    clock.now_s += 61
    assert [live.key.address for live in table.expire()] == [MASTER]
    assert addresses(table) == {0: SLAVE}


def test_an_id_stays_with_the_later_state_version() -> None:
    table = new_table()
    table.register(registration(state_version=5), FakeLink())
    result = table.register(registration(address=SLAVE, state_version=4), FakeLink())
    assert result == RegisterResult(accepted=False)
    assert addresses(table) == {0: MASTER}
    assert table.data_version(BrokerKey("C", SLAVE)) is None


def test_a_refused_claim_to_another_id_loses_the_former_one() -> None:
    table = new_table()
    link = FakeLink()
    table.register(registration(state_version=5), FakeLink())
    table.register(registration(broker_id=1, address=SLAVE), link)
    table.register(registration(broker_id=0, address=SLAVE), link)
    assert addresses(table) == {0: MASTER}
    assert table.link_closed(link) == []


def test_a_broker_restarted_under_another_name_leaves_the_first() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    table.register(registration(["t7", "t8"], name="broker-b"), FakeLink())
    assert table.topics() == ["t7", "t8"]
    assert list(table.cluster_info().broker_addr_table) == ["broker-b"]


def test_a_broker_restarted_in_another_cluster_outlives_its_former_entry() -> None:
    clock = FakeClock()
    table = new_table(clock)
    table.register(registration(), FakeLink())
    clock.now_s += 60
    table.register(registration(cluster="D"), FakeLink())
    assert table.cluster_info().cluster_addr_table == {"D": ["broker-a"]}
    clock.now_s += 61
    assert list(table.expire()) == []
    assert table.topics() == ["t1", "t2"]


# Brokers go


def test_a_silent_broker_expires_after_120_seconds() -> None:
    clock = FakeClock()
    table = new_table(clock)
    link = FakeLink()
    table.register(registration(), link)
    clock.now_s += DEFAULT_LIVE_TIMEOUT_MS / 1000
    assert list(table.expire()) == []
    clock.now_s += 0.001
    assert [(live.key, live.link) for live in table.expire()] == [(KEY, link)]
    assert is_empty(table)


def test_a_broker_that_speaks_while_others_expire_stays() -> None:
    """Between two brokers that go, requests are served."""
    clock = FakeClock()
    table = new_table(clock)
    names = ("broker-a", "broker-b", "broker-c")
    for number, name in enumerate(names):
        table.register(registration(name=name, address=f"10.0.0.{number}:1"), FakeLink())
    clock.now_s += DEFAULT_LIVE_TIMEOUT_MS / 1000 + 1
    going = table.expire()
    assert next(going).broker_name == "broker-a"
    assert [live.broker_name for live in table.live()] == ["broker-b", "broker-c"]
    table.register(registration(name="broker-b", address="10.0.0.1:1"), FakeLink())
    table.touch(BrokerKey("C", "10.0.0.2:1"))
    assert list(going) == []
    assert [live.broker_name for live in table.live()] == ["broker-b", "broker-c"]


def lost(table: RouteTable, topic: str = "t1") -> list[str]:
    return [broker.broker_name for broker in table.lost(topic)]


def test_a_broker_that_went_without_a_farewell_is_remembered() -> None:
    clock = FakeClock()
    table = new_table(clock)
    link = FakeLink()
    table.register(registration(["t1", "t2"]), link)
    assert lost(table) == []
    table.link_closed(link)
    assert (table.route("t1"), lost(table), lost(table, "t3")) == (None, ["broker-a"], [])
    assert table.lost("t1")[0].address == MASTER
    table.register(registration(["t1", "t2"]), FakeLink())
    assert lost(table) == []
    # One that says farewell is not lost, nor one whose slave is there.
    table.unregister("broker-a", KEY)
    assert lost(table) == []
    link = FakeLink()
    table.register(registration(["t1", "t2"]), link)
    table.register(registration(["t1", "t2"], broker_id=1, address=SLAVE), FakeLink())
    table.link_closed(link)
    assert (addresses(table), lost(table)) == ({1: SLAVE}, [])


@pytest.mark.parametrize(("limit", "value"), [("MAX_LOST_BROKERS", 2), ("MAX_LOST_ROUTES", 5)])
def test_lost_brokers_are_forgotten_in_the_end(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(route_table, limit, value)
    clock = FakeClock()
    table = new_table(clock)
    for number in range(3):
        link = FakeLink()
        of_one = registration(["t1", "t2"], name=f"b{number}", address=f"10.0.0.{number}:1")
        table.register(of_one, link)
        table.link_closed(link)
    assert lost(table) == ["b1", "b2"]
    table.delete_topic("t2")
    assert (lost(table), lost(table, "t2")) == (["b1", "b2"], [])
    clock.now_s += 24 * 60 * 60 + 1
    assert lost(table) == []


def test_what_a_broker_that_is_gone_has_served_is_forgotten_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The table remembers the topics of lost brokers until there are too many of them.
    monkeypatch.setattr(route_table, "MAX_LOST_BROKERS", 0)
    table = new_table()
    reported: list[str] = []
    table.on_gone = lambda: reported.append("gone")
    topics = [f"t-{number:05}" for number in range(3_000)]
    link = FakeLink()
    table.register(registration(topics), link)
    table.link_closed(link)
    assert (table.topics(), reported) == ([], ["gone"])
    steps = sum(1 for _ in table.release())
    assert steps >= 3_000 // 256
    assert list(table.release()) == []


def test_a_broker_may_choose_its_timeout() -> None:
    clock = FakeClock()
    table = new_table(clock)
    table.register(registration(timeout_ms=500), FakeLink())
    clock.now_s += 0.501
    assert len(list(table.expire())) == 1


def test_signs_of_life_postpone_the_expiry() -> None:
    clock = FakeClock()
    table = new_table(clock)
    table.register(registration(), FakeLink())
    clock.now_s += 100
    table.touch(KEY)
    clock.now_s += 100
    table.register(registration(), FakeLink())
    clock.now_s += 100
    assert list(table.expire()) == []
    table.touch(BrokerKey("C", "nobody:1"))


def test_a_closed_connection_removes_its_broker_at_once() -> None:
    table = new_table()
    link = FakeLink()
    table.register(registration(), link)
    table.register(registration(name="broker-b", address=SLAVE), FakeLink())
    assert [live.broker_name for live in table.link_closed(link)] == ["broker-a"]
    assert [data.broker_name for data in route_of(table, "t1").queue_datas] == ["broker-b"]


def test_the_close_of_a_connection_that_was_replaced_removes_nothing() -> None:
    table = new_table()
    first = FakeLink()
    table.register(registration(), first)
    table.register(registration(), FakeLink())
    assert table.link_closed(first) == []
    assert table.topics() == ["t1", "t2"]


def test_the_queues_go_with_the_last_address_only() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    table.register(registration(broker_id=1, address=SLAVE), FakeLink())
    assert table.unregister("broker-a", KEY)
    assert addresses(table) == {1: SLAVE}
    assert perm_of(table) == 6
    assert table.unregister("broker-a", BrokerKey("C", SLAVE))
    assert is_empty(table)
    assert not table.unregister("broker-a", BrokerKey("C", SLAVE))


def test_unregistering_under_a_wrong_name_leaves_no_address_behind() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    assert table.unregister("broker-b", KEY)
    assert is_empty(table)


# Questions


def test_a_topic_on_two_brokers_lists_both() -> None:
    table = new_table()
    table.register(registration(name="broker-b", address=SLAVE), FakeLink())
    table.register(registration(["t1", "t3"]), FakeLink())
    assert [data.broker_name for data in route_of(table, "t1").queue_datas] == [
        "broker-a",
        "broker-b",
    ]
    assert [data.broker_name for data in route_of(table, "t3").broker_datas] == ["broker-a"]


def test_a_route_is_a_copy() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    route = route_of(table, "t1")
    route.broker_datas[0].broker_addrs.clear()
    route.order_topic_conf = "x"
    assert addresses(table) == {0: MASTER}
    assert route_of(table, "t1").order_topic_conf is None


def test_filter_servers_travel_with_the_route() -> None:
    table = new_table()
    table.register(registration(filter_servers=["10.0.0.5:1"]), FakeLink())
    assert route_of(table, "t1").filter_server_table == {MASTER: ["10.0.0.5:1"]}
    table.register(registration(), FakeLink())
    assert route_of(table, "t1").filter_server_table == {}


def test_static_topic_mappings_travel_with_the_route_and_go_with_the_broker() -> None:
    table = new_table()
    mapped = registration()
    mapped.mappings = {"t1": StaticTopicMapping("broker-a", topic="t1")}
    table.register(mapped, FakeLink())
    assert route_of(table, "t1").topic_queue_mapping_by_broker == {
        "broker-a": {"bname": "broker-a", "topic": "t1"}
    }
    table.unregister("broker-a", KEY)
    table.register(registration(), FakeLink())
    assert route_of(table, "t1").topic_queue_mapping_by_broker is None


def test_topic_lists() -> None:
    table = new_table()
    flagged = {
        "unit": TopicConfig("unit", topic_sys_flag=FLAG_UNIT),
        "sub": TopicConfig("sub", topic_sys_flag=FLAG_UNIT_SUB),
        "both": TopicConfig("both", topic_sys_flag=FLAG_UNIT | FLAG_UNIT_SUB),
    }
    table.register(registration(flagged), FakeLink())
    table.register(
        registration(["other", "sub"], name="broker-b", address=SLAVE, cluster="D"), FakeLink()
    )
    assert table.topics_of_cluster("C") == ["both", "sub", "unit"]
    assert table.topics_of_cluster("D") == ["other", "sub"]
    assert table.topics_of_cluster("E") == []
    assert table.topics_by_flag(required=FLAG_UNIT) == ["both", "unit"]
    assert table.topics_by_flag(required=FLAG_UNIT_SUB) == ["both", "sub"]
    assert table.topics_by_flag(required=FLAG_UNIT_SUB, excluded=FLAG_UNIT) == ["sub"]
    assert table.system_topics() == ["C", "D", "broker-a", "broker-b"]
    assert table.some_address() == MASTER
    assert new_table().some_address() is None


# Operators' orders


def test_wiped_write_permission_survives_heartbeats_and_can_be_added() -> None:
    table = new_table()
    config = {"t1": TopicConfig("t1", perm=7), "t2": TopicConfig("t2", perm=2)}
    table.register(registration(config), FakeLink())
    assert table.wipe_write_perm("broker-a") == 2
    assert (perm_of(table), perm_of(table, "t2")) == (5, 0)
    table.register(registration(config), FakeLink())
    assert perm_of(table) == 5
    assert table.add_write_perm("broker-a") == 2
    assert (perm_of(table), perm_of(table, "t2")) == (6, 6)
    assert table.wipe_write_perm("nobody") == 0


def test_a_topic_is_set_by_hand_on_known_brokers_only() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    queues = [QueueData("broker-a", 1, 1, 6), QueueData("nobody", 1, 1, 6)]
    assert table.register_topic("new", queues) == "nobody"
    assert table.route("new") is None
    assert table.register_topic("new", queues[:1]) is None
    assert route_of(table, "new").queue_datas == queues[:1]
    assert table.register_topic("none", []) is None
    assert table.topics() == ["new", "t1", "t2"]


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    table = new_table()
    table.register(registration(), FakeLink())
    table.register(registration(name="broker-b", address=SLAVE, cluster="D"), FakeLink())
    assert not table.delete_topic("t1", "E")
    assert table.delete_topic("t1", "C")
    assert [data.broker_name for data in route_of(table, "t1").queue_datas] == ["broker-b"]
    assert table.delete_topic("t2")
    assert not table.delete_topic("t2")
    assert table.topics() == ["t1"]


# Lists


class CountedName(str):
    """A topic's name that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other: str) -> bool:
        CountedName.compared += 1
        return str.__lt__(self, other)


def test_lists_of_topics_are_in_order_whatever_came_and_went() -> None:
    table = new_table()
    table.register(registration(["t3", "t1"]), FakeLink())
    assert table.topics() == table.topics_of_cluster("C") == ["t1", "t3"]
    table.register_topic("t2", [QueueData("broker-a", 1, 1, 6, FLAG_UNIT)])
    table.register_topic("t0", [QueueData("broker-a", 1, 1, 6, FLAG_UNIT)])
    assert table.topics() == table.topics_of_cluster("C") == ["t0", "t1", "t2", "t3"]
    assert table.topics_by_flag(required=FLAG_UNIT) == ["t0", "t2"]
    table.delete_topic("t1")
    assert table.topics() == table.topics_of_cluster("C") == ["t0", "t2", "t3"]
    assert table.unregister("broker-a", KEY)
    assert table.topics() == table.topics_of_cluster("C") == []


def test_a_list_sorted_all_topics_for_each_request() -> None:
    table = new_table()
    names = [CountedName(f"t{number * 37 % 100:02d}") for number in range(100)]
    table.register(registration({name: TopicConfig(name) for name in names}), FakeLink())
    expected = sorted(str(name) for name in names)
    assert table.topics() == expected
    CountedName.compared = 0
    assert table.topics() == table.topics_of_cluster("C") == expected
    assert table.topics_by_flag(required=FLAG_UNIT) == []
    table.register(registration({name: TopicConfig(name) for name in names}), FakeLink())
    assert table.topics() == expected
    assert CountedName.compared == 0
