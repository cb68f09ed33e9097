"""The cases of RocketMQ's clients for gRPC, the same for each language, and the proxy that they run through."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests.interop.clients import (
    CometClient,
    GrpcGoClient,
    GrpcJavaClient,
    GrpcNodeClient,
    GrpcPythonClient,
    GrpcRustClient,
    JavaClient,
    body_pattern,
)
from tests.interop.peers import HOST, free_port
from tests.waits import JVM_WAIT_S, eventually

from cometmq import AdminClient
from cometmq.model.names import dlq_topic
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.keys import proxy_configs
from cometmq.proxy.server import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.clients import Event, GrpcClient, RunningClient
    from tests.interop.mqadmin.runner import MqAdmin

    from cometmq import Credentials

COUNT = 24
MIN_INVISIBLE_S = 10
CONF = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "500",
    "transactionCheckInterval": "500",
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
}
# The proxy, ours or Java's, hides a push consumer's message for this time instead of a minute, and hides it for a
# minute more within three seconds, unless it is acknowledged before.
HIDDEN_S = 12
PROXY_CONF = {
    "defaultInvisibleTimeMills": str(HIDDEN_S * 1000),
    "renewAheadTimeMillis": "10000",
    "renewSchedulePeriodMillis": "1000",
    # Java's push consumer waits for its receives before it ends.
    "grpcClientConsumerMaxLongPollingTimeoutMillis": "5000",
}
RENEWED_FOR_S = 60
# How many other cases of a module run at a time. Each starts two or three client programs, of which four of a
# kind are kept for later cases; with 14 cases at a time 35 JVMs ran at once.
PLACES = 4


class RunningProxy:
    """Runs a proxy on a loop of its own, with more of its configuration in `options`. A context manager."""

    def __init__(self, namesrv: str, **options: Any) -> None:
        settings = proxy_configs(PROXY_CONF, source="the tests").settings
        self._config = ProxyConfig(
            namesrv=[namesrv], bind_address=HOST, port=free_port(), settings=settings, **options
        )
        self.endpoints = f"{HOST}:{self._config.port}"
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.proxy = Proxy(self._config)
        await self.proxy.start()
        self._started.set()
        await self._stop.wait()
        await self.proxy.close()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(JVM_WAIT_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(JVM_WAIT_S)
        assert not self._thread.is_alive()


class Keys(NamedTuple):
    """The accounts of a cluster that wants signatures: one that sends and receives over TLS, and one that administers."""

    client: Credentials
    admin: Credentials


class Place:
    """Holds the environment of cases: a proxy, the cluster behind it, mqadmin, and the client of a case."""

    client: GrpcClient

    def __init__(
        self, namesrv: str, broker: str, endpoints: str, tools: MqAdmin, keys: Keys | None = None
    ) -> None:
        self.namesrv = namesrv
        self._broker = broker
        self._tools = tools
        self._one = threading.Lock()
        self._admin = keys.admin if keys else None
        # The arguments of a client of the proxy, and of a client of the remoting protocol.
        self.front: dict[str, Any] = {"endpoints": endpoints}
        self.behind: dict[str, Any] = {"namesrv": namesrv}
        if keys is not None:
            self.front |= {"tls": True, **_signing(keys.client)}
            self.behind |= _signing(keys.admin)

    def of(self, client: GrpcClient) -> Place:
        """Return the same place for another client."""
        place = copy.copy(self)
        place.client = client
        return place

    def mqadmin(self, command: str, *args: str) -> str:
        with self._one:
            printed = self._tools.run(self.namesrv, command, *args)
        assert "Exception" not in printed.out + printed.err, printed
        return printed.out

    def make(
        self,
        case: str,
        kind: str = "NORMAL",
        *,
        retries: int = 16,
        ordered: bool = False,
        queues: int = 4,
    ) -> dict[str, Any]:
        """Create a case's group, and its topic with a message type; return the arguments that name them."""
        topic, group = f"{self.client.label}-{case}", f"group-{self.client.label}-{case}"
        self.mqadmin(
            "updateTopic", "-b", self._broker, "-t", topic, "-r", str(queues),
            "-w", str(queues), "-a", f"+message.type={kind}",
        )  # fmt: skip
        self.mqadmin(
            "updateSubGroup", "-b", self._broker, "-g", group, "-r", str(retries),
            "-o", str(ordered).lower(),
        )  # fmt: skip
        return {**self.front, "topic": topic, "group": group}

    def feed(self, names: dict[str, Any], **args: object) -> None:
        """Send messages to a case's topic by our own producer, over the remoting protocol."""
        CometClient().produce(**self.behind, topic=names["topic"], **args)

    def stored(self, topic: str) -> list[Event]:
        """Return every message of a topic, as Java's client reads them over the remoting protocol."""
        return JavaClient(5).pull(**self.behind, topic=topic)

    def reader(self, **args: object) -> RunningClient:
        """Start a consumer that goes on until it is finished: a push consumer, if the client has one.

        A message that fails a simple consumer of a client that cannot change for how long it is hidden comes again
        when its time is over.
        """
        if "push" in self.client.lacks:
            return self.client.start("receive", invisible_s=MIN_INVISIBLE_S, **args)
        return self.client.start("consume", **args)

    def dead_letters(self, names: dict[str, Any]) -> list[Event]:
        """Wait for a dead letter of the group, and return those that are there."""
        found: list[Event] = []
        dead = dlq_topic(names["group"])
        with AdminClient(self.namesrv, credentials=self._admin) as admin:

            def come() -> bool:
                if dead in admin.topics.names():
                    found[:] = self.stored(dead)
                return bool(found)

            eventually(come, wait_s=JVM_WAIT_S)
        return found


