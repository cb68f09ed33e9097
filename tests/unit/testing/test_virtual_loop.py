"""Virtual time: it jumps, it is the same in every run, and it says what stands in its way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from importlib.machinery import ModuleSpec
from inspect import CORO_CLOSED, getcoroutinestate
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Any

import anyio.to_thread
import pytest

from cometmq.logs.line_writer import LineWriter
from cometmq.testing.virtual import (
    BlockingCallError,
    DeadlockError,
    LeftBehindError,
    NodeKilledError,
    World,
    run,
)
from cometmq.testing.virtual.clock import EPOCH_MS
from cometmq.testing.virtual.loop import NODE, VirtualLoop

HERE = Path(__file__).name


def now() -> float:
    return asyncio.get_running_loop().time()


def line_of(text: str) -> str:
    """Return `file:line` of the line of this file that ends with the comment `# text`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{HERE}:{number} "


# Time


def test_an_hour_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return now()

    assert run(main()) == 3600


def test_timers_of_one_time_run_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        heard: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_at(7.0, heard.append, number)
        await asyncio.sleep(8)
        return heard

    assert run(main()) == list(range(50))


def test_a_timeout_ends_what_it_is_for() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(90):
                await asyncio.Event().wait()
        return now()

    assert run(main()) == 90


def test_cancelled_timers_are_forgotten() -> None:
    async def main() -> None:
        for _ in range(10_000):
            asyncio.get_running_loop().call_later(3600, print).cancel()
        assert len(getattr(asyncio.get_running_loop(), "_scheduled")) < 500  # noqa: B009 - typeshed does not know it
        await asyncio.sleep(1)
        assert now() == 1

    run(main())


def test_one_world_runs_several_coroutines() -> None:
    with World() as world:
        world.run(asyncio.sleep(5))
        world.run(asyncio.sleep(5))
        assert world.loop.now_s == 10


def test_work_for_threads_is_done_at_once() -> None:
    async def main() -> None:
        assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        assert await anyio.to_thread.run_sync(threading.get_ident) == threading.get_ident()
        assert now() == 0

    run(main())


def test_draws_for_one_use_shift_no_other() -> None:
    one, other = World(7), World(7)
    with one, other:
        one.randomness_of("network").random()
        drawn = one.randomness_of("disk").random()
        assert other.randomness_of("disk").random() == drawn
        with World(8) as third:
            assert third.randomness_of("disk").random() != drawn


# Nodes


