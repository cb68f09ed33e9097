"""Run mqadmin's commands for topics, brokers, clusters and name servers by `cometmq admin`.

`tests/interop/test_admin_command_on_java.py` runs those that name no version against Java's servers of
4.9 and 5.3; `line` says which servers a test has.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.admin_commands import Commands, commands, no_log_lines
from tests.integration.raw_client import RawClient
from tests.waits import WAIT_S, eventually
from typer.testing import CliRunner

import cometmq
from cometmq.cli.admin import completion
from cometmq.cli.main import app
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import body_crc, encode_register_body

__all__ = ["commands", "no_log_lines"]

NOBODY = "127.0.0.1:1"
REGISTER_BROKER = 103
pytestmark = [pytest.mark.cluster(brokers=2)]


@pytest.fixture
def line() -> str:
    """Return which servers the tests run against: ours, or Java's of 4.9 or 5.3."""
    return "ours"


@pytest.fixture
def admin(namesrv: str) -> Iterator[cometmq.AdminClient]:
    with cometmq.AdminClient(namesrv, timeout_ms=int(WAIT_S * 1000)) as admin:
        yield admin


@pytest.fixture
def masters(admin: cometmq.AdminClient) -> dict[str, str]:
    """Return the masters' addresses by broker name."""
    return {at.broker_name: at.address for at in admin.brokers.addresses(slaves=False)}


@pytest.fixture
def cluster_name(admin: cometmq.AdminClient) -> str:
    [name] = admin.brokers.clusters()
    return name


@pytest.fixture
def topic(admin: cometmq.AdminClient, name: str, cluster_name: str) -> str:
    """Make a topic of two queues at each broker, and wait for its route."""
    brokers = admin.topics.create(name, read_queues=2, write_queues=2, cluster=cluster_name)
    eventually(
        lambda: len(admin.topics.route(name).queue_datas),
        len(brokers).__eq__,
        passing=(cometmq.errors.RouteNotFoundError,),
    )
    return name


@pytest.fixture
def dead_broker(namesrv: str, cluster_name: str, admin: cometmq.AdminClient) -> Iterator[str]:
    """Register a broker where nobody listens, as long as the test runs."""
    body = encode_register_body(
        RegisterBrokerBody([], TopicConfigSerializeWrapper()), compressed=False
    )
    header = {
        "brokerName": "broker-dead",
        "brokerAddr": NOBODY,
        "clusterName": cluster_name,
        "haServerAddr": NOBODY,
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": str(body_crc(body)),
    }
    with RawClient(namesrv) as broker:
        assert broker.ask(REGISTER_BROKER, header, body).code == 0
        yield NOBODY
    eventually(
        lambda: [at.broker_name for at in admin.brokers.addresses()],
        lambda names: "broker-dead" not in names,
    )


def results(rows: list[dict[str, str]]) -> dict[str, str]:
    """Return what a change came to at each server: its first word."""
    return {row["server"]: row["result"].split(":")[0] for row in rows}


# Topics


