"""Run mqadmin's commands for groups, members, offsets and statistics, and see what they print and
leave.

`tests/interop/test_admin_group_commands_on_java.py` runs the same tests against Java's servers of 4.9
and 5.3; `line` says which servers a test has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.admin_commands import Commands, commands, no_log_lines
from tests.integration.client_faces import BlockingFace
from tests.integration.test_admin_client import admin, broker, consume, face, line, make, send
from tests.waits import WAIT_S, eventually

import cometmq
from cometmq import MessageQueue
from cometmq.admin.groups.offsets import QueueOffsets
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import headers, requests
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import body_crc, encode_register_body
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.client import RemotingClient
from cometmq.runtime.portal import LoopThread

__all__ = ["admin", "broker", "commands", "face", "line", "no_log_lines"]

pytestmark = [pytest.mark.cluster(properties={"autoCreateSubscriptionGroup": "true"})]


@pytest.fixture
def cluster_name(admin: cometmq.AdminClient) -> str:
    [name] = admin.brokers.clusters()
    return name


def committed(admin: cometmq.AdminClient, group: str, topic: str) -> list[int | None]:
    return [at.committed_offset for at in admin.offsets.of_topic(topic, group)]


def queues(admin: cometmq.AdminClient, topic: str) -> list[MessageQueue]:
    found: list[QueueOffsets] = admin.offsets.of_topic(topic)
    return [at.queue for at in found]


# Groups


def test_a_group_is_set_shown_and_deleted(
    commands: Commands,
    admin: cometmq.AdminClient,
    name: str,
    broker: str,
    cluster_name: str,
    line: str,
) -> None:
    [row] = commands.json("updateSubGroup", "-b", broker, "-g", name, "-r", "3", "-s", "false")
    assert row == {"server": broker, "result": f"done: set group {name}"}
    config = admin.groups.config(name)[broker]
    assert (config.retry_max_times, config.consume_enable) == (3, False)
    # As mqadmin sets them where they are not given.
    assert (config.consume_broadcast_enable, config.consume_from_min_enable) == (False, False)
    shown = commands.json("getConsumerConfig", "-g", name)
    [(section, values)] = shown.items()
    assert section.startswith(f"{cluster_name}:")
    assert (values["groupName"], values["retryMaxTimes"]) == (name, 3)
    commands.run("updateSubGroup", "-c", cluster_name, "-g", name, "-o", "true", "-q", "2")
    config = admin.groups.config(name)[broker]
    assert (config.retry_max_times, config.retry_queue_nums, config.consume_enable) == (16, 2, True)
    if line != "4.9":
        policy = '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,2000]}}'
        commands.run("updateSubGroup", "-b", broker, "-g", name, "-o", "true", "-p", policy)
        config = admin.groups.config(name)[broker]
        assert config.consume_message_orderly
        assert config.group_retry_policy["customizedRetryPolicy"]["next"] == [1000, 2000]

    delete = ("deleteSubGroup", "-c", cluster_name, "-g", name, "-r", "true")
    assert "there is no terminal to ask at: repeat it with --yes" in commands.refused(
        *delete, status=2
    )
    [row] = commands.json(*delete, "--dry-run")
    assert row["result"].startswith(f"would delete group {name} with its retry topic")
    assert admin.groups.config(name)
    commands.run(*delete, "--yes")
    assert name not in admin.groups.names()


def test_wrong_options_of_groups_are_told(
    commands: Commands, name: str, broker: str, cluster_name: str, tmp_path: Path
) -> None:
    where = ("-b", broker)
    both = commands.refused("updateSubGroup", "-g", name, *where, "-c", cluster_name, status=2)
    assert "give --brokerAddr or --clusterName, and only one of them" in both
    maybe = commands.refused("updateSubGroup", "-g", name, *where, "-s", "maybe", status=2)
    assert "neither true nor false" in maybe
    policy = commands.refused("updateSubGroup", "-g", name, *where, "-p", "[1]", status=2)
    assert "is no JSON object" in policy
    signs = commands.refused("updateSubGroup", "-g", name, *where, "--attributes", "a=b", status=2)
    assert "give +key=value to set it" in signs
    for command in ("getConsumerConfig", "consumerProgress"):
        assert f"group '{name}'; check its name" in commands.refused(command, "-g", name)
    delete = commands.refused("deleteSubGroup", "-g", name, *where, "--yes")
    assert f"group '{name}'; check its name" in delete
    unknown = commands.refused("deleteSubGroup", "-g", name, "-c", "nowhere", "--yes")
    assert f"know no cluster 'nowhere'; they know {cluster_name}" in unknown
    groups = tmp_path / "groups.json"
    for text, fault in (
        ("{}", "cannot be read as a JSON list of groups"),
        ('[{"retryMaxTimes": 3}]', "group 1 of the list has no groupName"),
        ("[]", "has no group"),
    ):
        groups.write_text(text)
        assert fault in commands.refused("updateSubGroupList", "-f", str(groups), *where, status=2)


def test_many_groups_are_set_from_a_file(
    commands: Commands,
    admin: cometmq.AdminClient,
    name: str,
    broker: str,
    line: str,
    tmp_path: Path,
) -> None:
    names = [f"{name}-1", f"{name}-2"]
    file = tmp_path / "groups.json"
    file.write_text(json.dumps([{"groupName": each, "retryMaxTimes": 5} for each in names]))
    update = ("updateSubGroupList", "-b", broker, "-f", str(file))
    if line == "4.9":
        assert "speaks RocketMQ 4.9" in commands.refused(*update)
        return
    commands.run(*update)
    assert [admin.groups.config(each)[broker].retry_max_times for each in names] == [5, 5]


def test_the_mode_of_a_group_is_set_or_refused_with_a_reason(
    commands: Commands, admin: cometmq.AdminClient, name: str, broker: str, line: str
) -> None:
    admin.topics.create(name)
    mode = ("setConsumeMode", "-b", broker, "-t", name, "-g", name, "-m", "POP", "-q", "1")
    if line == "4.9":
        assert "speaks RocketMQ 4.9" in commands.refused(*mode)
        return
    [row] = commands.json(*mode)
    assert row["result"] == f"done: have group {name} get topic {name} by POP"


# Members and progress


def test_a_group_that_is_online_is_shown_from_all_sides(
    commands: Commands,
    admin: cometmq.AdminClient,
    face: BlockingFace,
    name: str,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    # The id of a client becomes the name of a file, of which 255 bytes would be the longest.
    consume(admin, face, name, len(sent), instance_name="../" * 60)
    [client] = admin.groups.connections(name).clients
    host = client.client_id.partition("@")[0]

    progress = commands.json("consumerProgress", "-g", name, "-t", name, "-s", "true")
    assert progress["total"].items() >= {"diffTotal": 0, "inflightTotal": 0}.items()
    rows = progress["queues"]
    assert [(row["queueId"], row["brokerOffset"], row["diff"]) for row in rows] == [
        (0, 2, 0),
        (1, 2, 0),
    ]
    assert [row["clientIp"] for row in rows] == [host, host]
    assert all(abs(row["lastTime"] - time.time() * 1000) < WAIT_S * 1000 for row in rows)
    table = commands.run("consumerProgress", "-g", name).out
    assert "Topic" in table
    assert "Broker Offset  Consumer Offset  Diff  Inflight  LastTime" in table
    [row] = [each for each in commands.json("consumerProgress") if each["group"] == name]
    assert (row["count"], row["type"], row["model"]) == (1, "PUSH", "CLUSTERING")
    assert (row["version"], row["diffTotal"]) == ("V5_3_3", 0)

    reported = commands.json("consumerConnection", "-g", name, "-b", broker)
    assert [each["clientId"] for each in reported["connections"]] == [client.client_id]
    assert {"topic": name, "subExpression": "*", "expressionType": "TAG"} in reported[
        "subscription"
    ]
    assert reported["group"]["messageModel"] == "CLUSTERING"
    assert commands.json("consumerConnection", "-g", name) == reported

    monkeypatch.chdir(tmp_path)
    status = commands.json("consumerStatus", "-g", name)
    [member] = status["members"]
    assert (member["clientId"], member["version"]) == (client.client_id, "V5_3_3")
    document = json.loads((tmp_path / member["consumerRunningInfoFile"]).read_text())
    assert {each["queueId"] for each in document["mqTable"] if each["topic"] == name} == {0, 1}
    assert status["findings"] == []
    one = commands.json("consumerStatus", "-g", name, "-i", client.client_id, "-s")
    assert one["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert name in [each["topic"] for each in one["subscription"]]
    assert "Thread" in one["jstack"]["stacks"]
    table = commands.run("consumerStatus", "-g", name, "-i", client.client_id, "-s").out
    assert "\\n" not in table

    known = commands.json("getConsumerStatus", "-g", name, "-t", name)
    assert [(each["clientId"], each["queueId"], each["offset"]) for each in known] == [
        (client.client_id, 0, 2),
        (client.client_id, 1, 2),
    ]


def test_members_that_disagree_are_found(
    commands: Commands,
    admin: cometmq.AdminClient,
    face: BlockingFace,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make(admin, face, name)
    for expression in ("a", "b"):
        consumer = face.new_consumer(name, lambda _: None, instance_name=f"{name}-{expression}")
        consumer.subscribe(name, expression)
        face.started(consumer)
    eventually(lambda: len(admin.groups.connections(name).clients) == 2)
    findings = eventually(lambda: commands.json("consumerStatus", "-g", name)["findings"])
    assert findings[0]["clientId"] is None
    assert "its members subscribe to different things" in findings[0]["finding"]


def test_unknown_offline_and_online_groups_are_three_answers(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    consumer = face.new_consumer(name, lambda _: None)
    consumer.subscribe(name)
    face.started(consumer)
    eventually(lambda: len(admin.groups.connections(name).clients) == 1)
    status = ("getConsumerStatus", "-t", name, "-g")
    eventually(lambda: commands.json(*status, name))
    stranger = commands.refused(*status, name, "-i", "nobody")
    assert f"group {name} has no member 'nobody'" in stranger
    consumer.close()
    eventually(lambda: _is_offline(admin, name))
    asked = (("consumerConnection", "-g"), ("consumerStatus", "-g"), status)
    for command in asked:
        assert "is not online" in commands.refused(*command, name)
        unknown = commands.refused(*command, f"{name}-x")
        assert f"no broker that was asked has the group '{name}-x'" in unknown
    progress = commands.run("consumerProgress", "-g", name)
    assert f"group {name} is offline" in progress.err
    assert f"has the group '{name}-x'" in commands.refused("consumerProgress", "-g", f"{name}-x")
    letters = commands.run("deadLetters", "-g", name)
    assert f"group {name} never had a dead letter" in letters.err
    assert f"has the group '{name}-x'" in commands.refused("deadLetters", "-g", f"{name}-x")


def test_producers_are_shown(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str
) -> None:
    make(admin, face, name)
    send(face, name)  # its producer stays open
    eventually(lambda: admin.producers.of_brokers()[broker].get(name))
    [client] = commands.json("producerConnection", "-g", name, "-t", name)
    assert client["version"] == "V5_3_3"
    printed = commands.run("producer", "-b", broker, "-o", "csv").csv
    [same] = [row for row in printed if row["producerGroup"] == name]
    assert (same["clientId"], same["version"]) == (client["clientId"], "V5_3_3")
    assert int(same["lastUpdateTimestamp"]) > 0
    nobody = commands.refused("producerConnection", "-g", "nobody", "-t", name)
    assert "producer group nobody is not online" in nobody


# Offsets


def test_offsets_of_a_topic_are_reset_after_a_confirmation(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str, line: str
) -> None:
    make(admin, face, name)
    send(face, name)
    admin.groups.create(name)
    for queue in queues(admin, name):
        admin.offsets.commit(name, queue, 1)
    reset = ("resetOffsetByTime", "-g", name, "-t", name)
    asked = commands.refused(*reset, "-s", "now", status=2)
    assert f"this would move group {name} in topic {name} to the messages stored at" in asked
    planned = commands.json(*reset, "-s", "0", "--dry-run")
    assert [(row["consumerOffset"], row["resetOffset"]) for row in planned] == [(1, 0), (1, 0)]
    assert committed(admin, name, name) == [1, 1]
    for timestamp, offset in (
        ("0", 0),
        ("-1", 2),
        ("2020-01-02#03:04:05:678", 0),
        ("now", 1 if line == "4.9" else 2),  # 4.9 stays at the newest message
        (str(int((time.time() - 86_400) * 1000)), 0),
    ):
        moved = commands.json(*reset, "-s", timestamp, "-y")
        assert [row["offset"] for row in moved] == [offset, offset], timestamp
        assert committed(admin, name, name) == [offset, offset]
    moved = commands.json("skipAccumulatedMessage", "-g", name, "-t", name, "-y")
    assert [(row["queueId"], row["offset"]) for row in moved] == [(0, 2), (1, 2)]
    assert committed(admin, name, name) == [2, 2]


@pytest.mark.parametrize("options", [(), ("--cplus",)])
def test_a_group_that_is_online_consumes_again(
    commands: Commands,
    admin: cometmq.AdminClient,
    face: BlockingFace,
    name: str,
    options: tuple[str, ...],
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    received = consume(admin, face, name, len(sent))
    commands.run("resetOffsetByTime", "-g", name, "-t", name, "-s", "0", "-y", *options)
    eventually(lambda: all(received.bodies.count(b"%d" % n) >= 2 for n in range(len(sent))))


def test_one_queue_is_reset(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str
) -> None:
    make(admin, face, name)
    send(face, name)
    admin.groups.create(name)
    [first, second] = queues(admin, name)
    for queue in (first, second):
        admin.offsets.commit(name, queue, 2)
    reset = ("resetOffsetByTime", "-g", name, "-t", name, "-y", "-q", "1")
    [row] = commands.json(*reset, "-b", broker, "-s", "0", "-o", "1")
    assert row == {"brokerName": second.broker_name, "queueId": 1, "offset": 1}
    assert committed(admin, name, name) == [2, 1]
    commands.run(*reset, "-b", second.broker_name, "-s", "0")
    assert committed(admin, name, name) == [2, 0]  # where mqadmin does nothing
    outside = commands.refused(*reset, "-b", broker, "-o", "9", status=2)
    assert "has the offsets 0 to 2; give one of them" in outside
    assert committed(admin, name, name) == [2, 0]


def test_wrong_resets_are_told(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str
) -> None:
    make(admin, face, name)
    admin.groups.create(name)
    reset = ("resetOffsetByTime", "-y", "-t", name, "-g", name)
    for text in ("2026-01-01", "yesterday", "-2", "2026-02-30#00:00:00:000"):
        refused = commands.refused(*reset, f"--timestamp={text}", status=2)
        assert "is no time; give ms since the epoch" in refused
        assert "or -1 for the end of every queue" in refused
    assert "give --timestamp, or --offset" in commands.refused(*reset, status=2)
    # mqadmin would reset all queues at all brokers.
    half = commands.refused(*reset, "-s", "0", "-b", broker, status=2)
    assert "one queue is named by --broker and --queue" in half
    queue = commands.refused(*reset, "-s", "0", "-b", broker, "-q", "7", status=2)
    assert f"topic {name} has no queue 7 at {broker}: its queues there are 0 to 1" in queue
    nobody = commands.refused(*reset, "-s", "0", "-b", "127.0.0.1:1", "-q", "0", status=2)
    assert f"no broker is registered as '127.0.0.1:1'; there are {broker}" in nobody
    misspelt = ("resetOffsetByTime", "-y", "-s", "0", "-t", name, "-g", f"{name}-x")
    assert f"group '{name}-x'; check its name" in commands.refused(*misspelt)
    topic = ("skipAccumulatedMessage", "-y", "-g", name, "-t", f"{name}-x")
    assert f"no route of topic {name}-x; check" in commands.refused(*topic)
    cluster = commands.refused(*reset, "-s", "0", "-c", "nowhere")
    assert f"no broker of cluster 'nowhere' has topic {name}; the topic is in" in cluster


def test_offsets_of_a_group_are_cloned(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    send(face, name)
    other = f"{name}-2"
    admin.groups.create(name)
    admin.groups.create(other)
    [first, second] = queues(admin, name)
    admin.offsets.commit(name, first, 2)
    admin.offsets.commit(name, second, 1)
    clone = ("cloneGroupOffset", "-s", name, "-t", name, "-o", "true")
    planned = commands.json(*clone, "-d", other, "--dry-run")
    assert [row["resetOffset"] for row in planned] == [2, 1]
    assert [row["consumerOffset"] for row in planned] == committed(admin, other, name) != [2, 1]
    assert [row["offset"] for row in commands.json(*clone, "-d", other, "-y")] == [2, 1]
    assert committed(admin, other, name) == [2, 1]
    for option in ("-y", "--dry-run"):
        assert "check its name" in commands.refused(*clone, "-d", f"{name}-9", option)


# Statistics and monitoring


def test_statistics_count_what_came_in_and_went_out(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str, broker: str
) -> None:
    make(admin, face, name)
    assert commands.json("statsAll", "-t", name, "-a") == []
    [row] = commands.json("statsAll", "-t", name)
    assert (row["consumerGroup"], row["inMsg24Hour"], row["outMsg24Hour"]) == (None, 0, None)
    sent = send(face, name)
    consume(admin, face, name, len(sent))

    def counted() -> Any:
        # Brokers look at their counters now and then.
        [row] = commands.json("statsAll", "-t", name, "-a")
        return row

    all_ = (len(sent), len(sent))  # it may look when some have come in or gone out
    row = eventually(
        counted,
        lambda row: (row["inMsg24Hour"], row["outMsg24Hour"]) == all_,
        passing=(ValueError,),
    )
    assert (row["consumerGroup"], row["accumulation"]) == (name, 0)
    everything = commands.json("statsAll")
    assert name in [row["topic"] for row in everything]
    assert not any(row["topic"].startswith("%") for row in everything)

    stats = commands.json("brokerConsumeStats", "-b", broker, "-o", "false")
    mine = [row for row in stats["queues"] if row["group"] == row["topic"] == name]
    assert [(row["queueId"], row["consumerOffset"], row["diff"]) for row in mine] == [
        (0, 2, 0),
        (1, 2, 0),
    ]
    behind = commands.json("brokerConsumeStats", "-b", broker, "-l", "1")
    assert not [row for row in behind["queues"] if row["diff"] < 1]
    unknown = commands.refused("statsAll", "-t", f"{name}-x")
    assert f"no route of topic {name}-x" in unknown


def test_monitoring_finds_a_group_without_members_that_is_behind(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    consumer = face.new_consumer(name, lambda _: None)
    consumer.subscribe(name)
    face.started(consumer)
    eventually(lambda: f"%RETRY%{name}" in admin.topics.names())
    consumer.close()
    eventually(lambda: _is_offline(admin, name))
    send(face, name)
    for queue in queues(admin, name):
        admin.offsets.commit(name, queue, 0)

    watched = commands.json("startMonitoring", "--rounds", "1")
    [undone] = [row for row in watched["undone"] if row["group"] == name]
    assert (undone["topic"], undone["undoneMsgsTotal"], undone["undoneMsgsSingleMQ"]) == (
        name,
        4,
        2,
    )
    [finding] = [row for row in watched["findings"] if row["group"] == name]
    assert finding["finding"] == "no member is online, and 4 messages wait; start one"
    [row] = [each for each in commands.json("consumerProgress") if each["group"] == name]
    assert (row["count"], row["version"], row["diffTotal"]) == (0, "OFFLINE", 4)
    assert "is not online" in commands.refused("consumerConnection", "-g", name)


def _is_offline(admin: cometmq.AdminClient, group: str) -> bool:
    try:
        admin.groups.connections(group)
    except cometmq.errors.RemoteError:
        return True
    return False


def test_monitoring_goes_on_until_it_is_interrupted(namesrv: str) -> None:
    arguments = ["admin", "startMonitoring", "--interval", "0.1", "-n", namesrv]
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    ) as process:
        assert process.stdout is not None
        rounds = 0
        while rounds < 2:
            line = process.stdout.readline()
            assert line, process.communicate()
            rounds += " group" in line
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, "")


# Access control, which our brokers do not keep


def test_commands_of_access_control_are_refused_with_the_reason(
    commands: Commands, broker: str
) -> None:
    entry = ("-s", "User:u", "-r", "Topic:t", "-a", "Pub", "-d", "Allow")
    account = ("-a", "the-account", "-s", "the-secret")
    for command in (
        ("createUser", "-u", "u", "-p", "the-secret"),
        ("listUser",),
        ("createAcl", *entry),
        ("listAcl",),
        ("updateAclConfig", *account),
        ("deleteAclConfig", "-a", "the-account", "-y"),
        ("clusterAclConfigVersion",),
        ("updateGlobalWhiteAddr", "-g", "10.0.0.*"),
    ):
        refused = commands.refused(*command, "-b", broker)
        assert "in the server's configuration" in refused, command
        assert "the-secret" not in refused


# Brokers half dead


class BrokerAway:
    """Stands for a broker that the name server still knows and that does not answer any more."""

    ADDRESS = "127.0.0.1:1"

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._thread = LoopThread("away")
        self._thread.start()
        self._client = RemotingClient()

    def register(self, cluster: str, topics: list[str]) -> None:
        self._cluster = cluster
        configs = {topic: TopicConfig(topic) for topic in topics}
        wrapper = TopicConfigSerializeWrapper(DataVersion(1), topic_config_table=configs)
        body = encode_register_body(RegisterBrokerBody([], wrapper))
        header = headers.RegisterBrokerRequestHeader(
            broker_name="broker-away",
            broker_addr=self.ADDRESS,
            cluster_name=cluster,
            ha_server_addr=f"{self.ADDRESS}0",
            broker_id=0,
            compressed=False,
            body_crc32=body_crc(body),
        )
        self._ask(requests.REGISTER_BROKER.command(header, body))

    def close(self) -> None:
        """Have the name server forget it: a broker that is only lost is missed by later commands."""
        header = headers.UnRegisterBrokerRequestHeader(
            broker_name="broker-away",
            broker_addr=self.ADDRESS,
            cluster_name=self._cluster,
            broker_id=0,
        )
        self._ask(requests.UNREGISTER_BROKER.command(header))
        self._thread.call(self._client.close())
        self._thread.stop()

    def _ask(self, command: RemotingCommand) -> None:
        answer = self._thread.call(self._client.call(self._namesrv, command, WAIT_S))
        assert answer.code == 0, answer


def test_brokers_that_answer_are_shown_and_changed_beside_one_that_is_away(
    commands: Commands,
    admin: cometmq.AdminClient,
    face: BlockingFace,
    name: str,
    namesrv: str,
    broker: str,
    cluster_name: str,
) -> None:
    make(admin, face, name)
    sent = send(face, name)
    consume(admin, face, name, len(sent))
    away = BrokerAway(namesrv)
    try:
        away.register(cluster_name, [name, f"%RETRY%{name}"])
        eventually(lambda: len(admin.brokers.addresses()) == 2)
        printed = commands.run("consumerProgress", "-g", name, "-o", "json", status=1)
        rows = [row for row in printed.json["queues"] if row["topic"] == name]
        assert [row["consumerOffset"] for row in rows] == [2, 2]
        assert f"{away.ADDRESS}: the progress of group {name} could not be asked" in printed.err
        assert "check that the server runs there" in printed.err

        results = {
            row["server"]: row["result"]
            for row in commands.json("updateSubGroup", "-g", name, "-c", cluster_name, status=1)
        }
        assert results[broker] == f"done: set group {name}"
        assert results[away.ADDRESS].startswith("failed: making group")
        reset = ("resetOffsetByTime", "-g", name, "-t", name, "-s", "0", "-y")
        printed = commands.run(*reset, "--output", "json", status=1)
        assert [row["offset"] for row in printed.json] == [0, 0]
        assert away.ADDRESS in printed.err
        everything = commands.run("consumerProgress", "-o", "json", status=1)
        assert name in [row["group"] for row in everything.json]
        assert f"group {name}" in everything.err
        config = commands.run("getConsumerConfig", "-g", name, "-o", "json", status=1)
        assert len(config.json) == 1
    finally:
        away.close()
        eventually(lambda: len(admin.brokers.addresses()) == 1)
