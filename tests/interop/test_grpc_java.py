"""Run the official Java client for gRPC through our proxy, in front of our broker and of Java's."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.interop.at_once import at_once
from tests.interop.clients import CometClient, GrpcJavaClient, JavaClient, body_pattern
from tests.interop.conftest import need
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.peers import HOST, Java55Broker, JavaNamesrv, free_port, topic_routed
from tests.waits import JVM_WAIT_S, eventually

from cometmq.model.names import dlq_topic
from cometmq.proxy.config import ProxyConfig
from cometmq.proxy.server import Proxy
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.interop.clients import Event, RunningClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 24
CONF = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "500",
    "transactionCheckInterval": "500",
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
}


class RunningProxy:
    """Runs a proxy on a loop of its own. A context manager."""

    def __init__(self, namesrv: str) -> None:
        self._config = ProxyConfig(namesrv=[namesrv], bind_address=HOST, port=free_port())
        self.endpoints = f"{HOST}:{self._config.port}"
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        proxy = Proxy(self._config)
        await proxy.start()
        self._started.set()
        await self._stop.wait()
        await proxy.close()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(JVM_WAIT_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(JVM_WAIT_S)
        assert not self._thread.is_alive()


class Place:
    """Holds the environment of cases: a proxy, the cluster behind it, and mqadmin."""

    def __init__(self, namesrv: str, broker: str, endpoints: str, tools: MqAdmin) -> None:
        self.namesrv = namesrv
        self.endpoints = endpoints
        self._broker = broker
        self._tools = tools
        self._one = threading.Lock()

    def mqadmin(self, command: str, *args: str) -> str:
        with self._one:
            printed = self._tools.run(self.namesrv, command, *args)
        assert "Exception" not in printed.out + printed.err, printed
        return printed.out

    def make(
        self, case: str, kind: str = "NORMAL", *, retries: int = 16, ordered: bool = False
    ) -> dict[str, str]:
        """Create a case's group, and its topic with a message type; return the arguments that name them."""
        topic, group = f"grpc-{case}", f"group-{case}"
        self.mqadmin(
            "updateTopic", "-b", self._broker, "-t", topic, "-r", "4", "-w", "4",
            "-a", f"+message.type={kind}",
        )  # fmt: skip
        self.mqadmin(
            "updateSubGroup", "-b", self._broker, "-g", group, "-r", str(retries),
            "-o", str(ordered).lower(),
        )  # fmt: skip
        return {"endpoints": self.endpoints, "topic": topic, "group": group}

    def dead_letters(self, names: dict[str, str]) -> list[Event]:
        """Wait for a dead letter of the group, and return those that are there."""
        found: list[Event] = []

        def come() -> bool:
            dead = dlq_topic(names["group"])
            if topic_routed(self.namesrv, dead):
                found[:] = JavaClient(55).pull(namesrv=self.namesrv, topic=dead)
            return bool(found)

        eventually(come, wait_s=JVM_WAIT_S)
        return found


def index_of(message: Event) -> int:
    return int(message["properties"]["index"])


def indexes(*clients: RunningClient) -> Counter[int]:
    return Counter(index_of(each) for client in clients for each in client.named("message"))


def ended(events: list[Event]) -> bool:
    return any(each["event"] == "summary" for each in events)


def all_seen(count: int, *clients: RunningClient) -> None:
    eventually(lambda: indexes(*clients).keys() >= set(range(count)), wait_s=JVM_WAIT_S)


def without_group(names: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in names.items() if key != "group"}


def sent_and_pushed(place: Place) -> None:
    names = place.make("pushed")
    with GrpcJavaClient().start("consume", **names) as consumer:
        consumer.wait_started()
        sent = GrpcJavaClient().produce(count=COUNT, tags="a,b", **without_group(names))
        all_seen(COUNT, consumer)
        consumer.finish()
    by_index = {index_of(each): each for each in consumer.named("message")}
    for each in sent:
        message = by_index[each["index"]]
        assert message["msgId"] == each["msgId"]
        assert message["tags"] == ("a", "b")[each["index"] % 2]
        assert message["keys"] == f"m-{each['index']} all-m"
        assert message["attempt"] == 1
        assert message["size"] == len(body_pattern(each["index"], 64))
    # They lie in the same queues that consumers of the remoting protocol read.
    assert len(JavaClient(55).pull(namesrv=place.namesrv, topic=names["topic"])) == COUNT


def received_and_made_visible_again(place: Place) -> None:
    names = place.make("received")
    CometClient().produce(namesrv=place.namesrv, topic=names["topic"], count=6)
    with GrpcJavaClient().start(
        "receive", expected=6, fail_times="0,2", hide_s=1, **names
    ) as consumer:
        consumer.wait_for(ended)
        consumer.finish()
    attempts = defaultdict(list)
    for message in consumer.named("message"):
        attempts[index_of(message)].append(message["attempt"])
    assert attempts == {i: [1] if i % 2 == 0 else [1, 2, 3] for i in range(6)}


def selected_by_tags_and_sql(place: Place) -> None:
    names = place.make("selected")
    other = {**names, "group": "group-selected-sql"}
    CometClient().produce(namesrv=place.namesrv, topic=names["topic"], count=9, tags="a,b,c")
    for args in (
        {**names, "expression": "a || c"},
        {**other, "expression": "TAGS IN ('a', 'c')", "sql": True},
    ):
        with GrpcJavaClient().start("receive", expected=6, **args) as consumer:
            consumer.wait_for(ended)
            consumer.finish()
        assert {each["tags"] for each in consumer.named("message")} == {"a", "c"}


