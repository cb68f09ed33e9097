"""Settings that operators change while a broker runs have their effect at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import properties, pull_ext, send_ext
from tests.unit.broker.broker_box import GROUP, HOST, Client, running
from tests.waits import until

from cometmq.broker.server import Broker
from cometmq.protocol.codes import ResponseCode

PULL, QUERY, QUERY_OFFSET, UPDATE, SEND = 11, 12, 14, 25, 310
HALF = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "a"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings: dict[str, Any] = {"transaction_check_interval": 50, "transaction_time_out": 600_000}
    async with running(tmp_path, **settings) as broker:
        yield broker


async def change(client: Client, **settings: object) -> None:
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    answer = await client.ask(UPDATE, {}, text.encode())
    assert answer.code == 0, answer.remark


async def send(client: Client, size: int, **given: str) -> tuple[int, dict[str, str]]:
    ext = send_ext("orders", letters=True) | {"i": properties(given)}
    answer = await client.ask(SEND, ext, b"x" * size)
    return answer.code, {name: str(value) for name, value in answer.ext.items()}


async def test_the_largest_message(tmp_path: Path) -> None:
    async with running(tmp_path, store={"max_message_size": 1_000}) as broker:
        operator = Client(broker, host=HOST)
        assert (await send(operator, 1_001))[0] == ResponseCode.MESSAGE_ILLEGAL
        await change(operator, maxMessageSize=5_000)
        assert (await send(operator, 5_000))[0] == 0
        assert (await send(operator, 5_000, DELAY="1"))[0] == 0
        await change(operator, maxMessageSize=500)
        assert (await send(operator, 501))[0] == ResponseCode.MESSAGE_ILLEGAL
        assert (await send(operator, 500))[0] == 0


async def test_whether_producers_trace(operator: Client) -> None:
    assert (await send(operator, 1))[1]["TRACE_ON"] == "true"
    await change(operator, traceOn="false")
    code, ext = await send(operator, 1)
    assert (code, ext["TRACE_ON"]) == (0, "false")
    assert len(ext["msgId"]) == 32


async def test_what_counts_as_in_memory(operator: Client) -> None:
    place = {"consumerGroup": GROUP, "topic": "orders", "queueId": 0}
    assert (await send(operator, 1))[0] == 0
    assert (await operator.ask(QUERY_OFFSET, place)).code == 0
    await change(operator, accessMessageInMemoryMaxRatio=0)
    assert (await operator.ask(QUERY_OFFSET, place)).code == ResponseCode.QUERY_NOT_FOUND


async def test_how_many_units_a_pull_goes_through(operator: Client) -> None:
    for tag in "AAAAAAAAAAB":
        assert (await send(operator, 1, TAGS=tag))[0] == 0
    pull = pull_ext("orders", subscription="B", maxMsgNums=1)
    assert (await operator.ask(PULL, pull)).code == 0
    await change(operator, maxFilterMessageSize=100)
    answer = await operator.ask(PULL, pull)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "5"


async def test_how_many_messages_a_query_returns(broker: Broker, operator: Client) -> None:
    for _ in range(4):
        assert (await send(operator, 1, KEYS="k"))[0] == 0
    await change(operator, maxMsgsNumBatch=2)
    wanted = {"topic": "orders", "key": "k", "maxNum": 10, "beginTimestamp": 0}
    found = (await operator.ask(QUERY, {**wanted, "endTimestamp": 2**62})).body
    one = broker.store.stored_record(0)
    assert one is not None
    assert len(found) == 2 * one.total_size


async def test_when_and_how_often_producers_are_asked(broker: Broker, operator: Client) -> None:
    """The half message would be asked about in ten minutes, and fifteen times."""
    await change(operator, transactionTimeOut=0, transactionCheckMax=0)
    assert (await send(operator, 1, **HALF))[0] == 0
    await until(lambda: broker.transactions.unresolved_count == 0)
    assert broker.store.max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 1