def test_a_topic_is_made_shown_changed_and_deleted(
    commands: Commands,
    admin: cometmq.AdminClient,
    masters: dict[str, str],
    cluster_name: str,
    name: str,
) -> None:
    at_cluster = ("-t", name, "-c", cluster_name)
    queues = ("-r", "3", "-w", "2")
    planned = commands.json("updateTopic", *at_cluster, *queues, "--dry-run")
    assert set(results(planned)) == set(masters.values())
    assert all(row["result"].startswith("would set") for row in planned)
    assert name not in admin.topics.names()
    made = commands.json("updateTopic", *at_cluster, *queues)
    assert results(made) == dict.fromkeys(masters.values(), "done")
    eventually(lambda: name in admin.topics.names())

    routes = eventually(
        lambda: commands.json("topicRoute", "-t", name, "-l"), lambda rows: len(rows) > len(masters)
    )
    *brokers, total = routes
    assert [(row["broker"], row["readQueues"], row["writeQueues"]) for row in brokers] == [
        (broker, 3, 2) for broker in sorted(masters)
    ]
    assert (total["cluster"], total["readQueues"]) == ("Total:", 3 * len(masters))
    whole = commands.json("topicRoute", "-t", name)
    assert {data["brokerName"] for data in whole["queueDatas"]} == set(masters)
    status = commands.json("topicStatus", "-t", name)
    # Brokers of 4.9 tell of the queues that are written only.
    assert {row["queue"] for row in status["queues"]} >= {0, 1}
    assert all(row["minOffset"] == row["maxOffset"] == 0 for row in status["queues"])
    assert commands.json("topicClusterList", "-t", name) == [{"cluster": cluster_name}]
    assert name in [row["topic"] for row in commands.json("topicList")]
    owners = commands.json("topicList", "-c")
    assert {"cluster": cluster_name, "topic": name, "group": ""} in owners

    changed = commands.json("updateTopicPerm", *at_cluster, "-p", "4")
    assert set(results(changed).values()) == {"done"}
    configs = admin.topics.config(name, cluster=cluster_name)
    assert {(of.perm, of.read_queue_nums) for of in configs.values()} == {(4, 3)}

    assert "repeat it with --yes" in commands.refused("deleteTopic", *at_cluster, status=2)
    commands.run("deleteTopic", *at_cluster, "--dry-run")
    assert name in admin.topics.names()
    commands.run("deleteTopic", *at_cluster, "--yes")
    eventually(lambda: name not in admin.topics.names())
    assert "knows no route" in commands.refused("topicRoute", "-t", name)


def test_an_ordered_topic_has_an_order_configuration(
    commands: Commands, masters: dict[str, str], cluster_name: str, name: str
) -> None:
    commands.run("updateTopic", "-t", name, "-c", cluster_name, "-w", "2", "-o", "true")
    text = ";".join(f"{broker}:2" for broker in sorted(masters))
    assert commands.json("updateOrderConf", "-m", "get", "-t", name)["orderConf"] == text
    commands.run("updateOrderConf", "-m", "put", "-t", name, "-v", "broker-x:4")
    assert commands.json("updateOrderConf", "-m", "get", "-t", name)["orderConf"] == "broker-x:4"
    assert "--yes" in commands.refused("updateOrderConf", "-m", "delete", "-t", name, status=2)
    commands.run("updateOrderConf", "-m", "delete", "-t", name, "-y")
    assert "no order configuration" in commands.refused("updateOrderConf", "-m", "get", "-t", name)
    assert "--orderConf" in commands.refused("updateOrderConf", "-m", "put", "-t", name, status=2)


def test_attributes_are_set_and_removed_or_the_version_is_named(
    commands: Commands, admin: cometmq.AdminClient, cluster_name: str, line: str, name: str
) -> None:
    make = ("updateTopic", "-t", name, "-c", cluster_name)
    if line == "4.9":
        printed = commands.run(*make, "-a", "+message.type=FIFO", status=1)
        assert "4.9" in printed.out + printed.err
        return
    commands.run(*make, "-a", "+message.type=FIFO")
    configs = admin.topics.config(name, cluster=cluster_name).values()
    assert {of.attributes.get("message.type") for of in configs} == {"FIFO"}
    commands.run(*make, "-a", "-message.type")
    configs = admin.topics.config(name, cluster=cluster_name).values()
    assert {of.attributes.get("message.type") for of in configs} == {None}


def test_the_topics_of_a_file_are_made_at_once(
    commands: Commands,
    admin: cometmq.AdminClient,
    cluster_name: str,
    line: str,
    tmp_path: Path,
    name: str,
) -> None:
    file = tmp_path / "topics.json"
    file.write_text(json.dumps([{"topicName": f"{name}-{n}", "readQueueNums": 2} for n in "ab"]))
    make = ("updateTopicList", "-c", cluster_name, "-f", str(file))
    if line == "4.9":
        assert "does not know the request" in commands.run(*make, status=1).err
        return
    commands.run(*make)
    eventually(lambda: {f"{name}-a", f"{name}-b"} <= set(admin.topics.names()))


