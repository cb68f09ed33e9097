"""`cometmq.testing.Cluster`, as the tests of its users have it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests.integration.routes import until_routed
from tests.waits import WAIT_S

import cometmq.aio
from cometmq import Message, MessageQueue, Producer
from cometmq.errors import ClientStateError, ConfigError
from cometmq.testing import Cluster

# pytest cannot be imported where this runs.
WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
from cometmq import Message, Producer
from cometmq.testing import Cluster
with Cluster() as cluster, Producer("shop", namesrv=cluster.namesrv) as producer:
    print(producer.send(Message("orders", b"x")).queue_offset)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which clusters without a given one make theirs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def cluster_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "cometmq-cluster" in thread.name]


async def test_on_the_loop_of_a_test_its_methods_are_awaited() -> None:
    async with Cluster(name_servers=2, brokers=2) as cluster:
        assert len(cluster.namesrv.split(";")) == 2
        assert [broker.config.broker_name for broker in cluster.brokers] == ["broker-a", "broker-b"]
        with pytest.raises(ClientStateError, match="await its methods"):
            cluster.call("restart_broker", 0)
        async with cometmq.aio.Producer("shop", namesrv=cluster.namesrv) as producer:
            queue = MessageQueue("orders", "broker-b", 0)
            for offset in range(2):
                result = await producer.send(
                    Message("orders", b"x"), queue=queue, timeout_ms=int(WAIT_S * 1000)
                )
                assert result.queue_offset == offset
                await cluster.stop_name_server(0)  # the other one is asked
                await cluster.restart_broker(1)
                await cluster.start_name_server(0)
                await until_routed(cluster, "orders", "broker-b")


def test_a_cluster_leaves_nothing_behind(temporary: Path) -> None:
    with Cluster() as cluster:
        assert list(temporary.iterdir()) == [cluster.directory]
    assert list(temporary.iterdir()) == []

    def test() -> None:
        with Cluster():
            raise KeyError("the test's own failure")

    with pytest.raises(KeyError, match="own failure"):
        test()
    assert (list(temporary.iterdir()), cluster_threads()) == ([], [])
    with pytest.raises(AssertionError, match="not started"):
        _ = cluster.directory


def test_a_cluster_that_cannot_start_leaves_nothing_behind(temporary: Path) -> None:
    with (
        pytest.raises(ConfigError, match="messageDelayLevel"),
        Cluster(brokers=2, properties={"messageDelayLevel": "soon"}),
    ):
        pass
    assert (list(temporary.iterdir()), cluster_threads()) == ([], [])


def test_a_directory_of_ones_own_keeps_the_messages(tmp_path: Path, temporary: Path) -> None:
    for offset in range(2):
        with (
            Cluster(directory=tmp_path / "mine") as cluster,
            Producer("shop", namesrv=cluster.namesrv) as producer,
        ):
            queue = MessageQueue("orders", "broker-a", 0)
            sent = producer.send(Message("orders", b"x"), queue=queue)
            assert sent.queue_offset == offset
    assert list(temporary.iterdir()) == [tmp_path / "mine"]


def test_two_clusters_do_not_meet() -> None:
    with Cluster() as first, Cluster() as second:
        assert first.namesrv != second.namesrv
        for cluster in (first, second):
            with Producer("shop", namesrv=cluster.namesrv) as producer:
                queue = MessageQueue("orders", "broker-a", 0)
                assert producer.send(Message("orders", b"x"), queue=queue).queue_offset == 0


def test_a_cluster_without_brokers_has_none_and_one_without_name_servers_is_refused() -> None:
    with Cluster(brokers=0) as cluster:
        assert cluster.brokers == []
    for counts in ({"name_servers": 0}, {"brokers": -1}):
        with pytest.raises(ValueError, match="a cluster needs a name server"):
            Cluster(**counts)  # type: ignore[arg-type]  # a dict of one of several options


def test_a_whole_suite_runs_with_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMETMQ_TEST_PROPERTIES", "defaultTopicQueueNums=3, regionId=moon,")
    with Cluster(properties={"regionId": "earth"}) as cluster:
        config = cluster.brokers[0].config
        assert (config.default_topic_queue_nums, config.region_id) == (3, "earth")
    monkeypatch.setenv("COMETMQ_TEST_PROPERTIES", "regionId")
    with pytest.raises(ConfigError, match="'regionId', which is no key=value"):
        Cluster()


def test_it_needs_no_pytest() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTEST],
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
        env=dict(os.environ),
    )
    # The servers log to the standard output, as they do in their own processes.
    assert (run.returncode, run.stderr) == (0, "")
    assert "0" in run.stdout.splitlines()
