"""One client's filter must not stop the others: 499 CONTAINS before 30 KB of properties.

Work is counted in turns of the broker's loop and in pulls, never timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.integration.client_faces import Received, open_face
from tests.integration.raw_client import RawClient, properties, pull_ext, send_ext
from tests.waits import WAIT_S

from cometmq import ConsumeFromWhere, Message
from cometmq.broker.pulls.waiter import State
from cometmq.broker.server import Broker
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.messages.record import decode_records
from cometmq.remoting.client import RemotingClient
from cometmq.testing import Cluster

SEND, PULL, MAX_OFFSET = 10, 11, 30
SETTINGS = {
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
}
SEARCHES = 499
# Python's quick search takes time in proportion to the product of this text's length and the wanted
# text's.
SLOW = "a" * 29_000
WANTED = "a" * 16 + "b"


def expression() -> str:
    """Return an expression of which only the last search decides."""
    parts = [f"p CONTAINS '{'a' * 8}b{i:03}{'a' * 3}'" for i in range(SEARCHES - 1)]
    return " OR ".join([*parts, f"p CONTAINS '{WANTED}'"])


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(properties=SETTINGS) as running:
        yield running


def message(number: int, *, wanted: bool) -> tuple[bytes, str]:
    return b"%d" % number, SLOW + ("b" if wanted else "")


class Client:
    def __init__(self, broker: Broker) -> None:
        self._address = f"127.0.0.1:{broker.port}"
        self._remoting = RemotingClient()

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        return await self._remoting.call(
            self._address, RemotingCommand(code, ext=ext, body=body), 60.0
        )

    async def send(self, topic: str, number: int, *, wanted: bool) -> None:
        body, text = message(number, wanted=wanted)
        answer = await self.ask(SEND, send_ext(topic, properties=properties({"p": text})), body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def close(self) -> None:
        await self._remoting.close()


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[tuple[Client, Client]]:
    both = Client(cluster.brokers[0]), Client(cluster.brokers[0])
    yield both
    for client in both:
        await client.close()


def stated(topic: str, offset: int) -> dict[str, str]:
    return pull_ext(
        topic, queueOffset=offset, subscription=expression(), expressionType="SQL92", sysFlag=4
    )


async def test_499_searches_in_30_kb_of_properties_let_others_in(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    greedy, other = clients
    count = 6
    for number in range(count):
        await other.send("t", number, wanted=number % 2 == 1)
    work = cluster.brokers[0].parts.filter_work
    found: list[int] = []
    offset = pulls = served = 0
    while offset < count:
        turns = work.turns
        pull = asyncio.ensure_future(greedy.ask(PULL, stated("t", offset)))
        while not pull.done():
            answer = await other.ask(MAX_OFFSET, {"topic": "t", "queueId": "0"})
            assert answer.code == ResponseCode.SUCCESS
            served += not pull.done()
        answer = await pull
        pulls += 1
        assert work.turns > turns
        if answer.code == ResponseCode.SUCCESS:
            found += [int(record.body) for record in decode_records(answer.body)]
        else:
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, answer.remark
        following = int(answer.ext["nextBeginOffset"])
        assert following > offset
        offset = following
    assert found == [1, 3, 5]
    # Half a dozen records are the work of many turns, and others are served after each turn.
    assert pulls > 1
    assert served >= pulls


async def test_pulls_sent_at_once_share_the_work_of_a_turn(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    greedy, other = clients
    for number in range(2):
        await other.send("t", number, wanted=False)
    work = cluster.brokers[0].parts.filter_work
    before = work.turns
    pulls = [asyncio.ensure_future(greedy.ask(PULL, stated("t", 0))) for _ in range(20)]
    modest = await other.ask(
        PULL, pull_ext("t", subscription="p CONTAINS 'a'", expressionType="SQL92", sysFlag=4)
    )
    # Served one turn after the first of the twenty, not behind the last.
    assert modest.code == ResponseCode.SUCCESS
    assert not all(pull.done() for pull in pulls)
    for answer in await asyncio.gather(*pulls):
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert int(answer.ext["nextBeginOffset"]) >= 1
    assert work.turns - before >= 20
    assert cluster.brokers[0].parts.waiting.count(State.FILTERS) == 0


async def test_pulls_by_tag_over_many_messages_share_the_work_of_a_turn(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    greedy, other = clients
    await other.send("t", 0, wanted=False)
    store = cluster.brokers[0].store
    queue = store.queue("t", 0)
    first = queue.unit(0)
    assert first is not None
    queue.fill_to(9_000, first)
    work = cluster.brokers[0].parts.filter_work
    before = work.turns
    ext = pull_ext("t", subscription="no-such-tag", maxMsgNums=9_000, commitOffset=7) | {
        "sysFlag": "5",
    }
    pulls = [asyncio.ensure_future(greedy.ask(PULL, ext)) for _ in range(60)]
    for answer in await asyncio.gather(*pulls):
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext["nextBeginOffset"] == "9000"
    # A turn has a budget for 50,000 units of the queue.
    assert work.turns - before >= 9
    assert cluster.brokers[0].offsets.query("raw-group", "t", 0) == 7


async def test_a_pull_that_passes_over_many_messages_goes_on_turn_by_turn(
    cluster: Cluster, clients: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy, other = clients
    await other.send("t", 0, wanted=False)
    for number in range(1, 200):
        text = properties({"wanted": str(number in (1, 150)).lower(), "p": "x"})
        await other.ask(SEND, send_ext("t", properties=text), b"%d" % number)
    # Of one answer it is half the work: a filter costs about 60 of these messages in a turn.
    terms = " OR ".join(f"q{number} = 1" for number in range(7))
    ext = pull_ext(
        "t", queueOffset=1, subscription=f"wanted = 'true' OR {terms}", expressionType="SQL92"
    )
    work = cluster.brokers[0].parts.filter_work
    turns = work.turns
    waiting: list[int] = []
    table = cluster.brokers[0].parts.waiting
    on_turn = work.on_turn

    def counted() -> None:
        waiting.append(table.count(State.FILTERS))
        on_turn()

    monkeypatch.setattr(work, "on_turn", counted)
    pull = asyncio.ensure_future(greedy.ask(PULL, ext | {"sysFlag": "4"}))
    while not pull.done():
        await other.ask(MAX_OFFSET, {"topic": "t", "queueId": "0"})
    answer = await pull
    # One answer has all that many turns found, and others were served while it waited for its turn.
    assert [record.body for record in decode_records(answer.body)] == [b"1", b"150"]
    assert answer.ext["nextBeginOffset"] == "200"
    assert work.turns - turns >= 4
    assert set(waiting) - {0} == {1}
    assert cluster.brokers[0].parts.waiting.count(State.FILTERS) == 0


async def test_an_arrival_is_not_held_up_by_pulls_that_wait_with_such_an_expression(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    greedy, other = clients
    await other.send("t", 0, wanted=False)
    waiting = [
        asyncio.ensure_future(greedy.ask(PULL, stated("t", 1) | {"sysFlag": "6"})) for _ in range(5)
    ]
    held = cluster.brokers[0].parts.waiting
    async with asyncio.timeout(WAIT_S):
        while held.count(State.MESSAGES) < len(waiting):
            await other.ask(MAX_OFFSET, {"topic": "t", "queueId": "0"})
    work = cluster.brokers[0].parts.filter_work
    before = work.turns
    await other.send("t", 1, wanted=False)
    # The send did not wait for their evaluation, which takes many turns.
    assert work.turns - before <= 4
    assert not any(pull.done() for pull in waiting)
    for answer in await asyncio.gather(*waiting):
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext["nextBeginOffset"] == "2"


def test_a_consumer_gets_every_match_once_across_the_cuts() -> None:
    count = 24
    with Cluster(properties=SETTINGS) as cluster, open_face("blocking", cluster.namesrv) as face:
        producer = face.producer("p")
        for number in range(count):
            body, text = message(number, wanted=number % 3 == 0)
            producer.send(Message("t", body, properties={"p": text}))
        received = Received()
        consumer = face.new_consumer(
            "g", face.listener(received.handle), consume_from=ConsumeFromWhere.FIRST_OFFSET
        )
        consumer.subscribe("t", sql=expression())
        consumer.start()
        try:
            received.wait_for(count // 3)
            body, text = message(count, wanted=True)
            producer.send(Message("t", body, properties={"p": text}))
            received.wait_for(count // 3 + 1)
        finally:
            consumer.close()
    wanted = [number for number in range(count + 1) if number % 3 == 0]
    assert sorted(int(body) for body in received.bodies) == wanted


def test_an_integer_of_5000_digits_is_a_parse_failure() -> None:
    with (
        Cluster(properties=SETTINGS) as cluster,
        RawClient(f"127.0.0.1:{cluster.brokers[0].port}") as client,
    ):
        assert client.ask(SEND, send_ext("t", properties=properties({"a": "7"})), b"m").code == 0
        for digits in (20, 4_300, 4_301, 16_000):
            sql = f"a > {'9' * digits}"
            answer = client.ask(PULL, pull_ext("t", subscription=sql, expressionType="SQL92"))
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, answer.remark
            assert "int64" in (answer.remark or "")
        # A property of this many digits is no number.
        digits_of = properties({"a": "9" * 5_000})
        assert client.ask(SEND, send_ext("t", properties=digits_of), b"long").code == 0
        answer = client.ask(PULL, pull_ext("t", subscription="a > 5", expressionType="SQL92"))
        assert [record.body for record in decode_records(answer.body)] == [b"m"]
