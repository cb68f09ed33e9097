"""A connection that brings many requests is served for a slice, and then in turns with the others."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from tests.unit.remoting.line import (
    ECHO_REQUEST,
    INSPECT_REQUEST,
    EchoHeader,
    Line,
    echo,
    inspect,
)
from tests.waits import until

from cometmq.protocol.command import FLAG_ONEWAY, RemotingCommand, Request, response
from cometmq.remoting.calls import UNASKED
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.turns import (
    MOST_DEBT_S,
    READS_S,
    SLICE_COST,
    SLICE_S,
    TASK_COST,
    TURN_S,
    TURN_SLICES,
    ServingTurns,
)

# How long the line of administration is served in a turn.
ADMINISTRATION_S = 0.00025


class Clock:
    """Shows a time that only the test's handlers move."""

    def __init__(self) -> None:
        self.now_s = 0.0  # sums of halves of a slice are exact near zero

    def monotonic(self) -> float:
        return self.now_s


class Served:
    """Serves requests that take `cost_s` each, or `body_cost_s` with a body, and notes who brought them."""

    def __init__(self, cost_s: float = 0.0, body_cost_s: float | None = None) -> None:
        self.clock = Clock()
        self.turns = ServingTurns(self.clock.monotonic)
        self.cost_s = cost_s
        self.body_cost_s = body_cost_s
        self.order: list[str] = []
        self.handlers = Handlers()
        self.handlers.register(ECHO_REQUEST, self._serve)

    def _serve(self, connection: Connection, call: Request[EchoHeader]) -> RemotingCommand:
        if call.body and self.body_cost_s is not None:
            self.clock.now_s += self.body_cost_s
        else:
            self.clock.now_s += self.cost_s
        self.order.append(connection.peer_ip)
        return response(0)

    def line(self, ip: str, handlers: Handlers | None = None) -> Line:
        return Line(handlers or self.handlers, turns=self.turns, peer=(ip, 4711))

    async def served_all(self, count: int) -> None:
        """Wait until so many requests were served in all."""
        await until(lambda: len(self.order) >= count)


def reads(line: Line) -> bool:
    return line.transport.reading


def echoes(count: int, *, flag: int = 0) -> bytes:
    return b"".join(echo(opaque=number, flag=flag) for number in range(count))


async def test_a_read_of_many_requests_is_served_for_a_slice_and_then_in_turns() -> None:
    served = Served(cost_s=TURN_S / 8)
    line = served.line("10.0.0.1")
    line.feed(echoes(100))
    assert len(served.order) == SLICE_S / served.cost_s
    assert not reads(line)
    before = len(served.order)
    await asyncio.sleep(0)
    assert len(served.order) - before == TURN_S / served.cost_s
    await served.served_all(100)
    answers = await line.flushed()
    assert [answer.opaque for answer in answers] == list(range(100))
    assert reads(line)


async def test_where_time_is_virtual_a_slice_and_a_turn_end_by_their_cost() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    count = SLICE_COST * (2 * TURN_SLICES + 3)
    line.feed(echoes(count))
    assert len(served.order) == SLICE_COST
    await asyncio.sleep(0)
    assert len(served.order) == SLICE_COST * (1 + TURN_SLICES)
    await served.served_all(count)


async def test_who_brings_few_requests_is_served_at_once_whatever_others_have_left() -> None:
    served = Served(cost_s=SLICE_S)
    busy, modest = served.line("10.0.0.1"), served.line("10.0.0.2")
    busy.feed(echoes(1_000))
    for _ in range(10):
        before = len(served.order)
        modest.feed(echo())
        assert served.order[before:] == ["10.0.0.2"]
        await asyncio.sleep(0)


async def test_connections_with_much_to_do_are_served_in_turn() -> None:
    served = Served(cost_s=SLICE_S)
    lines = [served.line(f"10.0.0.{number}") for number in range(3)]
    for line in lines:
        line.feed(echoes(400))
    await served.served_all(30)
    counts = [served.order[:30].count(f"10.0.0.{number}") for number in range(3)]
    assert max(counts) - min(counts) <= 1


