"""The same scenarios for every pairing of a client with the other side's servers."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.clients import (
    NOTE,
    ClientProgram,
    CometClient,
    Event,
    GoClient,
    JavaClient,
    RunningClient,
    body_pattern,
)
from tests.interop.conftest import Namesrv, need
from tests.waits import CLOCKS_APART_MS, JVM_WAIT_S, eventually

import cometmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 40
TAGS = "TagA,TagB,TagC"

PAIRS = [
    (JavaClient(4), "comet_servers"),
    (JavaClient(5), "comet_servers"),
    (JavaClient(5, binary_headers=True), "comet_servers"),
    (GoClient(), "comet_servers"),
    (CometClient(), "java_servers"),
]


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0].label}-on-{pair[1]}")
def pair(request: pytest.FixtureRequest) -> tuple[ClientProgram, Namesrv]:
    """A client and the name server of the servers it talks to."""
    client, servers = request.param
    need(*client.tools)
    return client, request.getfixturevalue(servers)


def messages(events: Iterable[Event]) -> list[Event]:
    """The message events among `events`."""
    return [event for event in events if event["event"] == "message"]


def index_of(message: Event) -> int:
    """Which of the sent messages this is."""
    return int(message["properties"]["index"])


def check_content(message: Event, prefix: str, size: int) -> None:
    """Body, key, tag, flag and properties are those that were sent."""
    index = index_of(message)
    assert message["size"] == size
    assert message["crc32"] == zlib.crc32(body_pattern(index, size))
    assert message["keys"] == f"{prefix}-{index} all-{prefix}"
    assert message["tags"] == TAGS.split(",")[index % 3]
    assert message["flag"] == index % 7
    assert message["properties"]["note"] == NOTE


@pytest.mark.parametrize(
    ("mode", "size"), [("sync", 64), ("async", 6000), ("oneway", 100), ("batch", 300)]
)
def test_every_way_of_sending(
    pair: tuple[ClientProgram, Namesrv], fresh: Callable[[str], str], mode: str, size: int
) -> None:
    client, namesrv = pair
    topic = fresh("topic")
    sent = client.produce(
        namesrv=namesrv, topic=topic, mode=mode, count=COUNT, size=size, tags=TAGS, prefix=mode
    )
    assert sum(event["count"] for event in sent) == COUNT
    received = messages(
        client.run("consume", namesrv=namesrv, topic=topic, group=fresh("group"), expected=COUNT)
    )
    assert sorted(map(index_of, received)) == list(range(COUNT))
    for message in received:
        check_content(message, mode, size)
    check_queues(received)
    check_results(sent, received, mode)


def test_messages_of_a_batch_of_a_java_client_at_a_java_broker_keep_their_ids(
    java4_servers: Namesrv, fresh: Callable[[str], str]
) -> None:
    """Every message had the id of its batch, for our clients as for Java's, at brokers of 4.8 to 5.3."""
    topic, java = fresh("topic"), JavaClient(5)
    need(*java.tools)
    sent = java.produce(namesrv=java4_servers, topic=topic, mode="batch", count=COUNT)
    own = {
        event["index"] + place: msg_id
        for event in sent
        for place, msg_id in enumerate(event["msgId"].split(","))
    }
    assert len(set(own.values())) == COUNT
    base = {"namesrv": java4_servers, "topic": topic, "expected": COUNT}
    by_java = messages(java.run("consume", **base, group=fresh("java")))
    by_us = messages(CometClient().run("consume", **base, group=fresh("ours")))
    assert {index_of(one): one["msgId"] for one in by_us} == own
    of_batch = {index_of(one): one["msgId"] for one in by_java}
    assert len(set(of_batch.values())) == len(sent)
    with cometmq.AdminClient(java4_servers) as admin:
        # The index of a Java broker has the id of the batch alone.
        first = sent[0]
        found = eventually(
            lambda: admin.messages.by_unique_id(topic, of_batch[first["index"]]),
            lambda found: len(found) == first["count"],
        )
        assert {message.msg_id for message in found} == set(first["msgId"].split(","))
        assert {message.batch_msg_id for message in found} == {of_batch[first["index"]]}
        [one] = admin.messages.find(first["offsetMsgId"].split(",")[0], topic)
        assert one.msg_id == own[first["index"]]


