"""Delays, recalls, retries and requests: the Java and Go clients with our broker, ours with Java's."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.interop.at_once import at_once
from tests.interop.clients import CometClient, GoClient, JavaClient, body_pattern
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import CLOCKS_APART_MS, SEND_WAIT_MS

from cometmq.admin import AdminClient
from cometmq.protocol.redrive import REDRIVE_ID
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from tests.interop.clients import ClientProgram, Event
    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CONF = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    # A retry takes level 3 + the number of times; a level above the last one counts as that.
    "messageDelayLevel": "1s 2s 1s 1s",
}
CLIENTS: dict[str, ClientProgram] = {
    "java4": JavaClient(4),
    "java5": JavaClient(5),
    "binary": JavaClient(5, binary_headers=True),
    "go": GoClient(),
    "cometmq": CometClient(),
}
SIZE = 300


@pytest.fixture(scope="module")
def comet() -> Iterator[Namesrv]:
    with Cluster(properties=CONF) as cluster:
        yield cluster.namesrv


@pytest.fixture(scope="module")
def java() -> Iterator[Namesrv]:
    need("java", "mvn")
    with JavaNamesrv() as namesrv, JavaBroker(namesrv.address, conf=CONF):
        yield namesrv.address


class Place(NamedTuple):
    """Where a case runs: the name servers of both brokers, and names of its own."""

    namesrvs: dict[str, Namesrv]
    case: str

    def fresh(self, word: str) -> str:
        return f"{word}-{self.case}"

    def requester(self) -> dict[str, str]:
        """A group and a client of the case's own: a reply goes to the client of its id."""
        return {"group": self.fresh("requesters"), "member": self.fresh("requester")}

    def pair(self) -> tuple[ClientProgram, Namesrv]:
        """The client and the name server of a case that ends in `java5-to-comet`, for example."""
        _, client, _, broker = self.case.split("-")
        need(*CLIENTS[client].tools)
        return CLIENTS[client], self.namesrvs[broker]


def between(scenario: str, *pairs: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [f"{scenario}-{pair}" for pair in pairs])


def messages(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "message"]


def index_of(message: Event) -> int:
    return int(message["properties"]["index"])


def by_index(events: Iterable[Event]) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        found[index_of(event)].append(event)
    return found


def check_content(message: Event, sent: Event) -> None:
    """Check that the consumer got the message that the producer sent, under the id in its answer."""
    index = sent["index"]
    assert message["size"] == SIZE
    assert message["crc32"] == zlib.crc32(body_pattern(index, SIZE))
    assert message["msgId"] == sent["msgId"]
    assert message["keys"] == f"m-{index} all-m"
    assert message["tags"] == "TagA"


DELAYS = {
    "level:1": 1000,
    "level:2": 2000,
    "level:99": 1000,
    "sec:1": 1000,
    "ms:1500": 1500,
    "at:2000": 2000,
    "": 0,
}


def delays(place: Place) -> None:
    client, namesrv = place.pair()
    base: dict[str, Any] = {"namesrv": namesrv, "topic": place.fresh("topic")}
    count = 3 * len(DELAYS)
    made = {"size": SIZE, "tags": "TagA"}
    # The Go consumer wants a topic that is there.
    sent = client.produce(**base, **made, count=count, delays=",".join(DELAYS))
    with client.start("consume", **base, group=place.fresh("group"), until_stdin=True) as consumer:
        consumer.wait_messages(count)
        # What comes twice has come by the time that this has.
        sent += client.produce(**base, **made, count=1, first=count, delays="ms:2001")
        consumer.wait_messages(count + 1)
        received = messages(consumer.finish())
    assert Counter(map(index_of, received)) == Counter(range(count + 1))
    waits = list(DELAYS.values())
    for message, reported in ((by_index(received)[event["index"]][0], event) for event in sent):
        check_content(message, reported)
        assert message["queueId"] == reported["queueId"]
        if reported["index"] < count:
            waited_ms = message["storeTimestamp"] - message["bornTimestamp"]
            assert waited_ms >= waits[reported["index"] % len(DELAYS)] - CLOCKS_APART_MS
        if "TIMER_DELIVER_MS" in message["properties"]:
            assert message["storeTimestamp"] >= int(message["properties"]["TIMER_DELIVER_MS"])


