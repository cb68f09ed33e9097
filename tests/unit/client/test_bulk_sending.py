"""Parcels: how many at once, in which order, and what is sent again."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from cometmq.client.bulk_sending import BulkSending, Parcel
from cometmq.errors import (
    CometMQError,
    ConnectError,
    ConnectionLostError,
    RemoteError,
    RequestTimeoutError,
)
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode

QUEUES = [MessageQueue("orders", "broker-a", at) for at in range(3)]


def parcel(at: int, queue: int = 0, *, ordered: bool = False) -> Parcel:
    return Parcel(QUEUES[queue], b"%d" % at, 1, ordered)


class Broker:
    """Stores parcels after a turn of the loop; `failures` come first, by parcel."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.by_queue: dict[MessageQueue, list[bytes]] = defaultdict(list)
        self.attempts: list[tuple[bytes, int]] = []
        self.failures: dict[bytes, list[CometMQError]] = {}
        self.under_way = 0
        self.most = 0
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, parcel: Parcel, attempt: int) -> None:
        self.attempts.append((parcel.body, attempt))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            failures = self.failures.get(parcel.body)
            if failures:
                raise failures.pop(0)
            self.stored.append(parcel.body)
            self.by_queue[parcel.queue].append(parcel.body)
        finally:
            self.under_way -= 1


def sending(broker: Broker, *, once: bool = False, in_flight: int = 8) -> BulkSending:
    return BulkSending(broker.send, in_flight=in_flight, patience_s=60, once=once)


async def test_no_more_than_the_limit_are_under_way() -> None:
    broker = Broker()
    bulk = sending(broker, in_flight=3)
    await bulk.put([parcel(at) for at in range(20)])
    await bulk.flush()
    assert broker.most == 3
    assert sorted(broker.stored) == sorted(b"%d" % at for at in range(20))
    await bulk.close()


async def test_ordered_parcels_of_a_queue_go_one_after_the_other() -> None:
    broker = Broker()
    bulk = sending(broker)
    broker.failures[b"3"] = [ConnectError("no"), ConnectionLostError("gone")]
    broker.failures[b"4"] = [RemoteError("busy", code=ResponseCode.SYSTEM_BUSY)]
    await bulk.put([parcel(at, at % 3, ordered=True) for at in range(12)])
    await bulk.flush()
    for at, queue in enumerate(QUEUES):
        assert broker.by_queue[queue] == [b"%d" % n for n in range(at, 12, 3)]
    await bulk.close()


async def test_attempts_are_counted_so_that_another_queue_can_be_chosen() -> None:
    broker = Broker()
    bulk = sending(broker)
    broker.failures[b"0"] = [ConnectError("no"), RequestTimeoutError("late")]
    await bulk.put([parcel(0)])
    await bulk.flush()
    assert broker.attempts == [(b"0", 0), (b"0", 1), (b"0", 2)]
    assert bulk.doubt is None
    await bulk.close()


async def test_what_may_be_stored_is_not_sent_again_when_once() -> None:
    broker = Broker()
    bulk = sending(broker, once=True)
    lost = ConnectionLostError("gone")
    broker.failures[b"1"] = [ConnectError("not sent"), lost]
    await bulk.put([parcel(at, ordered=True) for at in range(8)])
    await bulk.flush()
    assert broker.stored == [b"0"]
    assert bulk.doubt is lost
    await bulk.put([parcel(9)])
    await bulk.flush()
    assert broker.stored == [b"0"]
    await bulk.close()


@pytest.mark.parametrize("once", [False, True])
async def test_a_refusal_ends_it(once: bool) -> None:
    broker = Broker()
    bulk = sending(broker, once=once)
    broker.failures[b"2"] = [RemoteError("too large", code=ResponseCode.MESSAGE_ILLEGAL)]
    await bulk.put([parcel(at, ordered=True) for at in range(5)])
    with pytest.raises(RemoteError, match="too large"):
        await bulk.flush()
    assert broker.stored == [b"0", b"1"]
    with pytest.raises(RemoteError, match="too large"):
        await bulk.put([parcel(7)])
    await bulk.close()


async def test_patience_ends() -> None:
    broker = Broker()
    bulk = BulkSending(broker.send, in_flight=2, patience_s=0)
    broker.failures[b"0"] = [ConnectError("no")] * 3
    await bulk.put([parcel(0)])
    with pytest.raises(ConnectError):
        await bulk.flush()
    await bulk.close()


async def test_close_gives_up_what_waits() -> None:
    broker = Broker()
    broker.open.clear()
    bulk = sending(broker)
    await bulk.put([parcel(at) for at in range(4)])
    await bulk.close()
    assert broker.stored == []
