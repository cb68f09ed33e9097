"""The pytest plugin, in runs of pytest of their own: nothing of this repository configures them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S

Run = Callable[..., "subprocess.CompletedProcess[str]"]

VIRTUAL = """
    import asyncio
    import pytest
    from cometmq import Message
    from cometmq.aio import Producer

    @pytest.fixture
    async def shop(cometmq_cluster):
        async with Producer("shop", namesrv=cometmq_cluster.namesrv) as producer:
            yield producer

    @pytest.fixture
    async def stored(shop):
        return await shop.send(Message("orders", b"of the fixture"))

    async def test_an_async_test_is_in_virtual_time(cometmq_cluster):
        await asyncio.sleep(100)
        assert cometmq_cluster.world.loop is asyncio.get_running_loop()

    async def test_its_async_fixtures_are_too(stored, cometmq_cluster):
        assert [m.msg_id for m in await cometmq_cluster.messages("orders")] == [stored.msg_id]

    @pytest.mark.usefixtures("cometmq_cluster")
    async def test_a_mark_is_enough():
        await asyncio.sleep(100)

    class TestOfAClass:
        @pytest.fixture
        async def number(self, cometmq_cluster):
            self.seen = asyncio.get_running_loop()
            return 7

        @pytest.mark.parametrize("count", [1, 2])
        async def test_a_method(self, cometmq_cluster, cometmq_producer, cometmq_consumer, number, count):
            assert (number, self.seen) == (7, asyncio.get_running_loop())
            for _ in range(count):
                await cometmq_producer.send(Message("orders", b"x"))
            cometmq_consumer.subscribe("orders")
            got = []
            while len(got) < count:
                got += await cometmq_consumer.poll(60_000)
            assert [m.body for m in got] == [b"x"] * count

    def test_a_plain_test_runs_its_coroutines_there(cometmq_cluster, cometmq_producer):
        async def main():
            await asyncio.sleep(100)
            return await cometmq_producer.send(Message("orders", b"x"))
        assert cometmq_cluster.run(main()).queue_offset == 0

    @pytest.mark.cometmq_cluster(brokers=2, slaves=1, master_role="SYNC_MASTER", seed=7)
    async def test_a_mark_sets_the_cluster_up(cometmq_cluster):
        assert (len(cometmq_cluster.brokers), cometmq_cluster.world.seed) == (2, 7)
        assert len(cometmq_cluster.slaves) == 2
"""

REAL = """
    import threading
    import pytest
    from cometmq import Message

    @pytest.mark.parametrize("number", range(6))
    def test_a_store_is_fresh(number, cometmq_broker, cometmq_producer, cometmq_consumer):
        assert cometmq_broker.messages("orders") == []
        assert cometmq_producer.send(Message("orders", b"%d" % number)).queue_offset == 0
        cometmq_consumer.subscribe("orders")
        assert [m.body for m in cometmq_consumer.poll(60_000)] == [b"%d" % number]
        [stored] = cometmq_broker.messages("orders", 1)
        assert stored.body == b"%d" % number
        assert [t.name for t in threading.enumerate()].count("cometmq-broker") == 1

    @pytest.mark.cometmq_broker(properties={"autoCreateTopicEnable": "false"})
    def test_a_mark_sets_the_broker_up(cometmq_producer):
        with pytest.raises(Exception, match="orders"):
            cometmq_producer.send(Message("orders", b"x"))