def test_members_share_the_queues_of_a_topic(
    commands: Commands, masters: dict[str, str], topic: str
) -> None:
    rows = commands.json("allocateMQ", "-t", topic, "-i", "one, two")
    assert len(rows) == 2 * len(masters)
    assert [row["member"] for row in rows] == ["one"] * len(masters) + ["two"] * len(masters)


# Brokers


def test_brokers_tell_state_and_settings(
    commands: Commands, masters: dict[str, str], cluster_name: str
) -> None:
    addresses = set(masters.values())
    status = commands.json("brokerStatus", "-c", cluster_name)
    assert {row["broker"] for row in status} == addresses
    assert "msgPutTotalTodayNow" in {row["key"] for row in status}
    one = next(iter(addresses))
    assert re.search(r"(?m)^brokerVersionDesc +V", commands.run("brokerStatus", "-b", one).out)
    settings = commands.json("getBrokerConfig", "-c", cluster_name)
    assert {settings[address]["brokerName"] for address in addresses} == set(masters)


def test_a_setting_is_changed_at_every_broker(
    commands: Commands, admin: cometmq.AdminClient, masters: dict[str, str], cluster_name: str
) -> None:
    key = "transactionCheckInterval"
    before = {at: of[key] for at, of in admin.brokers.config(cluster=cluster_name).items()}
    commands.run("updateBrokerConfig", "-c", cluster_name, "-k", key, "-v", "61000")
    after = admin.brokers.config(cluster=cluster_name)
    assert {after[at][key] for at in masters.values()} == {"61000"}
    for address, value in before.items():
        commands.run("updateBrokerConfig", "-b", address, "-k", key, "-v", value)


def test_brokers_clean_up(commands: Commands, masters: dict[str, str], cluster_name: str) -> None:
    for name in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        for where in ((), ("-c", cluster_name)):
            assert results(commands.json(name, *where)) == dict.fromkeys(masters.values(), "done")
        assert "give one of them" in commands.refused(name, "-c", "c", "-b", "b:1", status=2)


# Clusters


def test_a_cluster_is_listed_in_every_form(
    commands: Commands, masters: dict[str, str], cluster_name: str
) -> None:
    rows = commands.json("clusterList")
    assert {(row["cluster"], row["broker"], row["address"], row["active"]) for row in rows} == {
        (cluster_name, name, address, row["active"])
        for name, address in masters.items()
        for row in rows[:1]
    }
    assert all(row["id"] == 0 and row["version"].startswith("V") for row in rows)
    printed = commands.run("clusterList", "-c", cluster_name, "-o", "csv").out
    assert [row["broker"] for row in csv.DictReader(io.StringIO(printed))] == sorted(masters)
    totals = yaml.safe_load(commands.run("-o", "yaml", "clusterList", "-m").out)
    assert all(row["inToday"] >= 0 for row in totals)
    table = commands.run("clusterList").out.splitlines()
    assert table[0].split()[:3] == ["Cluster", "Broker", "BID"]
    assert len(table) == 1 + len(masters)


def test_sends_to_each_broker_are_timed(commands: Commands, masters: dict[str, str]) -> None:
    planned = commands.json("clusterRT", "-a", "3", "--dry-run")
    assert {row["server"] for row in planned} == set(masters.values())
    assert all(row["result"].startswith("would send 3 messages") for row in planned)
    rows = commands.json("clusterRT", "-a", "3")
    assert [(row["broker"], row["success"], row["failed"]) for row in rows] == [
        (name, 3, 0) for name in sorted(masters)
    ]
    assert all(row["rt"] > 0 for row in rows)
    lines = commands.run("clusterRT", "-a", "3", "-p", "true", "-m", "hall").out.splitlines()
    assert [line.split("|")[1::2][0] for line in lines] == ["hall"] * len(masters)


# Name servers


