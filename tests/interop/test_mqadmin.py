"""Apache's own `mqadmin`, of 4.9 and of 5.3, against our servers; what it prints of a Java broker that saw
the same traffic is the measure.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.integration.raw_client import pull_ext, send_ext
from tests.interop.clients import FINISH_TIMEOUT_S, JavaClient, RunningClient
from tests.interop.conftest import need
from tests.interop.mqadmin import MqAdmin, Printed
from tests.interop.peers import ask
from tests.waits import eventually

from cometmq.protocol.inspection_bodies import OffsetWrapper
from cometmq.protocol.queue_table import decode_queue_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SEND, PULL, COMMIT, CONSUME_STATS = 10, 11, 15, 208
TOPIC, GROUP, COUNT = "mqadmin-orders", "mqadmin-billing", 8
JAVA_QUIRKS = (
    # Its table of who subscribes holds topics in place of groups.
    f"consumerGroup={TOPIC},",
)


class Seen(NamedTuple):
    """Servers on which a Java consumer runs that has consumed all that a Java producer sent."""

    namesrv: str
    sent: list[dict[str, str]]


class Tools(NamedTuple):
    """One release of `mqadmin`, at our servers and at Java's."""

    ours: MqAdmin
    java: MqAdmin


def _watched(namesrv: str, stack: ExitStack) -> Seen:
    client = JavaClient(5)
    sent = client.produce(
        namesrv=namesrv, topic=TOPIC, mode="sync", count=COUNT, size=64, tags="A,B", prefix="k"
    )
    consumer: RunningClient = stack.enter_context(
        client.start(
            "consume",
            namesrv=namesrv,
            topic=TOPIC,
            group=GROUP,
            expression="*",
            expected=COUNT,
            member="m1",
            until_stdin=True,
            **{"from": "first"},
        )
    )
    consumer.wait_messages(COUNT)
    _wait_committed(sent[0]["offsetMsgId"])
    return Seen(namesrv, sent)


def _broker_of(offset_msg_id: str) -> str:
    return f"127.0.0.1:{int(offset_msg_id[8:16], 16)}"


def _wait_committed(offset_msg_id: str) -> None:
    """Wait until the consumer has told the broker of the message how far it is."""
    broker = _broker_of(offset_msg_id)

    def committed() -> int:
        code, body = ask(broker, CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC})
        rows = decode_queue_table(body, "offsetTable", OffsetWrapper) if code == 0 else {}
        return sum(row.consumer_offset for row in rows.values())

    eventually(committed, lambda count: count == COUNT, wait_s=FINISH_TIMEOUT_S, pause_s=0.2)


@pytest.fixture(scope="module")
def seen(comet_servers: Namesrv, java_servers: Namesrv) -> Iterator[tuple[Seen, Seen]]:
    """Our servers and Java's."""
    need("java", "mvn")
    with ExitStack() as stack:
        yield _watched(comet_servers, stack), _watched(java_servers, stack)


@pytest.fixture(scope="module", params=[4, 5])
def tools(request: pytest.FixtureRequest, seen: tuple[Seen, Seen]) -> Iterator[Tools]:
    ours, java = seen
    with (
        MqAdmin(request.param, ours.namesrv) as at_ours,
        MqAdmin(request.param, java.namesrv) as at,
    ):
        yield Tools(at_ours, at)


def told(printed: Printed) -> list[str]:
    """The lines without what differs from run to run: places, times, rates, blanks."""
    lines = []
    for line in printed.out.splitlines():
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "TIME", line)
        text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
        text = re.sub(r"TPS: [0-9.]+", "TPS: RATE", text)
        if text.strip() and not any(quirk in text for quirk in JAVA_QUIRKS):
            lines.append(" ".join(text.split()))
    return lines


def same(tools: Tools, *command: str) -> list[str]:
    """What both brokers were told to print, which must be the same but for the order."""
    ours, java = tools.ours.run(*command), tools.java.run(*command)
    assert not ours.err, ours.err
    assert not java.err, java.err
    assert sorted(told(ours)) == sorted(told(java))
    return told(ours)