def _signing(account: Credentials) -> dict[str, str]:
    return {"access_key": account.access_key, "secret_key": account.secret_key}


def index_of(message: Event) -> int:
    return int(message["properties"]["index"])


def indexes(*clients: RunningClient) -> Counter[int]:
    return Counter(index_of(each) for client in clients for each in client.named("message"))


def ended(events: list[Event]) -> bool:
    return any(each["event"] == "summary" for each in events)


def seen(client: RunningClient, wanted: set[int]) -> None:
    """Wait until messages of all these indexes have come to a consumer."""
    client.wait_for(
        lambda events: {index_of(each) for each in events if each["event"] == "message"} >= wanted
    )


def all_seen(count: int, client: RunningClient) -> None:
    seen(client, set(range(count)))


def without_group(names: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in names.items() if key != "group"}


def sent_and_pushed(place: Place) -> None:
    names = place.make("pushed")
    with place.reader(**names) as consumer:
        consumer.wait_started()
        sent = place.client.produce(count=COUNT, tags="a,b", **without_group(names))
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
    assert len(place.stored(names["topic"])) == COUNT


def renewed(place: Place) -> None:
    """The proxy renews the handle of a message whose listener works for longer than the message is hidden. The
    client acknowledges by the handle that it was given, and the message does not come again.
    """
    names = place.make("renewed")
    works_s = HIDDEN_S + 8
    with place.client.start("consume", delay_ms=f"{works_s * 1000},0", **names) as consumer:
        consumer.wait_started()
        place.client.produce(count=1, **without_group(names))
        all_seen(1, consumer)
        place.feed(names, count=1, first=1, delays=f"sec:{RENEWED_FOR_S + 10}")
        all_seen(2, consumer)
        consumer.finish()
    assert [(index_of(each), each["attempt"]) for each in consumer.named("message")] == [
        (0, 1),
        (1, 1),
    ]


def received_and_made_visible_again(place: Place) -> None:
    names = place.make("received")
    place.feed(names, count=6)
    # Without a call that changes for how long a message is hidden, each failure costs the whole time.
    hides = "hide" not in place.client.lacks
    times = 2 if hides else 1
    with place.client.start(
        "receive",
        expected=6,
        fail_times=f"0,{times}",
        hide_s=1,
        invisible_s=30 if hides else MIN_INVISIBLE_S,
        **names,
    ) as consumer:
        consumer.wait_for(ended)
        consumer.finish()
    attempts = defaultdict(list)
    for message in consumer.named("message"):
        attempts[index_of(message)].append(message["attempt"])
    assert attempts == {i: [*range(1, 2 + i % 2 * times)] for i in range(6)}


def extended(place: Place) -> None:
    names = place.make("extended")
    place.feed(names, count=1)
    with place.client.start(
        "receive", invisible_s=MIN_INVISIBLE_S, extend_s=60, hold_ms=1200 * MIN_INVISIBLE_S,
        expected=1, **names,
    ) as holder:  # fmt: skip
        holder.wait_messages(1)
        # It would get the message if that came again while it is held, or later.
        with place.client.start("receive", **names) as other:
            holder.wait_for(ended)
            holder.finish()
            place.feed(names, count=1, first=1)
            other.wait_messages(1)
            other.finish()
    assert [each["attempt"] for each in holder.named("message")] == [1]
    assert indexes(other) == {1: 1}


def selected_by_tags_and_sql(place: Place) -> None:
    names = place.make("selected")
    other = {**names, "group": f"{names['group']}-sql"}
    place.feed(names, count=9, tags="a,b,c")
    for args in (
        {**names, "expression": "a || c"},
        {**other, "expression": "TAGS IN ('a', 'c')", "sql": True},
    ):
        with place.client.start("receive", expected=6, **args) as consumer:
            consumer.wait_for(ended)
            consumer.finish()
        assert {each["tags"] for each in consumer.named("message")} == {"a", "c"}


def retried_and_dead(place: Place) -> None:
    names = place.make("dead", retries=1)
    with place.reader(fail_times="9,1,0", **names) as consumer:
        consumer.wait_started()
        place.client.produce(count=3, **without_group(names))
        (letter,) = place.dead_letters(names)
        all_seen(3, consumer)
        eventually(lambda: indexes(consumer) == {0: 2, 1: 2, 2: 1}, wait_s=JVM_WAIT_S)
        consumer.finish()
    assert letter["properties"]["index"] == "0"
    # Java's broker writes the retry topic from which the message was given up.
    assert letter["properties"]["RETRY_TOPIC"].endswith(names["topic"])


