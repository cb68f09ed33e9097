"""`cometmq bench` as a process and its verdicts against a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waits import PROCESS_WAIT_S, eventually, until

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt
from cometmq.admin import AdminClient
from cometmq.admin.groups.offsets import stored
from cometmq.aio import Producer, PushConsumer
from cometmq.cli.bench import run as bench_run
from cometmq.cli.bench.consumer import ConsumerBench, ConsumerSettings
from cometmq.cli.bench.producer import ProducerBench, ProducerSettings
from cometmq.cli.bench.run import BenchResult, RunLimits
from cometmq.cli.bench.screen import BenchScreen
from cometmq.errors import RouteNotFoundError
from cometmq.runtime.surroundings import current
from cometmq.testing import Cluster

DEADLINE_S = PROCESS_WAIT_S


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cometmq", "bench", *arguments]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def bench_json(*arguments: str, status: int = 0) -> dict[str, Any]:
    result = bench(*arguments, "-o", "json")
    assert result.returncode == status, result.stdout + result.stderr
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_sent_is_stored_is_received(namesrv: str, tmp_path: Path) -> None:
    output = tmp_path / "producer.json"
    common = ("-n", namesrv, "-t", "BenchCounts", "-q", "3000")
    produced = bench_json("producer", *common, "-w", "16", "-s", "1024", "--save", str(output))
    assert produced == json.loads(output.read_text())
    assert (produced["sent"], produced["stored"]) == (3000, 3000)
    assert (produced["send_failed"], produced["response_failed"]) == (0, 0)
    latency = produced["latency_ms"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p999"]
    assert latency["p999"] <= latency["max"]

    consumed = bench_json("consumer", *common, "--from", "first")
    assert (consumed["received"], consumed["committed"], consumed["lag"]) == (3000, 3000, 0)
    assert consumed["duplicates"] == 0
    assert consumed["holds"]

    # The group goes on where it stopped: it gets only what comes now, and all of that is counted.
    bench_json("producer", *common, "-y", "true", "-k", "true", "-l", "3", "-p", "100")
    again = bench_json("consumer", *common)
    assert (again["received"], again["committed"], again["lag"]) == (3000, 3000, 0)


def test_a_log_gets_javas_lines_and_no_control_codes(namesrv: str) -> None:
    result = bench(
        *("producer", "-n", namesrv, "-t", "BenchLines"),
        *("-ri", "200", "--duration", "2", "-w", "4", "-c", "true", "-s", "5000"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\x1b" not in result.stdout
    assert result.stderr == ""
    line = (
        r"^Current Time: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \| Send TPS: \d+ \| Max RT\(ms\): \d+ "
        r"\| Average RT\(ms\): +\d+\.\d{3} \| Send Failed: 0 \| Response Failed: 0$"
    )
    assert len(re.findall(line, result.stdout, re.MULTILINE)) >= 2
    assert re.search(r"^\[Complete\] Send Total: \d+ \| Send TPS: ", result.stdout, re.MULTILINE)
    assert re.search(r"^OK sent = stored: ([\d,]+) = \1 in ", result.stdout, re.MULTILINE)


def test_a_tag_expression_selects(namesrv: str, tmp_path: Path) -> None:
    topic = ("-n", namesrv, "-t", "BenchTags")
    expression = tmp_path / "expression"
    expression.write_text("tag0 || tag9\n")
    bench_json("producer", *topic, "-q", "2000", "-l", "2")
    consumed = bench_json(
        *("consumer", *topic, "-f", "TAG", "-e", str(expression), "--from", "first"),
        *("-g", "tagged", "-q", "500", "--duration", "100"),
    )
    assert 500 <= consumed["received"] < 2000
    assert consumed["committed"] is None
    assert consumed["settings"]["tags"] == "tag0 || tag9"


def test_a_topic_that_never_came_is_status_1(namesrv: str) -> None:
    result = bench(
        *("consumer", "-n", namesrv, "-t", "BenchNone", "-p", "true", "--duration", "0.5")
    )
    assert result.returncode == 1
    assert "no name server knows the topic BenchNone" in result.stdout
    assert "FAILED committed / received: unknown / 0" in result.stdout
    assert re.search(r"group: benchmark_consumer_\d+,", result.stdout)


def test_without_a_cluster_there_is_a_remedy_and_one_sentence() -> None:
    result = bench("producer", "-n", "127.0.0.1:1", "-q", "1")
    assert result.returncode == 1
    warning, sentence = sorted(result.stderr.splitlines())
    assert sentence.startswith("cometmq: no connection to 127.0.0.1:1")
    assert "NAMESRV_ADDR" in warning


def test_a_message_no_broker_takes_is_one_sentence(namesrv: str) -> None:
    for mode in ("true", "false"):
        result = bench("producer", "-n", namesrv, "-t", "BenchLarge", "-s", "5000000", "-y", mode)
        assert result.returncode == 2  # what the user gave does not fit
        assert "4194304" in result.stderr


def test_the_clients_of_a_benchmark_write_traces_and_sign(namesrv: str) -> None:
    """Accept both options, once refused with the false reason that our clients could not."""
    common = ("-n", namesrv, "-t", "BenchTraced", "-q", "20", "-m", "true")
    signed = (*common, "-a", "true", "-ak", "key", "-sk", "secret")
    assert bench_json("producer", *signed)["holds"]
    assert bench_json("consumer", *signed, "--from", "first")["holds"]
    traces = bench_json(
        *("consumer", "-n", namesrv, "-t", "RMQ_SYS_TRACE_TOPIC", "-g", "traces"),
        *("--from", "first", "-q", "1", "--duration", "100"),
    )
    assert traces["received"] > 0


def test_a_benchmark_measures_over_tls(tmp_path: Path) -> None:
    with Cluster(tls=True, directory=tmp_path) as cluster:
        assert cluster.tls is not None
        common = ("-n", cluster.namesrv, "-t", "BenchTls", "-q", "20")
        trusting = (*common, "--ca-file", str(cluster.tls.ca_file))
        # A broker that gets no processor for 3 s makes a benchmark fail. Any other failure counts at once.
        produced = eventually(
            lambda: bench("producer", *trusting, "-o", "json"),
            lambda result: "did not answer within 3000 ms" not in result.stdout,
            wait_s=DEADLINE_S,
        )
        assert produced.returncode == 0, produced.stdout + produced.stderr
        assert json.loads(produced.stdout)["stored"] == 20
        assert bench_json("consumer", *trusting, "--from", "first")["holds"]
        assert "may require TLS" in bench("producer", *common).stderr


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_ctrl_c_ends_a_run_with_its_proof(namesrv: str, kind: str) -> None:
    topic = ("-n", namesrv, "-t", f"BenchEndless-{kind}")
    bench_json("producer", *topic, "-q", "100")
    extra = ("--from", "first") if kind == "consumer" else ()
    with subprocess.Popen(
        command(kind, *topic, *extra, "-ri", "100"),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        lines = []
        deadline = time.monotonic() + DEADLINE_S
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Current Time") and " TPS: 0 " not in line:
                break
            assert time.monotonic() < deadline, lines
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(DEADLINE_S) == 0
    assert re.search(r"^OK (sent = stored|committed = received): ([\d,]+) = \2 in", rest, re.M)


def producer_settings(namesrv: str, **limits: Any) -> ProducerSettings:
    return ProducerSettings(
        namesrv=namesrv,
        topic="t",
        concurrency=8,
        message_size_bytes=100,
        key_enable=False,
        property_size_bytes=0,
        tag_count=0,
        asynchronous=False,
        compression=None,
        compress_over_bytes=4096,
        limits=RunLimits(**limits),
    )


async def until_sending(namesrv: str) -> None:
    """Wait until the broker has messages of the benchmark, which by then counted earlier ones."""

    async def some_stored() -> bool:
        async with AdminClient(namesrv) as admin:
            try:
                return stored(await admin.offsets.of_topic("t")) > 0
            except RouteNotFoundError:
                return False

    await until(some_stored)


@pytest.fixture
def without_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a benchmark run in virtual time, where no signal comes."""

    @contextmanager
    def nothing_comes() -> Iterator[asyncio.Event]:
        yield asyncio.Event()

    monkeypatch.setattr(bench_run, "stop_event", nothing_comes)


