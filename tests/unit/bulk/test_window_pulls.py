"""Ranges read into windows, over a connection whose bytes and whose end may come at any place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples
from tests.unit.bulk.fake_broker import CODES, QUEUE, RECORD_BYTES, FakeBroker, offsets_in
from tests.waits import WAIT_S

from cometmq.bulk import window_connection, window_pulls
from cometmq.bulk.range_pulls import Chunk
from cometmq.bulk.window_connection import WindowConnection
from cometmq.bulk.window_pulls import WindowConnections, WindowPulls
from cometmq.client.cluster.broker_api import PullAnswer
from cometmq.errors import ConnectError, RpcHookError
from cometmq.filtering.tags import build_subscription
from cometmq.model.results import PullStatus
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import (
    RemotingCommand,
    decode_command,
    encode_command,
    request,
    response,
)
from cometmq.protocol.frame import FrameDecoder, SerializeType, encode_frame
from cometmq.protocol.header import header_from_ext
from cometmq.protocol.headers import PullMessageRequestHeader


class Wire(asyncio.Transport):
    """The other end of a connection: answers in any order and in pieces of any size, and may say or do
    something else after `good` answers.
    """

    def __init__(
        self, broker: PullBroker, connection: WindowConnection, good: int, instead: str
    ) -> None:
        super().__init__()
        self._broker = broker
        self.connection = connection
        self._rng = broker.rng
        self._good = good
        self._instead = instead
        self._frames = FrameDecoder()
        self._owed: list[bytes] = []
        self._due = False
        self.aborted = False
        self.requests: list[RemotingCommand] = []
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        for frame in self._frames.feed(bytes(data)):
            command = decode_command(frame)
            self.requests.append(command)
            self._owed.append(self._said(command))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._answer)

    def abort(self) -> None:
        self.aborted = True

    def _said(self, command: RemotingCommand) -> bytes:
        self._good -= 1
        if self._good < 0 and self._instead == "refusal":
            answer = response(ResponseCode.SYSTEM_BUSY, "busy")
        elif self._good < 0 and self._instead == "no header":
            return encode_frame(b"[]", b"", SerializeType.JSON)
        elif self._good < 0 and self._instead == "no frame":
            return b"\xff" * 16
        elif self._good < 0 and self._instead in ("lost", "silent"):
            return b""
        else:
            asked = header_from_ext(command.ext, PullMessageRequestHeader)
            found = self._broker.answer(asked.queue_offset, asked.max_msg_nums)
            answer = response(CODES[found.status], header=found.header, body=found.records)
        answer.opaque = command.opaque
        said = encode_command(answer, self._rng.choice(self._broker.forms))
        if self._rng.random() < 0.1:
            # A request of the broker's own may have the number of one of ours.
            own = request(40)
            own.opaque = command.opaque
            said = encode_command(own) + said
        return said

    def _answer(self) -> None:
        self._due = False
        if self._instead == "lost" and self._good < 0:
            self.connection.connection_lost(None)
            return
        count = self._rng.randint(1, len(self._owed))
        now, self._owed = self._owed[:count], self._owed[count:]
        if self._broker.shuffles:
            self._rng.shuffle(now)
        data = b"".join(now)
        while data and not self.connection.closed:
            size = self._rng.choice((1, 7, 100, 5000))
            self.connection.data_received(data[:size])
            data = data[size:]
        if self._owed and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._answer)


class PullBroker(FakeBroker):
    """A FakeBroker that is also its remoting client, with a connection of the caller's own."""

    def __init__(
        self, low: int, high: int, holes: set[int], rng: random.Random, good: int, instead: str
    ) -> None:
        super().__init__(low, high, holes, rng)
        self.rng = rng
        self.good = good
        self.instead = instead
        self.shuffles = rng.random() < 0.5
        self.forms = [SerializeType.JSON]
        self.wires: list[Wire] = []
        self.remoting = self.rpc_hooks = self
        self.see_answers = False
        self.hook_fails = False
        # Whether all answers hold as many messages as a broker as it is shipped gives.
        self.is_plain = False

    def answer(self, offset: int, wanted: int) -> PullAnswer:
        if not self.is_plain:
            return super().answer(offset, wanted)
        found = range(offset, min(offset + wanted, offset + 32, self._high))
        records = b"".join(at.to_bytes(RECORD_BYTES, "big") for at in found)
        return self._said(PullStatus.FOUND, found.stop, records)

    def before(self, _address: str, _command: RemotingCommand) -> None:
        if self.hook_fails:
            raise RpcHookError("no")

    async def open(self, address: str, new: Callable[[], Any]) -> Any:
        if self.instead == "unreachable":
            raise ConnectError("down", address=address)
        connection = new()
        self.wires.append(Wire(self, connection, self.good, self.instead))
        if self.instead == "left":
            connection.connection_lost(None)
        return connection


async def read(
    broker: Any, start: int, end: int, connections: WindowConnections | None = None
) -> list[Chunk]:
    subscription = build_subscription("orders", "*")
    kept = WindowConnections() if connections is None else connections
    pulls = WindowPulls(broker, kept, "group", QUEUE, start, end, subscription, 0.0)
    try:
        chunks = []
        while (chunk := await pulls.next_chunk()) is not None:
            chunks.append(chunk)
        return chunks
    finally:
        await pulls.close()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many windows and chunks of few messages, and no patience with a silent broker."""
    monkeypatch.setattr(window_connection, "WINDOW_BYTES", 3000)
    monkeypatch.setattr(window_pulls, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(window_pulls, "_WORTH_A_CHUNK_BYTES", 500)
    monkeypatch.setattr(window_pulls, "PULL_TIMEOUT_S", 0.05)


async def test_a_peer_that_leaves_at_once_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end came before there was a receiver to call, and the first chunk 30 s late."""
    monkeypatch.setattr(window_pulls, "PULL_TIMEOUT_S", 3600.0)
    broker = PullBroker(0, 100, set(), random.Random(1), 0, "left")
    async with asyncio.timeout(WAIT_S):
        chunks = await read(broker, 0, 100)
    assert offsets_in(chunks) == list(range(100))


