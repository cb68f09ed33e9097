"""A virtual network has the latencies and the faults that it is asked for, and heals."""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.testing.network_ends import Remembers, ends, listen
from tests.waits import until

from cometmq.runtime.randomness import Randomness
from cometmq.testing.virtual.loop import VirtualLoop
from cometmq.testing.virtual.wire.flow import CAPACITY_BYTES
from cometmq.testing.virtual.wire.network import HostNetwork, VirtualNetwork
from cometmq.testing.virtual.world import World

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
PORT = 1000


class Net:
    """A virtual network of the nodes a, b and c, and what it has recorded."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        self.history: list[tuple[float, str, str]] = []
        self.whole = VirtualNetwork(Randomness(seed), record=self._record, **options)
        for name, address in (("a", A), ("b", B), ("c", C)):
            self.whole.add(name, address)
        self.a, self.b, self.c = (self.whole.of(address) for address in (A, B, C))

    def _record(self, node: str, event: str) -> None:
        self.history.append((now_s(), node, event))

    async def joined(
        self,
        near: str = "a",
        far: str = "b",
        new_near: Callable[[], Remembers] = Remembers,
        new_far: Callable[[], Remembers] = Remembers,
    ) -> tuple[Remembers, Remembers]:
        """Connect two nodes and return the ends."""
        networks: dict[str, HostNetwork] = {"a": self.a, "b": self.b, "c": self.c}
        return await ends(networks[near], networks[far], far, new_near=new_near, new_far=new_far)


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test())

    del run.__wrapped__  # pytest would see a coroutine function
    return run


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def took_s(coroutine: Coroutine[Any, Any, object]) -> float:
    begun_s = now_s()
    await coroutine
    return now_s() - begun_s


async def far_has(end: Remembers, size: int) -> None:
    await until(lambda: len(end.data) >= size, pause_s=0.0001)


# Names, addresses, ports


@in_virtual_time
async def test_nodes_are_found_by_name_address_and_as_localhost() -> None:
    net = Net()
    listener = await listen(net.b, Remembers, "0.0.0.0", PORT)
    for network, host in ((net.a, "b"), (net.a, B), (net.b, "localhost"), (net.b, "127.0.0.2")):
        near = await network.connect(Remembers, host, PORT, tls=None)
        near.transport.close()
    with pytest.raises(ConnectionRefusedError):
        await net.a.connect(Remembers, "localhost", PORT, tls=None)
    with pytest.raises(socket.gaierror) as caught:
        await net.a.connect(Remembers, "nobody", PORT, tls=None)
    assert caught.value.errno == socket.EAI_NONAME
    listener.close()


@in_virtual_time
async def test_a_listener_on_loopback_serves_its_own_machine_only() -> None:
    net = Net()
    listener = await listen(net.b, Remembers, "127.0.0.1", PORT)
    (await net.b.connect(Remembers, "localhost", PORT, tls=None)).transport.close()
    with pytest.raises(ConnectionRefusedError):
        await net.a.connect(Remembers, "b", PORT, tls=None)
    with pytest.raises(ConnectionRefusedError):
        await net.b.connect(Remembers, "b", PORT, tls=None)
    listener.close()


@in_virtual_time
async def test_two_nodes_may_have_the_same_port() -> None:
    net = Net()
    listeners = [await listen(network, Remembers, "", PORT) for network in (net.a, net.b)]
    for each in listeners:
        assert each.port == PORT
    with pytest.raises(OSError, match="in use"):
        await listen(net.a, Remembers, A, PORT)  # the first has all addresses


@in_virtual_time
async def test_who_has_no_machine_does_not_answer() -> None:
    net = Net()
    with pytest.raises(TimeoutError) as caught:
        await net.a.connect(Remembers, "10.9.9.9", PORT, tls=None)
    assert caught.value.errno == errno.ETIMEDOUT
    assert 126 < now_s() < 128


@in_virtual_time
async def test_a_node_tells_its_own_address() -> None:
    net = Net()
    assert net.a.own_address("b", 1) == A
    assert net.a.own_address("8.8.8.8", 1) == A
    assert net.a.own_address("localhost", 1) == "127.0.0.1"
    assert net.a.own_address("nobody", 1) == "127.0.0.1"


@in_virtual_time
async def test_a_name_is_resolved_without_the_machine() -> None:
    net = Net()
    assert await net.a.resolve("b") == B
    assert await net.a.resolve("10.9.9.9") == "10.9.9.9"
    assert await net.a.resolve("localhost") == "127.0.0.1"
    with pytest.raises(socket.gaierror):
        await net.a.resolve("nobody")


@in_virtual_time
async def test_tls_is_refused_in_a_sentence() -> None:
    net = Net()
    with pytest.raises(ValueError, match="leave tls out"):
        await net.a.connect(Remembers, "b", PORT, tls=ssl.create_default_context())


# Latency and pieces


@in_virtual_time
async def test_a_link_has_a_latency_of_its_own_in_the_range() -> None:
    net = Net(latency_s=(0.010, 0.030))
    near, far = await net.joined()
    times = []
    for _ in range(50):
        near.transport.write(b"x")
        before = len(far.data)
        times.append(await took_s(far_has(far, before + 1)))
    assert min(times) >= 0.010
    assert max(times) <= 0.030 * 1.5 + 0.001
    assert max(times) <= min(times) * 1.6, "each link has one usual latency"
    assert len(set(times)) > 5


def sizes_read(**options: Any) -> list[int]:
    async def main() -> list[int]:
        near, far = await Net(**options).joined()
        for _ in range(200):
            near.transport.write(bytes(1000))
            await asyncio.sleep(0.01)
        await until(lambda: len(far.data) == 200_000)
        return far.sizes

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_reads_are_split_at_any_place_and_one_seed_splits_alike() -> None:
    assert sizes_read(split_chance=0.0) == [1000] * 200
    split = sizes_read(split_chance=0.5)
    assert {1, 2, 3, 4} < set(split), "also inside of a length field"
    assert len([size for size in split if 100 < size < 1000]) > 50
    assert split == sizes_read(split_chance=0.5)
    assert split != sizes_read(split_chance=0.5, seed=2)


@in_virtual_time
async def test_writes_that_arrive_together_are_read_together() -> None:
    near, far = await Net(split_chance=0.0).joined()
    for _ in range(100):
        near.transport.write(bytes(10))
    await until(lambda: len(far.data) == 1000)
    assert len(far.sizes) < 50


# Faults


@in_virtual_time
async def test_a_cut_link_resets_and_refuses_until_it_is_healed() -> None:
    net = Net()
    listener = await listen(net.b, Remembers, "", PORT)
    near, far = await net.joined()
    other, _ = await net.joined("a", "c")
    near.transport.write(b"under way")
    net.whole.cut("a", "b")
    await until(lambda: near.is_lost and far.is_lost)
    assert isinstance(near.error, ConnectionResetError)
    assert isinstance(far.error, ConnectionResetError)
    assert far.data == b""
    with pytest.raises(ConnectionRefusedError):
        await net.a.connect(Remembers, "b", PORT, tls=None)
    assert not other.is_lost
    net.whole.heal("b", "a")
    await net.a.connect(Remembers, "b", PORT, tls=None)
    listener.close()


@in_virtual_time
async def test_bytes_wait_in_a_blackhole_and_none_is_lost_or_doubled() -> None:
    net = Net()
    near, far = await net.joined()
    near.transport.write(b"before ")
    await until(lambda: far.data == b"before ")
    net.whole.blackhole("a", "b")
    near.transport.write(b"meanwhile ")
    far.transport.write(b"answer")
    await asyncio.sleep(60)
    near.transport.write(b"later ")
    assert (bytes(far.data), bytes(near.data)) == (b"before ", b"")
    net.whole.heal("a", "b")
    near.transport.write(b"healed")
    waited_s = await took_s(until(lambda: far.data == b"before meanwhile later healed"))
    assert 1 < waited_s < 70, "as TCP waits ever longer before it sends again"
    assert near.data == b"answer"
    assert not near.is_lost


@in_virtual_time
async def test_a_short_blackhole_costs_a_short_time() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.blackhole("a", "b")
    near.transport.write(b"x")
    await asyncio.sleep(0.5)
    net.whole.heal_all()
    assert await took_s(until(lambda: far.data)) < 1


@in_virtual_time
async def test_a_connection_is_given_up_after_a_quarter_of_an_hour() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.blackhole("a", "b")
    near.transport.write(b"x")
    assert 900 < await took_s(until(lambda: near.is_lost, wait_s=2000, pause_s=1)) < 1000
    assert isinstance(near.error, TimeoutError)
    net.whole.heal("a", "b")
    await asyncio.sleep(3600)
    assert not far.is_lost, "nobody has told it"
    assert far.data == b""
    far.transport.write(b"hello?")
    await until(lambda: far.is_lost)
    assert isinstance(far.error, ConnectionResetError)


@in_virtual_time
async def test_an_idle_connection_outlives_any_blackhole() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.blackhole("a", "b")
    await asyncio.sleep(48 * 3600)
    net.whole.heal("a", "b")
    near.transport.write(b"still here")
    assert await took_s(until(lambda: far.data == b"still here")) < 1


@in_virtual_time
async def test_a_reset_in_a_blackhole_leaves_the_other_end_half_open() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.blackhole("a", "b")
    near.transport.abort()
    await until(lambda: near.is_lost)
    net.whole.heal("a", "b")
    await asyncio.sleep(600)
    assert not far.is_lost
    far.transport.write(b"hello?")
    await until(lambda: far.is_lost)
    assert isinstance(far.error, ConnectionResetError)


@in_virtual_time
async def test_a_close_in_a_blackhole_is_told_after_it() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.blackhole("a", "b")
    near.transport.write(b"last words")
    near.transport.close()
    await until(lambda: near.is_lost)
    await asyncio.sleep(5)
    assert not far.is_lost
    net.whole.heal("a", "b")
    await until(lambda: far.is_lost)
    assert (bytes(far.data), far.error) == (b"last words", None)


@in_virtual_time
async def test_connecting_into_a_blackhole_waits_for_the_next_try() -> None:
    net = Net()
    listener = await listen(net.b, Remembers, "", PORT)
    net.whole.blackhole("a", "b", one_way=True)
    for near in (net.a, net.b):  # the answer is lost as well as the question
        host = "b" if near is net.a else "a"
        assert 126 < await took_s(timed_out(near, host)) < 128
    asyncio.get_running_loop().call_later(5, net.whole.heal, "a", "b")
    assert 6.9 < await took_s(net.a.connect(Remembers, "b", PORT, tls=None)) < 7.1
    listener.close()


async def timed_out(network: HostNetwork, host: str) -> None:
    with pytest.raises(TimeoutError):
        await network.connect(Remembers, host, PORT, tls=None)


@in_virtual_time
async def test_a_one_way_blackhole_lets_the_other_way_pass() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.blackhole("a", "b", one_way=True)
    near.transport.write(b"lost")
    far.transport.write(b"heard")
    await until(lambda: near.data == b"heard")
    await asyncio.sleep(5)
    assert far.data == b""
    # But b is never told that its bytes have come, so it stops.
    far.transport.write(bytes(4 * CAPACITY_BYTES))
    await asyncio.sleep(5)
    assert len(near.data) < 2 * CAPACITY_BYTES
    assert far.said[-1] == "pause"
    net.whole.heal("a", "b")
    await until(lambda: len(near.data) == 5 + 4 * CAPACITY_BYTES and far.data == b"lost")
    assert far.said[-1] == "resume"


@in_virtual_time
async def test_who_is_never_told_that_bytes_have_come_gives_up() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.blackhole("a", "b", one_way=True)
    far.transport.write(b"heard")
    assert 900 < await took_s(until(lambda: far.is_lost, wait_s=2000, pause_s=1)) < 1000
    assert isinstance(far.error, TimeoutError)
    assert near.data == b"heard"


@in_virtual_time
async def test_delays_reorder_connections_but_no_bytes_of_one() -> None:
    net = Net()
    pairs = [await net.joined() for _ in range(20)]
    net.whole.delay("a", "b", 1.0, 5.0)
    arrived: list[int] = []
    for number, (near, _) in enumerate(pairs):
        for digit in b"0123456789":
            near.transport.write(bytes([digit]))
        near.transport.set_write_buffer_limits(high=number)
    begun_s = now_s()
    while len(arrived) < 20:
        await asyncio.sleep(0.01)
        arrived += [
            n for n, (_, far) in enumerate(pairs) if len(far.data) == 10 and n not in arrived
        ]
    assert 1 < now_s() - begun_s < 5.1
    assert arrived != sorted(arrived)
    assert {bytes(far.data) for _, far in pairs} == {b"0123456789"}


@in_virtual_time
async def test_what_is_under_way_in_a_delayed_link_comes_when_it_is_healed() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.delay("a", "b", 3600, 3600, one_way=True)
    near.transport.write(b"slow ")
    far.transport.write(b"fast")
    assert await took_s(until(lambda: near.data == b"fast")) < 0.1
    await asyncio.sleep(1)
    net.whole.heal("a", "b")
    near.transport.write(b"after")
    assert await took_s(until(lambda: far.data == b"slow after")) < 0.1


@in_virtual_time
async def test_a_slow_link_is_shared_and_others_are_fast() -> None:
    net = Net()
    pairs = [await net.joined() for _ in range(2)]
    other_near, other_far = await net.joined("a", "c")
    net.whole.slow("a", "b", 1000)
    for near, _ in pairs:
        near.transport.write(bytes(5000))
        near.transport.close()
    other_near.transport.write(bytes(100_000))
    assert await took_s(until(lambda: len(other_far.data) == 100_000)) < 0.1
    waited_s = await took_s(until(lambda: all(far.is_lost for _, far in pairs)))
    assert 9.8 < waited_s < 10.5
    assert [len(far.data) for _, far in pairs] == [5000, 5000]
    assert max(pairs[0][1].sizes) < 5000, "they take turns"


@in_virtual_time
async def test_a_slow_link_that_is_healed_is_fast_again() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.slow("a", "b", 10)
    near.transport.write(bytes(100_000))
    await asyncio.sleep(1)
    net.whole.heal("a", "b")
    assert await took_s(until(lambda: len(far.data) == 100_000)) < 1


@in_virtual_time
async def test_a_partition_parts_its_groups_only() -> None:
    net = Net()
    net.whole.partition(["a", "b"], ["c"])
    a_b, a_c, c_b = await asyncio.gather(
        *(
            asyncio.wait_for(asyncio.shield(asyncio.ensure_future(net.joined(*pair))), 5)
            for pair in (("a", "b"), ("a", "c"), ("c", "b"))
        ),
        return_exceptions=True,
    )
    assert not isinstance(a_b, BaseException)
    assert isinstance(a_c, TimeoutError)
    assert isinstance(c_b, TimeoutError)
    net.whole.heal_all()
    await net.joined("a", "c")


@in_virtual_time
async def test_reset_connections_can_be_made_again_at_once() -> None:
    net = Net()
    near, far = await net.joined()
    net.whole.reset_connections("a", "b")
    again, _ = await net.joined()
    assert near.is_lost
    assert far.is_lost
    assert not again.is_lost


@in_virtual_time
async def test_a_peer_that_does_not_read_learns_of_a_reset_when_it_writes() -> None:
    net = Net()
    near, far = await net.joined()
    far.transport.pause_reading()
    near.transport.abort()
    await asyncio.sleep(10)
    assert not far.is_lost
    far.transport.write(b"x")
    await until(lambda: far.is_lost)
    assert isinstance(far.error, ConnectionResetError)


@in_virtual_time
async def test_a_killed_process_leaves_what_is_under_way_then_a_reset() -> None:
    net = Net()
    listener = await listen(net.b, Remembers, "", PORT)
    near, far = await net.joined()
    far.transport.write(b"last words")
    net.whole.kill("b")
    await until(lambda: near.is_lost)
    assert bytes(near.data) == b"last words"
    assert isinstance(near.error, ConnectionResetError)
    assert far.said == ["made"], "nobody tells the dead"
    with pytest.raises(ConnectionRefusedError):
        await net.a.connect(Remembers, "b", PORT, tls=None)
    listener.close()
    again = await listen(net.b, Remembers, "", PORT)
    await net.a.connect(Remembers, "b", PORT, tls=None)
    again.close()


@in_virtual_time
async def test_the_peers_of_a_machine_that_is_off_are_told_when_it_is_on() -> None:
    net = Net()
    await listen(net.b, Remembers, "", PORT)
    silent, _ = await net.joined()
    speaks, _ = await net.joined()
    net.whole.power_off("b")
    net.whole.power_off("b")
    speaks.transport.write(b"hello?")
    await asyncio.sleep(30)
    assert not speaks.is_lost
    await timed_out(net.a, "b")
    net.whole.heal_all()
    await timed_out(net.a, "b")
    net.whole.power_on("b")
    await until(lambda: speaks.is_lost, wait_s=400, pause_s=0.1)
    assert isinstance(speaks.error, ConnectionResetError)
    assert not silent.is_lost
    silent.transport.write(b"hello?")
    await until(lambda: silent.is_lost)
    with pytest.raises(ConnectionRefusedError):
        await net.a.connect(Remembers, "b", PORT, tls=None)


@in_virtual_time
async def test_a_fault_that_cannot_be_is_refused() -> None:
    net = Net()
    with pytest.raises(ValueError, match="no node 'd'; there are a, b, c"):
        net.whole.cut("a", "d")
    with pytest.raises(ValueError, match="a has no link to itself"):
        net.whole.blackhole("a", A)
    with pytest.raises(ValueError, match="min_s <= max_s"):
        net.whole.delay("a", "b", 2, 1)
    with pytest.raises(ValueError, match="use blackhole"):
        net.whole.slow("a", "b", 0)
    assert net.history == []


@in_virtual_time
async def test_open_listeners_and_connections_are_listed_until_they_end() -> None:
    net = Net()
    listener = await listen(net.b, Remembers, "", PORT)
    near = await net.a.connect(Remembers, "b", PORT, tls=None)
    own = near.transport.get_extra_info("sockname")[1]
    listed = net.whole.open_connections()
    assert [line.partition("; made at ")[0] for line in listed] == [
        f"a: connection from {A}:{own} to {B}:{PORT}",
        f"b: listener on port {PORT}",
        f"b: connection from {B}:{PORT} to {A}:{own}",
    ]
    assert all(__file__.rpartition("/")[0] in line for line in listed), "who made them"
    near.transport.close()
    listener.close()
    await until(lambda: not net.whole.open_connections())


# Nodes


def in_world(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run `main` in a world of its own, in which it must leave nothing behind."""
    with World(seed=1) as world:
        world.run(main(world))