def check_queues(received: list[Event]) -> None:
    """The offsets of each queue run from 0 without a gap, and all four queues were used."""
    offsets: dict[int, list[int]] = {}
    for message in received:
        offsets.setdefault(message["queueId"], []).append(message["queueOffset"])
    for queue_id, found in offsets.items():
        assert sorted(found) == list(range(len(found))), queue_id
    assert set(offsets) <= {0, 1, 2, 3}
    assert len(offsets) > 1


def check_results(sent: list[Event], received: list[Event], mode: str) -> None:
    """Check that the consumer found each message where the producer's answer said."""
    if mode == "oneway":
        return
    by_index = {index_of(message): message for message in received}
    for event in sent:
        assert event["status"] == "SEND_OK"
        offset_ids = event["offsetMsgId"].split(",")
        assert len(offset_ids) == event["count"]
        for place in range(event["count"]):
            message = by_index[event["index"] + place]
            assert message["queueId"] == event["queueId"]
            assert message["queueOffset"] == event["queueOffset"] + place
            assert message["offsetMsgId"] == offset_ids[place]
        msg_ids = event["msgId"].split(",")
        if len(msg_ids) == event["count"]:  # else it is the Go client, which names a batch by none
            found = [by_index[event["index"] + place]["msgId"] for place in range(event["count"])]
            assert found == msg_ids
        else:
            assert mode == "batch"


@pytest.mark.parametrize(("expression", "wanted"), [("TagA", "A"), ("TagB || TagC", "BC")])
def test_a_tag_expression_selects(
    pair: tuple[ClientProgram, Namesrv],
    fresh: Callable[[str], str],
    expression: str,
    wanted: str,
) -> None:
    client, namesrv = pair
    topic = fresh("topic")
    base = {"namesrv": namesrv, "topic": topic}
    client.produce(**base, count=30, tags=TAGS)
    expected = {f"Tag{letter}": 10 for letter in wanted}
    with client.start(
        "consume", **base, group=fresh("group"), expression=expression, until_stdin=True
    ) as consumer:
        consumer.wait_messages(sum(expected.values()))
        # Were the filter missing, the others would have come by the time these have.
        client.produce(**base, count=3, first=30, tags=TAGS)
        consumer.wait_messages(sum(expected.values()) + len(wanted))
        received = messages(consumer.finish())
    assert Counter(message["tags"] for message in received) == {
        tag: count + 1 for tag, count in expected.items()
    }


def test_a_group_of_two_shares_the_queues_and_hands_them_over(
    pair: tuple[ClientProgram, Namesrv], fresh: Callable[[str], str]
) -> None:
    client, namesrv = pair
    base = {"namesrv": namesrv, "topic": fresh("topic")}
    group = {"group": fresh("group"), "until_stdin": True}
    client.produce(**base, count=8)
    with (
        client.start("consume", **base, **group, member="a") as first,
        client.start("consume", **base, **group, member="b") as second,
    ):
        first.wait_started()
        second.wait_started()
        produced = 8 + settle(client, base, first, second)
        client.produce(**base, count=COUNT, first=10_000)
        eventually(lambda: len(shared(first, second, 10_000)) >= COUNT, wait_s=JVM_WAIT_S)
        halves = [queues(member, 10_000) for member in (first, second)]
        assert all(halves), "each member has queues"
        assert not halves[0] & halves[1], "no queue has two members"
        assert sorted(shared(first, second, 10_000)) == list(range(10_000, 10_000 + COUNT))
        left = first.finish()
        client.produce(**base, count=8, first=20_000)
        eventually(lambda: len(set(shared(second, second, 20_000))) >= 8, wait_s=JVM_WAIT_S)
        assert queues(second, 20_000) == halves[0] | halves[1]
        right = second.finish()
    everything = {index_of(message) for message in messages(left) + messages(right)}
    assert everything >= {*range(produced), *range(10_000, 10_000 + COUNT), *range(20_000, 20_008)}


