"""Transactions between the Java side and ours: verdicts, checks, death of a producer, and half
messages in a store that the other broker takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.clients import CometClient, JavaClient
from tests.interop.comet_servers import CometBroker, CometNamesrv
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.interop.clients import ClientProgram, Event, RunningClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

QUICK = {
    # A producer has this long for its verdict until it is asked, also on a machine that is busy.
    "transactionTimeOut": "6000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "200",
    # Nothing is given up while a slow machine gets its producer ready.
    "transactionCheckMax": "1000",
}
NEVER = {**QUICK, "transactionCheckInterval": "3600000"}
JAVA_STATES = {"commit": "COMMIT_MESSAGE", "rollback": "ROLLBACK_MESSAGE", "unknown": "UNKNOW"}

CLIENTS = {"java4": JavaClient(4), "java5": JavaClient(5), "cometmq": CometClient()}


@pytest.fixture(scope="module")
def comet() -> Iterator[str]:
    with CometNamesrv() as namesrv, CometBroker(namesrv.address, conf=QUICK):
        yield namesrv.address


@pytest.fixture(scope="module")
def java() -> Iterator[str]:
    need("java", "mvn")
    with JavaNamesrv() as namesrv, JavaBroker(namesrv.address, conf=QUICK):
        yield namesrv.address


@pytest.fixture(params=["java4-to-comet", "java5-to-comet", "cometmq-to-java", "cometmq-to-comet"])
def pair(request: pytest.FixtureRequest) -> tuple[ClientProgram, str]:
    """A client and the name server of the broker that it uses."""
    client, _, broker = request.param.partition("-to-")
    need("java", "mvn")
    return CLIENTS[client], request.getfixturevalue(broker)


def indexes(events: list[Event]) -> list[int]:
    return sorted(int(event["properties"]["index"]) for event in events)


def sent_all(client: RunningClient) -> None:
    client.wait_for(lambda events: any(event["event"] == "all-sent" for event in events))


def consumed(client: ClientProgram, base: dict[str, Any], wanted: list[int]) -> list[Event]:
    """The messages of a topic as a group consumes them: those wanted, and no others.

    A rebalance may deliver one twice; `check_nothing_else` says that the log holds it once.
    """
    with client.start("consume", **base, until_stdin=True) as consumer:
        eventually(lambda: set(indexes(consumer.named("message"))) >= set(wanted), wait_s=180)
        received = [event for event in consumer.finish() if event["event"] == "message"]
    assert set(indexes(received)) == set(wanted)
    return received


def check_nothing_else(namesrv: str, topic: str, expected: list[int], *, once: bool = True) -> None:
    """The topic holds these messages, and each `once`: a Java broker that asks again before it has
    the answer commits a message twice.
    """
    found = indexes(JavaClient(5).pull(namesrv=namesrv, topic=topic))
    assert (found if once else sorted(set(found))) == expected


def test_commit_rollback_and_unknown(
    request: pytest.FixtureRequest, pair: tuple[ClientProgram, str], fresh: Callable[[str], str]
) -> None:
    client, namesrv = pair
    base: dict[str, Any] = {"namesrv": namesrv, "topic": fresh("topic")}
    verdicts = ("commit", "rollback", "unknown", "raise")
    with client.start(
        "transact",
        **base,
        group=fresh("group"),
        count=20,
        size=5000,
        verdicts=",".join(verdicts),
        check="commit",
    ) as producer:
        sent_all(producer)
        states = [event["state"] for event in producer.named("state")]
        assert states == [JAVA_STATES.get(v, "UNKNOW") for v in verdicts] * 5
        wanted = [index for index in range(20) if index % 4 != 1]
        consumer = JavaClient(5) if client.label == "cometmq" else CometClient()
        received = consumed(consumer, {**base, "group": fresh("readers")}, wanted)
        asked = producer.named("checked")
        producer.finish()
    # All that was said in time was not asked for; the rest was, until the answer came.
    times: dict[int, list[str]] = {index: [] for index in range(20) if index % 4 in (2, 3)}
    sent = {event["index"]: event for event in producer.named("sent")}
    for event in asked:
        index = int(event["properties"]["index"])
        assert event["transactionId"] == sent[index]["msgId"]
        assert (event["topic"], event["size"]) == (base["topic"], 5000)
        times[index].append(event["properties"]["TRANSACTION_CHECK_TIMES"])
    for found in times.values():
        assert found
        # What a broker asked before it had heard of the producer counts too.
        assert found == [str(int(found[0]) + number) for number in range(len(found))]
    for event in received:
        assert event["msgId"] == sent[int(event["properties"]["index"])]["msgId"]
        assert event["sysFlag"] & 0xC == 0x8
    once = namesrv == request.getfixturevalue("comet")
    check_nothing_else(namesrv, base["topic"], wanted, once=once)


@pytest.mark.parametrize(
    ("dies", "answers"), [("java5", "cometmq"), ("cometmq", "java4"), ("java4", "java5")]
)
@pytest.mark.parametrize("broker", ["comet", "java"])
def test_another_member_answers_for_a_producer_that_died(
    request: pytest.FixtureRequest,
    fresh: Callable[[str], str],
    broker: str,
    dies: str,
    answers: str,
) -> None:
    need("java", "mvn")
    namesrv = request.getfixturevalue(broker)
    base: dict[str, Any] = {"namesrv": namesrv, "topic": fresh("topic"), "group": fresh("group")}
    with CLIENTS[dies].start("transact", **base, member="a", count=5, verdicts="unknown") as first:
        sent_all(first)
        first.kill()
    # A Java 5 producer is known to brokers only once it has sent something.
    known = {"count": 1, "first": 9, "verdicts": "commit"}
    with CLIENTS[answers].start("transact", **base, **known, member="b", check="commit") as second:
        eventually(lambda: set(indexes(second.named("checked"))) >= set(range(5)), wait_s=180)
        readers = {**base, "group": fresh("readers")}
        consumed(CometClient(), readers, [*range(5), 9])
        second.finish()
    check_nothing_else(namesrv, base["topic"], [*range(5), 9], once=broker == "comet")


@pytest.mark.parametrize(
    ("first", "second"),
    [(JavaBroker, CometBroker), (CometBroker, JavaBroker)],
    ids=["java-to-comet", "comet-to-java"],
)
@pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])
def test_the_other_broker_goes_on_with_the_transactions_of_a_store(
    comet_namesrv: str,
    tmp_path: Path,
    first: type[JavaBroker],
    second: type[JavaBroker],
    checked: bool,
) -> None:
    need("java", "mvn")
    base: dict[str, Any] = {"namesrv": comet_namesrv, "topic": "moved", "group": "movers"}

    def broker(kind: type[JavaBroker], name: str, conf: dict[str, str]) -> JavaBroker:
        directory = tmp_path / name
        directory.mkdir()
        return kind(
            comet_namesrv,
            broker_name="moved",
            directory=directory,
            store=tmp_path / "store",
            conf=conf,
        )

    with broker(first, "first", QUICK if checked else NEVER) as before:
        with JavaClient(5).start(
            "transact", **base, count=30, verdicts="commit,rollback,unknown", check="unknown"
        ) as producer:
            sent_all(producer)
            if checked:
                # Every one twice: the broker has appended copies by then.
                eventually(lambda: len(producer.named("checked")) >= 20, wait_s=180)
            producer.finish()
        before.stop()
    committed = [index for index in range(30) if index % 3 == 0]
    with broker(second, "second", QUICK):
        check_nothing_else(comet_namesrv, "moved", committed)
        with CometClient().start("transact", **base, check="commit") as producer:
            unknown = {index for index in range(30) if index % 3 == 2}
            eventually(lambda: set(indexes(producer.named("checked"))) >= unknown, wait_s=180)
            wanted = [index for index in range(30) if index % 3 != 1]
            consumed(CometClient(), base, wanted)
            assert set(indexes(producer.named("checked"))) == unknown, "what ended is not asked for"
            producer.finish()
        check_nothing_else(comet_namesrv, "moved", wanted, once=second is CometBroker)