def test_name_servers_keep_entries(commands: Commands, namesrv: str, name: str) -> None:
    entry = ("-s", "PLACES", "-k", name)
    assert results(commands.json("updateKvConfig", *entry, "-v", "here")) == {namesrv: "done"}
    with cometmq.AdminClient(namesrv) as admin:
        assert admin.name_servers.entry("PLACES", name) == "here"
        assert "--yes" in commands.refused("deleteKvConfig", *entry, status=2)
        commands.run("deleteKvConfig", *entry, "-y")
        assert admin.name_servers.entry("PLACES", name) is None
    settings = commands.json("getNamesrvConfig")
    assert (
        settings["listenPort"] == namesrv.rpartition(":")[2] if "listenPort" in settings else True
    )


def test_the_permission_to_write_is_wiped_and_added(
    commands: Commands, admin: cometmq.AdminClient, masters: dict[str, str], topic: str
) -> None:
    name = min(masters)

    def permission() -> int:
        [data] = [of for of in admin.topics.route(topic).queue_datas if of.broker_name == name]
        return data.perm

    [row] = commands.json("wipeWritePerm", "-b", name)
    assert row["topics"] > 0
    assert permission() == 4
    commands.run("addWritePerm", "-b", name)
    assert permission() == 6


# What CometMQ's brokers have not


def test_brokers_without_cold_data_and_slaves_say_what_to_do(
    commands: Commands, masters: dict[str, str], cluster_name: str
) -> None:
    address = min(masters.values())
    refused = commands.refused("getColdDataFlowCtrInfo", "-b", address)
    assert "maxTransferBytesOnMessageInDisk" in refused
    assert "blockdev" in commands.refused("setCommitLogReadAheadMode", "-b", address, "-m", "1")
    assert "no controller" in commands.refused("getBrokerEpoch", "-b", min(masters))
    assert "JSON files" in commands.refused("rocksDBConfigToJson", "-b", address)
    rows = commands.json("checkRocksdbCqWriteProgress", "-c", cluster_name)
    assert {row["status"] for row in rows} == {"OK"}
    found = commands.json("haStatus", "-c", cluster_name)
    assert {found[at]["SlaveNum"] for at in masters.values()} == {0}


# Half of a cluster, none of it, and what does not fit


def test_a_broker_that_is_dead_leaves_the_results_of_the_others(
    commands: Commands,
    admin: cometmq.AdminClient,
    dead_broker: str,
    masters: dict[str, str],
    cluster_name: str,
    name: str,
) -> None:
    alive = {address for address in masters.values() if address != dead_broker}
    wanted = {**dict.fromkeys(alive, "done"), dead_broker: "failed"}
    rows = commands.json("updateTopic", "-t", name, "-c", cluster_name, status=1)
    assert results(rows) == wanted
    eventually(lambda: name in admin.topics.names())
    listed = commands.run("clusterList", "-o", "json", status=1)
    assert {row["address"]: row["version"] is None for row in listed.json} == {
        **dict.fromkeys(alive, False),
        dead_broker: True,
    }
    assert f"{dead_broker}: the runtime information could not be asked" in listed.err
    for command in ("brokerStatus", "getBrokerConfig", "haStatus"):
        reported = commands.run(command, "-c", cluster_name, "-o", "json", status=1)
        assert all(address in reported.out for address in alive), command
        assert dead_broker in reported.err, command
    cleaned = commands.json("cleanExpiredCQ", status=1)
    assert results(cleaned) == wanted
    commands.run("deleteTopic", "-t", name, "-c", cluster_name, "-y", status=1)


def test_a_name_server_that_is_away_is_named(commands: Commands) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["admin", "topicList", "-n", NOBODY])
    assert NOBODY in str(result.exception)
    assert "check that the server runs there" in str(result.exception)


def test_unknown_names_are_told_with_those_that_are_known(
    commands: Commands, cluster_name: str, masters: dict[str, str], name: str
) -> None:
    assert cluster_name in commands.refused("clusterList", "-c", "nowhere")
    assert min(masters) in commands.refused("wipeWritePerm", "-b", "nobody")
    assert "check the topic's name" in commands.refused("topicStatus", "-t", name)