def retried_and_dead(place: Place) -> None:
    names = place.make("dead", retries=1)
    with GrpcJavaClient().start("consume", fail_times="9,1,0", **names) as consumer:
        consumer.wait_started()
        GrpcJavaClient().produce(count=3, **without_group(names))
        (letter,) = place.dead_letters(names)
        all_seen(3, consumer)
        eventually(lambda: indexes(consumer) == {0: 2, 1: 2, 2: 1}, wait_s=JVM_WAIT_S)
        consumer.finish()
    assert letter["properties"]["index"] == "0"
    # Java's broker writes the retry topic from which the message was given up.
    assert letter["properties"]["RETRY_TOPIC"].endswith(names["topic"])


def in_order(place: Place) -> None:
    names = place.make("fifo", "FIFO", ordered=True)
    with GrpcJavaClient().start("consume", fail_times="0,0,1", **names) as consumer:
        consumer.wait_started()
        GrpcJavaClient().produce(count=COUNT, groups="x,y,z", **without_group(names))
        all_seen(COUNT, consumer)
        consumer.finish()
    by_group: defaultdict[str, list[int]] = defaultdict(list)
    for message in consumer.named("message"):
        if not by_group[message["group"]] or by_group[message["group"]][-1] != index_of(message):
            by_group[message["group"]].append(index_of(message))
    assert by_group == {
        group: list(range(first, COUNT, 3)) for first, group in enumerate(("x", "y", "z"))
    }


def delayed_and_recalled(place: Place) -> None:
    names = place.make("delayed", "DELAY")
    with GrpcJavaClient().start("consume", **names) as consumer:
        consumer.wait_started()
        events = GrpcJavaClient().run(
            "produce", count=4, delays_ms="2000,3600000", recall="1,3", **without_group(names)
        )
        recalled = [each for each in events if each["event"] == "recalled"]
        assert [each["index"] for each in recalled] == [1, 3]
        eventually(lambda: indexes(consumer).keys() >= {0, 2}, wait_s=JVM_WAIT_S)
        consumer.finish()
    for message in consumer.named("message"):
        assert message["at"] >= message["deliveryTimestamp"] - 50, message
    assert indexes(consumer) == {0: 1, 2: 1}


def committed_and_rolled_back(place: Place) -> None:
    names = place.make("transact", "TRANSACTION")
    with (
        GrpcJavaClient().start("consume", **names) as consumer,
        GrpcJavaClient().start(
            "transact", count=6, verdicts="commit,rollback,unknown", check="commit",
            **without_group(names),
        ) as producer,
    ):  # fmt: skip
        eventually(lambda: indexes(consumer).keys() >= {0, 3, 2, 5}, wait_s=JVM_WAIT_S)
        producer.finish()
        consumer.finish()
    assert indexes(consumer).keys() == {0, 3, 2, 5}
    # On a busy machine the broker may also ask about others before their verdicts come.
    assert {index_of(each) for each in producer.named("checked")} >= {2, 5}


def of_the_wrong_type(place: Place) -> None:
    names = place.make("typed", "NORMAL")
    events = GrpcJavaClient().run(
        "produce", count=1, groups="x", may_fail=True, **without_group(names)
    )
    (failed,) = [each for each in events if each["event"] == "failed"]
    assert "FIFO" in failed["error"] + str(failed["cause"])


def of_no_topic(place: Place) -> None:
    events = GrpcJavaClient().run(
        "produce", count=1, may_fail=True, endpoints=place.endpoints, topic="nowhere"
    )
    (failed,) = [each for each in events if each["event"] == "failed"]
    # The client has asked three times, and does not show the answer.
    assert "Failed to fetch topics" in str(failed["cause"])


def by_priority(place: Place) -> None:
    names = place.make("urgent", "PRIORITY")
    GrpcJavaClient().produce(count=4, priorities="0,1,2,3", **without_group(names))
    with GrpcJavaClient().start("receive", expected=4, **names) as consumer:
        consumer.wait_for(ended)
        consumer.finish()
    assert {index_of(each): each["priority"] for each in consumer.named("message")} == {
        i: i for i in range(4)
    }


CASES: dict[str, Callable[[Place], None]] = {
    case.__name__.replace("_", " "): case
    for case in (
        sent_and_pushed,
        received_and_made_visible_again,
        selected_by_tags_and_sql,
        retried_and_dead,
        in_order,
        delayed_and_recalled,
        committed_and_rolled_back,
        of_the_wrong_type,
        of_no_topic,
        by_priority,
    )
}


@pytest.fixture(scope="module", params=["ours", "java"])
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    need("java", "mvn")
    with ExitStack() as stack:
        tools = stack.enter_context(MqAdmin(55))
        if request.param == "ours":
            cluster = stack.enter_context(Cluster(properties=CONF))
            namesrv, broker = cluster.namesrv, cluster.brokers[0].address
        else:
            namesrv = stack.enter_context(JavaNamesrv()).address
            broker = stack.enter_context(Java55Broker(namesrv, conf=CONF)).address
        proxy = stack.enter_context(RunningProxy(namesrv))
        place = Place(namesrv, broker, proxy.endpoints, tools)
        yield stack.enter_context(at_once(request, lambda case: CASES[case](place), places=3))


@pytest.mark.parametrize("case", CASES)
def test_through_the_proxy(runs: dict[str, Future[Any]], case: str) -> None:
    runs[case].result()