async def test_reads_beyond_the_time_of_a_turn_wait_in_line() -> None:
    """A thousand connections that each bring a slice would keep the loop for half a second."""
    served = Served(cost_s=SLICE_S / 40)
    lines = [served.line(f"10.0.0.{number}") for number in range(100)]
    for line in lines:
        line.feed(echoes(40))
    at_once = round(READS_S / SLICE_S)
    assert 40 * at_once <= len(served.order) <= 40 * (at_once + 1)
    assert not reads(lines[-1])
    assert lines[-1].connection.holding.received > 0
    served.line("10.0.1.1").feed(echo())
    assert served.order[-1] == "10.0.1.1", "one small request does not wait"
    await served.served_all(4_001)
    order = [ip for ip in served.order if ip != "10.0.1.1"]
    assert order[::40] == [line.connection.peer_ip for line in lines]
    assert reads(lines[-1])
    assert lines[-1].connection.holding.received == 0


async def test_who_took_longer_than_a_slice_waits_while_others_are_given_as_much() -> None:
    served = Served()
    costs = {"10.0.0.1": 5 * SLICE_S, "10.0.0.2": SLICE_S / 4}
    handlers = Handlers()

    def serve(connection: Connection, _: Request[EchoHeader]) -> RemotingCommand:
        served.clock.now_s += costs[connection.peer_ip]
        served.order.append(connection.peer_ip)
        return response(0)

    handlers.register(ECHO_REQUEST, serve)
    dear, cheap = served.line("10.0.0.1", handlers), served.line("10.0.0.2", handlers)
    dear.feed(echoes(400))
    cheap.feed(echoes(400))
    await until(lambda: served.order.count("10.0.0.2") >= 200)
    # The time of 200 quarters of a slice is that of ten dear requests.
    cheap_at = [at for at, ip in enumerate(served.order) if ip == "10.0.0.2"]
    assert 8 <= served.order[: cheap_at[199]].count("10.0.0.1") <= 12


async def test_what_a_connection_owes_is_bounded_and_costs_it_nothing_while_it_is_alone() -> None:
    served = Served(cost_s=100 * MOST_DEBT_S)
    line = served.line("10.0.0.1")
    line.feed(echo())
    assert line.connection.debt_s == MOST_DEBT_S
    line.feed(echo())
    assert len(served.order) == 1
    await asyncio.sleep(0)
    assert len(served.order) == 2


async def test_one_small_request_that_takes_long_is_owed_like_any_other() -> None:
    """Heartbeats of 20 KiB, one in a read, kept a client waiting for 82 ms; two in a read for 10."""
    served = Served(cost_s=4 * SLICE_S)
    line = served.line("10.0.0.1")
    line.feed(echo())
    assert line.connection.debt_s == 3 * SLICE_S
    line.feed(echo())
    assert len(served.order) == 1
    await asyncio.sleep(0)
    assert len(served.order) == 2


async def test_a_connection_does_not_owe_for_what_the_loop_waited_while_it_was_served() -> None:
    """Beside 64 senders of 4 MiB a client waited for seconds, because it was read while the disk or
    another thread held up the loop.
    """
    served = Served(cost_s=4 * SLICE_S)
    served.turns.worked = lambda: 0.0
    line = served.line("10.0.0.1")
    for count in range(1, 40):
        line.feed(echo())
        assert len(served.order) == count
    busy = served.line("10.0.0.2")
    busy.feed(echoes(100))
    await served.served_all(139)
    assert busy.connection.debt_s == 0


async def test_who_owes_much_is_served_in_a_turn_if_it_has_few_requests_left() -> None:
    """Beside 50,000 waiting pulls, all of which a send wakes, the sender waited for ten rounds."""
    served = Served(cost_s=SLICE_S)
    others = [served.line(f"10.0.1.{number}") for number in range(100)]
    for line in others:
        line.feed(echoes(100))
    sender = served.line("10.0.0.2")
    sender.connection.debt_s = MOST_DEBT_S
    sender.feed(echo())
    assert "10.0.0.2" not in served.order
    await asyncio.sleep(0)
    assert "10.0.0.2" in served.order
    await served.served_all(10_001)


async def test_few_requests_that_are_left_do_not_wait_for_a_round_of_large_ones() -> None:
    """A client of which two small requests were left waited until 64 others had stored 4 MiB each."""
    served = Served(cost_s=SLICE_S / 8, body_cost_s=10 * SLICE_S)
    large = [served.line(f"10.0.1.{number}") for number in range(64)]
    small = served.line("10.0.0.2")
    for line in large:
        line.feed(echo(body=bytes(1 << 17)) * 2)
    small.feed(echoes(10))
    assert served.order.count("10.0.0.2") == 8
    await asyncio.sleep(0)
    assert served.order.count("10.0.0.2") == 10
    await served.served_all(138)