def test_a_paused_node_finds_what_came_meanwhile_when_it_resumes() -> None:
    async def main(world: World) -> None:
        a, b = world.node("a"), world.node("b")
        with a:
            near_network = a.surroundings.network
        far = Remembers()
        with b:
            listener = await listen(b.surroundings.network, lambda: far, "", PORT)
        near = await near_network.connect(Remembers, "b", PORT, tls=None)
        await until(lambda: far.said == ["made"])
        near.transport.write(b"before ")
        await until(lambda: far.data == b"before ")
        b.pause()
        near.transport.write(b"meanwhile")
        near.transport.write(bytes(2 * CAPACITY_BYTES))
        late = await near_network.connect(Remembers, "b", PORT, tls=None)
        await asyncio.sleep(60)
        assert far.data == b"before "
        assert near.said == ["made", "pause"]
        assert late.said == ["made"]
        b.resume()
        await until(lambda: len(far.data) == 16 + 2 * CAPACITY_BYTES)
        assert far.data.startswith(b"before meanwhile")
        await until(lambda: near.said == ["made", "pause", "resume"])
        for each in (near, late):
            each.transport.close()
        await asyncio.sleep(1)
        listener.close()

    in_world(main)


def test_a_paused_node_takes_no_more_connections_than_its_backlog() -> None:
    async def main(world: World) -> None:
        a, b = world.node("a"), world.node("b")
        with b:
            listener = await listen(b.surroundings.network, Remembers, "", PORT, backlog=3)
        b.pause()

        async def connect() -> Remembers:
            return await a.surroundings.network.connect(Remembers, "b", PORT, tls=None)

        tries = [asyncio.ensure_future(connect()) for _ in range(6)]
        await asyncio.sleep(10)
        assert sorted(each.done() for each in tries) == [False] * 2 + [True] * 4
        b.resume()
        nears = await asyncio.gather(*tries)
        assert 14 < now_s() < 16, "the others come in with a later try"
        for near in nears:
            near.transport.close()
        await asyncio.sleep(1)
        listener.close()

    in_world(main)