def deleted(printed: Printed) -> list[str]:
    """What a command says to have deleted. A Java broker 5.3 without timer wheel, as this one is,
    deletes as well but answers with a NullPointerException, so it is no measure here.
    """
    assert not printed.err, printed.err
    return re.findall(r"delete \w+ (?:\w+ )?\[(.+?)\] from .* success", printed.out)


def test_cluster_list_prints_no_null(tools: Tools) -> None:
    printed = tools.ours.run("clusterList")
    assert not printed.err, printed.err
    (row,) = printed.rows
    assert "null" not in printed.out
    assert row[0:3] == ["DefaultCluster", "broker-a", "0"]
    assert re.search(r"\d+\.\d\d\(0,\d+ms\)", printed.out), printed.out
    if tools.ours.line == 5:
        assert row[-1] == "true"
    more = tools.ours.run("clusterList", "-m")
    (totals,) = more.rows
    assert not more.err
    # What came in and what went out: yesterday, and since midnight, which may have passed meanwhile.
    assert int(totals[2]) + int(totals[4]) >= COUNT
    assert int(totals[3]) + int(totals[5]) >= COUNT


def test_broker_status_has_every_key_of_a_java_broker(tools: Tools) -> None:
    def keys(printed: Printed) -> set[str]:
        assert not printed.err, printed.err
        return {row[1].rstrip(":") for row in printed.rows if "DiskRatio_" not in row[1]}

    command = ("brokerStatus", "-c", "DefaultCluster")
    missing = keys(tools.java.run(*command)) - keys(tools.ours.run(*command))
    assert missing <= {f"scheduleMessageOffset_{level}" for level in range(19)}


def test_how_far_all_groups_are_is_what_a_java_broker_says(
    tools: Tools, seen: tuple[Seen, Seen]
) -> None:
    def rows(admin: MqAdmin, place: Seen) -> list[list[str]]:
        broker = _broker_of(place.sent[0]["offsetMsgId"])
        # Once in a JVM: the command keeps the client that it closes at its end.
        printed = admin.run("brokerConsumeStats", "-b", broker)
        assert not printed.err, printed.err
        assert re.search(r"^Diff Total: \d+$", printed.out, re.MULTILINE), printed.out
        # Without the time of the last message.
        return sorted(row[:7] for row in printed.rows if row[:2] == [TOPIC, GROUP])

    ours = rows(tools.ours, seen[0])
    assert ours == [[TOPIC, GROUP, "broker-a", str(i), "2", "2", "0"] for i in range(4)]
    assert ours == rows(tools.java, seen[1])


def test_rates_of_topics_and_groups_are_counted_as_at_a_java_broker(
    tools: Tools, seen: tuple[Seen, Seen]
) -> None:
    topic, group = f"mqadmin-rates-{tools.ours.line}", f"mqadmin-rater-{tools.ours.line}"

    def row(admin: MqAdmin, place: Seen) -> list[str]:
        """Send a message and pull it, and return what the command says of all that so far."""
        broker = _broker_of(place.sent[0]["offsetMsgId"])
        assert ask(broker, SEND, send_ext(topic, queueId=0), b"x")[0] == 0
        # A Java broker puts a message into its queue a little later.
        pull = pull_ext(topic, consumerGroup=group)
        eventually(partial(ask, broker, PULL, pull), lambda answer: answer[0] == 0)
        place_of = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
        assert ask(broker, COMMIT, place_of)[0] == 0
        printed = admin.run("statsAll", "-t", topic)
        assert not printed.err, printed.err
        found = [row for row in printed.rows if row[0] == topic]
        return found[0] if found else []

    def counted(row: list[str]) -> bool:
        # A topic that name servers have not heard of is in no row.
        return len(row) == 7 and all(float(figure) > 0 for figure in row[3:])

    for admin, place in ((tools.java, seen[1]), (tools.ours, seen[0])):
        # A broker takes a sample each ten seconds.
        told_row = eventually(
            partial(row, admin, place),
            counted,
            wait_s=FINISH_TIMEOUT_S,
            pause_s=1.0,
        )
        # All are behind by what was sent but for the one that was consumed.
        assert told_row[1] == group
        assert int(told_row[2]) >= 0
        assert float(told_row[3]) <= int(told_row[5])
        assert float(told_row[4]) <= int(told_row[6])