async def test_a_served_request_is_let_go_while_others_wait_behind_it() -> None:
    """The bodies of requests in front of those that a peer's silence held up stayed, uncounted."""
    served = Served(cost_s=SLICE_S)
    line = served.line("10.0.0.1")
    tracemalloc.start()
    try:
        line.feed(echo(body=bytes(8 << 20)) + echoes(3))
        assert len(served.order) == 1
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
    assert 0 < line.connection.holding.received < 4_096
    await served.served_all(4)


async def test_large_requests_of_many_are_served_in_turn_and_keep_no_small_one_waiting() -> None:
    """Each of 64 senders of 4 MiB uses little of the loop, and all were served before the other."""
    served = Served(cost_s=SLICE_S / 16, body_cost_s=10 * SLICE_S)
    large = [served.line(f"10.0.1.{number}") for number in range(64)]
    small = served.line("10.0.0.2")
    for _ in range(200):
        for line in large:
            if reads(line):
                line.feed(echo(body=bytes(1 << 17)))
        began_s = served.clock.now_s
        small.feed(echo())
        assert served.order[-1] == "10.0.0.2"
        await asyncio.sleep(0)
        assert served.clock.now_s - began_s <= READS_S + 20 * SLICE_S + TURN_S
    counts = [served.order.count(line.connection.peer_ip) for line in large]
    assert max(counts) - min(counts) <= 1


async def test_few_read_on_within_large_frames_in_a_turn_whose_reads_took_long() -> None:
    """To copy what 64 senders of 4 MiB had sent kept the loop for 50 to 80 ms in one piece."""
    served = Served(cost_s=READS_S)
    others = [served.line(f"10.0.0.{number}") for number in (1, 2)]
    large = [served.line(f"10.0.1.{number}") for number in range(20)]
    for line in others:
        line.feed(echoes(2))
    frame = echo(body=bytes(1 << 20))
    for line in large:
        line.feed(frame[: 1 << 17])
    assert not any(map(reads, large))
    resumed = 0
    for _ in range(30):
        await asyncio.sleep(0)
        now = sum(map(reads, large))
        assert now - resumed <= TURN_S / SLICE_S
        resumed = now
    assert resumed == len(large)
    for line in large:
        line.feed(frame[1 << 17 :])
    await served.served_all(4 + len(large))


class Inspected(Served):
    """Serves requests that inspect the cluster, too, each of which takes `inspection_s`."""

    def __init__(self, inspection_s: float) -> None:
        super().__init__()
        self.inspected: list[str] = []
        self.inspection_s = inspection_s
        self.handlers.register(INSPECT_REQUEST, self._inspect)

    def _inspect(self, connection: Connection, _: Request[EchoHeader]) -> RemotingCommand:
        self.clock.now_s += self.inspection_s
        self.inspected.append(connection.peer_ip)
        return response(0)


async def test_requests_that_inspect_the_cluster_come_behind_those_of_clients() -> None:
    """A thousand connections with one such request each made everybody wait for 0.1 s."""
    served = Inspected(ADMINISTRATION_S / 2)
    names = [f"10.0.1.{number}" for number in range(100)]
    for name in names:
        served.line(name).feed(inspect())
    assert served.inspected == []
    client = served.line("10.0.0.1")
    for turn in range(1, 6):
        client.feed(echo())
        assert len(served.order) == turn
        await asyncio.sleep(0)
        assert served.inspected == names[: 2 * turn]


async def test_who_inspects_the_cluster_is_served_beside_busy_clients() -> None:
    served = Inspected(4 * ADMINISTRATION_S)
    served.cost_s = SLICE_S
    busy, asker = served.line("10.0.0.1"), served.line("10.0.1.1")
    busy.feed(echoes(1_000))
    asker.feed(b"".join(inspect() for _ in range(50)))
    for _ in range(60):
        await asyncio.sleep(0)
    assert 20 <= len(served.inspected) <= 50
    assert len(served.order) >= 60


async def test_the_requests_of_a_connection_are_served_in_their_order_whatever_they_ask() -> None:
    served = Inspected(0.0)
    line = served.line("10.0.0.1")
    requests = [(inspect if number % 3 == 1 else echo)(opaque=number) for number in range(50)]
    line.feed(b"".join(requests))
    await until(lambda: len(line.received()) == 50)
    assert [answer.opaque for answer in line.received()] == list(range(50))


async def test_few_tasks_begin_in_a_slice() -> None:
    begun: list[int] = []

    async def serve(_connection: Connection, request: Request[EchoHeader]) -> RemotingCommand:
        begun.append(request.opaque)
        await asyncio.sleep(0)
        return response(0)

    handlers = Handlers()
    handlers.register(ECHO_REQUEST, serve)
    line = Served().line("10.0.0.1", handlers)
    line.feed(echoes(100))
    await asyncio.sleep(0)
    assert len(begun) <= SLICE_COST / TASK_COST
    await until(lambda: len(begun) == 100)
    await line.owner.close()