@settings(max_examples=examples(200), deadline=None)
@given(
    low=st.integers(0, 100),
    length=st.integers(0, 2500),
    start=st.integers(0, 200),
    span=st.integers(0, 2500),
    holes=st.sets(st.integers(0, 2700), max_size=3) | st.just(set(range(50, 400))),
    good=st.integers(0, 30),
    instead=st.sampled_from(
        ("", "", "refusal", "no header", "no frame", "lost", "silent", "unreachable", "left")
    ),
    seed=st.integers(0, 2**32),
)
async def test_whatever_the_answers_are_each_message_comes_once_and_in_order(
    low: int,
    length: int,
    start: int,
    span: int,
    holes: set[int],
    good: int,
    instead: str,
    seed: int,
) -> None:
    high = low + length
    broker = PullBroker(low, high, holes, random.Random(seed), good, instead)
    chunks = await read(broker, start, start + span)
    wanted = [at for at in range(max(start, low), min(start + span, high)) if at not in holes]
    assert [at for at in offsets_in(chunks) if at < start + span] == wanted
    for one, following in pairwise(chunks):
        assert one.end == following.start
    if chunks:
        assert (chunks[0].start, chunks[-1].end) == (start, start + span)
    for chunk in chunks:
        window, runs = chunk.located()
        assert b"".join(window[begin:end] for begin, end in runs) == chunk.records
        assert all(one[1] <= two[0] for one, two in pairwise(runs))


@pytest.mark.parametrize("good", [0, 1, 20])
@pytest.mark.parametrize(
    "instead", ["refusal", "no header", "no frame", "lost", "silent", "unreachable"]
)
async def test_the_rest_is_left_to_the_usual_calls_after(instead: str, good: int) -> None:
    broker = PullBroker(0, 2000, set(), random.Random(5), good, instead)
    assert offsets_in(await read(broker, 0, 2000)) == list(range(2000))
    assert broker.most_at_once > 0
    assert all(wire.aborted for wire in broker.wires)


async def test_records_stay_in_their_window_while_nothing_is_out_of_the_ordinary() -> None:
    broker = PullBroker(0, 3000, set(), random.Random(3), 10_000, "")
    broker.shuffles, broker.is_plain = False, True
    chunks = await read(broker, 0, 3000)
    assert offsets_in(chunks) == list(range(3000))
    assert broker.most_at_once == 0  # no pull by RangePulls
    in_windows = sum(chunk.window is not None for chunk in chunks)
    # A pull that asks whether more fits into an answer leaves a rest, which comes out of turn.
    assert in_windows > len(chunks) / 2
    assert len(broker.wires[0].requests) < 3000 / 32 + 5


async def test_a_connection_is_used_again_unless_answers_are_under_way() -> None:
    broker = PullBroker(0, 300, set(), random.Random(1), 10_000, "")
    connections = WindowConnections()
    for _ in range(3):
        assert offsets_in(await read(broker, 0, 300, connections)) == list(range(300))
    assert len(broker.wires) == 1
    subscription = build_subscription("orders", "*")
    pulls = WindowPulls(broker, connections, "group", QUEUE, 0, 300, subscription, 0.0)  # type: ignore[arg-type]  # a fake
    assert await pulls.next_chunk() is not None
    pulls._asked[99] = (0, 1)
    await pulls.close()
    assert broker.wires[0].aborted
    assert offsets_in(await read(broker, 0, 300, connections)) == list(range(300))
    assert len(broker.wires) == 2
    connections.close()
    assert broker.wires[1].aborted


async def test_nobody_waits_for_a_connection_that_closed_while_it_was_idle() -> None:
    broker = PullBroker(0, 100, set(), random.Random(1), 10_000, "")
    connections = WindowConnections()
    await read(broker, 0, 100, connections)
    (wire,) = broker.wires
    wire.connection.connection_lost(None)
    assert offsets_in(await read(broker, 0, 100, connections)) == list(range(100))
    assert len(broker.wires) == 2


@pytest.mark.parametrize("what", ["see_answers", "hook_fails"])
async def test_hooks_that_see_answers_or_fail_are_left_to_the_usual_calls(what: str) -> None:
    broker = PullBroker(0, 200, set(), random.Random(1), 10_000, "")
    setattr(broker, what, True)
    assert offsets_in(await read(broker, 0, 200)) == list(range(200))
    assert not any(wire.requests for wire in broker.wires)


async def test_an_answer_with_a_header_of_the_other_form_is_left_to_the_usual_calls() -> None:
    broker = PullBroker(0, 200, set(), random.Random(1), 10_000, "")
    broker.forms = [SerializeType.ROCKETMQ]
    assert offsets_in(await read(broker, 0, 200)) == list(range(200))
    assert broker.most_at_once > 0


async def test_a_slave_is_left_to_the_usual_calls() -> None:
    broker = PullBroker(0, 200, set(), random.Random(1), 10_000, "")
    broker.addresses = ["slave:1"]
    broker.has_master = False
    broker.slaves_end = 200
    assert offsets_in(await read(broker, 0, 200)) == list(range(200))
    assert not broker.wires