def recalled(place: Place) -> None:
    client, namesrv = place.pair()
    base: dict[str, Any] = {"namesrv": namesrv, "topic": place.fresh("topic")}
    with client.start("consume", **base, group=place.fresh("group"), until_stdin=True) as consumer:
        consumer.wait_started()
        events = client.run("produce", **base, count=5, delays="at:6000,level:1", recall="0,4")
        sent = {event["index"]: event for event in events if event["event"] == "sent"}
        assert [bool(sent[index]["recallHandle"]) for index in range(5)] == [True, False] * 2 + [
            True
        ]
        recalled = [event for event in events if event["event"] == "recalled"]
        assert {event["index"]: event["msgId"] for event in recalled} == {
            index: sent[index]["msgId"] for index in (0, 4)
        }
        consumer.wait_messages(3)
        client.produce(**base, count=1, first=9, delays="ms:3001")
        consumer.wait_messages(4)
        received = messages(consumer.finish())
    assert sorted(map(index_of, received)) == [1, 2, 3, 9]


def fails(place: Place) -> None:
    client, namesrv = place.pair()
    topic, group = place.fresh("topic"), place.fresh("group")
    base: dict[str, Any] = {"namesrv": namesrv, "topic": topic}
    sent = {
        event["index"]: event for event in client.produce(**base, count=6, size=SIZE, tags="TagA")
    }
    with client.start(
        "consume",
        **base,
        group=group,
        fail_times="1,99,0",
        max_reconsume_times=2,
        until_stdin=True,
    ) as consumer:
        deliveries = by_index(consumer.wait_messages(12))
        dead = {"namesrv": namesrv, "topic": f"%DLQ%{group}", "group": f"{group}-dlq"}
        letters = by_index(messages(client.run("consume", **dead, expected=2)))
        assert len(messages(consumer.finish())) == 12
    for index, times in enumerate((2, 3, 1) * 2):
        found = sorted(deliveries[index], key=lambda message: message["reconsumeTimes"])
        assert [message["reconsumeTimes"] for message in found] == list(range(times))
        for message in found:
            check_content(message, sent[index])
            assert message["topic"] == topic
        for message in found[1:]:
            assert message["properties"]["ORIGIN_MESSAGE_ID"] == sent[index]["offsetMsgId"]
    assert letters.keys() == {1, 4}
    for index, (letter,) in letters.items():
        check_content(letter, sent[index])
        assert letter["reconsumeTimes"] == 3
        assert letter["properties"]["RETRY_TOPIC"] == topic
        assert letter["properties"]["ORIGIN_MESSAGE_ID"] == sent[index]["offsetMsgId"]


def redriven(namesrv: Namesrv, redrive_id: str, group: str, **which: Any) -> int:
    """How many dead letters were sent again."""

    async def main() -> int:
        async with AdminClient([namesrv]) as admin:
            return sum(
                one.sent_count for one in await admin.messages.redrive(redrive_id, group, **which)
            )

    return asyncio.run(main())


def redrive(place: Place) -> None:
    client, namesrv = place.pair()
    topic, group = place.fresh("topic"), place.fresh("group")
    base: dict[str, Any] = {"namesrv": namesrv, "topic": topic}
    made = client.produce(**base, count=4, size=SIZE, tags="TagA")
    sent = {event["index"]: event for event in made}
    with client.start(
        "consume", **base, group=group, fail_times=99, max_reconsume_times=0, until_stdin=True
    ) as consumer:
        consumer.wait_messages(4)
        dead = {"namesrv": namesrv, "topic": f"%DLQ%{group}", "group": f"{group}-dlq"}
        client.run("consume", **dead, expected=4)
        consumer.finish()
    assert redriven(namesrv, f"{group}-1", group, keys=["m-1", "m-2"]) == 2
    assert redriven(namesrv, f"{group}-2", group, ids=[sent[3]["msgId"]], only_group=True) == 1

    def copies(events: Iterable[Event]) -> list[Event]:
        """The redriven messages. The group's offsets are its client's affair: Go's may have forgotten
        one at its end (see test_a_group_resumes_where_it_stopped), and gets that message itself again.
        """
        return [each for each in messages(events) if REDRIVE_ID in each["properties"]]

    with client.start("consume", **base, group=group, until_stdin=True) as consumer:
        consumer.wait_for(lambda events: len(copies(events)) >= 3)
        for redrive_id, which in (
            (f"{group}-1", {"keys": ["m-1", "m-2"]}),
            (f"{group}-2", {"ids": [sent[3]["msgId"]], "only_group": True}),
        ):
            redriven(namesrv, redrive_id, group, **which)
        client.produce(**base, count=1, first=9)
        consumer.wait_for(lambda events: any(index_of(each) == 9 for each in messages(events)))
        received = by_index(copies(consumer.finish()))
    assert {index: len(found) for index, found in received.items()} == {1: 1, 2: 1, 3: 1}
    for index in (1, 2, 3):
        (message,) = received[index]
        check_content(message, sent[index])
        assert (message["topic"], message["reconsumeTimes"]) == (topic, 0)