async def test_what_waits_counts_as_held_and_more_may_come_over_tls() -> None:
    served = Served(cost_s=SLICE_S)
    busy = served.line("10.0.0.1")
    requests = echoes(400)
    busy.feed(requests[:-10])
    assert len(served.order) == 1
    assert busy.connection.holding.received > len(requests) * 9 // 10
    busy.feed(requests[-10:])  # what was read before reading was paused
    await served.served_all(400)
    assert busy.connection.holding.received == 0
    assert reads(busy)
    answers = await busy.flushed()
    assert [answer.opaque for answer in answers] == list(range(400))


async def test_a_frame_has_no_less_time_for_what_its_connection_waited() -> None:
    """A sender that is never between two frames was cut, as one that finishes none."""
    served = Served()
    line = served.line("10.0.0.1")
    line.connection.pause_writing()  # its peer does not read
    fed_s = asyncio.get_running_loop().time()
    line.feed(echoes(60)[:-7])
    began = line.connection.holding.frame_began
    assert began >= fed_s
    assert not line.connection.is_overdue(began + 40.0), "it is not read"
    await asyncio.sleep(0.05)
    line.connection.resume_writing()
    await served.served_all(59)
    assert reads(line)
    began_later = line.connection.holding.frame_began
    assert began_later > began + 0.03
    assert line.connection.is_overdue(began_later + 40.0)


async def test_the_rotation_leaves_out_a_connection_that_does_not_read_or_is_gone() -> None:
    served = Served()
    stuck, gone = served.line("10.0.0.1"), served.line("10.0.0.2")
    stuck.transport.room = 0
    stuck.feed(echoes(1_000))
    await stuck.flushed()
    count = len(served.order)
    assert count < 1_000
    gone.feed(echoes(1_000))
    gone.connection.abort()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(served.order) <= count + 2 * SLICE_COST
    assert served.turns.count == 0
    stuck.transport.room = None
    stuck.connection.resume_writing()
    for _ in range(20):
        await asyncio.sleep(0)
    assert served.order.count("10.0.0.1") == 1_000
    assert reads(stuck)


async def test_one_way_requests_that_wait_are_served_before_the_end_of_the_stream_is_read() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echoes(1_000, flag=FLAG_ONEWAY))
    # While requests wait nothing is read, so the end of the stream is not seen either.
    assert not reads(line)
    for _ in range(20):
        await asyncio.sleep(0)
    assert reads(line)
    assert len(served.order) == 1_000


async def test_requests_before_a_frame_that_is_refused_are_served_first() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echoes(1_000) + bytes.fromhex("7fffffff 00000000"))
    for _ in range(20):
        await asyncio.sleep(0)
    answers = await line.flushed()
    assert [answer.opaque for answer in answers] == [*range(1_000), UNASKED]
    assert line.transport.ended == "closed"


async def test_what_comes_after_the_end_is_not_served() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echo()[:-1])
    line.connection.cut("a limit", limit="maxBytesInFlight")
    line.feed(echoes(3))
    assert served.order == []


async def test_a_fault_in_one_connection_does_not_stop_the_rotation() -> None:
    served = Served()
    line, other = served.line("10.0.0.1"), served.line("10.0.0.2")
    line.feed(echoes(1_000))
    other.feed(echoes(1_000))

    def fail(_code: int) -> None:
        raise RuntimeError("a fault of ours")

    # What looks up handlers, since methods of a compiled connection cannot be replaced.
    line.connection._handler_of = fail
    for _ in range(20):
        await asyncio.sleep(0)
    assert line.transport.ended == "aborted"
    assert served.order.count("10.0.0.2") == 1_000


def ended(line: Line) -> list[str]:
    """End the stream as TLS does it, with the last requests; return a list that gets an entry at
    the loss.
    """
    reported: list[str] = []
    line.connection.on_close.append(lambda _connection: reported.append("lost"))
    line.connection.eof_received()
    line.connection.connection_lost(None)
    return reported


