"""Workers do one thing at a time, in order, whether they are threads or simulated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.simulated import SimulatedWorkers

from cometmq.runtime.workers import THREADS, Workers
from cometmq.testing import virtual


def in_threads(check: Callable[[Workers], None]) -> None:
    check(THREADS)


def simulated(check: Callable[[Workers], None]) -> None:
    async def main() -> None:
        check(SimulatedWorkers())

    virtual.run(main())


both = pytest.mark.parametrize("run", [in_threads, simulated])


@both
def test_work_is_done_in_the_order_of_its_submission(
    run: Callable[[Callable[[Workers], None]], None],
) -> None:
    def check(workers: Workers) -> None:
        worker, done = workers.worker("w"), list[int]()
        futures = [worker.submit(done.append, number) for number in range(50)]
        futures[30].result()
        assert done[:31] == list(range(31))
        worker.shutdown(wait=True)
        assert done == list(range(50))

    run(check)


@both
def test_what_work_raises_reaches_who_waits_and_the_worker_goes_on(
    run: Callable[[Callable[[Workers], None]], None],
) -> None:
    def check(workers: Workers) -> None:
        worker = workers.worker("w")
        failing = worker.submit(int, "x")
        following = worker.submit(int, "1")
        assert isinstance(failing.exception(), ValueError)
        assert following.result() == 1
        worker.shutdown(wait=True)
        with pytest.raises(RuntimeError):
            worker.submit(int, "2")

    run(check)


def test_a_worker_is_one_thread_of_its_name() -> None:
    worker = THREADS.worker("flush")
    threads = {worker.submit(threading.current_thread).result() for _ in range(5)}
    worker.shutdown(wait=True)
    (thread,) = threads
    assert thread.name.startswith("flush")
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_a_simulated_worker_works_when_its_time_has_come() -> None:
    async def main() -> None:
        loop, workers = asyncio.get_running_loop(), SimulatedWorkers(lambda: 2.0)
        slow, other = workers.worker("slow"), workers.worker("other")
        results = await asyncio.gather(
            loop.run_in_executor(slow, threading.current_thread),
            loop.run_in_executor(slow, threading.current_thread),
            loop.run_in_executor(other, threading.current_thread),
        )
        assert set(results) == {threading.current_thread()}
        assert workers.history == [(2.0, "slow"), (2.0, "other"), (4.0, "slow")]

    virtual.run(main())