def in_order(place: Place) -> None:
    names = place.make("fifo", "FIFO", ordered=True)
    times = "0" if "ordered-retries" in place.client.lacks else "0,0,1"
    with place.reader(fail_times=times, **names) as consumer:
        consumer.wait_started()
        place.client.produce(count=COUNT, groups="x,y,z", **without_group(names))
        all_seen(COUNT, consumer)
        consumer.finish()
    by_group: defaultdict[str, list[int]] = defaultdict(list)
    for message in consumer.named("message"):
        if not by_group[message["group"]] or by_group[message["group"]][-1] != index_of(message):
            by_group[message["group"]].append(index_of(message))
    assert by_group == {
        group: list(range(first, COUNT, 3)) for first, group in enumerate(("x", "y", "z"))
    }, by_group


def delayed_and_recalled(place: Place) -> None:
    names = place.make("delayed", "DELAY")
    with place.reader(**names) as consumer:
        consumer.wait_started()
        if "recall" in place.client.lacks:
            sent = place.client.produce(count=4, delays_ms="2000,3600000", **without_group(names))
            assert len(sent) == 4
        else:
            events = place.client.run(
                "produce", count=4, delays_ms="2000,3600000", recall="1,3", **without_group(names)
            )
            recalled = [each for each in events if each["event"] == "recalled"]
            assert [each["index"] for each in recalled] == [1, 3]
        seen(consumer, {0, 2})
        consumer.finish()
    for message in consumer.named("message"):
        assert message["at"] >= message["deliveryTimestamp"] - 50, message
    assert indexes(consumer) == {0: 1, 2: 1}


def committed_and_rolled_back(place: Place) -> None:
    names = place.make("transact", "TRANSACTION")
    with (
        place.reader(**names) as consumer,
        place.client.start(
            "transact", count=6, verdicts="commit,rollback,unknown", check="commit",
            **without_group(names),
        ) as producer,
    ):  # fmt: skip
        seen(consumer, {0, 3, 2, 5})
        producer.finish()
        consumer.finish()
    assert indexes(consumer).keys() == {0, 3, 2, 5}
    # On a busy machine the broker may also ask about others before their verdicts come.
    assert {index_of(each) for each in producer.named("checked")} >= {2, 5}


def of_the_wrong_type(place: Place) -> None:
    names = place.make("typed", "NORMAL")
    events = place.client.run("produce", count=1, groups="x", may_fail=True, **without_group(names))
    (failed,) = [each for each in events if each["event"] == "failed"]
    assert place.client.of_wrong_type in failed["error"] + str(failed["cause"]), failed


def of_no_topic(place: Place) -> None:
    events = place.client.run(
        "produce", count=1, may_fail=True, **place.front, topic=f"{place.client.label}-nowhere"
    )
    (failed,) = [each for each in events if each["event"] == "failed"]
    assert place.client.of_no_topic in failed["error"] + str(failed["cause"]), failed


def by_priority(place: Place) -> None:
    # A priority is the number of its queue, up to the highest one.
    names = place.make("urgent", "PRIORITY", queues=8)
    priorities = [int(priority) for priority in place.client.priorities.split(",")]
    place.client.produce(count=4, priorities=place.client.priorities, **without_group(names))
    with place.client.start("receive", expected=4, **names) as consumer:
        consumer.wait_for(ended)
        consumer.finish()
    received = [(each["priority"], index_of(each)) for each in consumer.named("message")]
    assert received == sorted(zip(priorities, range(4), strict=True), reverse=True)


class Case(NamedTuple):
    """A case, and what a client must have for it."""

    run: Callable[[Place], None]
    needs: str = ""


CASES: dict[str, Case] = {
    case.run.__name__.replace("_", " "): case
    for case in (
        Case(renewed, "push"),
        Case(sent_and_pushed),
        Case(received_and_made_visible_again),
        Case(extended, "hide"),
        Case(selected_by_tags_and_sql),
        Case(retried_and_dead),
        Case(in_order),
        Case(delayed_and_recalled),
        Case(committed_and_rolled_back),
        Case(of_the_wrong_type),
        Case(of_no_topic),
        Case(by_priority, "priority"),
    )
}

CLIENTS: dict[str, GrpcClient] = {
    client.label: client
    for client in (
        GrpcJavaClient(),
        GrpcPythonClient(),
        GrpcNodeClient(),
        GrpcGoClient(),
        GrpcRustClient(),
    )
}


def cases_of(*clients: str) -> list[str]:
    """Name what these clients do: case by case, so that few programs of one language run at a time."""
    return [
        f"{label}: {name}"
        for name, case in CASES.items()
        for label in clients
        if case.needs not in CLIENTS[label].lacks
    ]


def only_waits(name: str) -> bool:
    """Say whether a case that `cases_of` names does little but wait for a minute."""
    return name.endswith(renewed.__name__)


def run_case(place: Place, name: str) -> None:
    """Run what `cases_of` names."""
    label, _, case = name.partition(": ")
    CASES[case].run(place.of(CLIENTS[label]))