def test_topic_status_and_route_are_those_of_a_java_broker(tools: Tools) -> None:
    assert same(tools, "topicStatus", "-t", TOPIC)[1].split()[:4] == ["broker-a", "0", "0", "2"]
    route = same(tools, "topicRoute", "-t", TOPIC)
    assert '"writeQueueNums":4' in route
    topics = tools.ours.run("topicList", "-c")
    assert ["DefaultCluster", TOPIC, GROUP] in topics.rows


def test_an_online_group_is_shown_online(tools: Tools) -> None:
    printed = tools.ours.run("consumerProgress")
    assert not printed.err, printed.err
    (row,) = [row for row in printed.rows if row[0] == GROUP]
    assert (row[1], row[3], row[4]) == ("1", "PUSH", "CLUSTERING")
    progress = told(tools.ours.run("consumerProgress", "-g", GROUP))
    queues = [line.split() for line in progress if line.startswith(TOPIC)]
    assert [queue[2:5] for queue in sorted(queues)] == [[str(i), "2", "2"] for i in range(4)]


def test_consumer_connections_are_those_of_a_java_broker(tools: Tools) -> None:
    connection = same(tools, "consumerConnection", "-g", GROUP)
    assert f"%RETRY%{GROUP} *" in connection


def test_looking_for_a_message_ends_with_who_consumed_it(
    tools: Tools, seen: tuple[Seen, Seen]
) -> None:
    message = seen[0].sent[3]
    topic = ("-t", TOPIC) if tools.ours.line == 5 else ()
    place = ("-b", message["brokerName"], "-i", str(message["queueId"]), "-o", "0")
    for command in (
        ("queryMsgById", "-i", message["offsetMsgId"], *topic),
        ("queryMsgByUniqueKey", "-i", message["msgId"], "-t", TOPIC),
        ("queryMsgByOffset", "-t", TOPIC, *place),
    ):
        printed = tools.ours.run(*command)
        assert not printed.err, (command, printed.err)
        assert re.search(r"Keys: +\[k-3 all-k\]", printed.out), (command, printed.out)
        track = f"MessageTrack [consumerGroup={GROUP}, trackType=CONSUMED, exceptionDesc=null]"
        assert track in printed.out, (command, printed.out)
    by_key = tools.ours.run("queryMsgByKey", "-t", TOPIC, "-k", "k-3")
    assert [row[1:] for row in by_key.rows] == [[str(message["queueId"]), "0"]]


def test_topics_are_made_changed_and_deleted_as_at_a_java_broker(
    tools: Tools, tmp_path: Path
) -> None:
    topic = f"mqadmin-made-{tools.ours.line}"
    cluster, named = ("-c", "DefaultCluster"), ("-t", topic)
    same(tools, "updateTopic", *cluster, *named, "-r", "3", "-w", "2", "-o", "false")
    assert '"readQueueNums":3,' in same(tools, "topicRoute", *named)
    assert len(same(tools, "topicStatus", *named)) >= 3
    same(tools, "updateTopicPerm", *cluster, *named, "-p", "4")
    assert '"perm":4,' in same(tools, "topicRoute", *named)
    if tools.ours.line == 5:
        attributes = "+message.type=FIFO,+reserve.time=5"
        same(tools, "updateTopic", *cluster, *named, "-a", attributes)
        same(tools, "updateTopic", *cluster, *named, "-a", "+message.type=DELAY,-reserve.time")
        several = tmp_path / "topics.json"
        several.write_text(json.dumps([{"topicName": f"{topic}-{i}"} for i in range(3)]))
        same(tools, "updateTopicList", *cluster, "-f", str(several))
        same(tools, "topicRoute", "-t", f"{topic}-2")
    assert deleted(tools.ours.run("deleteTopic", *cluster, *named)) == [topic, topic]
    assert [topic] not in tools.ours.run("topicList").rows
    assert "No topic route info" in tools.ours.run("topicRoute", *named).err
    assert not tools.ours.run("updateTopic", *cluster, *named).err
    assert '"readQueueNums":8,' in told(tools.ours.run("topicRoute", *named))


