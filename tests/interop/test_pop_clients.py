"""Java's push consumers that pop: the broker divides the queues, mqadmin's `setConsumeMode` chooses how.

They are of 5.5, and of 4.9 where members that pull are in the same group.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.at_once import at_once
from tests.interop.clients import CometClient, JavaClient
from tests.interop.conftest import need
from tests.interop.mqadmin.runner import MqAdmin
from tests.waits import JVM_WAIT_S, eventually

from cometmq.model.names import dlq_topic
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.interop.clients import Event, RunningClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 60
# The shortest time for which the client can have messages hidden.
INVISIBLE_MS = 5_000


class Place:
    """Where cases run: a cluster of ours, and mqadmin."""

    def __init__(self, cluster: Cluster, tools: MqAdmin) -> None:
        self.namesrv = cluster.namesrv
        self._routes = cluster.name_servers[0].table
        self._broker = cluster.brokers[0].address
        self._tools = tools
        self._one = threading.Lock()

    def mqadmin(self, command: str, *args: str) -> str:
        with self._one:
            printed = self._tools.run(self.namesrv, command, *args)
        assert "Exception" not in printed.out + printed.err, printed
        return printed.out

    def knows(self, topic: str) -> bool:
        """Whether the name server knows the topic."""
        return self._routes.route(topic) is not None

    def make(self, case: str, *, queues: int = 4, retries: int = 16, mode: str = "POP") -> Names:
        """Make a case's topic and group, and choose how the group gets the topic's messages."""
        names = Names(f"topic-{case}", f"group-{case}")
        self.mqadmin(
            "updateTopic",
            "-b",
            self._broker,
            "-t",
            names.topic,
            *("-r", str(queues), "-w", str(queues)),
        )
        self.mqadmin("updateSubGroup", "-b", self._broker, "-g", names.group, "-r", str(retries))
        self.choose(names, mode)
        return names

    def choose(self, names: Names, mode: str) -> None:
        said = self.mqadmin(
            "setConsumeMode", "-b", self._broker, "-t", names.topic, "-g", names.group, "-m", mode,
            "-q", "0",
        )  # fmt: skip
        assert "success" in said, said

    def send(self, names: Names, count: int = COUNT, first: int = 0, **args: Any) -> None:
        CometClient().produce(
            namesrv=self.namesrv, topic=names.topic, count=count, first=first, **args
        )

    def consume(self, names: Names, line: int = 5, **args: Any) -> RunningClient:
        args.setdefault("client_rebalance", False) if line == 5 else None
        return JavaClient(line).start(
            "consume", namesrv=self.namesrv, topic=names.topic, group=names.group,
            until_stdin=True, **args,
        )  # fmt: skip

    def difference(self, names: Names) -> int:
        """Return how many messages of the topic the group has not done, as consumerProgress says it."""
        said = self.mqadmin("consumerProgress", "-g", names.group)
        rows = [row.split() for row in said.splitlines() if row.startswith(names.topic)]
        return sum(int(row[3]) - int(row[4]) for row in rows) if rows else -1


class Names:
    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group


def index_of(message: Event) -> int:
    return int(message["properties"]["index"])


def indexes(*clients: RunningClient) -> set[int]:
    return {index_of(each) for client in clients for each in client.named("message")}


def seen(count: int, *clients: RunningClient) -> None:
    """Wait until all messages up to `count` have come to one of the clients."""
    eventually(lambda: indexes(*clients) >= set(range(count)), wait_s=JVM_WAIT_S)


def is_popped(message: Event) -> bool:
    return "POP_CK" in message["properties"]


def all_messages(place: Place) -> None:
    names = place.make("all")
    place.send(names, tags="TagA,TagB")
    with place.consume(names, members=2, expression="TagA") as client:
        client.wait_started(2)
        client.wait_messages(COUNT // 2)
        messages = [each for each in client.finish() if each["event"] == "message"]
    assert Counter(map(index_of, messages)) == Counter(range(0, COUNT, 2))
    assert all(map(is_popped, messages))
    assert {each["reconsumeTimes"] for each in messages} == {0}
    eventually(lambda: place.difference(names) == 0)


def in_order(place: Place) -> None:
    """Java's orderly listeners divide the queues themselves and pull, whatever the mode is."""
    names = place.make("orderly")
    place.send(names)
    with place.consume(names, orderly=True, fail_times="0,0,1") as client:
        client.wait_messages(COUNT + COUNT // 3)
        messages = [each for each in client.finish() if each["event"] == "message"]
    by_queue: dict[int, list[Event]] = defaultdict(list)
    for each in messages:
        by_queue[each["queueId"]].append(each)
    assert len(by_queue) == 4
    for queue in by_queue.values():
        found = [each["queueOffset"] for each in queue]
        assert found == sorted(found)
    assert not any(map(is_popped, messages))
    eventually(lambda: place.difference(names) == 0)


def again(place: Place) -> None:
    names = place.make("again")
    place.send(names)
    with place.consume(names, fail_times="0,1,2", pop_delays_s="1,1,1") as client:
        client.wait_messages(2 * COUNT)
        messages = [each for each in client.finish() if each["event"] == "message"]
    times: dict[int, list[int]] = defaultdict(list)
    for each in messages:
        assert each["topic"] == names.topic
        times[index_of(each)].append(each["reconsumeTimes"])
    assert times == {index: list(range(1 + index % 3)) for index in range(COUNT)}
    eventually(lambda: place.difference(names) == 0)


def dead_letters(place: Place) -> None:
    names = place.make("dead", retries=1)
    place.send(names)
    with place.consume(names, fail_times="99", pop_delays_s="1,1,1") as client:
        client.wait_messages(2 * COUNT)
        dead = Names(dlq_topic(names.group), names.group)
        # A client that pulls from a topic without a route ends.
        eventually(lambda: place.knows(dead.topic), wait_s=JVM_WAIT_S)
        eventually(lambda: len(_pulled(place, dead)) >= COUNT, wait_s=JVM_WAIT_S)
        found = _pulled(place, dead)
        messages = [each for each in client.finish() if each["event"] == "message"]
    assert Counter(map(index_of, found)) == Counter(range(COUNT))
    assert {each["properties"]["RETRY_TOPIC"] for each in found} == {names.topic}
    assert Counter(map(index_of, messages)) == Counter([*range(COUNT), *range(COUNT)])


def _pulled(place: Place, names: Names) -> list[Event]:
    return JavaClient(4).pull(namesrv=place.namesrv, topic=names.topic)


def a_member_leaves(place: Place) -> None:
    names = place.make("leaves")
    place.send(names)
    options: dict[str, Any] = {"pop_invisible_ms": INVISIBLE_MS}
    with (
        place.consume(names, member="stays", **options) as stays,
        # It takes messages and is killed amid them.
        place.consume(names, member="leaves", delay_ms=600_000, **options) as leaves,
    ):
        stays.wait_started()
        leaves.wait_started()
        sent = COUNT
        while not leaves.named("message"):
            place.send(names, count=8, first=sent)
            sent += 8
        leaves.kill()
        before = len(stays.named("message"))
        place.send(names, count=COUNT, first=sent)
        fresh = set(range(sent, sent + COUNT))
        # No queue has to be given to anybody: what comes now goes to the one that is left.
        eventually(lambda: indexes(stays) >= fresh)
        assert len(stays.named("message")) >= before + COUNT
        # What the other had comes when its time is over.
        seen(sent + COUNT, stays)
        held = {index_of(each) for each in leaves.named("message")}
        later = [each for each in stays.named("message") if index_of(each) in held]
        assert {each["reconsumeTimes"] for each in later} == {1}
        stays.finish()
    eventually(lambda: place.difference(names) == 0)


def more_members_than_queues(place: Place) -> None:
    names = place.make("many", queues=1)
    with place.consume(names, members=4) as client:
        client.wait_started(4)
        sent = 0
        while len({each["member"] for each in client.named("message")}) < 4:
            place.send(names, count=8, first=sent)
            sent += 8
        seen(sent, client)
        messages = [each for each in client.finish() if each["event"] == "message"]
    assert Counter(map(index_of, messages)) == Counter(range(sent))
    eventually(lambda: place.difference(names) == 0)


def modes_in_turn(place: Place) -> None:
    """The mode is switched to pop and back and to pop, beside a member of 4.9, which always pulls."""
    names = place.make("turns", mode="PULL")
    sent = 0

    def more(first: int) -> int:
        place.send(names, count=8, first=first)
        return first + 8

    def until(new: RunningClient, wanted: bool, sent: int) -> int:
        """Send until the member of 5.5 gets messages by popping, or not by popping."""
        before = len(new.named("message"))
        while not any(is_popped(each) == wanted for each in new.named("message")[before:]):
            sent = more(sent)
        return sent

    with (
        place.consume(names, 4, member="old") as old,
        place.consume(names, member="new", pop_invisible_ms=INVISIBLE_MS) as new,
    ):
        old.wait_started()
        new.wait_started()
        for mode in ("POP", "PULL", "POP"):
            place.choose(names, mode)
            sent = until(new, mode == "POP", sent)
            sent = more(sent)
            seen(sent, old, new)
        assert old.named("message")
        new.finish()
        old.finish()
    eventually(lambda: place.difference(names) == 0)


CASES: dict[str, Callable[[Place], None]] = {
    "all messages": all_messages,
    "in order": in_order,
    "again": again,
    "dead letters": dead_letters,
    "a member leaves": a_member_leaves,
    "more members than queues": more_members_than_queues,
    "modes in turn": modes_in_turn,
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    need("java", "mvn")
    with Cluster() as cluster, MqAdmin(5) as tools:
        place = Place(cluster, tools)
        with at_once(request, lambda case: CASES[case](place), places=3) as runs:
            yield runs


@pytest.mark.parametrize("case", CASES)
def test_java_consumers_pop(case: str, runs: dict[str, Future[None]]) -> None:
    runs[case].result(JVM_WAIT_S)