"""

FAILING = """
    import pytest
    from cometmq import Message

    @pytest.mark.cometmq_cluster(seed=5)
    async def test_it_fails(cometmq_cluster, cometmq_producer):
        await cometmq_producer.send(Message("orders", b"the only one"))
        cometmq_cluster.pause("broker-a")
        cometmq_cluster.resume("broker-a")
        await cometmq_cluster.messages("orders", 2)

    @pytest.mark.cometmq_cluster(7)
    def test_of_a_positional_argument(cometmq_cluster): ...

    @pytest.mark.cometmq_cluster(broker=2)
    def test_of_a_misspelt_argument(cometmq_cluster): ...
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Write a module of tests and run pytest on it, with no configuration but the arguments."""

    def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_user.py").write_text(textwrap.dedent(code))
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST", "COV_", "COVERAGE"))
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            timeout=PROCESS_WAIT_S,
            check=False,
        )

    return run


def pytest_arguments(*arguments: str) -> list[str]:
    return ["-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-ra", *arguments]


@pytest.mark.parametrize(
    "others",
    [
        ["-p", "no:asyncio", "-p", "no:anyio"],
        ["--asyncio-mode=strict"],
        ["--asyncio-mode=auto", "-n", "2"],
    ],
    ids=["alone", "beside pytest-asyncio", "its auto mode and xdist"],
)
def test_the_fixtures_need_no_configuration(run: Run, others: list[str]) -> None:
    # An option that pytest-asyncio wants to be set, in any run.
    quiet = ["-W", "ignore::pytest.PytestDeprecationWarning"]
    done = run(VIRTUAL + REAL, *pytest_arguments(*quiet, *others))
    assert "14 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_failure_shows_the_messages_the_events_and_the_seed_and_no_frames_of_ours(
    run: Run,
) -> None:
    done = run(FAILING, *pytest_arguments("-p", "no:asyncio", "--cometmq-seed=11"))
    assert "1 failed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "topic orders has 1 message after 60 s, and 2 are expected" in done.stdout
    assert "b'the only one'" in done.stdout
    assert "--cometmq-seed=11 replays it" in done.stdout
    assert "broker-a     pause(node='broker-a')" in done.stdout
    failure = done.stdout.partition("= FAILURES =")[2]
    for file in ("cluster.py:", "assertions.py:", "runners.py:", "pytest_cometmq"):
        assert file not in failure
    # The other two tests have marks that mean nothing.
    assert "the marker cometmq_cluster takes no positional arguments" in done.stdout
    assert "the marker cometmq_cluster takes no broker; it takes seed, name_servers" in done.stdout


MISTAKES = """
    import asyncio
    import time
    from cometmq import ConsumeResult, Message
    from cometmq.aio import PushConsumer

    async def test_a_listener_sleeps(cometmq_cluster, cometmq_producer):
        async def listen(messages):
            time.sleep(1)
            return ConsumeResult.SUCCESS

        await cometmq_producer.send(Message("orders", b"x"))
        consumer = PushConsumer("billing", listen, namesrv=cometmq_cluster.namesrv)
        consumer.subscribe("orders")
        async with consumer:
            await cometmq_cluster.wait_consumed("billing")

    async def test_time_does_not_go_on(cometmq_cluster, monkeypatch):
        monkeypatch.setattr("cometmq.testing.virtual.loop._CALLBACKS_OF_ONE_TIME", 10_000)
        while True:
            await asyncio.sleep(0)

    async def test_both_kinds(cometmq_cluster, cometmq_broker):
        cometmq_broker.messages("orders")

    async def test_a_timer_is_left_behind(cometmq_cluster):
        asyncio.get_running_loop().call_later(3600, print)
"""


def test_a_mistake_is_one_short_message(run: Run) -> None:
    done = run(MISTAKES, *pytest_arguments("-p", "no:asyncio"))
    # Who has failed is not told of what was left behind, too.
    assert "3 failed, 1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "time.sleep was called in virtual time" in done.stdout
    assert "callbacks ran at one time" in done.stdout
    assert "the broker over real sockets was called in virtual time" in done.stdout
    left = done.stdout.partition("ERROR at teardown of test_a_timer_is_left_behind")[2]
    left = left.partition("= FAILURES =")[0]
    assert "the run has ended and left behind" in left
    for file in ("pytest_cometmq", "cluster.py:", "world.py:"):
        assert file not in left
    for file in ("world.py:", "loop.py:", "base_events.py:"):
        assert (
            file
            not in done.stdout.partition("test_time_does_not_go_on ___")[2].partition("____")[0]
        )


def test_a_run_without_the_fixtures_does_not_import_cometmq(run: Run) -> None:
    code = """
        import sys

        def test_nothing():
            assert "pytest_cometmq" in sys.modules
            assert not [name for name in sys.modules if name.partition(".")[0] == "cometmq"]
    """
    done = run(code, *pytest_arguments("-p", "no:asyncio"))
    assert "1 passed" in done.stdout, done.stdout


def test_pytest_does_not_rewrite_cometmq(run: Run, tmp_path: Path) -> None:
    """It would in an installed package: of one with a plugin it rewrites all modules."""
    installed = tmp_path / "installed-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1.0\n")
    (installed / "RECORD").write_text("cometmq/__init__.py,,\nfake_plugin.py,,\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nfake = fake_plugin\n")
    (tmp_path / "fake_plugin.py").write_text("")
    code = """
        import cometmq.errors
        import fake_plugin

        def test_it():
            assert type(fake_plugin.__loader__).__name__ == "AssertionRewritingHook"
            assert type(cometmq.errors.__loader__).__name__ == "SourceFileLoader"
    """
    done = run(code, *pytest_arguments("-p", "no:asyncio"), PYTHONPATH=str(tmp_path))
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_coverage_of_cometmq_is_measured_from_its_first_import(run: Run) -> None:
    code = """
        def test_it():
            import cometmq.model.names
    """
    done = run(
        code,
        *pytest_arguments("-p", "no:asyncio", "--cov=cometmq.model.names", "--cov-report=term"),
        COVERAGE_CORE="ctrace",
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "previously imported" not in done.stdout + done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.endswith("%") and "names" in line]
    assert int(row.split()[-1].rstrip("%")) > 50