async def test_all_that_waits_at_the_end_of_the_stream_is_served_in_turn() -> None:
    """Over TLS the end comes with the last requests, while reading is paused already."""
    served = Served()
    line, other = served.line("10.0.0.1"), served.line("10.0.0.2")
    line.feed(echoes(1_000, flag=FLAG_ONEWAY))
    reported = ended(line)
    # No more than a slice in one piece, and others are served in between.
    assert len(served.order) <= SLICE_COST
    other.feed(echoes(2))
    await until(lambda: reported)
    assert served.order.count("10.0.0.1") == 1_000
    assert served.order.index("10.0.0.2") < 1_000
    assert line.connection.closed
    assert served.order[-1] == "10.0.0.1", "it is lost when all is served"
    assert reported == ["lost"]


async def test_all_that_was_read_is_served_though_the_peer_reset_the_connection() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    reported: list[str] = []
    line.connection.on_close.append(lambda _connection: reported.append("lost"))
    line.feed(echoes(1_000, flag=FLAG_ONEWAY))
    line.connection.connection_lost(ConnectionResetError())
    assert len(served.order) <= SLICE_COST
    await until(lambda: reported)
    assert len(served.order) == 1_000


@pytest.mark.parametrize("how", ["cut", "close", "abort"])
async def test_what_waits_at_the_end_of_the_stream_can_be_dropped(how: str) -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echoes(1_000, flag=FLAG_ONEWAY))
    reported = ended(line)
    assert reported == []
    if how == "cut":
        line.connection.cut("a limit", limit="maxBytesInFlight")
    else:
        getattr(line.connection, how)()
    assert reported == ["lost"]
    before = len(served.order)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(served.order) == before
    assert line.connection.lost.done()


async def test_bytes_that_are_no_request_end_a_stream_that_has_ended() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echoes(1_000, flag=FLAG_ONEWAY) + b"\xff" * 100)
    reported = ended(line)
    await until(lambda: reported)
    assert len(served.order) == 1_000
    assert reported == ["lost"]


class Holding:
    """Holds requests until the test lets them go, as the broker does while a topic is made."""

    def __init__(self, most_bytes: int) -> None:
        self.served = Served()
        self.held: list[tuple[Connection, Request[EchoHeader]]] = []
        handlers = Handlers()
        handlers.register(ECHO_REQUEST, self._hold)
        self.hits = handlers.limit_hits.counts
        self.line = Line(
            handlers,
            server_side=True,
            turns=self.served.turns,
            holdings=Holdings(),
            limits=ConnectionLimits(max_kept_bytes=most_bytes),
        )

    def _hold(self, connection: Connection, request: Request[EchoHeader]) -> None:
        connection.keep(request)
        self.held.append((connection, request))

    async def let_go(self) -> None:
        """Answer what is held, and let what waited behind it have its turn."""
        held, self.held = self.held, []
        for connection, request in held:
            connection.let_go(request)
            connection.reply(request, response(0))
        for _ in range(4):
            await asyncio.sleep(0)


async def test_a_burst_of_more_than_a_connection_may_hold_is_slowed_down_and_not_refused() -> None:
    """A Java producer that sends with a callback waits for no answer before it sends more."""
    holding = Holding(50_000)
    line = holding.line
    line.feed(*(echo(body=bytes(20_000), opaque=number) for number in range(3)))
    assert len(holding.held) == 3
    assert not reads(line)
    # What the transport had read already waits, too.
    line.feed(b"".join(echo(body=bytes(20_000), opaque=number) for number in range(3, 8)))
    await asyncio.sleep(0)
    assert len(holding.held) == 3
    assert holding.hits["maxBytesInFlightPerConnection"] == 1
    while holding.held:
        assert len(holding.held) <= 3
        await holding.let_go()
    assert reads(line)
    answers = await line.flushed()
    assert [(answer.opaque, answer.code) for answer in answers] == [(n, 0) for n in range(8)]


async def test_a_request_of_more_than_a_connection_may_hold_is_served_alone() -> None:
    holding = Holding(50_000)
    holding.line.feed(echo(body=bytes(90_000), opaque=1) + echo(body=bytes(90_000), opaque=2))
    await asyncio.sleep(0)
    assert [request.opaque for _, request in holding.held] == [1]
    await holding.let_go()
    assert [request.opaque for _, request in holding.held] == [2]


async def test_requests_behind_held_ones_are_served_before_the_end_of_the_stream() -> None:
    holding = Holding(50_000)
    count = 0
    holding.line.feed(
        b"".join(echo(body=bytes(20_000), opaque=n, flag=FLAG_ONEWAY) for n in range(8))
    )
    reported = ended(holding.line)
    while not reported:
        assert len(holding.held) <= 3, "as many as a connection may hold"
        count += len(holding.held)
        await holding.let_go()
    assert count + len(holding.held) == 8
