"""`cometmq doctor` and `cometmq probe` against clusters that are well and that are not."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.routes import until_routed
from tests.waits import WAIT_S, until
from typer.testing import CliRunner

from cometmq.admin.checkup import ClusterCheckup, judge_pops, probe
from cometmq.admin.groups.pops import PoppedTopic
from cometmq.aio import Producer, SimpleConsumer
from cometmq.cli.main import app
from cometmq.errors import ConfigError, StoreFullError
from cometmq.model.message import Message
from cometmq.model.names import TRACE_TOPIC
from cometmq.model.reports.finding import Finding, Severity, worst
from cometmq.model.sysflag import PERM_READ
from cometmq.model.topic import TopicConfig
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.sockets.network import TcpNetwork
from cometmq.store.refusals import RefusalCause
from cometmq.testing import Cluster
from cometmq.testing.ports import HeldPort

DEADLINE_S = 2 * WAIT_S


class ShiftedClock(SystemClock):
    def __init__(self, by_ms: int) -> None:
        self.by_ms = by_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.by_ms


class LoopbackNetwork(TcpNetwork):
    """Leads every address to loopback, and some ports to other ones."""

    def __init__(self, ports: dict[int, int] | None = None) -> None:
        self.ports = ports or {}

    async def connect(
        self, new_protocol: Callable[[], Any], _host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> Any:
        port = self.ports.get(port, port)
        return await super().connect(new_protocol, "127.0.0.1", port, tls=tls)


async def checked(namesrv: str, **options: Any) -> dict[str, Finding]:
    options = {"timeout_s": DEADLINE_S, **options}
    async with ClusterCheckup(namesrv.split(";"), **options) as checkup:
        return {finding.check: finding for finding in await checkup.check()}


def faults(findings: dict[str, Finding]) -> dict[str, Severity]:
    # The disk of the machine that runs the tests may be full.
    return {
        check: finding.severity
        for check, finding in findings.items()
        if finding.severity and not check.endswith(": disk")
    }


async def test_a_sound_cluster_has_no_faults() -> None:
    async with Cluster(brokers=2, name_servers=2) as cluster:
        found = await checked(cluster.namesrv)
    assert faults(found) == {}
    assert {"broker broker-a", "broker broker-b: clock", "broker broker-b: address"} <= found.keys()
    assert "speaks V5_3_3" in found["broker broker-a"].value


async def test_a_trace_topic_that_takes_nothing_is_found() -> None:
    async with Cluster() as cluster:
        missing = (await checked(cluster.namesrv))["traces"]
        assert missing.severity is Severity.OK
        assert "no broker has the topic RMQ_SYS_TRACE_TOPIC" in missing.value
        cluster.broker("broker-a").topics.put(TopicConfig(TRACE_TOPIC, perm=PERM_READ))
        found = missing
        async with asyncio.timeout(WAIT_S):
            while found.severity is not Severity.WARNING:
                found = (await checked(cluster.namesrv))["traces"]
    assert "traces are refused" in found.value


@pytest.mark.parametrize(
    ("by_ms", "severity"), [(86_400_000, Severity.ERROR), (-86_400_000, Severity.ERROR)]
)
async def test_a_clock_that_differs_is_found(by_ms: int, severity: Severity) -> None:
    async with Cluster() as cluster:
        found = await checked(cluster.namesrv, clock=ShiftedClock(by_ms))
    assert faults(found) == {"broker broker-a: clock": severity}
    said = "behind" if by_ms > 0 else "ahead of"
    assert said in found["broker broker-a: clock"].value


@pytest.mark.parametrize(
    ("advertised", "severity"),
    [
        ("172.17.0.2", Severity.WARNING),
        ("169.254.1.1", Severity.ERROR),
        ("0.0.0.0", Severity.ERROR),
        ("198.51.100.7", None),
    ],
)
async def test_an_address_that_others_do_not_reach_is_found(
    advertised: str, severity: Severity | None
) -> None:
    async with Cluster(properties={"brokerIP1": advertised}) as cluster:
        found = await checked(cluster.namesrv, network=LoopbackNetwork())
    assert faults(found) == ({} if severity is None else {"broker broker-a: address": severity})


async def test_a_name_that_is_not_known_here_is_found() -> None:
    known = {"127.0.0.1": "127.0.0.1"}
    async with Cluster(properties={"brokerIP1": "localhost"}) as cluster:
        found = await checked(cluster.namesrv, address_of=known.get)
    assert set(faults(found)) == {"broker broker-a", "broker broker-a: address"}
    assert "localhost" in found["broker broker-a: address"].value


async def test_a_broker_that_is_not_where_it_says_is_found() -> None:
    with HeldPort() as nobody:
        async with Cluster() as cluster:
            network = LoopbackNetwork({cluster.brokers[0].port: nobody.port})
            found = await checked(cluster.namesrv, network=network)
    # What it listens on cannot be asked, so loopback is told, too.
    assert faults(found) == {
        "broker broker-a": Severity.ERROR,
        "broker broker-a: address": Severity.WARNING,
    }


async def test_an_address_that_leads_to_another_broker_is_found() -> None:
    async with Cluster(brokers=2) as cluster:
        first, second = (broker.port for broker in cluster.brokers)
        found = await checked(cluster.namesrv, network=LoopbackNetwork({second: first}))
    assert faults(found) == {"broker broker-b: identity": Severity.ERROR}


async def test_a_broker_that_refuses_messages_is_found_and_not_ready() -> None:
    # The broker's own look at the disk, 10 s after its start, would end the refusal.
    async with Cluster(properties={"cleanResourceInterval": "86400000"}) as cluster:
        broker = cluster.brokers[0]
        address = f"127.0.0.1:{broker.port}"
        assert await probe("broker", address, ready=True, timeout_s=DEADLINE_S) == ""
        broker.store.refusals.set(RefusalCause.DISK_FULL, StoreFullError("the disk is full"))
        found = await checked(cluster.namesrv)
        assert "the disk is full" in await probe(
            "broker", address, ready=True, timeout_s=DEADLINE_S
        )
        assert await probe("broker", address, timeout_s=DEADLINE_S) == ""
    assert faults(found) == {"broker broker-a: messages": Severity.ERROR}


async def test_a_name_without_its_master_is_found_though_its_slave_is_well() -> None:
    async with Cluster(brokers=2, slaves=1) as cluster:
        assert faults(await checked(cluster.namesrv)) == {}
        await cluster.stop_broker("broker-b")
        found = await checked(cluster.namesrv)
    assert faults(found) == {"broker broker-b": Severity.ERROR}
    assert "no master is registered, only slave 1 at 127.0.0.1:" in found["broker broker-b"].value
    assert found["slave 1 of broker-b"].severity is Severity.OK


async def test_name_servers_that_know_different_brokers_are_told() -> None:
    async with Cluster() as known, Cluster(brokers=0) as empty:
        found = await checked(f"{known.namesrv};{empty.namesrv}")
        alone = await checked(empty.namesrv)
        check = f"name server {empty.namesrv}: routes"
    assert faults(found) == {check: Severity.WARNING}
    assert faults(alone) == {"brokers": Severity.ERROR}


async def test_what_is_no_name_server_is_told_as_that() -> None:
    with HeldPort() as nobody, socket.create_server(("127.0.0.1", 0)) as silent:
        async with Cluster() as cluster:
            broker = f"127.0.0.1:{cluster.brokers[0].port}"
            found = await checked(f"{broker};127.0.0.1:{nobody.port};10.0.0.1")
        mute = await checked(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
    assert [finding.severity for finding in found.values()] == [Severity.ERROR] * 3
    reported = list(found.values())
    assert "not as a name server" in reported[0].value
    assert "no connection" in reported[1].value
    assert "form host:port" in reported[2].value
    assert worst(mute.values()) is Severity.ERROR


async def test_a_probe_tells_a_name_server_from_a_broker() -> None:
    async with Cluster() as cluster:
        broker = f"127.0.0.1:{cluster.brokers[0].port}"
        assert await probe("namesrv", cluster.namesrv, timeout_s=DEADLINE_S) == ""
        assert "is no namesrv" in await probe("namesrv", broker, timeout_s=DEADLINE_S)
        assert "is no broker" in await probe("broker", cluster.namesrv, timeout_s=DEADLINE_S)


# The commands


def ended(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"NAMESRV_ADDR": None})


def test_the_doctor_ends_with_the_worst_of_its_findings(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/store\nflushDiskTyp=SYNC_FLUSH\n")
    with Cluster() as cluster:
        found = ended(
            *("doctor", "-n", cluster.namesrv, "-c", str(conf), "-o", "json", "--timeout", "100")
        )
    reported = json.loads(found.stdout)
    assert found.exit_code == 2
    assert reported["status"] == "error"
    areas = {finding["area"] for finding in reported["findings"]}
    assert areas == {"Installation", "Machine", f"Configuration {conf}", "Disk", "Cluster"}
    assert all(finding["status"] == "ok" or finding["remedy"] for finding in reported["findings"])
    assert not (tmp_path / "store").exists()


def test_the_doctor_says_what_it_did_not_check() -> None:
    found = ended("doctor")
    assert found.exit_code in (0, 1, 2)
    assert "Not checked: a cluster (-n HOST:9876)" in found.stdout


def test_the_doctor_says_what_to_do_when_nothing_is_there() -> None:
    with HeldPort() as nobody:
        found = ended("doctor", "-n", f"127.0.0.1:{nobody.port}")
        asked = ended("probe", "broker", f"127.0.0.1:{nobody.port}")
    assert found.exit_code == 2
    assert "→ start it" in found.stdout
    assert asked.exit_code == 1
    assert f"broker 127.0.0.1:{nobody.port}: " in asked.output


def test_a_configuration_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    error = ended("doctor", "-c", str(tmp_path / "none.conf")).exception
    assert isinstance(error, ConfigError)
    assert "cannot be read" in str(error)


def test_a_probe_is_one_line_and_a_status() -> None:
    with Cluster() as cluster:
        namesrv = cluster.namesrv
        found = ended("probe", "namesrv", namesrv, "--timeout", "100")
        as_json = ended("probe", "namesrv", namesrv, "--timeout", "100", "-o", "json")
        of_other = ended("probe", "broker", namesrv, "--timeout", "100", "-o", "json")
    assert (found.exit_code, found.stdout) == (0, f"namesrv {namesrv}: alive\n")
    alive = {"server": "namesrv", "address": namesrv, "alive": True, "fault": None}
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (0, alive)
    said = json.loads(of_other.stdout.splitlines()[-1])  # below what the cluster logs
    assert (of_other.exit_code, said["alive"]) == (1, False)
    assert "is no broker" in said["fault"]


def popped(**facts: int) -> PoppedTopic:
    usual = {
        "in_flight": 0, "again_count": 0, "oldest_ms": 0, "late_ms": 0, "revived_count": 0, "retry_count": 0,
    }  # fmt: skip
    return PoppedTopic("orders", ("PULL",), **(usual | facts))


@pytest.mark.parametrize(
    ("facts", "reported"),
    [
        ({"in_flight": 40, "again_count": 9, "late_ms": 900, "retry_count": 5}, None),
        ({"in_flight": 40, "again_count": 20}, None),
        ({"in_flight": 40, "again_count": 21}, "21 of 40 in flight were delivered before"),
        ({"in_flight": 1, "late_ms": 11_000}, "should have been delivered again 11 s ago"),
        ({"retry_count": 1}, "1 message waits in the retry topics of earlier pops"),
    ],
)
def test_pops_are_judged_by_what_comes_again_late_or_is_never_read(
    facts: dict[str, int], reported: str | None
) -> None:
    found = judge_pops("pops", popped(**facts))
    assert [each.severity for each in found] == [Severity.WARNING] * (reported is not None)
    assert reported is None or reported in found[0].value


async def test_the_doctor_finds_retries_that_nobody_reads() -> None:
    with Cluster() as cluster:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
        await until_routed(cluster, "orders", "broker-a")
        async with SimpleConsumer("billing", namesrv=cluster.namesrv) as consumer:
            consumer.subscribe("orders")
            (message,) = await consumer.receive()
            assert not [check for check in await checked(cluster.namesrv) if "pops" in check]
            await message.nack(0)

        async def found() -> dict[str, Finding]:
            return {c: f for c, f in (await checked(cluster.namesrv)).items() if "pops" in c}

        (finding,) = (await until(found)).values()
    assert finding.severity is Severity.WARNING
    assert "1 message waits in the retry topics" in finding.value
    assert "billing" in finding.check