@pytest.mark.usefixtures("without_signals")
def test_what_others_stored_meanwhile_fails_the_proof() -> None:
    async def main(cluster: Cluster) -> None:
        async def intrude() -> None:
            await until_sending(cluster.namesrv)
            async with Producer(
                "another", namesrv=cluster.namesrv, instance_name="another"
            ) as producer:
                for _ in range(3):
                    await producer.send(Message("t", b"not yours"))

        # The intruder ends long before the benchmark.
        bench = ProducerBench(producer_settings(cluster.namesrv, quantity=1_000))
        result, _ = await asyncio.gather(bench.run(BenchScreen()), intrude())
        assert not result.holds
        assert result.facts["stored"] == result.facts["sent"] + 3
        assert "3 more than were acknowledged here" in result.notes[0]

    with Cluster(clock="virtual") as cluster:
        cluster.run(main(cluster))


@pytest.mark.usefixtures("without_signals")
def test_a_broker_that_goes_away_fails_the_proof() -> None:
    async def main(cluster: Cluster) -> None:
        async def stop() -> None:
            await until_sending(cluster.namesrv)
            await cluster.stop_broker()

        bench = ProducerBench(producer_settings(cluster.namesrv, duration_s=4.0))
        result: BenchResult
        result, _ = await asyncio.gather(bench.run(BenchScreen()), stop())
        assert not result.holds
        assert result.facts["send_failed"] > 0
        assert any("sends failed, the last one: " in note for note in result.notes)

    with Cluster(clock="virtual") as cluster:
        cluster.run(main(cluster))


