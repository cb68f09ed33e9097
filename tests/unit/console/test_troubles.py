"""The rounds that look for troubles: how much one of them asks, in which order, and what counts."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.admin.groups.records import Connection, GroupConnections, RunningInfo
from cometmq.admin.topics.records import QueueStats, TopicStats
from cometmq.console.watching import troubles as module
from cometmq.console.watching.troubles import MOST_GROUPS, MOST_TOPICS, SPAN_MS, Round, Troubles
from cometmq.errors import ConnectError, RemoteError, RouteNotFoundError, ServersFailedError
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.inspection import TopicOffset
from cometmq.protocol.codes import ResponseCode

NOW_MS = 1_800_000_000_000


class Clock:
    """Stands still in ms, and counts the seconds that it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        self.asked += 1
        return float(self.asked)


class Cluster:
    """Answers as an AdminClient does, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.names: list[str] = []
        self.faults: dict[str, Exception] = {TRANS_CHECK_MAX_TIME_TOPIC: RouteNotFoundError("no")}
        self.last_ms = NOW_MS
        # What the members of a group select, by client.
        self.members: dict[str, dict[str, str]] = {}
        self.topics = SimpleNamespace(names=self._names, stats=self._stats)
        self.offsets = SimpleNamespace(at_time=self._at_time)
        self.known: list[str] = []
        self.groups = SimpleNamespace(
            connections=self._connections, running_info=self._info, names=self._groups
        )
        self.brokers = SimpleNamespace(addresses=self._addresses)

    async def _addresses(self, *, slaves: bool) -> list[Any]:
        assert not slaves
        return [SimpleNamespace(address="10.0.0.1:10911")]

    async def _groups(self, *, broker: str) -> list[str]:
        self.asked["groups"] += 1
        if fault := self.faults.get(broker):
            raise fault
        return self.known

    async def _names(self) -> list[str]:
        if fault := self.faults.get(""):
            raise fault
        return self.names

    async def _stats(self, topic: str) -> TopicStats:
        self.asked[topic] += 1
        if fault := self.faults.get(topic):
            raise fault
        queue = MessageQueue(topic, "broker-a", 0)
        return TopicStats(topic, 0.0, (QueueStats(queue, 2, 10, self.last_ms),))

    async def _at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        self.asked["at_time"] += 1
        assert timestamp_ms == NOW_MS - SPAN_MS
        return 7

    async def _connections(self, group: str) -> GroupConnections:
        self.asked["connections"] += 1
        if group not in self.members:
            raise RemoteError("offline", code=ResponseCode.CONSUMER_NOT_ONLINE)
        clients = tuple(
            Connection(name, "10.0.0.9:1", "JAVA", "V5") for name in self.members[group]
        )
        return GroupConnections(group, "CONSUME_PASSIVELY", "CLUSTERING", "", clients, ())

    async def _info(self, group: str, client: str) -> RunningInfo:
        self.asked["running_info"] += 1
        selected = self.members[group][client]
        if not selected:
            raise ConnectError("the member hangs")
        subscription = SubscriptionData(topic="orders", sub_string=selected)
        push = {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}
        return RunningInfo(client, push, (subscription,), {}, {}, None)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def troubles_of(cluster: Cluster, *working: str) -> Troubles:
    admin: Any = cluster
    clock: Any = Clock()
    return Troubles(admin, clock, working.__contains__)


def test_everybody_has_a_turn_and_those_that_come_first_get_half_of_them() -> None:
    turns = Round()
    names = [f"n{number}" for number in range(10)]
    seen: set[str] = set()
    for at in range(4):
        chosen = turns.next(names, lambda name: name in ("n8", "n9"), 4)
        assert len(chosen) == 4
        seen.update(chosen)
        for name in chosen:
            turns.asked_s[name] = float(at)
    assert {"n8", "n9"} <= set(chosen)
    assert seen == set(names)
    assert turns.next(["n1"], lambda _: False, 4) == ["n1"]
    assert turns.asked <= 1, "what is gone is not counted"


async def test_a_round_over_thousands_asks_a_bounded_number_of_questions(cluster: Cluster) -> None:
    cluster.names = [f"%DLQ%g{number}" for number in range(5000)]
    cluster.names += [f"%RETRY%g{number}" for number in range(5000)]
    found = troubles_of(cluster)
    await found.look()
    assert cluster.asked.total() == 1 + 2 * MOST_TOPICS + MOST_GROUPS
    assert (found.letter_round.asked, found.group_round.asked) == (MOST_TOPICS, MOST_GROUPS)
    assert (len(found.letter_round.names), len(found.group_round.names)) == (5000, 5000)


async def test_the_retry_topic_of_a_group_that_pops_is_not_taken_for_a_group(
    cluster: Cluster,
) -> None:
    cluster.names = ["orders", "%RETRY%g_orders", "%RETRY%shop_orders", "%RETRY%other_thing"]
    cluster.known = ["g", "shop_orders", "other_thing"]
    found = troubles_of(cluster)
    await found.look()
    assert found.group_round.names == {"g", "shop_orders", "other_thing"}
    assert found.missing is None

    # Nobody is asked for all groups while no name is in question.
    cluster.names = ["orders", "%RETRY%other_thing"]
    cluster.asked.clear()
    await found.look()
    assert cluster.asked["groups"] == 0

    cluster.names = ["orders", "%RETRY%g_orders"]
    cluster.faults["10.0.0.1:10911"] = ConnectError("the broker hangs")
    await found.look()
    assert found.missing is not None, "the round lacks an answer, and says so"


async def test_only_what_came_within_a_day_is_new(cluster: Cluster) -> None:
    cluster.names = ["%DLQ%mailer"]
    found = troubles_of(cluster)
    await found.look()
    assert (found.letters["mailer"].count, found.letters["mailer"].newest_ms) == (3, NOW_MS)
    cluster.last_ms = NOW_MS - SPAN_MS - 1
    cluster.asked.clear()
    await found.look()
    assert found.letters == {}
    assert cluster.asked["at_time"] == 0, "the newest letter is older: nothing more to ask"


async def test_a_java_broker_without_the_topic_has_given_up_nothing(cluster: Cluster) -> None:
    found = troubles_of(cluster)

    def count() -> int | None:
        reported = found.given_up.value if found.given_up is not None else None
        return reported.count if reported is not None else None

    assert count() is None
    await found.look()
    assert count() == 0
    cluster.faults[TRANS_CHECK_MAX_TIME_TOPIC] = RemoteError("not allowed")
    await found.look()
    assert count() is None, "a refusal is no zero"


async def test_brokers_that_answer_count_where_others_do_not(cluster: Cluster) -> None:
    queue = MessageQueue("%DLQ%mailer", "broker-a", 0)
    offsets = {queue: TopicOffset(min_offset=0, max_offset=9, last_update_timestamp=NOW_MS)}
    cluster.names = [queue.topic]
    cluster.faults[queue.topic] = ServersFailedError(
        "one failed", results={"a": (offsets, 0.0)}, errors={"b": ConnectError("away")}
    )
    found = troubles_of(cluster)
    await found.look()
    assert found.letters["mailer"].count == 2
    assert found.missing is cluster.faults[queue.topic], "and the page says that others did not"
    del cluster.faults[queue.topic]
    await found.look()
    assert found.missing is None


async def test_members_that_differ_are_a_conflict_until_they_agree(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.names = ["%RETRY%loyalty", "%RETRY%alone", "%RETRY%offline", "%RETRY%hangs"]
    cluster.members = {
        "loyalty": {"1": "a", "2": "b"},
        "alone": {"1": "a"},
        "hangs": {"1": "a", "2": ""},
    }
    found = troubles_of(cluster)
    await found.look()
    assert found.conflicts == {"loyalty": ("orders",)}
    assert cluster.asked["running_info"] == 4, "one member alone agrees with itself"
    assert found.group_round.asked == 3, "of a group with one answer nothing is known"
    monkeypatch.setattr(module, "MOST_GROUPS", 2)
    cluster.members["loyalty"]["2"] = "a"
    await found.look()
    assert found.conflicts == {}, "a conflict is looked at again first"


async def test_names_that_are_not_told_are_an_error_and_no_zero(cluster: Cluster) -> None:
    cluster.faults[""] = ConnectError("no name server")
    found = troubles_of(cluster)
    await found.look()
    assert isinstance(found.error, ConnectError)
    assert found.began_ms == 0