async def ticks(heard: list[float], count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(10)
        heard.append(now())


def test_a_paused_node_goes_on_where_it_was() -> None:
    async def main() -> list[float]:
        node, heard = World.current().node("app-1"), list[float]()
        with node:
            task = asyncio.get_running_loop().create_task(ticks(heard))
        await asyncio.sleep(25)
        node.pause()
        await asyncio.sleep(30)
        assert heard == [10, 20]
        node.resume()
        await task
        return heard

    assert run(main()) == [10, 20, 55, 65, 75]


def test_nothing_of_a_killed_node_runs() -> None:
    heard: list[float] = []

    async def work() -> None:
        try:
            await ticks(heard)
        finally:
            heard.append(-1)

    async def main() -> None:
        node = World.current().node("app-1")
        with node:
            loop = asyncio.get_running_loop()
            task = loop.create_task(work())
            loop.call_later(30, heard.append, -2)
            event = asyncio.Event()
            waiting = loop.create_task(event.wait())
        await asyncio.sleep(15)
        node.kill()
        event.set()
        await asyncio.sleep(100)
        assert heard == [10]
        assert not task.done()
        assert not waiting.done()

    run(main())


def test_a_killed_node_leaves_no_clean_up_to_the_end_of_its_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that was killed in its start complained on stderr about a clean-up that needed the
    loop.
    """
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda reported: ignored.append(reported.exc_value))

    async def starts() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            async with contextlib.AsyncExitStack() as closing:
                closing.push_async_callback(needs_the_loop)
                closing.push_async_callback(asyncio.sleep, 0)

    async def needs_the_loop() -> None:
        asyncio.current_task()
        await asyncio.sleep(1)

    async def works() -> None:
        await starts()

    async def main() -> None:
        node = World.current().node("broker-a")
        asyncio.get_running_loop().call_later(5, node.kill)
        with pytest.raises(NodeKilledError):
            await node.run_in(works())

    run(main())
    gc.collect()
    assert ignored == []


def test_a_killed_node_closes_what_a_task_that_had_not_begun_was_to_await() -> None:
    """Python warns of a coroutine that is neither awaited nor closed."""
    inner = asyncio.sleep(1)

    async def main() -> None:
        node = World.current().node("broker-a")
        with node:
            task = asyncio.get_running_loop().create_task(asyncio.wait_for(inner, 1))
        node.kill()
        await asyncio.sleep(1)
        assert not task.done()

    run(main())
    assert getcoroutinestate(inner) == CORO_CLOSED


def test_who_awaits_work_of_a_killed_node_is_told() -> None:
    async def main() -> None:
        node = World.current().node("app-1")
        asyncio.get_running_loop().call_later(5, node.kill)
        with pytest.raises(NodeKilledError, match="app-1"):
            await node.run_in(asyncio.sleep(3600))
        assert now() == 5
        with pytest.raises(NodeKilledError, match="restart it"):
            await node.run_in(asyncio.sleep(1))

    run(main())


def test_a_restarted_node_has_its_address_and_its_clock() -> None:
    async def main() -> None:
        world = World.current()
        former = world.node("broker-a")
        former.skew_clock(5000)
        with pytest.raises(RuntimeError, match="kill it"):
            world.restart("broker-a")
        former.kill()
        node = world.restart("broker-a")
        assert node is world.node("broker-a")
        assert node.host == former.host
        assert node.surroundings.process_id() != former.surroundings.process_id()
        assert node.surroundings.clock.now_ms() == EPOCH_MS + 5000
        await node.run_in(asyncio.sleep(1))

    run(main())


def test_nodes_may_be_entered_by_several_tasks_at_once() -> None:
    async def main() -> None:
        world = World.current()
        first, second = world.node("a"), world.node("b")
        seen: list[str] = []

        async def visit(delay_s: float) -> None:
            with first:
                await asyncio.sleep(delay_s)
                with second:
                    await asyncio.sleep(delay_s)
                seen.append(repr(NODE.get()))

        await asyncio.gather(visit(1), visit(1.5), visit(2))
        assert seen == [repr(first)] * 3

    run(main())


def test_a_skewed_clock_jumps_and_its_timers_do_not() -> None:
    async def main() -> None:
        node, heard = World.current().node("app-1"), list[float]()
        clock = node.surroundings.clock
        node.skew_clock(-3_600_000)
        assert clock.now_ms() == EPOCH_MS - 3_600_000
        await node.run_in(ticks(heard, 2))
        assert heard == [10, 20]
        assert clock.monotonic() == 20

    run(main())


def test_a_drifting_node_waits_longer_or_shorter_than_others() -> None:
    async def main() -> None:
        node, heard = World.current().node("app-1"), list[float]()
        with node:
            task = asyncio.get_running_loop().create_task(ticks(heard, 3))
        await asyncio.sleep(15)
        node.drift_clock(2.0)
        await task
        # Of the second wait 5 s were left; each second of the loop is two of the node's.
        assert heard == [10, 20, 30]
        assert now() == 15 + 2.5 + 5
        assert node.surroundings.clock.now_ms() == EPOCH_MS + 30_000
        with pytest.raises(ValueError, match="above 0"):
            node.drift_clock(0)

    run(main())


def test_the_workers_of_a_killed_node_do_nothing_more() -> None:
    done: list[str] = []

    async def main() -> None:
        node = World.current().node("broker-a")
        worker = node.surroundings.workers.worker("flush")
        # Who hands in the work is on another node.
        first = asyncio.wrap_future(worker.submit(done.append, "first"))
        await first
        assert 0 < now() < 1
        late = worker.submit(done.append, "late")
        node.kill()
        await asyncio.sleep(60)
        with pytest.raises(NodeKilledError, match="flush of broker-a"):
            late.result()

    run(main())
    assert done == ["first"]


def test_the_workers_of_a_paused_node_wait() -> None:
    async def main() -> None:
        node = World.current().node("broker-a")
        work = asyncio.wrap_future(node.surroundings.workers.worker("flush").submit(now))
        node.pause()
        await asyncio.sleep(60)
        assert not work.done()
        node.resume()
        assert await work >= 60

    run(main())


# What stands in the way


def test_a_deadlock_names_what_each_task_waits_for() -> None:
    async def main() -> None:
        async def waits() -> None:
            await asyncio.Event().wait()  # waits for an event

        other = asyncio.get_running_loop().create_task(waits(), name="other")
        await other  # waits for the other

    with pytest.raises(DeadlockError) as raised:
        run(main())
    assert line_of("waits for an event") in str(raised.value)
    assert line_of("waits for the other") in str(raised.value)
    assert "other of main" in str(raised.value)


def test_a_deadlock_names_a_paused_node() -> None:
    async def main() -> None:
        node = World.current().node("app-1")
        node.pause()
        await node.run_in(asyncio.sleep(1))

    with pytest.raises(DeadlockError, match="app-1 is paused"):
        run(main())


def test_time_that_does_not_go_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.testing.virtual.loop._CALLBACKS_OF_ONE_TIME", 1000)

    async def main() -> None:
        while now() < 1:  # noqa: ASYNC110 - that is the mistake
            await asyncio.sleep(0)  # spins

    with pytest.raises(DeadlockError, match="more than 0 seconds") as raised:
        run(main())
    assert line_of("spins") in str(raised.value)


def timer_for_ever() -> None:
    """Set a timer again and again, as servers and clients do."""
    asyncio.get_running_loop().call_later(600, timer_for_ever)


def test_a_wait_of_days_for_what_never_comes_is_named() -> None:
    async def main() -> None:
        timer_for_ever()
        await asyncio.Event().wait()  # waits for ever

    with pytest.raises(DeadlockError, match=r"4 days.*asyncio.timeout") as raised:
        run(main())
    assert line_of("waits for ever") in str(raised.value)


@pytest.mark.parametrize("steps", [1, 30 * 24])
def test_a_wait_of_a_month_for_somebody_who_sleeps_is_none_for_ever(steps: int) -> None:
    async def works() -> None:
        for _ in range(steps):
            await asyncio.sleep(30 * 86_400 / steps)

    async def main() -> float:
        asyncio.get_running_loop().call_later(29 * 86_400, len, "")
        await asyncio.gather(works(), works())
        return now()

    assert run(main()) == pytest.approx(30 * 86_400)


def blocks_by_time_sleep() -> None:
    time.sleep(1)  # time.sleep


def blocks_by_imported_sleep() -> None:
    sleep(1)  # sleep


def blocks_by_future() -> None:
    concurrent.futures.Future[None]().result()  # future


def blocks_by_thread() -> None:
    threading.Thread(target=print).start()  # thread


def blocks_by_pool() -> None:
    concurrent.futures.ThreadPoolExecutor().submit(print)  # pool


def blocks_by_event() -> None:
    threading.Event().wait()  # event


def blocks_by_socket() -> None:
    socket.create_connection(("127.0.0.1", 9))  # socket


def blocks_by_process() -> None:
    subprocess.run([sys.executable, "-V"], check=True)  # process


def blocks_by_input() -> None:
    input()  # input


@pytest.mark.parametrize(
    ("block", "comment", "remedy"),
    [
        (blocks_by_time_sleep, "time.sleep", "await asyncio.sleep"),
        (blocks_by_imported_sleep, "sleep", "await asyncio.sleep"),
        (blocks_by_future, "future", "await it"),
        (blocks_by_thread, "thread", "to_thread"),
        (blocks_by_pool, "pool", "to_thread"),
        (blocks_by_event, "event", "await it"),
        (blocks_by_socket, "socket", "fake"),
        (blocks_by_process, "process", "fake"),
        (blocks_by_input, "input", "pass what"),
    ],
)
def test_a_blocking_call_is_refused_with_its_line(
    block: Callable[[], None], comment: str, remedy: str
) -> None:
    async def main() -> None:
        block()

    with pytest.raises(BlockingCallError, match=remedy) as raised:
        run(main())
    assert line_of(comment) in str(raised.value)


def test_a_blocking_call_ends_the_run_although_it_is_caught() -> None:
    async def main() -> None:
        try:
            time.sleep(1)  # noqa: ASYNC251 - that is the mistake
        except Exception:  # noqa: BLE001 - as those who call listeners do
            await asyncio.sleep(3600)

    with pytest.raises(BlockingCallError):
        run(main())


BLOCKING_MODULE = "from time import sleep\ndef block(): sleep(0)"


def new_module(name: str) -> ModuleType:
    module = ModuleType(name)
    exec(BLOCKING_MODULE, vars(module))
    return module


def is_refused(module: ModuleType) -> bool:
    async def main() -> None:
        module.block()

    try:
        run(main())
    except BlockingCallError:
        return True
    return False


def test_modules_that_take_the_place_of_others_may_not_sleep_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "first_service", new_module("first_service"))
    assert is_refused(sys.modules["first_service"])
    # As many as before, but others.
    monkeypatch.delitem(sys.modules, "first_service")
    monkeypatch.setitem(sys.modules, "other_service", new_module("other_service"))
    assert is_refused(sys.modules["other_service"])
    # The same name, as after a second import.
    monkeypatch.setitem(sys.modules, "other_service", new_module("other_service"))
    assert is_refused(sys.modules["other_service"])


def test_a_module_is_looked_at_again_when_its_import_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("slow_service")
    module.__spec__ = specification = ModuleSpec("slow_service", None)
    monkeypatch.setattr(specification, "_initializing", True, raising=False)
    monkeypatch.setitem(sys.modules, "slow_service", module)
    run(asyncio.sleep(1))
    exec(BLOCKING_MODULE, vars(module))
    monkeypatch.setattr(specification, "_initializing", False)
    assert is_refused(module)


def test_a_run_within_a_run_leaves_the_outer_one_its_refusals() -> None:
    async def main() -> None:
        inner = VirtualLoop()
        with pytest.raises(RuntimeError, match="another loop is running"):
            inner.run_forever()
        inner.close()
        block()

    def block() -> None:
        threading.Thread(target=print).start()  # thread of the outer run

    with pytest.raises(BlockingCallError) as raised:
        run(main())
    assert line_of("thread of the outer run") in str(raised.value)


def test_loops_of_two_threads_refuse_until_each_has_ended() -> None:
    before = time.sleep
    first_runs, second_runs, first_ended = (threading.Event() for _ in range(3))
    refused: list[bool] = []

    def pass_turn(mine: threading.Event, turn: threading.Event) -> None:
        mine.set()
        while not turn.is_set():  # a wait would be refused
            os.sched_yield()

    def first() -> None:
        async def main() -> None:
            pass_turn(first_runs, second_runs)

        run(main())
        first_ended.set()

    def second() -> None:
        async def main() -> None:
            pass_turn(second_runs, first_ended)
            blocks_by_time_sleep()

        first_runs.wait(30)
        try:
            run(main())
        except BlockingCallError:
            refused.append(True)

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert refused == [True]
    assert time.sleep is before


def test_connections_of_the_machine_are_refused() -> None:
    async def main() -> None:
        await asyncio.open_connection("127.0.0.1", 9)  # opens

    with pytest.raises(BlockingCallError, match="fakes of all else") as raised:
        run(main())
    assert line_of("opens") in str(raised.value)


def test_the_machine_is_as_before_after_a_run() -> None:
    before = (time.sleep, sleep, threading.Thread.start, socket.socket.connect, input)
    run(asyncio.sleep(1))
    assert before == (time.sleep, sleep, threading.Thread.start, socket.socket.connect, input)
    time.sleep(0)


def test_other_threads_may_block_during_a_run() -> None:
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        begun.wait(10)
        time.sleep(0)
        ended.set()

    thread = threading.Thread(target=other)
    thread.start()

    async def main() -> None:
        begun.set()
        while not ended.is_set():  # noqa: ASYNC110 - it is a thread's
            await asyncio.sleep(1)

    run(main())
    thread.join()


def test_the_first_log_line_may_be_written_in_virtual_time() -> None:
    """A thread writes lines, and starts with the first one. A test that logged none was the first."""
    read, write = os.pipe()
    writer = LineWriter(write)

    async def main() -> None:
        writer.write("a line\n")

    run(main())
    assert os.read(read, 100) == b"a line\n"
    os.close(read)
    os.close(write)


# What is left behind


async def leaves_a_task() -> None:
    asyncio.get_running_loop().create_task(asyncio.sleep(3600), name="lonely")  # left task


async def leaves_a_timer() -> None:
    asyncio.get_running_loop().call_later(3600, print)  # left timer


@pytest.mark.parametrize(
    ("main", "comment", "what"),
    [(leaves_a_task, "left task", "lonely of main"), (leaves_a_timer, "left timer", "a timer")],
)
def test_what_is_left_behind_is_named_with_its_line(
    main: Callable[[], Coroutine[Any, Any, None]], comment: str, what: str
) -> None:
    with pytest.raises(LeftBehindError, match=what) as raised:
        run(main())
    assert line_of(comment) in str(raised.value)


def test_an_error_is_not_hidden_by_what_it_leaves_behind() -> None:
    async def main() -> None:
        await leaves_a_timer()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main())


def test_open_connections_are_left_behind() -> None:
    async def main() -> None:
        network = World.current().node("main").surroundings.network
        listener = await network.listen(  # listens
            asyncio.Protocol, "0.0.0.0", 80, backlog=5
        )
        await listener.start()
        await network.connect(asyncio.Protocol, "127.0.0.1", 80, tls=None)  # connects

    with pytest.raises(LeftBehindError) as raised:
        run(main())
    assert line_of("connects") in str(raised.value)
    assert line_of("listens") in str(raised.value)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the machine's zone cannot be changed")
def test_local_times_are_utc_in_virtual_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    try:

        async def main() -> int:
            return time.localtime(0).tm_hour

        assert run(main()) == 0
        assert time.localtime(0).tm_hour == 9
        monkeypatch.delenv("TZ")
        assert run(main()) == 0
        assert "TZ" not in os.environ
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_ctrl_c_names_the_line_of_the_users_where_the_run_was() -> None:
    async def wait_for_ever() -> None:
        await asyncio.sleep(1e9)  # interrupted here

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, signal.raise_signal, signal.SIGINT)
        await wait_for_ever()

    with pytest.raises(KeyboardInterrupt) as caught:
        run(main())
    line = line_of("interrupted here")
    assert line in str(caught.value)
    innermost = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(innermost.filename).name, innermost.name) == (HERE, "wait_for_ever")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