def test_groups_are_made_changed_and_deleted_as_at_a_java_broker(
    tools: Tools, tmp_path: Path
) -> None:
    group = f"mqadmin-group-{tools.ours.line}"
    cluster, named = ("-c", "DefaultCluster"), ("-g", group)
    same(tools, "updateSubGroup", *cluster, *named, "-r", "3", "-d", "false")
    if tools.ours.line == 5:
        several = tmp_path / "groups.json"
        several.write_text(json.dumps([{"groupName": f"{group}-{i}"} for i in range(3)]))
        same(tools, "updateSubGroupList", *cluster, "-f", str(several))
    assert "retryMaxTimes = 3" in same(tools, "getConsumerConfig", *named)
    first, *others = deleted(tools.ours.run("deleteSubGroup", *cluster, *named))
    assert first == group
    assert set(others) <= {f"%RETRY%{group}", f"%DLQ%{group}"}
    assert "retryMaxTimes" not in tools.ours.run("getConsumerConfig", *named).out


# What a broker is asked about itself, its queues and its clients


VARYING = (
    (r"clientId=[^,]*", "clientId=ID"),
    (r"lastUpdateTimestamp=\d+", "lastUpdateTimestamp=TIME"),
    (r"version=\d+", "version=N"),
    (r"physicOffset=\d+", "physicOffset=PLACE"),
    # Producers begin with a queue of their choice.
    (r"tagsCode=(65|66)\b", "tagsCode=A-OR-B"),
    (r'"subVersion":\d+', '"subVersion":TIME'),
    (r"#MasterCommitLogMaxOffset \d+", "#MasterCommitLogMaxOffset END"),
)


def address(admin: MqAdmin) -> str:
    (row,) = admin.run("clusterList").rows
    return row[3]


def same_at_broker(tools: Tools, *command: str) -> set[str]:
    """Return the lines that both brokers were told to print about themselves, which must be the
    same but for what differs between any two brokers.
    """
    lines: list[set[str]] = []
    for admin in (tools.ours, tools.java):
        printed = admin.run(*command, "-b", address(admin))
        assert not printed.err, printed.err
        text = "\n".join(told(printed))
        for pattern, name in VARYING:
            text = re.sub(pattern, name, text)
        lines.append(set(text.splitlines()))
    assert lines[0] == lines[1]
    return lines[0]


def test_units_of_a_queue_are_those_of_a_java_broker(tools: Tools) -> None:
    queue = ("-t", TOPIC, "-q", "1")
    lines = same_at_broker(tools, "queryCq", *queue, "-i", "0", "-c", "5")
    assert {"max: 2, min: 0", "idx: 0", "idx: 1"} <= lines
    assert "idx: 2" not in lines
    of_group = same_at_broker(tools, "queryCq", *queue, "-i", "1", "-c", "1", "-g", GROUP)
    assert {f'"topic":"{TOPIC}"', "null"} <= {line.rstrip(",") for line in of_group}
    offline = same_at_broker(tools, "queryCq", *queue, "-i", "1", "-g", "mqadmin-nobody")
    assert f"mqadmin-nobody@{TOPIC} is not online!" in offline


def test_producers_are_told_as_at_a_java_broker(tools: Tools) -> None:
    # Every Java client has a producer of its own, that of the watched consumer among them.
    assert same_at_broker(tools, "producer") == {
        (
            "producer group (CLIENT_INNER_PRODUCER) instance : clientId=ID,remoteIP=/ADDRESS, "
            "language=JAVA, version=N, lastUpdateTimestamp=TIME"
        )
    }