def settle(
    client: ClientProgram, base: dict[str, Any], first: RunningClient, second: RunningClient
) -> int:
    """Send until two rounds of messages in a row reach both members, by the same queues.

    Rebalancing takes a moment, in which a message may reach either member or both. Returns how
    many were sent.
    """
    deadline = time.monotonic() + JVM_WAIT_S
    produced = 0
    before: list[set[int]] = []
    while time.monotonic() < deadline:
        start = 8 + produced
        client.produce(**base, count=8, first=start)
        produced += 8
        eventually(partial(got_all, first, second, start, 8), wait_s=JVM_WAIT_S)
        halves = [queues(member, start) for member in (first, second)]
        if all(halves) and not halves[0] & halves[1] and halves == before:
            return produced
        before = halves
    raise AssertionError("the members never shared the queues")


def shared(first: RunningClient, second: RunningClient, start: int) -> list[int]:
    """Indexes from `start` on that the members received, duplicates included."""
    members = {id(member): member for member in (first, second)}.values()
    received = [message for member in members for message in member.named("message")]
    return [index_of(message) for message in received if index_of(message) >= start]


def got_all(first: RunningClient, second: RunningClient, start: int, count: int) -> bool:
    """Whether the members received `count` different messages from index `start` on."""
    return len(set(shared(first, second, start))) >= count


def queues(member: RunningClient, start: int) -> set[int]:
    """The queues of the messages from index `start` on."""
    received = member.named("message")
    return {message["queueId"] for message in received if index_of(message) >= start}


def test_a_group_resumes_where_it_stopped(
    pair: tuple[ClientProgram, Namesrv], fresh: Callable[[str], str]
) -> None:
    """It gets what is behind the offsets that its member has sent, and nothing else.

    All clients send those of all that they consumed, but for Go's (2.1.2), which may lose some. Where it writes
    offsets, each five seconds and at its end, it forgets those of queues that are not in a list that it
    made before it waited for its turn (`remoteBrokerOffsetStore.persist`); where it gives a queue up, the
    list is that queue. It never sends offsets that it has forgotten, and one run of CI lacked those of
    two queues of four. It says what it has sent, and that is the measure: a broker that drops it fails
    here.
    """
    client, namesrv = pair
    base = {"namesrv": namesrv, "topic": fresh("topic")}
    group = fresh("group")
    client.produce(**base, count=12)
    tells = {"tell_commits": True} if client.label == "go" else {}
    first = client.run("consume", **base, group=group, expected=12, **tells)
    lost = lost_by_the_client(first, base["topic"]) if tells else []
    client.produce(**base, count=12, first=12)
    received = messages(client.run("consume", **base, group=group, expected=12 + len(lost)))
    assert sorted(map(index_of, received)) == [*lost, *range(12, 24)]


def lost_by_the_client(events: list[Event], topic: str) -> list[int]:
    """Return the indexes of the messages that a member consumed without a commit of it at its
    broker.
    """
    offsets = {
        event["queueId"]: event["offset"]
        for event in events
        if event["event"] == "committed" and event["topic"] == topic
    }
    assert offsets, "the client has sent no offset at all"
    return sorted(
        index_of(message)
        for message in messages(events)
        if message["queueOffset"] >= offsets.get(message["queueId"], 0)
    )


@pytest.mark.parametrize("line", [4, 5])
def test_java_asks_for_offsets(
    comet_servers: Namesrv, fresh: Callable[[str], str], line: int
) -> None:
    need("java", "mvn")
    client = JavaClient(line)
    base = {"namesrv": comet_servers, "topic": fresh("topic")}
    sent = client.produce(**base, count=8)
    between = int(time.time() * 1000) + 2 * CLOCKS_APART_MS
    eventually(lambda: int(time.time() * 1000) > between + 2 * CLOCKS_APART_MS)
    sent += client.produce(**base, count=8, first=8)
    client.run("consume", **base, group=fresh("group"), expected=16)
    events = client.run("offsets", **base, group=fresh("group"), timestamp=between)
    found = {event["queueId"]: event for event in events if event["event"] == "queue"}
    counts = Counter(event["queueId"] for event in sent)
    before = Counter(event["queueId"] for event in sent[:8])
    assert set(found) == {0, 1, 2, 3}
    for queue_id, event in found.items():
        assert event["min"] == 0
        assert event["max"] == counts[queue_id]
        assert event["searched"] == before[queue_id]
        assert event["committed"] == counts[queue_id]
