"""Acknowledgements of popped messages that are asked for at once, and brokers that do not know batches."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.unit.client.fakes import NAMESRV, FakeInstance, refuse, route
from tests.waits import until

from cometmq.client.popping.acknowledging import MOST_AT_ONCE, Acknowledgements
from cometmq.client.popping.received import Receipt
from cometmq.errors import ConnectError, RemoteError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.pop.bodies import BatchAckMessageRequestBody
from cometmq.protocol.pop.handle import PopHandle

ACK, BATCH_ACK = RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
async def acknowledgements(fake: FakeInstance) -> Acknowledgements:
    """Return acknowledgements at brokers "a" and "b", which accept all of them."""
    fake.remoting.routes["t"] = route("a", "b")
    await fake.instance.routes.refresh("t")
    for code in (ACK, BATCH_ACK):
        fake.remoting.answers[code] = lambda *_: response(ResponseCode.SUCCESS)
    return Acknowledgements(fake.instance, "g")


def receipt(offset: int, broker: str = "a", *, mark: str = "0", pop_time: int = 1_000) -> Receipt:
    handle = PopHandle(0, pop_time, 60_000, 0, mark, broker, 3, offset)
    return Receipt(broker, "t", offset, handle)


def batched(fake: FakeInstance) -> list[tuple[str, str, int, list[int]]]:
    """Return broker, mark, time of the pop and offsets of each entry of the batches that were sent."""
    bodies = (
        decode_body(bytes(command.body), BatchAckMessageRequestBody)
        for command in fake.remoting.sent(BATCH_ACK)
    )
    return [
        (body.broker_name or "", entry.retry, entry.pop_time, list(entry.offsets()))
        for body in bodies
        for entry in body.acks
    ]


async def test_forty_acknowledgements_at_once_are_one_request_for_each_broker(
    fake: FakeInstance, acknowledgements: Acknowledgements
) -> None:
    await asyncio.gather(
        *(acknowledgements.ack(receipt(number, "ab"[number % 2])) for number in range(40))
    )
    assert fake.remoting.called(BATCH_ACK) == ["a:1", "b:1"]
    assert batched(fake) == [
        ("a", "0", 1_000, list(range(0, 40, 2))),
        ("b", "0", 1_000, list(range(1, 40, 2))),
    ]
    assert fake.remoting.sent(ACK) == []


async def test_a_batch_keeps_pops_and_retry_topics_apart(
    fake: FakeInstance, acknowledgements: Acknowledgements
) -> None:
    receipts = receipt(7), receipt(5), receipt(7, mark="1"), receipt(8, pop_time=2_000)
    await asyncio.gather(*map(acknowledgements.ack, receipts))
    assert len(fake.remoting.sent(BATCH_ACK)) == 1
    assert batched(fake) == [
        ("a", "0", 1_000, [5, 7]),
        ("a", "1", 1_000, [7]),
        ("a", "0", 2_000, [8]),
    ]


async def test_a_batch_is_no_larger_than_its_limit(
    fake: FakeInstance, acknowledgements: Acknowledgements
) -> None:
    receipts = map(receipt, range(MOST_AT_ONCE + 2))
    await asyncio.gather(*map(acknowledgements.ack, receipts))
    assert [len(offsets) for *_, offsets in batched(fake)] == [MOST_AT_ONCE, 2]


async def test_a_broker_without_batches_gets_single_acknowledgements_from_then_on(
    fake: FakeInstance, acknowledgements: Acknowledgements
) -> None:
    def serve(address: str, _command: RemotingCommand) -> RemotingCommand:
        unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return response(unknown if address == "a:1" else ResponseCode.SUCCESS)

    fake.remoting.answers[BATCH_ACK] = serve
    for _ in range(2):
        receipts = [receipt(number, broker) for broker in "ab" for number in range(3)]
        await asyncio.gather(*map(acknowledgements.ack, receipts))
    assert Counter(fake.remoting.called(BATCH_ACK)) == {"a:1": 1, "b:1": 2}
    assert fake.remoting.called(ACK) == ["a:1"] * 6
    fields = [(each.ext["offset"], each.ext["queueId"]) for each in fake.remoting.sent(ACK)]
    assert fields == [("0", "3"), ("1", "3"), ("2", "3")] * 2


async def test_of_single_acknowledgements_one_fails_by_itself(
    fake: FakeInstance, acknowledgements: Acknowledgements
) -> None:
    def serve(_address: str, command: RemotingCommand) -> RemotingCommand:
        is_second = command.ext["offset"] == "1"
        return response(ResponseCode.NO_MESSAGE if is_second else ResponseCode.SUCCESS)

    fake.remoting.answers[BATCH_ACK] = refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    fake.remoting.answers[ACK] = serve
    results = await asyncio.gather(
        *(acknowledgements.ack(receipt(number)) for number in range(3)), return_exceptions=True
    )
    assert [type(each) for each in results] == [type(None), RemoteError, type(None)]


async def test_a_batch_that_is_refused_fails_for_each_of_its_messages(
    fake: FakeInstance, acknowledgements: Acknowledgements
) -> None:
    fake.remoting.answers[BATCH_ACK] = refuse(ResponseCode.SYSTEM_ERROR)
    results = await asyncio.gather(
        *(acknowledgements.ack(receipt(number)) for number in range(3)), return_exceptions=True
    )
    assert [type(each) for each in results] == [RemoteError] * 3
    assert fake.remoting.sent(ACK) == []


@pytest.mark.parametrize("count", [1, 3])
async def test_an_acknowledgement_that_fails_renews_the_route(
    fake: FakeInstance, acknowledgements: Acknowledgements, count: int
) -> None:
    """After a switch, single acknowledgements went to the dead master until the next regular renewal."""
    fake.remoting.down.add("a:1")
    results = await asyncio.gather(
        *(acknowledgements.ack(receipt(number)) for number in range(count)), return_exceptions=True
    )
    assert [type(each) for each in results] == [ConnectError] * count
    await until(lambda: fake.remoting.called(ROUTE) == [NAMESRV] * 2)


async def test_a_change_of_the_time_that_fails_renews_the_route(
    fake: FakeInstance, acknowledgements: Acknowledgements
) -> None:
    fake.remoting.down.add("a:1")
    with pytest.raises(ConnectError):
        await acknowledgements.hide(receipt(0), 1_000)
    await until(lambda: fake.remoting.called(ROUTE) == [NAMESRV] * 2)
