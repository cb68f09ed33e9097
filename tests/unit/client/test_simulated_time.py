"""Clients in simulated time: what they do and when depends on nothing but their seed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from tests.simulated import EPOCH_MS, LoopClock, MemoryNetwork
from tests.simulated_cluster import MemoryBroker, name_server, simulated_client
from tests.unique_ids import parse_unique_id

import cometmq
from cometmq.aio import LitePullConsumer, Producer, PushConsumer, TransactionProducer
from cometmq.bulk.producer import BulkProducer
from cometmq.bulk.range_reader import RangeReader
from cometmq.client.consuming.consumer_options import DEFAULT_TIMESTAMP_AGE_MS
from cometmq.client.lifecycle import AsyncClient
from cometmq.client.producing.transaction_producer import TransactionListener
from cometmq.errors import RequestTimeoutError, RouteNotFoundError, UnknownOptionError
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import ConsumeFromWhere, ConsumeResult
from cometmq.protocol.messages.properties import decode_properties
from cometmq.runtime.randomness import Randomness
from cometmq.testing import virtual


class History(NamedTuple):
    """The messages and times of a run, as the broker and the listener saw them."""

    ids: list[str]
    born_ms: list[int]
    consumed: list[tuple[int, str, str]]
    heard: list[tuple[float, str, str]]
    client_ids: list[str]
    began_s: float


async def history(directory: Path, seed: int) -> History:
    """A producer sends a message every 10 s for 2 minutes; a push consumer gets them."""
    network, randomness, clock = MemoryNetwork(), Randomness(seed), LoopClock()
    consumed: list[tuple[int, str, str]] = []

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            started = message.properties[p.CONSUME_START_TIMESTAMP]
            consumed.append((clock.now_ms(), started, message.msg_id))
        return ConsumeResult.SUCCESS

    async with name_server(directory, network) as address:
        broker = MemoryBroker(network, address)
        await broker.start()
        began_s = clock.monotonic()
        given: dict[str, Any] = {"namesrv": address, "network": network, "randomness": randomness}
        producer = simulated_client(Producer, "pg", **given)
        consumer = simulated_client(PushConsumer, "cg", listen, **given)
        consumer.subscribe("orders")
        async with producer, consumer:
            client_ids = [producer.client_id, consumer.client_id]
            for _ in range(12):
                await producer.send(Message("orders", b"x"))
                await asyncio.sleep(10)
        await broker.close()
    ids = [decode_properties(s.properties or "")[p.UNIQ_CLIENT_MESSAGE_ID] for s in broker.sends]
    born_ms = [s.born_timestamp for s in broker.sends]
    return History(ids, born_ms, consumed, broker.heard, client_ids, began_s)


def test_times_of_messages_are_simulated(tmp_path: Path) -> None:
    seen = virtual.run(history(tmp_path, 1))
    began_ms = EPOCH_MS + int(seen.began_s * 1000)
    assert len(seen.born_ms) == 12
    for i, born_ms in enumerate(seen.born_ms):
        # The last figure leaves room for what the start takes.
        assert began_ms + i * 10_000 <= born_ms <= began_ms + i * 10_000 + 5000
    month_start_ms = (
        time.mktime((*time.localtime(EPOCH_MS / 1000)[:2], 1, 0, 0, 0, 0, 0, -1)) * 1000
    )
    elapsed_ms = [parse_unique_id(unique_id).elapsed_ms for unique_id in seen.ids]
    assert elapsed_ms == [born_ms - month_start_ms for born_ms in seen.born_ms]
    assert [unique_id for _, _, unique_id in seen.consumed] == seen.ids
    assert [int(started) for _, started, _ in seen.consumed] == [ms for ms, _, _ in seen.consumed]
    # A pull waits at the broker, so each message is consumed at the moment when it is sent.
    late_ms = [ms - born for (ms, _, _), born in zip(seen.consumed, seen.born_ms, strict=True)]
    assert max(late_ms[1:]) <= 1


def test_timers_of_clients_run_in_simulated_time(tmp_path: Path) -> None:
    seen = virtual.run(history(tmp_path, 1))
    for client_id in seen.client_ids:
        beats = [at for at, what, who in seen.heard if (what, who) == ("heartbeat", client_id)]
        spans = [later - at for at, later in itertools.pairwise(beats) if later - at > 1]
        assert spans == pytest.approx([30.0] * len(spans), abs=0.5)
        assert len(spans) >= 3
    commits = [int(offset) for _, what, offset in seen.heard if what == "commit"]
    assert commits[-1] == 12
    assert commits == sorted(commits)


def test_the_same_seed_gives_the_same_ids(tmp_path: Path) -> None:
    first = virtual.run(history(tmp_path / "first", 1))
    assert virtual.run(history(tmp_path / "second", 1)) == first
    other = virtual.run(history(tmp_path / "other", 2))
    assert other.born_ms == first.born_ms
    assert set(other.ids).isdisjoint(first.ids)
    assert set(other.client_ids).isdisjoint(first.client_ids)


def test_ids_of_requests_come_from_the_seed(tmp_path: Path) -> None:
    async def correlation_id(directory: Path, seed: int) -> str:
        network = MemoryNetwork()
        async with name_server(directory, network) as address:
            broker = MemoryBroker(network, address)
            await broker.start()
            producer = simulated_client(
                Producer, "pg", namesrv=address, network=network, randomness=Randomness(seed)
            )
            async with producer:
                with pytest.raises(RequestTimeoutError):
                    await producer.request(Message("orders", b"x"), timeout_ms=60_000)
            await broker.close()
        return decode_properties(broker.sends[0].properties or "")[p.CORRELATION_ID]

    ids = [virtual.run(correlation_id(tmp_path / str(i), seed)) for i, seed in enumerate((1, 1, 2))]
    assert ids[0] == ids[1] != ids[2]


def test_clients_wait_in_simulated_time_for_a_broker_that_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        network, randomness = MemoryNetwork(), Randomness(1)
        consumed: list[str] = []

        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            consumed.extend(message.msg_id for message in messages)
            return ConsumeResult.SUCCESS

        async with name_server(tmp_path, network) as address:
            given: dict[str, Any] = {
                "namesrv": address,
                "network": network,
                "randomness": randomness,
            }
            producer = simulated_client(Producer, "pg", **given)
            consumer = simulated_client(PushConsumer, "cg", listen, **given)
            consumer.subscribe("orders")
            async with producer, consumer:
                with pytest.raises(RouteNotFoundError):
                    await producer.send(Message("orders", b"x"))
                await asyncio.sleep(300)
                assert consumer.assigned_queues() == []
                broker = MemoryBroker(network, address)
                await broker.start()
                # Routes are renewed every 30 s, queues shared out every 20 s.
                await asyncio.sleep(60)
                result = await producer.send(Message("orders", b"x"))
                await asyncio.sleep(1)
                assert consumed == [result.msg_id]
            await broker.close()

    virtual.run(main())


@pytest.mark.parametrize(
    ("new", "args"),
    [
        (Producer, ("g",)),
        (TransactionProducer, ("g", Mock(TransactionListener))),
        (PushConsumer, ("g", lambda _: ConsumeResult.SUCCESS)),
        (LitePullConsumer, ("g",)),
        (BulkProducer, ("g",)),
        (RangeReader, ()),
    ],
)
def test_every_client_has_the_surroundings_that_it_is_given(
    new: Callable[..., AsyncClient], args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        network, randomness = MemoryNetwork(), Randomness(1)
        monkeypatch.setattr(network, "own_address", lambda *_: "10.1.2.3")
        client = simulated_client(
            new, *args, namesrv="127.0.0.1:9876", network=network, randomness=randomness
        )
        async with client:
            assert client.client_id.startswith("10.1.2.3@")
            instance = client.check_started()
            assert instance.clock.now_ms() == LoopClock().now_ms()
            assert instance.randomness is randomness

    virtual.run(main())


def test_a_consumer_begins_half_an_hour_before_the_simulated_time(tmp_path: Path) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with name_server(tmp_path, network) as address:
            broker = MemoryBroker(network, address)
            broker.offset = None
            await broker.start()
            await asyncio.sleep(1000)
            consumer = simulated_client(
                PushConsumer,
                "cg",
                lambda _: ConsumeResult.SUCCESS,
                namesrv=address,
                consume_from=ConsumeFromWhere.TIMESTAMP,
                network=network,
                randomness=Randomness(1),
            )
            made_ms = LoopClock().now_ms()
            consumer.subscribe("orders")
            async with consumer:
                await asyncio.sleep(30)
            await broker.close()
            assert broker.searched_ms == [made_ms - DEFAULT_TIMESTAMP_AGE_MS]

    virtual.run(main())


def test_users_are_not_shown_what_simulations_replace() -> None:
    for name in ("clock", "randomness", "network"):
        with pytest.raises(UnknownOptionError, match=name) as raised:
            cometmq.Producer("g", namesrv="h:1", **{name: None})  # type: ignore[arg-type]  # it is no option
        options = str(raised.value).partition("Options are ")[2].split(", ")
        assert "namesrv" in options
        assert name not in options