def test_a_group_goes_on_where_another_one_is_as_at_a_java_broker(tools: Tools) -> None:
    group = f"mqadmin-clone-{tools.ours.line}"
    assert not tools.ours.run("updateSubGroup", "-c", "DefaultCluster", "-g", group).err
    assert not tools.java.run("updateSubGroup", "-c", "DefaultCluster", "-g", group).err
    same(tools, "cloneGroupOffset", "-s", GROUP, "-d", group, "-t", TOPIC, "-o", "true")
    for admin in (tools.ours, tools.java):
        code, body = ask(address(admin), CONSUME_STATS, {"consumerGroup": group, "topic": TOPIC})
        assert code == 0
        rows = decode_queue_table(body, "offsetTable", OffsetWrapper)
        assert {q.queue_id: row.consumer_offset for q, row in rows.items()} == dict.fromkeys(
            range(4), 2
        )


def test_what_is_exported_is_what_a_java_broker_has(tools: Tools, tmp_path: Path) -> None:
    def exported(admin: MqAdmin, command: str, file: str) -> dict[str, Any]:
        path = tmp_path / ("ours" if admin is tools.ours else "java")
        printed = admin.run(command, "-c", "DefaultCluster", "-f", str(path))
        assert not printed.err, printed.err
        assert f"export {path / file} success" in printed.out
        found: dict[str, Any] = json.loads((path / file).read_text())
        return found

    ours, java = (exported(a, "exportMetadata", "metadata.json") for a in (tools.ours, tools.java))
    assert ours.keys() == java.keys()
    for table, name in (("topicConfigTable", TOPIC), ("subscriptionGroupTable", GROUP)):
        assert ours[table][name] == java[table][name]
        # System topics and groups are left out by their names.
        assert not {n for n in ours[table] if n.startswith(("TBW102", "SELF_TEST", "SCHEDULE_"))}
    ours = exported(tools.ours, "exportConfigs", "configs.json")
    assert ours["clusterScale"] == {"masterBrokerSize": 1, "namesrvSize": 1, "slaveBrokerSize": 0}
    (config,) = ours["brokerConfigs"].values()
    assert (config["brokerName"], config["brokerRole"]) == ("broker-a", "ASYNC_MASTER")
    if tools.ours.line == 4:  # it fails at a Java broker 5.3, which has no filterServerNums
        return
    java = exported(tools.java, "exportConfigs", "configs.json")
    assert ours["clusterScale"] == java["clusterScale"]
    (measure,) = java["brokerConfigs"].values()
    assert measure.keys() <= config.keys()
    for key in ("brokerClusterName", "brokerId", "brokerName", "flushDiskType", "maxMessageSize"):
        assert config[key] == measure[key]


def test_a_master_without_slaves_is_told_as_at_java(tools: Tools) -> None:
    if tools.ours.line == 4:
        assert "not exist" in tools.ours.run("haStatus").out
        return
    lines = same_at_broker(tools, "haStatus")
    assert {"#SlaveNum 0", "#InSyncSlaveNum 0", "#MasterAddr ADDRESS"} <= lines
    progress = ("checkRocksdbCqWriteProgress", "-c", "DefaultCluster", "-t", TOPIC)
    assert "check doing" in same(tools, *progress)[0]


def test_what_is_refused_on_purpose_is_said_with_the_reason(tools: Tools) -> None:
    if tools.ours.line == 4:
        assert "not exist" in tools.ours.run("getColdDataFlowCtrInfo").out
        return
    printed = tools.ours.run("getColdDataFlowCtrInfo", "-b", address(tools.ours))
    said = printed.out + printed.err
    assert "reads of cold data are not throttled here" in said
    assert "maxTransferBytesOnMessageInDisk" in said, "it says what there is instead"