def test_connections_that_nobody_accepted_end_with_their_listener() -> None:
    async def main(world: World) -> None:
        a, b = world.node("a"), world.node("b")
        with b:
            listener = await listen(b.surroundings.network, Remembers, "", PORT)
        b.pause()
        near = await a.surroundings.network.connect(Remembers, "b", PORT, tls=None)
        assert not near.is_lost
        listener.close()
        await until(lambda: near.is_lost)
        assert isinstance(near.error, ConnectionResetError)
        b.resume()
        await until(lambda: not world.network.open_connections())

    in_world(main)


def test_the_clock_of_a_node_does_not_change_the_latency_of_its_links() -> None:
    async def main(world: World) -> None:
        a, b = world.node("a"), world.node("b")
        with b:
            listener = await listen(b.surroundings.network, Remembers, "", PORT)
        near = await a.surroundings.network.connect(Remembers, "b", PORT, tls=None)
        world.network.delay("a", "b", 10, 10)
        a.drift_clock(100.0)
        b.drift_clock(100.0)

        async def write() -> None:
            near.transport.write(b"x")
            near.transport.close()

        await a.run_in(write())
        begun_s = now_s()
        await until(lambda: not world.network.open_connections()[1:])
        assert 10 <= now_s() - begun_s < 10.1
        listener.close()

    in_world(main)