@pytest.mark.usefixtures("without_signals")
def test_too_few_messages_fail_the_proof() -> None:
    async def main(cluster: Cluster) -> None:
        await ProducerBench(producer_settings(cluster.namesrv, quantity=10)).run(BenchScreen())
        first = ConsumeFromWhere.FIRST_OFFSET
        limits = RunLimits(11, 15.0)
        settings = ConsumerSettings(cluster.namesrv, "t", "g", 4, "*", first, limits)
        result = await ConsumerBench(settings, clock=current().clock).run(BenchScreen())
        assert not result.holds
        assert result.text.startswith("committed = received: 10 = 10 in ")
        assert "asked for 11, received 10" in result.notes

    with Cluster(clock="virtual") as cluster:
        cluster.run(main(cluster))


async def test_another_member_of_the_group_fails_the_proof() -> None:
    """Two members share the queues: the benchmark cannot claim all that the group committed."""

    async def consume(_messages: list[MessageExt]) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    async with Cluster() as cluster:
        namesrv = cluster.namesrv
        first = ConsumeFromWhere.FIRST_OFFSET
        await ProducerBench(producer_settings(namesrv, quantity=1)).run(BenchScreen())
        member = PushConsumer("shared", consume, namesrv=namesrv, consume_from=first)
        member.subscribe("t")
        settings = ConsumerSettings(namesrv, "t", "shared", 4, "*", first, RunLimits(400))

        async def shared() -> bool:
            return sum(queue.topic == "t" for queue in member.assigned_queues()) == 2

        async def produce() -> None:
            await until(shared)
            await ProducerBench(producer_settings(namesrv, quantity=1000)).run(BenchScreen())

        async with member:
            result, _ = await asyncio.gather(ConsumerBench(settings).run(BenchScreen()), produce())
    assert not result.holds
    assert result.facts["committed"] > result.facts["received"] >= 400
    assert any("does the group have another member?" in note for note in result.notes)
