"""Connections that bring many requests are served in slices, in rotation with others."""

from __future__ import annotations

import asyncio
import contextlib
import socket

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
from cometmq.remoting.connection import UNASKED, Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.turns import (
    ADMINISTRATION_S,
    READ_COST,
    SLICE_COST,
    SLICE_S,
    TASK_COST,
    TURN_COST,
    TURN_S,
    WAITED_S,
    ServingTurns,
)
from cometmq.testing import virtual


class Clock:
    """Shows a time that only the test's handlers move."""

    def __init__(self) -> None:
        self.now_s = 0.0  # sums of halves of a slice are exact near zero

    def monotonic(self) -> float:
        return self.now_s


class Served:
    """Serves requests that take `cost_s` each, and notes who brought them."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.clock = Clock()
        self.turns = ServingTurns(self.clock.monotonic)
        self.cost_s = cost_s
        self.order: list[str] = []
        self.handlers = Handlers()
        self.handlers.register(ECHO_REQUEST, self._serve)

    def _serve(self, connection: Connection, _: Request[EchoHeader]) -> RemotingCommand:
        self.clock.now_s += self.cost_s
        self.order.append(connection.peer_ip)
        return response(0)

    def line(
        self, ip: str, handlers: Handlers | None = None, sock: socket.socket | None = None
    ) -> Line:
        handlers = handlers or self.handlers
        return Line(handlers, server_side=True, turns=self.turns, peer=(ip, 4711), sock=sock)


def reads(line: Line) -> bool:
    return line.transport.reading


def echoes(count: int, *, flag: int = 0) -> bytes:
    return b"".join(echo(opaque=number, flag=flag) for number in range(count))


async def test_a_read_of_many_requests_is_served_in_later_turns() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echoes(10 * SLICE_COST))
    assert served.order == []
    assert not reads(line)
    for turn in range(1, 3):
        await asyncio.sleep(0)
        # A turn ends behind the slice in which its cost is reached.
        assert 0 < len(served.order) < turn * (TURN_COST + SLICE_COST)
    await asyncio.sleep(0)
    assert len(served.order) == 10 * SLICE_COST
    assert reads(line)
    answers = await line.flushed()
    assert [answer.opaque for answer in answers] == list(range(10 * SLICE_COST))


async def test_a_turn_serves_dear_requests_for_its_time() -> None:
    served = Served(cost_s=SLICE_S / 2)
    line = served.line("10.0.0.1")
    line.feed(echoes(500))
    await asyncio.sleep(0)
    assert len(served.order) == TURN_S / (SLICE_S / 2)


async def test_who_brings_one_request_is_served_before_what_others_have_left() -> None:
    served = Served(cost_s=SLICE_S)
    busy, modest = served.line("10.0.0.1"), served.line("10.0.0.2")
    busy.feed(echoes(1_000))
    modest.feed(echo())
    assert served.order == ["10.0.0.2"]


async def test_who_waits_for_least_is_served_first_and_one_of_the_others_in_each_turn() -> None:
    """A client that was a little late would else wait for a whole round of a hundred others."""
    served = Served(cost_s=SLICE_S / 4)
    served.turns.is_spent()
    served.clock.now_s += TURN_S  # what is read now waits
    busy = [served.line(f"10.0.1.{number}") for number in range(50)]
    for line in busy:
        line.feed(echoes(1_000))
    few, fewer = served.line("10.0.0.2"), served.line("10.0.0.3")
    for line in (few, fewer):
        for _ in range(40):  # what a request takes has to be learned
            line.feed(echo())
    served.order.clear()
    few.feed(echoes(7))
    fewer.feed(echoes(5))
    for _ in range(8):
        if served.order.count("10.0.0.2") == 7:
            break
        await asyncio.sleep(0)
    by_age = [ip for ip in served.order if ip.startswith("10.0.0")]
    assert by_age.index("10.0.0.3") < by_age.index("10.0.0.2")
    assert served.order.count("10.0.0.3") == 5, "all of it was served before the longer work"
    # Behind the end of each turn there is a place for one of those with much to do, or for the oldest.
    assert 0 < sum(served.order.count(line.connection.peer_ip) for line in busy) <= 4 * 3


async def test_who_waits_for_little_more_is_not_passed_over_for_ever() -> None:
    """Sixteen who pulled in a loop kept a producer with a few messages waiting for 3.5 s."""
    served = Served(cost_s=SLICE_S / 4)
    others = [served.line(f"10.0.1.{number}") for number in range(8)]
    late = served.line("10.0.0.2")
    for line in [late, *others] * 40:  # what a request takes has to be learned
        line.feed(echo())
    served.order.clear()
    late.feed(echoes(3))
    turns = 0
    while "10.0.0.2" not in served.order:
        for line in others:
            if reads(line):
                line.feed(echoes(2))
        await asyncio.sleep(0)
        turns += 1
        assert turns <= 2 * len(others), "the oldest one is served in every second turn"
    assert set(served.order) > {"10.0.0.2"}, "the shorter requests of others went before"
    assert served.order.count("10.0.0.2") == 3


async def test_who_always_has_requests_waiting_comes_behind_who_seldom_has() -> None:
    """Consumers with four pulls each on the way had the least left whenever they had been served, and
    a producer that was a little late came up once in a round of them all.
    """
    served = Served(cost_s=SLICE_S / 2)
    others = [served.line(f"10.0.1.{number}") for number in range(4)]
    late = served.line("10.0.0.2")
    for _ in range(20):
        late.feed(echo())
    while served.clock.now_s < 2 * WAITED_S:
        for line in others:
            if reads(line):
                line.feed(echoes(4))
        await asyncio.sleep(0)
    served.order.clear()
    late.feed(echoes(6))
    turns = 0
    while served.order.count("10.0.0.2") < 6:
        for line in others:
            if reads(line):
                line.feed(echoes(2))
        await asyncio.sleep(0)
        turns += 1
        assert turns <= 4, "its three slices come before the shorter work of the others"
    # Who goes on like them is soon one of them.
    for _ in range(2):
        served.order.clear()
        until_s = served.clock.now_s + WAITED_S
        while served.clock.now_s < until_s:
            for line in [late, *others]:
                if reads(line):
                    line.feed(echoes(4))
            await asyncio.sleep(0)
    counts = [served.order.count(line.connection.peer_ip) for line in [late, *others]]
    assert max(counts) < 1.1 * min(counts)


async def test_clients_with_one_dear_request_each_take_turns_once_that_is_known() -> None:
    """Each had its request served when it was read, all of them in one turn of the loop."""
    served = Served(cost_s=10 * SLICE_S)
    lines = [served.line(f"10.0.0.{number}") for number in range(16)]
    for _ in range(20):
        for line in lines:
            if reads(line):
                line.feed(echo())
        for _ in range(4 * len(lines)):
            await asyncio.sleep(0)
    served.order.clear()
    for line in lines:
        assert reads(line)
        line.feed(echo())
    assert served.order == []
    for turn in range(1, len(lines) + 1):
        await asyncio.sleep(0)
        assert len(served.order) == turn
    assert len(set(served.order)) == len(lines)


async def test_a_client_does_not_pay_for_what_held_up_the_loop_while_it_was_served() -> None:
    """Neither the disk of others nor another thread, which take time and no work of the loop."""
    served = Served(cost_s=100 * SLICE_S)
    served.turns.work_s = lambda: 0.0
    line = served.line("10.0.0.1")
    for _ in range(20):
        line.feed(echoes(2))
        for _ in range(3):
            await asyncio.sleep(0)
    assert line.connection.expected_s == 0
    busy = served.line("10.0.0.2")
    busy.feed(echoes(1_000))
    line.feed(echoes(2))
    assert served.order[-1] == "10.0.0.1"


async def test_a_client_whose_requests_come_one_by_one_does_not_pay_for_it_either() -> None:
    served = Served(cost_s=100 * SLICE_S)
    served.turns.work_s = lambda: 0.0
    line = served.line("10.0.0.1")
    for _ in range(50):
        before = len(served.order)
        line.feed(echo())
        assert len(served.order) == before + 1, "it is served as it is read"
        await asyncio.sleep(0)


async def test_one_request_that_took_long_does_not_put_a_client_behind_the_others() -> None:
    """It met a full file, say. Beside 64 senders of 4 MiB a client then waited for 0.2 s a round."""
    served = Served(cost_s=SLICE_S / 16)
    modest = served.line("10.0.0.1")
    for number in range(30):
        served.cost_s = 100 * SLICE_S if number == 28 else SLICE_S / 16
        modest.feed(echo())
    served.turns.is_spent()
    served.clock.now_s += TURN_S  # what is read now waits
    modest.feed(echoes(20))
    assert modest.connection.expected_s <= 20 * SLICE_S / 8


async def test_a_late_client_with_a_long_read_is_served_before_longer_ones() -> None:
    """It has sent small messages for a quarter of a second, and is one of the short ones still."""
    served = Served(cost_s=SLICE_S / 32)
    served.turns.is_spent()
    served.clock.now_s += TURN_S
    busy = [served.line(f"10.0.1.{number}") for number in range(50)]
    for line in busy:
        line.feed(echoes(4_000))
    late = served.line("10.0.0.2")
    requests = b"".join(echo(opaque=number, body=bytes(300)) for number in range(100))
    assert len(requests) > 32 << 10, "one part of a read is cut at a time"
    late.feed(requests)
    turns = 0
    while served.order.count("10.0.0.2") < 100:
        await asyncio.sleep(0)
        turns += 1
    assert turns < 10, "a turn serves 32 requests, and a slice of another client"


async def test_what_the_kernel_has_for_a_client_counts_as_waiting() -> None:
    """Of five hundred requests on the way a read brings some fifty, less than a late client has."""
    served = Served(cost_s=SLICE_S / 32)
    late = served.line("10.0.0.2")
    unread = echoes(500)
    with contextlib.ExitStack() as sockets:
        busy = []
        for number in range(50):
            near, far = map(sockets.enter_context, socket.socketpair())
            busy.append(served.line(f"10.0.1.{number}", sock=near))
            far.sendall(unread)
        for line in [late, *busy] * 40:  # how long requests are has to be learned
            line.feed(echo())
            await asyncio.sleep(0)
        served.order.clear()
        served.turns.is_spent()
        served.clock.now_s += TURN_S  # what is read now waits
        for line in busy:
            line.feed(echoes(20))
        late.feed(echoes(60))
        turns = 0
        while served.order.count("10.0.0.2") < 60:
            await asyncio.sleep(0)
            turns += 1
        assert turns <= 5, "a turn serves 32 requests, and a slice of another client"


async def test_connections_with_much_to_do_take_turns() -> None:
    served = Served(cost_s=SLICE_S)
    lines = [served.line(f"10.0.0.{number}") for number in range(3)]
    for line in lines:
        line.feed(echoes(400))
    assert served.order == []
    for _ in range(60):
        await asyncio.sleep(0)
    counts = [served.order[:30].count(f"10.0.0.{number}") for number in range(3)]
    assert max(counts) - min(counts) <= 2


async def test_a_long_read_of_small_requests_is_cut_in_parts_and_all_of_it_counts_as_held() -> None:
    """Cutting 256 KiB into a thousand frames took others a millisecond before any was served."""
    served = Served(cost_s=SLICE_S / 8)
    busy, modest = served.line("10.0.0.1"), served.line("10.0.0.2")
    requests = echoes(4_000)
    assert len(requests) > 256 << 10
    busy.feed(requests[:-10])
    assert served.order == []
    assert busy.connection.holding.received > len(requests) * 9 // 10
    modest.feed(echo())
    assert served.order[-1] == "10.0.0.2"
    busy.feed(requests[-10:])  # over TLS more may come after reading was paused
    for _ in range(4_000):
        await asyncio.sleep(0)
    assert len(served.order) == 4_001
    assert busy.connection.holding.received == 0
    assert reads(busy)
    answers = await busy.flushed()
    assert [answer.opaque for answer in answers] == list(range(4_000))


async def test_long_reads_wait_uncut_while_a_turn_is_spent_and_are_refused_in_their_own() -> None:
    served = Served()
    honest, other = served.line("10.0.0.1"), served.line("10.0.0.2")
    served.turns.is_spent()
    served.clock.now_s += TURN_S
    good = echoes(1_000)
    honest.feed(good)
    other.feed(good + b"\xff" * 8 + bytes(100))
    assert served.order == []
    assert honest.connection.holding.received == len(good)
    for _ in range(20):
        await asyncio.sleep(0)
    assert served.order.count("10.0.0.1") == 1_000
    assert served.order.count("10.0.0.2") == 1_000
    assert not honest.connection.closed
    assert other.connection.closed


async def test_a_frame_in_parts_began_with_the_part_that_brought_its_first_byte() -> None:
    """A sender that is never between two frames was cut, as one that finishes none."""
    served = Served()
    line = served.line("10.0.0.1")
    requests = echoes(3_000)
    step = len(requests) // 3 - 7
    for start in range(0, 3 * step, step):
        served.turns.is_spent()
        served.clock.now_s += TURN_S
        fed_s = asyncio.get_running_loop().time()
        line.feed(requests[start : start + step])
        for _ in range(20):
            await asyncio.sleep(0)
        began = line.connection.holding.frame_began
    assert began >= fed_s
    assert line.connection.is_overdue(began + 40.0)


async def test_a_large_request_waits_for_a_turn_that_is_not_spent() -> None:
    served = Served(cost_s=TURN_S)
    first, second = served.line("10.0.0.1"), served.line("10.0.0.2")
    first.feed(echo(body=bytes(1 << 20)))
    second.feed(echo(body=bytes(1 << 20)))
    assert served.order == []
    assert second.connection.holding.received >= 1 << 20
    await asyncio.sleep(0)
    assert served.order == ["10.0.0.1"]
    await asyncio.sleep(0)
    assert served.order == ["10.0.0.1", "10.0.0.2"]
    assert second.connection.holding.received == 0


async def test_small_requests_go_before_large_ones_that_wait() -> None:
    """64 senders of 4 MiB each use little of the loop, and would all be served before the other."""
    served = Served(cost_s=TURN_S)
    large = [served.line(f"10.0.1.{number}") for number in range(20)]
    small = served.line("10.0.0.2")
    for line in large:
        line.feed(echo(body=bytes(1 << 20)))
    small.feed(echoes(2))
    for _ in range(100):
        await asyncio.sleep(0)
    assert served.order.index("10.0.0.2") <= 2
    assert len(served.order) == 22


async def test_few_read_on_within_large_frames_in_one_turn() -> None:
    served = Served()
    lines = [served.line(f"10.0.1.{number}") for number in range(20)]
    served.turns.is_spent()
    served.clock.now_s += TURN_S  # what is read now waits
    for line in lines:
        line.feed(echo(body=bytes(1 << 20))[: 1 << 17])
    assert not any(reads(line) for line in lines)
    await asyncio.sleep(0)
    first = sum(reads(line) for line in lines)
    assert 0 < first <= TURN_COST // READ_COST + 1
    for _ in range(20):
        await asyncio.sleep(0)
    assert all(reads(line) for line in lines)


async def test_who_brings_dear_requests_waits_while_others_are_given_as_much_time() -> None:
    served = Served()
    costs = {"10.0.0.1": 10 * SLICE_S, "10.0.0.2": SLICE_S / 4}
    handlers = Handlers()

    def serve(connection: Connection, _: Request[EchoHeader]) -> RemotingCommand:
        served.clock.now_s += costs[connection.peer_ip]
        served.order.append(connection.peer_ip)
        return response(0)

    handlers.register(ECHO_REQUEST, serve)
    dear, cheap = served.line("10.0.0.1", handlers), served.line("10.0.0.2", handlers)
    dear.feed(echoes(40))
    cheap.feed(echoes(400))
    for _ in range(1_000):
        await asyncio.sleep(0)
        if served.order.count("10.0.0.2") >= 360:
            break
    # 360 quarters of a slice are the time of nine dear requests. The first few are not known as such.
    assert 5 <= served.order.count("10.0.0.1") <= 14


async def test_the_rest_of_a_large_frame_is_read_in_rotation() -> None:
    served = Served(cost_s=TURN_S)
    busy, large = served.line("10.0.0.1"), served.line("10.0.0.2")
    busy.feed(echoes(2))
    frame = echo(body=bytes(1 << 20))
    large.feed(frame[: 1 << 19])
    assert not reads(large)
    for _ in range(100):
        await asyncio.sleep(0)
    assert reads(large)
    large.feed(frame[1 << 19 :])
    for _ in range(100):
        await asyncio.sleep(0)
    assert served.order.count("10.0.0.2") == 1
    assert reads(large)


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
    at_once = round(TURN_S / (ADMINISTRATION_S / 2))
    assert served.inspected == names[:at_once]
    client = served.line("10.0.0.1")
    for turn in range(1, 6):
        client.feed(echo())
        assert len(served.order) == turn
        await asyncio.sleep(0)
        assert served.inspected == names[: at_once + 2 * turn]


async def test_who_inspects_a_little_does_not_wait_for_a_round_of_those_who_inspect_much() -> None:
    served = Inspected(SLICE_S)
    served.turns.is_spent()
    served.clock.now_s += TURN_S  # what is read now waits
    for number in range(100):
        served.line(f"10.0.1.{number}").feed(b"".join(inspect() for _ in range(100)))
    served.line("10.0.0.1").feed(inspect())
    for _ in range(3):
        await asyncio.sleep(0)
    assert "10.0.0.1" in served.inspected
    # Nor do those starve, the oldest of whom comes in every second turn.
    assert served.inspected.count("10.0.1.0") > 0


async def test_a_request_that_inspects_the_cluster_is_served_at_once_if_none_waits() -> None:
    served = Inspected(ADMINISTRATION_S)
    served.line("10.0.1.1").feed(inspect())
    assert served.inspected == ["10.0.1.1"]


async def test_one_who_inspects_the_cluster_is_served_for_a_slice_in_each_turn() -> None:
    served = Inspected(ADMINISTRATION_S)
    served.cost_s = SLICE_S
    busy, asker = served.line("10.0.0.1"), served.line("10.0.1.1")
    busy.feed(echoes(1_000))
    asker.feed(b"".join(inspect() for _ in range(50)))
    before = len(served.inspected)
    for turn in range(1, 6):
        await asyncio.sleep(0)
        assert len(served.inspected) - before == turn * SLICE_S / ADMINISTRATION_S
    assert len(served.order) >= 5


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
    before = 0
    while before < 100:
        await asyncio.sleep(0)
        # Those of one turn, and of the slice before it.
        assert len(begun) - before <= (TURN_COST + SLICE_COST) / TASK_COST
        before = len(begun)
    await line.owner.close()


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
    assert len(served.order) <= count + 2 * SLICE_COST + TURN_COST
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


async def test_many_with_little_to_do_do_not_starve_one_with_much() -> None:
    served = Served(cost_s=SLICE_S / 2)
    busy = served.line("10.0.0.1")
    busy.feed(echoes(400))
    modest = [served.line(f"10.0.1.{number}") for number in range(200)]
    for _ in range(1_000):
        for line in modest:
            if reads(line):
                line.feed(echoes(2))
        await asyncio.sleep(0)
    # In 200 connections' company it is due one request of 200, which were 40.
    assert served.order.count("10.0.0.1") >= len(served.order) / 201


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


def test_a_frame_that_rests_has_no_more_time_for_all_the_rests() -> None:
    async def rested_s() -> float:
        served = Served(cost_s=TURN_S)
        line, busy = served.line("10.0.0.1"), served.line("10.0.0.2")
        await asyncio.sleep(1)  # no frame begins at 0
        line.feed(echo(body=bytes(1 << 20))[: 1 << 19])
        began = line.connection.holding.frame_began
        assert began == 1
        for _ in range(5):
            busy.feed(echoes(2))
            await asyncio.sleep(0.01)
            line.feed(b"x")
        return line.connection.holding.frame_began - began

    # In virtual time a rest ends when it begins, however busy the machine is.
    assert virtual.run(rested_s()) == 0


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
    """End the stream as TLS does it, with the last requests; return a list that tells of the loss."""
    told: list[str] = []
    line.connection.on_close.append(lambda _connection: told.append("lost"))
    line.connection.eof_received()
    line.connection.connection_lost(None)
    return told


async def test_all_that_waits_at_the_end_of_the_stream_is_served_in_turn() -> None:
    """Over TLS the end comes with the last requests, while reading is paused already."""
    served = Served()
    line, other = served.line("10.0.0.1"), served.line("10.0.0.2")
    line.feed(echoes(1_000, flag=FLAG_ONEWAY))
    told = ended(line)
    # No more than a slice in one piece, and others are served in between.
    assert len(served.order) <= SLICE_COST
    other.feed(echoes(2))
    await until(lambda: told)
    assert served.order.count("10.0.0.1") == 1_000
    assert served.order.index("10.0.0.2") < 1_000
    assert line.connection.closed
    assert served.order[-1] == "10.0.0.1", "it is lost when all is served"
    assert told == ["lost"]


async def test_all_that_was_read_is_served_though_the_peer_reset_the_connection() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    told: list[str] = []
    line.connection.on_close.append(lambda _connection: told.append("lost"))
    line.feed(echoes(1_000, flag=FLAG_ONEWAY))
    line.connection.connection_lost(ConnectionResetError())
    assert len(served.order) <= SLICE_COST
    await until(lambda: told)
    assert len(served.order) == 1_000


@pytest.mark.parametrize("how", ["cut", "close", "abort"])
async def test_what_waits_at_the_end_of_the_stream_can_be_dropped(how: str) -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echoes(1_000, flag=FLAG_ONEWAY))
    told = ended(line)
    assert told == []
    if how == "cut":
        line.connection.cut("a limit", limit="maxBytesInFlight")
    else:
        getattr(line.connection, how)()
    assert told == ["lost"]
    before = len(served.order)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(served.order) == before
    assert line.connection.lost.done()


async def test_bytes_that_are_no_request_end_a_stream_that_has_ended() -> None:
    served = Served()
    line = served.line("10.0.0.1")
    line.feed(echoes(1_000, flag=FLAG_ONEWAY) + b"\xff" * 100)
    told = ended(line)
    await until(lambda: told)
    assert len(served.order) == 1_000
    assert told == ["lost"]


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
    told = ended(holding.line)
    while not told:
        assert len(holding.held) <= 3, "as many as a connection may hold"
        count += len(holding.held)
        await holding.let_go()
    assert count + len(holding.held) == 8
