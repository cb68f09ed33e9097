"""Transactions between the Java side and ours: verdicts, checks, death of a producer, and half
messages in a store that the other broker takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.raw_client import RawClient, pull_ext
from tests.interop.at_once import at_once, made
from tests.interop.clients import CometClient, JavaClient
from tests.interop.comet_servers import CometBroker, CometNamesrv
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import JVM_WAIT_S, eventually

from cometmq.protocol.messages.record import decode_records
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.interop.clients import ClientProgram, Event, RunningClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

QUICK = {
    # A producer has this long for its verdict until it is asked, also on a machine that is busy.
    "transactionTimeOut": "6000",
    "transactionCheckInterval": "1000",
    # Nothing is given up while a slow machine gets its producer ready.
    "transactionCheckMax": "1000",
}
NEVER = {**QUICK, "transactionCheckInterval": "3600000"}
# A Java broker that writes several verdicts into one message, as it ships.
BATCHES = {"transactionOpBatchInterval": "200", "transactionOpMsgMaxSize": "4096"}
VERDICTS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
UPDATE_BROKER_CONFIG, PULL = 25, 11
JAVA_STATES = {"commit": "COMMIT_MESSAGE", "rollback": "ROLLBACK_MESSAGE", "unknown": "UNKNOW"}

CLIENTS: dict[str, ClientProgram] = {
    "java4": JavaClient(4),
    "java5": JavaClient(5),
    "cometmq": CometClient(),
}

# A client and the broker that it uses.
PAIRS = ("java4-to-comet", "java5-to-comet", "cometmq-to-java", "cometmq-to-comet")
# A broker, the client that dies, and the one that answers for it.
DEATHS = tuple(
    f"{broker}-{clients}"
    for broker in ("comet", "java")
    for clients in ("java5-cometmq", "cometmq-java4", "java4-java5")
)
# Whether the first broker asks, that broker, and the one that goes on.
MOVES = tuple(
    f"{when}-{order}"
    for when in ("unchecked", "checked")
    for order in ("java-to-comet", "comet-to-java")
)


@pytest.fixture(scope="module")
def comet() -> Iterator[str]:
    with CometNamesrv() as namesrv, CometBroker(namesrv.address, conf=QUICK):
        yield namesrv.address


@pytest.fixture(scope="module")
def java() -> Iterator[str]:
    need("java", "mvn")
    with JavaNamesrv() as namesrv, JavaBroker(namesrv.address, conf=QUICK):
        yield namesrv.address


def indexes(events: list[Event]) -> list[int]:
    return sorted(int(event["properties"]["index"]) for event in events)


def sent_all(client: RunningClient) -> None:
    client.wait_for(lambda events: any(event["event"] == "all-sent" for event in events))


def consumed(client: ClientProgram, base: dict[str, Any], wanted: list[int]) -> list[Event]:
    """The messages of a topic as a group consumes them: those wanted, and no others.

    A rebalance may deliver one twice; `check_nothing_else` says that the log holds it once.
    """
    with client.start("consume", **base, until_stdin=True) as consumer:
        eventually(
            lambda: set(indexes(consumer.named("message"))) >= set(wanted), wait_s=JVM_WAIT_S
        )
        received = [event for event in consumer.finish() if event["event"] == "message"]
    assert set(indexes(received)) == set(wanted)
    return received


def check_nothing_else(namesrv: str, topic: str, expected: list[int], *, once: bool = True) -> None:
    """The topic holds these messages, and each `once`: a Java broker that asks again before it has
    the answer commits a message twice.
    """
    found = indexes(JavaClient(5).pull(namesrv=namesrv, topic=topic))
    assert (found if once else sorted(set(found))) == expected


def answer_and_be_checked(client: ClientProgram, namesrv: str, name: str, *, once: bool) -> None:
    """Commit, roll back and leave open; the broker asks for what is open."""
    base: dict[str, Any] = {"namesrv": namesrv, "topic": name}
    verdicts = ("commit", "rollback", "unknown", "raise")
    with client.start(
        "transact",
        **base,
        group=name,
        member=name,
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
        received = consumed(consumer, {**base, "group": f"{name}-readers"}, wanted)
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
    check_nothing_else(namesrv, base["topic"], wanted, once=once)


def answer_for_one_that_died(
    dies: ClientProgram, answers: ClientProgram, namesrv: str, name: str, *, once: bool
) -> None:
    base: dict[str, Any] = {"namesrv": namesrv, "topic": name, "group": name}
    with dies.start("transact", **base, member=f"{name}-a", count=5, verdicts="unknown") as first:
        sent_all(first)
        first.kill()
    # A Java 5 producer is known to brokers only once it has sent something.
    known = {"count": 1, "first": 9, "verdicts": "commit"}
    with answers.start("transact", **base, **known, member=f"{name}-b", check="commit") as second:
        eventually(
            lambda: set(indexes(second.named("checked"))) >= set(range(5)), wait_s=JVM_WAIT_S
        )
        readers = {**base, "group": f"{name}-readers"}
        consumed(CometClient(), readers, [*range(5), 9])
        second.finish()
    check_nothing_else(namesrv, base["topic"], [*range(5), 9], once=once)


def note_verdicts(broker: JavaBroker, count: int) -> None:
    """Wait until a Java broker has noted so many verdicts in its log.

    Then raise the broker's interval: with the short one it would look for more with a whole processor until it stops.
    """
    with RawClient(broker.address) as client:
        eventually(lambda: len(verdicts(client)) >= count, wait_s=JVM_WAIT_S, pause_s=0.1)
        answer = client.ask(UPDATE_BROKER_CONFIG, body=b"transactionOpBatchInterval=3600000\n")
    assert answer.code == 0, answer.remark


def verdicts(client: RawClient) -> set[str]:
    """Return the queue offsets of the half messages that the broker has noted as ended."""
    answer = client.ask(PULL, pull_ext(VERDICTS, consumerGroup="looker"))
    if answer.code != 0:
        return set()
    bodies = [record.body.decode() for record in decode_records(answer.body)]
    return {offset for body in bodies for offset in body.split(",") if offset}


def hand_over(
    first: type[JavaBroker], second: type[JavaBroker], directory: Path, *, checked: bool
) -> None:
    """Begin transactions at one broker and go on with them at the other, on the same store."""
    with Cluster(brokers=0) as names:
        _hand_over(names.namesrv, first, second, directory, checked=checked)


def _hand_over(
    namesrv: str,
    first: type[JavaBroker],
    second: type[JavaBroker],
    directory: Path,
    *,
    checked: bool,
) -> None:
    base: dict[str, Any] = {"namesrv": namesrv, "topic": "moved", "group": "movers"}

    def broker(kind: type[JavaBroker], name: str, conf: dict[str, str]) -> JavaBroker:
        home = directory / name
        home.mkdir()
        return kind(
            namesrv,
            broker_name="moved",
            directory=home,
            store=directory / "store",
            conf=conf,
        )

    with broker(first, "first", {**(QUICK if checked else NEVER), **BATCHES}) as before:
        with JavaClient(5).start(
            "transact", **base, count=30, verdicts="commit,rollback,unknown", check="unknown"
        ) as producer:
            sent_all(producer)
            if first is JavaBroker:
                # Twenty are committed or rolled back.
                note_verdicts(before, 20)
            if checked:
                # Every one twice: the broker has appended copies by then.
                eventually(lambda: len(producer.named("checked")) >= 20, wait_s=JVM_WAIT_S)
            producer.finish()
        before.stop()
    committed = [index for index in range(30) if index % 3 == 0]
    with broker(second, "second", QUICK):
        check_nothing_else(namesrv, "moved", committed)
        with CometClient().start("transact", **base, check="commit") as producer:
            unknown = {index for index in range(30) if index % 3 == 2}
            eventually(
                lambda: set(indexes(producer.named("checked"))) >= unknown, wait_s=JVM_WAIT_S
            )
            wanted = [index for index in range(30) if index % 3 != 1]
            consumed(CometClient(), base, wanted)
            assert set(indexes(producer.named("checked"))) == unknown, "what ended is not asked for"
            producer.finish()
        # A Java broker notes a moment later than it makes a copy that the copy stands for the message.
        once = second is CometBroker and not (checked and first is JavaBroker)
        check_nothing_else(namesrv, "moved", wanted, once=once)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    comet: str,
    java: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[None]]]:
    """All cases at once: a broker asks for a verdict six seconds after a message came."""
    servers = {"comet": comet, "java": java}
    kinds: dict[str, type[JavaBroker]] = {"comet": CometBroker, "java": JavaBroker}
    directory = tmp_path_factory.mktemp("moves")

    def run(case: str) -> None:
        if case in MOVES:
            when, first, _, second = case.split("-")
            home = made(directory / case)
            hand_over(kinds[first], kinds[second], home, checked=when == "checked")
        elif case in PAIRS:
            client, _, at = case.split("-")
            answer_and_be_checked(CLIENTS[client], servers[at], case, once=at == "comet")
        else:
            at, dies, answers = case.split("-")
            clients = CLIENTS[dies], CLIENTS[answers]
            answer_for_one_that_died(*clients, servers[at], case, once=at == "comet")

    with at_once(request, run, places=4) as runs:
        yield runs


@pytest.mark.parametrize("case", PAIRS)
def test_commit_rollback_and_unknown(runs: dict[str, Future[None]], case: str) -> None:
    runs[case].result()


@pytest.mark.parametrize("case", DEATHS)
def test_another_member_answers_for_a_producer_that_died(
    runs: dict[str, Future[None]], case: str
) -> None:
    runs[case].result()


@pytest.mark.parametrize("case", MOVES)
def test_the_other_broker_goes_on_with_the_transactions_of_a_store(
    runs: dict[str, Future[None]], case: str
) -> None:
    runs[case].result()
