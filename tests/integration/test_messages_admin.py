"""Test what operators do with messages nobody consumes: dead letters, half messages given up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.integration.client_faces import BlockingFace, Received
from tests.integration.fixtures import prompt_face as face
from tests.integration.raw_client import RawClient
from tests.waits import eventually

import cometmq
from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    TransactionProducer,
)
from cometmq.admin import AdminClient
from cometmq.admin.messages.letters import Redriven
from cometmq.broker.retries import redrive_handlers
from cometmq.errors import (
    IllegalArgumentError,
    RemoteError,
    RouteNotFoundError,
    ServersFailedError,
)
from cometmq.protocol.codes import OwnRequestCode, ResponseCode
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.testing import Cluster

__all__ = ["face"]

FIRST = ConsumeFromWhere.FIRST_OFFSET
QUICK = {
    "transactionTimeOut": "100",
    "transactionCheckInterval": "150",
    "transactionOpBatchInterval": "100",
    # A producer whose message is resumed has almost two seconds to answer before the message is
    # given up again.
    "transactionCheckMax": "12",
}

T = TypeVar("T")
Ask = Callable[[Callable[[AdminClient], Coroutine[Any, Any, Any]]], Any]


pytestmark = [pytest.mark.cluster(brokers=2, properties=QUICK)]


@pytest.fixture
def raw(namesrv: str) -> Iterator[RawClient]:
    with cometmq.Producer("finds-a-broker", namesrv=namesrv) as producer:
        address = producer.send(Message("finds-a-broker", b"x")).offset_msg_id
    place = parse_offset_id(address)
    with RawClient(f"{place.host}:{place.port}") as raw:
        yield raw


@pytest.fixture
def ask(namesrv: str) -> Ask:
    """Return a function that runs a coroutine function of the admin API."""

    def run(work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            async with AdminClient(f"127.0.0.1:1;{namesrv}") as admin:
                return await work(admin)

        return asyncio.run(main())

    return run


def bury(face: BlockingFace, ask: Ask, name: str, count: int = 8) -> list[MessageExt]:
    """Make dead letters of group and topic `name`; return them as the admin API lists them."""
    producer = face.producer(name)
    # The queues of all brokers, because no broker has the topic yet.
    queues = producer.queues(name)
    brokers = {}
    for number in range(count):
        message = Message(name, b"%d" % number, tags="t", keys=[f"k{number}", "all"])
        sent = producer.send(message, queue=queues[number * 5 % len(queues)])
        brokers[sent.msg_id] = sent.queue.broker_name
    refuser = face.consumer(
        name,
        name,
        lambda _: ConsumeResult.RECONSUME_LATER,
        consume_from=FIRST,
        max_reconsume_times=0,
    )
    letters = eventually(lambda: found if len(found := listed(ask, name)) == count else None)
    refuser.close()
    assert {letter.msg_id: letter.broker_name for letter in letters} == brokers
    return sorted(letters, key=lambda letter: letter.body)


def listed(ask: Ask, group: str, **time_range: int) -> list[MessageExt]:
    async def work(admin: AdminClient) -> list[MessageExt]:
        return [letter async for letter in admin.messages.dead_letters(group, **time_range)]

    try:
        return ask(work)  # type: ignore[no-any-return]  # `ask` returns what its function does
    except RouteNotFoundError:
        return []


def redrive(ask: Ask, redrive_id: str, group: str, **which: Any) -> list[Redriven]:
    return ask(lambda admin: admin.messages.redrive(redrive_id, group, **which))  # type: ignore[no-any-return]  # `ask` returns what its function does


def sent(redriven: list[Redriven]) -> int:
    return sum(one.sent_count for one in redriven)


def test_letters_are_listed_as_they_lie(face: BlockingFace, ask: Ask, name: str) -> None:
    letters = bury(face, ask, name)
    assert [letter.body for letter in letters] == [b"%d" % number for number in range(8)]
    for letter in letters:
        assert letter.topic == f"%DLQ%{name}"
        assert letter.properties["RETRY_TOPIC"] == name
    times = sorted(letter.store_timestamp_ms for letter in letters)
    assert len(listed(ask, name, begin_ms=times[0], end_ms=times[-1])) == 8
    assert listed(ask, name, end_ms=times[0] - 1) == []
    assert listed(ask, name, begin_ms=times[-1] + 1) == []


def test_letters_go_back_where_they_came_from_and_only_once(
    face: BlockingFace, ask: Ask, name: str
) -> None:
    letters = bury(face, ask, name)
    received = Received()
    face.consumer(f"{name}-other", name, received.handle, consume_from=FIRST)
    first = {message.body: message for message in received.wait_for(8)}
    for _ in range(3):
        redriven = redrive(ask, "by id", name, ids=[letters[0].msg_id, letters[1].offset_msg_id])
        assert sent(redriven) == 2
    assert [one.broker_name for one in redriven] == ["broker-a", "broker-b"]
    assert sent(redrive(ask, "by key", name, keys=["k3", "k4", "nowhere"])) == 2
    times = [letter.store_timestamp_ms for letter in letters]
    assert sent(redrive(ask, "by time", name, begin_ms=min(times), end_ms=max(times))) == 8
    assert sent(redrive(ask, "none of that time", name, begin_ms=max(times) + 1)) == 0
    messages = received.wait_for(20)[8:]
    assert Counter(message.body for message in messages) == Counter(
        [b"0", b"1", b"3", b"4", *(b"%d" % number for number in range(8))]
    )
    for message in messages:
        before = first[message.body]
        assert (message.msg_id, message.topic, message.tags) == (before.msg_id, name, "t")
        assert (message.broker_name, message.queue_id) == (before.broker_name, before.queue_id)
        assert message.reconsume_times == 0
    with pytest.raises(ServersFailedError, match="choose a new id") as refusal:
        redrive(ask, "by id", name, ids=[letters[2].msg_id])
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    assert len(received.messages) == 20


def test_letters_may_go_to_their_group_alone(face: BlockingFace, ask: Ask, name: str) -> None:
    bury(face, ask, name, 4)
    others, own = Received(), Received()
    face.consumer(f"{name}-other", name, others.handle, consume_from=FIRST)
    others.wait_for(4)
    face.consumer(name, name, own.handle, consume_from=FIRST)
    assert sent(redrive(ask, "r", name, only_group=True)) == 4
    messages = own.wait_for(4)
    # For its group a retried message is one of its first topic.
    assert {message.topic for message in messages} == {name}
    face.producer(f"{name}-2").send(Message(name, b"last"))
    others.wait_for(5)
    assert Counter(others.bodies)[b"0"] == 1


def test_whoever_asks_meanwhile_waits_for_the_same_redrive(
    face: BlockingFace, ask: Ask, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(face, ask, name)
    monkeypatch.setattr(redrive_handlers, "_ANSWER_AFTER_S", 0)

    async def many(admin: AdminClient) -> list[list[Redriven]]:
        return list(await asyncio.gather(*(admin.messages.redrive("many", name) for _ in range(5))))

    for redriven in ask(many):
        assert sent(redriven) == 8
    received = Received()
    face.consumer(f"{name}-other", name, received.handle, consume_from=FIRST)
    assert Counter(message.body for message in received.wait_for(16)) == Counter(
        {b"%d" % number: 2 for number in range(8)}
    )


def test_a_redrive_that_cannot_be(face: BlockingFace, ask: Ask, name: str) -> None:
    with pytest.raises(RouteNotFoundError, match="%DLQ%"):
        redrive(ask, "r", name)
    with pytest.raises(IllegalArgumentError):
        redrive(ask, "r", "no group!")
    bury(face, ask, name, 1)
    with pytest.raises(RemoteError, match="1001 ids are selected, the limit MAX_SELECTED is 1000"):
        redrive(ask, "r", name, ids=[str(number) for number in range(1001)])
    with pytest.raises(RemoteError, match="1 to 120 printable characters"):
        redrive(ask, "", name)


def test_a_slave_sends_no_letters() -> None:
    with (
        Cluster(slaves=1) as cluster,
        RawClient(cluster.slaves[0].address) as raw,
    ):
        asked = {"redriveId": "r", "group": "g"}
        answer = raw.ask(OwnRequestCode.REDRIVE_DEAD_LETTERS, asked)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert cluster.brokers[0].address in answer.remark, "the master takes it"


@pytest.mark.parametrize(
    ("ext", "body", "code", "reason"),
    [
        ({}, b"", ResponseCode.SYSTEM_ERROR, "missing required field `redriveId`"),
        ({"redriveId": "r"}, b"", ResponseCode.SYSTEM_ERROR, "missing required field `group`"),
        ({"group": "a b"}, b"", ResponseCode.INVALID_PARAMETER, "has characters outside"),
        ({"group": "g"}, b"", ResponseCode.QUERY_NOT_FOUND, "has no dead letters here"),
        ({"group": "g"}, b"{nonsense", ResponseCode.SYSTEM_ERROR, ""),
        ({"group": "g"}, b'{"ids":"U1"}', ResponseCode.SYSTEM_ERROR, "$.ids"),
        ({"group": "g"}, b'{"beginMs":1e30}', ResponseCode.SYSTEM_ERROR, "$.beginMs"),
    ],
)
def test_a_request_for_a_redrive_that_does_not_fit(
    ext: dict[str, str], body: bytes, code: int, reason: str, raw: RawClient
) -> None:
    if "group" in ext:
        ext = {"redriveId": "does not fit", **ext}
    answer = raw.ask(OwnRequestCode.REDRIVE_DEAD_LETTERS, ext, body)
    assert answer.code == code
    assert reason in (answer.remark or "")


class Undecided:
    """A transaction listener that does not know the outcome until `verdict` is set."""

    def __init__(self) -> None:
        self.verdict = LocalTransactionState.UNKNOWN

    def execute(self, _message: Message, _arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check(self, _message: MessageExt) -> LocalTransactionState:
        return self.verdict


def test_halves_that_were_given_up_are_listed_and_resumed(
    namesrv: str, face: BlockingFace, ask: Ask, name: str
) -> None:
    began_ms = int(time.time() * 1000)
    listener = Undecided()

    async def of_this_test(admin: AdminClient) -> list[MessageExt]:
        found = admin.messages.given_up_halves(begin_ms=began_ms)
        return [half async for half in found if half.properties["PGROUP"] == name]

    def given_up() -> list[MessageExt]:
        try:
            return ask(of_this_test)  # type: ignore[no-any-return]  # `ask` returns what its function does
        except RouteNotFoundError:
            return []

    with TransactionProducer(name, listener, namesrv=namesrv) as producer:
        results = [
            producer.send_in_transaction(Message(name, b"half %d" % number)) for number in range(3)
        ]
        halves = eventually(lambda: found if len(found := given_up()) == 3 else None)
        assert {half.msg_id for half in halves} == {result.msg_id for result in results}
        assert {half.properties["REAL_TOPIC"] for half in halves} == {name}
        assert all(int(half.properties["TRANSACTION_CHECK_TIMES"]) >= 2 for half in halves)
        listener.verdict = LocalTransactionState.COMMIT
        resumed = halves[1]
        ask(lambda admin: admin.messages.resume_half(resumed.offset_msg_id))
        received = Received()
        face.consumer(name, name, received.handle, consume_from=FIRST)
        (message,) = received.wait_for(1)
        assert (message.msg_id, message.body) == (resumed.msg_id, resumed.body)
    assert len(received.messages) == 1


def test_what_is_no_half_message_is_not_resumed(face: BlockingFace, ask: Ask, name: str) -> None:
    with pytest.raises(IllegalArgumentError, match="not hex text"):
        ask(lambda admin: admin.messages.resume_half("nonsense"))
    ordinary = face.producer(name).send(Message(name, b"x"))
    with pytest.raises(RemoteError, match="is no message of RMQ_SYS_TRANS_HALF_TOPIC"):
        ask(lambda admin: admin.messages.resume_half(ordinary.offset_msg_id))
    nowhere = ordinary.offset_msg_id[:16] + f"{1 << 40:016X}"
    with pytest.raises(RemoteError):
        ask(lambda admin: admin.messages.resume_half(nowhere))


def test_operators_send_a_message_to_try_a_topic(
    face: BlockingFace, ask: Ask, name: str, namesrv: str
) -> None:
    ask(lambda admin: admin.topics.create(name, read_queues=2, write_queues=2, broker="broker-b"))
    face.until_routed(name, "broker-b")
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    message = Message(name, b"try", tags="t", keys="k", properties={"colour": "red"})
    queue = MessageQueue(name, "broker-b", 1)
    sent = ask(lambda admin: admin.messages.send(message, queue=queue))
    assert (sent.queue, sent.queue_offset, sent.status.value) == (queue, 0, "SEND_OK")
    (got,) = received.wait_for(1)
    assert (got.body, got.tags, got.keys, got.properties["colour"]) == (b"try", "t", ("k",), "red")
    assert (got.msg_id, got.offset_msg_id) == (sent.msg_id, sent.offset_msg_id)
    more = [ask(lambda admin: admin.messages.send(Message(name, b"any"))) for _ in range(20)]
    assert {at.queue.queue_id for at in more} == {0, 1}
    assert len({at.msg_id for at in more}) == 20


def test_a_message_that_operators_cannot_send_says_why(
    face: BlockingFace, ask: Ask, name: str
) -> None:
    def refused(message: Message, **options: Any) -> str:
        with pytest.raises((IllegalArgumentError, RemoteError, RouteNotFoundError)) as error:
            ask(lambda admin: admin.messages.send(message, **options))
        return str(error.value)

    assert "knows no route of topic" in refused(Message(name, b"x"))
    assert "is empty" in refused(Message(name, b""))
    ask(lambda admin: admin.topics.create(name, write_queues=2, broker="broker-b"))
    face.until_routed(name, "broker-b")
    elsewhere = MessageQueue(name, "broker-a", 0)
    assert "it does in 0 to 1 of broker-b" in refused(Message(name, b"x"), queue=elsewhere)
    ask(lambda admin: admin.topics.update(name, permission=4))
    eventually(
        lambda: [data.perm for data in ask(lambda admin: admin.topics.route(name)).queue_datas],
        lambda permissions: permissions == [4],
    )
    assert "no broker takes messages of topic" in refused(Message(name, b"x"))


def test_a_committed_transaction_that_is_sent_again_is_consumed_again(
    face: BlockingFace, ask: Ask, name: str, namesrv: str
) -> None:
    class Commits:
        def execute(self, message: Message, arg: Any) -> LocalTransactionState:
            return LocalTransactionState.COMMIT

        def check(self, message: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.COMMIT

    # A broker that asks for the verdict before it has it may commit the message twice.
    patient = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}
    with TransactionProducer(name, Commits(), namesrv=namesrv) as producer:
        producer.send_in_transaction(Message(name, b"x", properties=patient))
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    (first,) = received.wait_for(1)
    ask(lambda admin: admin.messages.resend(first))
    again = received.wait_for(2)[1]
    assert (again.msg_id, again.body) == (first.msg_id, b"x")