def replied(place: Place) -> None:
    _, asks, replies, broker = place.case.split("-")
    namesrv = place.namesrvs[broker]
    base: dict[str, Any] = {"namesrv": namesrv, "topic": place.fresh("topic")}
    with CLIENTS[replies].start(
        "consume", **base, group=place.fresh("group"), reply=True, until_stdin=True
    ) as replier:
        replier.wait_started()
        # A consumer that looked for the topic too early looks again after half a minute.
        events = CLIENTS[asks].run(
            "request", **base, **place.requester(), count=10, size=SIZE, ttl_ms=SEND_WAIT_MS
        )
        replied = [event for event in events if event["event"] == "replied"]
        assert [event["index"] for event in replied] == list(range(10)), events
        requests = by_index(messages(replier.finish()))
    assert not replier.named("reply-failed")
    for event in replied:
        index = event["index"]
        assert event["topic"] == "DefaultCluster_REPLY_TOPIC"
        assert event["crc32"] == zlib.crc32(body_pattern(index + 1, 64))
        (asked,) = requests[index]
        for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"):
            assert event["properties"][name] == asked["properties"][name]


def unanswered(place: Place) -> None:
    _, asks, broker = place.case.split("-")
    base: dict[str, Any] = {"namesrv": place.namesrvs[broker], "topic": place.fresh("topic")}
    events = CLIENTS[asks].run("request", **base, **place.requester(), count=1, ttl_ms=2000)
    assert [event["event"] for event in events] == ["failed", "summary"]


SCENARIOS: dict[str, Callable[[Place], None]] = {
    "delays": delays,
    "recalled": recalled,
    "fails": fails,
    "redriven": redrive,
    "replied": replied,
    "unanswered": unanswered,
}
BOTH_WAYS = (
    "java4-to-comet",
    "java5-to-comet",
    "binary-to-comet",
    "go-to-comet",
    "cometmq-to-java",
)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, comet: Namesrv, java: Namesrv
) -> Iterator[Mapping[str, Future[None]]]:
    """All cases at once: messages wait for seconds, processors do not."""
    namesrvs = {"comet": comet, "java": java}

    def run(case: str) -> None:
        SCENARIOS[case.partition("-")[0]](Place(namesrvs, case))

    with at_once(request, run, places=4) as runs:
        yield runs


@between("delays", *BOTH_WAYS)
def test_delays_of_every_kind(runs: Mapping[str, Future[None]], case: str) -> None:
    runs[case].result()


@between("recalled", "java5-to-comet", "binary-to-comet", "cometmq-to-java")
def test_what_was_recalled_does_not_come(runs: Mapping[str, Future[None]], case: str) -> None:
    runs[case].result()


@between("fails", *BOTH_WAYS)
def test_what_fails_comes_again_and_is_given_up_in_the_end(
    runs: Mapping[str, Future[None]], case: str
) -> None:
    runs[case].result()


@between("redriven", "java4-to-comet", "java5-to-comet", "go-to-comet")
def test_what_was_given_up_is_redriven(runs: Mapping[str, Future[None]], case: str) -> None:
    runs[case].result()


# Who asks, who replies, and the broker between them.
@between(
    "replied",
    "java4-java5-comet",
    "java5-java4-comet",
    "binary-cometmq-comet",
    "cometmq-java5-comet",
    "cometmq-java4-java",
    "java5-cometmq-java",
    "cometmq-cometmq-java",
)
def test_requests_are_replied_to(runs: Mapping[str, Future[None]], case: str) -> None:
    runs[case].result()


@between("unanswered", "java4-comet", "java5-comet", "cometmq-java")
def test_a_request_that_nobody_replies_to_fails(
    runs: Mapping[str, Future[None]], case: str
) -> None:
    runs[case].result()