# One seed, one history


def history(seed: int) -> list[Any]:
    async def main() -> list[Any]:
        net = Net(seed)
        pairs = [await net.joined(*pair) for pair in (("a", "b"), ("b", "c"), ("c", "a"))]
        seen: list[Any] = []
        for number in range(40):
            for near, far in pairs:
                near.transport.write(bytes(number * 50))
                far.transport.write(b"answer")
            if number == 10:
                net.whole.delay("a", "b", 0, 0.5)
            if number == 20:
                net.whole.blackhole("b", "c", one_way=True)
            if number == 30:
                net.whole.kill("c")
                net.whole.heal_all()
            await asyncio.sleep(0.1)
            seen.append([(len(near.data), list(far.sizes)) for near, far in pairs])
        return [*net.history, *seen]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_one_seed_gives_one_history() -> None:
    first = history(7)
    assert first == history(7)
    assert first != history(8)


def test_a_round_trip_takes_a_few_turns_of_the_loop() -> None:
    """A simulation runs thousands of hours, so what each message costs is bounded by a count."""

    class Counting(VirtualLoop):
        handles = 0

        def call_soon(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]  # of any
            Counting.handles += 1
            return super().call_soon(*args, **options)

        def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]  # of any
            Counting.handles += 1
            return super().call_at(*args, **options)

    class Echo(Remembers):
        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    class Asks(Remembers):
        asked = 0

        def data_received(self, data: bytes) -> None:
            self.asked += 1
            if self.asked < 500:
                self.transport.write(data)

    async def main() -> int:
        near, _ = await Net(split_chance=0.0).joined("a", "b", Asks, Echo)
        assert isinstance(near, Asks)
        before = Counting.handles
        near.transport.write(b"x")
        await asyncio.sleep(60)
        assert near.asked == 500
        return Counting.handles - before

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(main()) <= 4 * 500 + 10