def test_values_that_do_not_fit_are_refused(
    commands: Commands, cluster_name: str, tmp_path: Path, name: str
) -> None:
    make = ("updateTopic", "-t", name)
    assert "give --brokerAddr or --clusterName" in commands.refused(*make, status=2)
    both = ("-c", cluster_name, "-b", NOBODY)
    assert "only one of them" in commands.refused(*make, *both, status=2)
    at_cluster = (*make, "-c", cluster_name)
    assert "permission is 9" in commands.refused(*at_cluster, "-p", "9", status=2)
    assert "+KEY=VALUE" in commands.refused(*at_cluster, "-a", "message.type=FIFO", status=2)
    assert "neither true nor false" in commands.refused(*at_cluster, "-o", "maybe", status=2)
    bad = ("updateTopic", "-t", "no topic", "-c", cluster_name)
    assert "no topic" in commands.refused(*bad, status=2)
    for text in ("no JSON", "[]", '[{"perm": 6}]', '{"topicName": "t"}'):
        (tmp_path / "bad.json").write_text(text)
        file = ("-f", str(tmp_path / "bad.json"))
        refused = commands.refused("updateTopicList", "-c", cluster_name, *file, status=2)
        assert "bad.json" in refused, text


# Shells


def complete(words: str, namesrv: str) -> list[str]:
    environment = {
        "_COMETMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "NAMESRV_ADDR": namesrv,
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="cometmq")
    assert result.stderr == ""
    return result.output.split()


def test_names_that_the_cluster_knows_are_completed(
    namesrv: str,
    masters: dict[str, str],
    cluster_name: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion, "_DEADLINE_MS", int(WAIT_S * 1000))
    assert complete(f"cometmq admin topicRoute -t {topic[:-2]}", namesrv) == [topic]
    assert complete("cometmq admin clusterList -c ", namesrv) == [cluster_name]
    assert complete("cometmq admin wipeWritePerm -b ", namesrv) == sorted(masters)
    assert complete("cometmq admin brokerStatus -b 127", namesrv) == sorted(masters.values())
    assert "topicRoute" in complete("cometmq admin topicR", namesrv)
    assert complete("cometmq admin topicRoute -t ", NOBODY) == []


class Terminal:
    """Runs a command in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.printed = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cometmq", "admin", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, text: str) -> None:
        eventually(self._read, lambda printed: text in printed)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for the end, and return the exit status."""
        status = eventually(self._ended, lambda ended: ended is not None)
        os.close(self._ours)
        assert status is not None
        return status

    def _ended(self) -> int | None:
        self._read()
        return self.process.poll()

    def _read(self) -> str:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.printed += data.decode()
        return self.printed


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("", 130)])
def test_a_terminal_is_asked_before_a_topic_is_deleted(
    namesrv: str,
    admin: cometmq.AdminClient,
    cluster_name: str,
    topic: str,
    answer: str,
    status: int,
) -> None:
    terminal = Terminal("deleteTopic", "-t", topic, "-c", cluster_name, "-n", namesrv)
    terminal.until("Go on?")
    assert f"delete topic {topic} at" in terminal.printed
    if answer:
        terminal.type(answer)
    else:
        terminal.interrupt()
    assert terminal.end() == status, terminal.printed
    assert "Traceback" not in terminal.printed
    if status == 0:
        eventually(lambda: topic not in admin.topics.names())
    else:
        assert topic in admin.topics.names()


def test_what_prints_again_and_again_ends_with_an_interrupt(namesrv: str) -> None:
    terminal = Terminal("clusterList", "-i", "1", "-n", namesrv)
    terminal.until("broker-b")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.printed


def test_a_reader_that_leaves_ends_a_command_silently(namesrv: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", "admin", "clusterList", "-i", "1", "-n", namesrv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_rows_are_the_same_in_every_form(commands: Commands) -> None:
    forms: list[Any] = [
        commands.json("topicList"),
        yaml.safe_load(commands.run("topicList", "-o", "yaml").out),
        commands.run("topicList", "-o", "csv").csv,
    ]
    assert forms[0] == forms[1] == forms[2]
    assert [row["topic"] for row in forms[0]] == commands.run("topicList").out.split()[1:]
