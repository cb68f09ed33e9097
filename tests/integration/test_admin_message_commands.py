"""Run mqadmin's commands for messages, queues, traces and exports, and our own for dead letters.

`tests/interop/test_admin_message_commands_on_java.py` runs those that know no difference against Java's
brokers.
"""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.admin_commands import Commands, commands, no_log_lines
from tests.integration.client_faces import BlockingFace, Received
from tests.integration.fixtures import prompt_face as face
from tests.integration.raw_client import RawClient, send_ext
from tests.integration.test_admin_client import TIMEOUT_MS, consume, make, send
from tests.waits import WAIT_S, eventually

import cometmq
from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    TransactionProducer,
)
from cometmq.errors import IllegalArgumentError
from cometmq.testing import Cluster

__all__ = ["commands", "face", "no_log_lines"]

FIRST = ConsumeFromWhere.FIRST_OFFSET
pytestmark = [
    pytest.mark.cluster(
        properties={
            "traceTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "transactionTimeOut": "100",
            "transactionCheckInterval": "150",
            "transactionOpBatchInterval": "100",
            "transactionCheckMax": "12",
        }
    )
]


@pytest.fixture
def admin(namesrv: str) -> Iterator[cometmq.AdminClient]:
    with cometmq.AdminClient(namesrv, timeout_ms=TIMEOUT_MS) as admin:
        yield admin


@pytest.fixture
def sent(admin: cometmq.AdminClient, face: BlockingFace, name: str) -> list[SendResult]:
    """Send the bodies 0 to 3 to two queues of a topic, by turns."""
    make(admin, face, name)
    return send(face, name)


def bodies(found: Any) -> list[str]:
    return [message["body"] for message in found]


# Finding messages


def test_a_message_is_shown_by_each_of_its_ids(
    commands: Commands,
    admin: cometmq.AdminClient,
    face: BlockingFace,
    name: str,
    sent: list[SendResult],
    tmp_path: Path,
) -> None:
    consume(admin, face, name, len(sent))
    last = sent[3]
    one = ("queryMsgById", "-t", name, "-i", last.offset_msg_id)
    [shown] = commands.json(*one)
    assert shown["msgId"] == last.msg_id
    assert shown["offsetMsgId"] == last.offset_msg_id
    assert (shown["topic"], shown["tags"], shown["keys"]) == (name, "t", ["k3", "all"])
    assert (shown["queueId"], shown["queueOffset"]) == (last.queue.queue_id, last.queue_offset)
    assert (shown["body"], shown["bodyEncoding"]) == ("3", "utf-8")
    assert shown["properties"]["UNIQ_KEY"] == last.msg_id
    tracks = {track["consumerGroup"]: track["trackType"] for track in shown["consumers"]}
    assert tracks == {name: "CONSUMED"}
    place = ("-b", last.queue.broker_name, "-i", str(last.queue.queue_id))
    for other in (
        ("queryMsgById", "-i", last.offset_msg_id),
        ("queryMsgById", "-t", name, "-i", last.msg_id),
        ("queryMsgByUniqueKey", "-t", name, "-i", last.msg_id),
        ("queryMsgByOffset", "-t", name, *place, "-o", str(last.queue_offset)),
    ):
        assert commands.json(*other) == [shown], other
    assert yaml.safe_load(commands.run(*one, "-o", "yaml").out) == [shown]
    [row] = commands.run(*one, "-o", "csv").csv
    assert (row["msgId"], row["queueOffset"]) == (last.msg_id, str(last.queue_offset))
    assert json.loads(row["properties"]) == shown["properties"]
    table = commands.run(*one, "--bodyPath", str(tmp_path)).out
    assert table.startswith(f"message {last.msg_id}:\nOffsetID ")
    assert re.search(rf"^Queue Offset +{last.queue_offset}$", table, re.MULTILINE)
    assert "\nbody (1 bytes, utf-8):\n  3\n" in table
    assert re.search(rf"^{name} +CONSUMED", table, re.MULTILINE)
    assert (tmp_path / last.msg_id).read_bytes() == b"3"


def test_messages_are_listed_by_their_key(
    commands: Commands, name: str, sent: list[SendResult]
) -> None:
    found = eventually(
        lambda: commands.run("queryMsgByKey", "-t", name, "-k", "all", "-o", "json").json,
        lambda found: len(found) == 4,
        passing=(AssertionError,),
    )
    assert [each["msgId"] for each in found] == [each.msg_id for each in sent]
    [own] = commands.json("queryMsgByKey", "-t", name, "-k", "k2")
    assert own["queueOffset"] == sent[2].queue_offset
    cluster = commands.json("queryMsgByKey", "-t", name, "-k", "k2", "-c", "DefaultCluster")
    assert cluster == [own]
    # The table has mqadmin's columns.
    head, line = commands.run("queryMsgByKey", "-t", name, "-k", "k2").out.splitlines()
    assert re.split(r" {2,}", head)[:3] == ["Message ID", "QID", "Offset"]
    assert line.split()[0] == sent[2].msg_id
    later = str(own["storeTimestamp"] + 60_000)
    none = commands.run("queryMsgByKey", "-t", name, "-k", "k2", "-b", later, status=1)
    assert "no broker's index has a message" in none.err
    assert commands.json("queryMsgByKey", "-t", name, "-k", "k2", "-p", "K") == [own]
    of_unique = ("queryMsgByUniqueKey", "-t", name, "-i", sent[2].msg_id)
    [same] = commands.json(*of_unique, "-s", "0", "-e", later)
    assert same["msgId"] == own["msgId"]
    assert "leave out --startTime" in commands.refused(*of_unique, "-s", later)


def test_what_is_not_there_is_told_with_a_remedy(
    commands: Commands, name: str, sent: list[SendResult]
) -> None:
    broker = sent[0].queue.broker_name
    queue = ("-t", name, "-b", broker)
    of_queue = ("queryMsgByOffset", *queue, "-i", "0", "-o")
    assert "queue has the offsets 0 to 1" in commands.refused(*of_queue, "99")
    assert "queues there are 0 to 1" in commands.refused(
        "queryMsgByOffset", *queue, "-i", "7", "-o", "0"
    )
    assert "check the topic's name" in commands.refused("printMsg", "-t", f"{name}-2")
    assert "never stored" in commands.refused("queryMsgById", "-t", name, "-i", "0" * 32)
    gone = commands.run("queryMsgById", "-t", name, "-i", f"nix,{sent[1].msg_id}", status=1)
    assert "message nix: topic" in gone.err
    assert sent[1].msg_id in gone.out
    assert "is in DefaultCluster" in commands.refused(
        "queryMsgByKey", "-t", name, "-k", "k1", "-c", "Other"
    )
    # What is malformed has another status.
    assert "name the topic by -t" in commands.refused("queryMsgById", "-i", "nix", status=2)
    assert "white space" in commands.refused("queryMsgById", "-t", name, "-i", "a b", status=2)
    assert "is no time" in commands.refused("printMsg", "-t", name, "-b", "gestern", status=2)
    by_tag = ("queryMsgByKey", "-t", name, "-k", "paid", "-p", "T")
    assert f"printMsg -t {name} -s paid" in commands.refused(*by_tag, status=2)
    page = ("queryMsgByKey", "-t", name, "-k", "k1", "-l", "x")
    assert "--maxNum" in commands.refused(*page, status=2)
    light = (*of_queue, "0", "-r", name)
    assert "light message queues" in commands.refused(*light, status=2)
    assert "is no charset" in commands.refused("printMsg", "-t", name, "-c", "hex", status=2)
    assert "needs --brokerName" in commands.refused(
        "consumeMessage", "-t", name, "-i", "0", status=2
    )
    assert "-p true" in commands.refused(
        "printMsgByQueue", "-t", name, "-a", broker, "-i", "0", status=2
    )


def test_messages_of_a_java_batch_are_found_by_their_ids_and_by_the_batch_s(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    """All of them had the batch's id, which a Java broker stores behind the message's own."""
    make(admin, face, name, queues=1)
    [at] = admin.brokers.addresses()
    own, batch = [f"{number:032X}" for number in range(3)], "B" * 32
    with RawClient(at.address) as client:
        for number, one in enumerate(own):
            text = f"UNIQ_KEY\x01{one}\x02KEYS\x01all\x02UNIQ_KEY\x01{batch}\x02"
            answer = client.ask(10, send_ext(name, properties=text), b"%d" % number)
            assert answer.code == 0
    got: list[MessageExt] = []
    face.consumer(name, name, got.extend, consume_from=FIRST)
    eventually(lambda: len(got) == 3)
    assert [message.msg_id for message in got] == own
    assert {message.batch_msg_id for message in got} == {batch}
    assert [message.unique_id for message in got] == own

    found = admin.messages.by_unique_id(name, batch)
    assert [(m.msg_id, m.batch_msg_id, m.body) for m in found] == [
        (one, batch, b"%d" % number) for number, one in enumerate(own)
    ]
    offset_ids = [message.offset_msg_id for message in found]
    # The index is Java's, which has the batch's id only.
    assert admin.messages.by_unique_id(name, own[1]) == []
    assert "in a batch to a Java broker" in commands.refused(
        "queryMsgByUniqueKey", "-t", name, "-i", own[2]
    )
    [shown] = commands.json("queryMsgById", "-t", name, "-i", offset_ids[2])
    assert (shown["msgId"], shown["batchMsgId"], shown["body"]) == (own[2], batch, "2")
    printed = commands.run("queryMsgById", "-t", name, "-i", batch)
    assert printed.out.startswith(f"message {own[0]}:\n")
    assert (
        f"3 messages came in the batch with this id; name one by its offset id: {offset_ids[0]}"
        in (" ".join(printed.err.split()))
    )
    refused = commands.refused("queryMsgById", "-t", name, "-i", batch, "-s", "true", "--yes")
    assert f"name one by its offset id: {', '.join(offset_ids)}" in refused
    assert len(admin.messages.by_key(name, "all")) == 3
    with pytest.raises(
        IllegalArgumentError, match=f"is the id of a batch .*{offset_ids[0]}, {offset_ids[1]}"
    ):
        admin.explain.message(batch, name)
    [copy] = admin.explain.message(offset_ids[0], name).copies
    assert copy.body == b"0"


def test_dead_letters_with_the_id_of_one_batch_are_each_sent_again_and_told_apart(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    """All were reported to lie where the copy of the first one does."""
    make(admin, face, name, queues=1)
    [at] = admin.brokers.addresses()
    admin.topics.create(f"%DLQ%{name}", read_queues=1, write_queues=1)
    face.until_routed(f"%DLQ%{name}", at.broker_name)
    # As a Java broker writes dead letters of a batch: it knows the batch's id only.
    text = f"UNIQ_KEY\x01{'B' * 32}\x02RETRY_TOPIC\x01{name}\x02"
    with RawClient(at.address) as client:
        for number in range(4):
            ext = send_ext(f"%DLQ%{name}", properties=text)
            assert client.ask(10, ext, b"%d" % number).code == 0
    letters = list(admin.messages.dead_letters(name))
    assert [letter.body for letter in letters] == [b"0", b"1", b"2", b"3"]
    for chosen in (letters[:3], letters[:3]):
        outcomes = admin.messages.redrive_letters(name, name, chosen)
        assert [each.fault for each in outcomes] == [""] * 3
        places = [
            (MessageQueue(name, each.broker_name or "", each.queue_id or 0), each.queue_offset)
            for each in outcomes
        ]
        found = [admin.messages.by_offset(queue, offset or 0) for queue, offset in places]
        assert [copy and copy.body for copy in found] == [b"0", b"1", b"2"]
    assert len(list(admin.messages.stored(name))) == 3


def test_a_body_that_is_no_text_is_shown_in_base64(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    raw, text = bytes(range(256)), "schön".encode("latin-1")
    results = [face.producer(name).send(Message(name, body)) for body in (raw, text)]
    for result in results:
        face.until_readable(result)
    first, second = (("queryMsgById", "-t", name, "-i", r.offset_msg_id) for r in results)
    [shown] = commands.json(*first)
    assert shown["bodyEncoding"] == "base64"
    assert base64.b64decode(shown["body"]) == raw
    assert "00000040  40 41 42" in commands.run(*first).out
    [shown] = commands.json(*second, "-f", "ISO-8859-1")
    assert (shown["bodyEncoding"], shown["body"]) == ("iso8859-1", "schön")


# Printing queues


def test_messages_are_printed_by_queue_tag_and_time(
    commands: Commands, name: str, sent: list[SendResult]
) -> None:
    topic = ("-t", name)
    found = commands.json("printMsg", *topic)
    assert bodies(found) == ["0", "2", "1", "3"]  # queue by queue
    assert commands.json("printMsg", *topic, "-s", "t || u") == found
    assert commands.json("printMsg", *topic, "-s", "u") == []
    assert "body" not in commands.json("printMsg", *topic, "-d", "false")[0]
    times = [message["storeTimestamp"] for message in found]
    assert len(commands.json("printMsg", *topic, "-b", str(min(times)))) == 4
    assert commands.json("printMsg", *topic, "-b", str(max(times) + 1)) == []
    day = time.strftime("%Y-%m-%d#00:00:00:000", time.localtime(max(times) / 1000 + 86_400))
    assert len(commands.json("printMsg", *topic, "-e", day)) == 4
    assert commands.json("printMsg", *topic, "-b", day) == []
    head, *lines = commands.run("printMsg", *topic).out.splitlines()
    assert head.startswith("Store Timestamp ")
    assert [line.split()[-1] for line in lines] == ["0", "2", "1", "3"]
    queue = ("-a", sent[0].queue.broker_name, "-i", str(sent[0].queue.queue_id))
    both = commands.json(
        "printMsgByQueue", *topic, *queue, "-f", "true", "-p", "true", "-d", "true"
    )
    assert bodies(both["messages"]) == ["0", "2"]
    assert both["tags"] == [{"tag": "t", "count": 2}]
    counted = commands.run("printMsgByQueue", *topic, *queue, "-f", "true").out
    assert counted == "Tag  Count\nt        2\n"


def test_the_first_messages_are_looked_at(
    commands: Commands, admin: cometmq.AdminClient, name: str, sent: list[SendResult]
) -> None:
    topic = ("consumeMessage", "-t", name)
    assert bodies(commands.json(*topic, "-c", "3")) == ["0", "2", "1"]
    queue = ("-b", sent[1].queue.broker_name, "-i", str(sent[1].queue.queue_id))
    assert bodies(commands.json(*topic, *queue)) == ["1", "3"]
    assert bodies(commands.json(*topic, *queue, "-o", "1")) == ["3"]
    beyond = commands.run(*topic, *queue, "-o", "2", status=1)
    assert "has the offsets 0 to 1" in beyond.err
    admin.groups.create(name)
    assert len(commands.json(*topic, "-g", name)) == 4
    assert not any(at.committed_offset for at in admin.offsets.of_topic(name, name))


def test_units_of_a_queue_are_shown(
    commands: Commands, admin: cometmq.AdminClient, name: str, sent: list[SendResult]
) -> None:
    queue_id = str(sent[0].queue.queue_id)
    found = commands.json("queryCq", "-t", name, "-q", queue_id, "-i", "1", "-c", "5")
    assert (found["queue"]["min"], found["queue"]["max"]) == (0, 2)
    [unit] = found["units"]
    message = admin.messages.by_id(sent[2].offset_msg_id, name)
    assert (unit["index"], unit["physicOffset"]) == (1, message.commit_log_offset)
    assert (unit["physicSize"], unit["tagsCode"]) == (message.store_size, ord("t"))
    beyond = commands.run("queryCq", "-t", name, "-q", queue_id, "-i", "9", status=1)
    assert "has the units 0 to 1" in beyond.err
    assert "queues there are 0 to 1" in commands.refused(
        "queryCq", "-t", name, "-q", "5", "-i", "0"
    )


# Sending


def test_a_message_is_sent_again_after_a_question(
    commands: Commands, name: str, sent: list[SendResult]
) -> None:
    again = ("queryMsgById", "-t", name, "-i", sent[0].offset_msg_id, "-s", "true")
    assert "repeat it with --yes" in commands.refused(*again, status=2)
    assert "would be sent again" in commands.run(*again, "--dry-run").out
    assert len(commands.json("printMsg", "-t", name)) == 4
    [copy] = commands.json(*again, "--yes")
    assert (copy["sendStatus"], copy["msgId"]) == ("SEND_OK", sent[0].msg_id)
    assert (copy["queueId"], copy["queueOffset"]) == (sent[0].queue.queue_id, 2)


def test_a_member_consumes_a_message_again(
    commands: Commands,
    admin: cometmq.AdminClient,
    face: BlockingFace,
    name: str,
    sent: list[SendResult],
) -> None:
    received = consume(admin, face, name, len(sent))
    [client] = admin.groups.connections(name).clients
    one = ("queryMsgByUniqueKey", "-t", name, "-i", sent[1].msg_id, "-g", name)
    assert "belong together" in commands.refused(*one, status=2)
    [done] = commands.json(*one, "-d", client.client_id, "--yes")
    assert (done["consumeResult"], done["clientId"]) == ("CR_SUCCESS", client.client_id)
    assert received.bodies.count(b"1") == 2


def test_messages_are_sent_and_measured(
    commands: Commands, name: str, sent: list[SendResult]
) -> None:
    queue = sent[0].queue
    to = ("-b", queue.broker_name, "-i", str(queue.queue_id))
    message = ("sendMessage", "-t", name, "-p", "grüße", "-k", "a b", "-c", "tag")
    assert "would send 7 bytes" in commands.run(*message, *to, "--dry-run").out
    [result] = commands.json(*message, *to)
    assert (result["sendResult"], result["queueId"]) == ("SEND_OK", queue.queue_id)
    [shown] = eventually(  # brokers enter it into the queue a little later
        lambda: commands.json("queryMsgByOffset", "-t", name, *to, "-o", "2"),
        passing=(AssertionError,),
    )
    assert (shown["msgId"], shown["body"]) == (result["msgId"], "grüße")
    assert (shown["tags"], shown["keys"]) == ("tag", ["a", "b"])
    assert "needs --broker" in commands.refused(*message, "-i", "0", status=2)
    assert "queues there are 0 to 1" in commands.refused(*message, *to[:3], "9")
    assert "does not exist" in commands.refused("sendMessage", "-t", f"{name}-2", "-p", "x")
    measured = commands.json("checkMsgSendRT", "-t", name, "-a", "4", "-s", "10")
    assert [each["queueId"] for each in measured["sends"]] == [0, 1, 0, 1]
    assert all(each["sendResult"] for each in measured["sends"])
    later = [each["rt"] for each in measured["sends"][1:]]
    assert measured["summary"]["averageRt"] == pytest.approx(sum(later) / 3)
    status = commands.json("sendMsgStatus", "-b", queue.broker_name, "-c", "3")
    assert [each["sendResult"] for each in status] == ["SEND_OK"] * 3
    assert "know no broker" in commands.refused("sendMsgStatus", "-b", f"{name}-broker")


def test_a_trace_tells_who_sent_and_who_consumed(
    commands: Commands, admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    make(admin, face, name)
    traces = f"{name}-traces"
    make(admin, face, traces, queues=1)
    options: dict[str, Any] = {"enable_trace": True, "trace_topic": traces}
    sent = face.producer(f"{name}-sender", **options).send(Message(name, b"x"))
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST, **options)
    received.wait_for(1)
    one = ("queryMsgTraceById", "-t", traces, "-i", sent.msg_id)

    def reported() -> Any:
        found = commands.json(*one)
        return found if found["sent"] and "success" in str(found["consumed"]) else None

    found = eventually(reported, passing=(AssertionError,))
    assert [(e["groupName"], e["topic"]) for e in found["sent"]] == [(f"{name}-sender", name)]
    assert [(e["groupName"], e["status"]) for e in found["consumed"]] == [(name, "success")]
    # The alias of older tools differs in one letter's case.
    table = commands.run("QueryMsgTraceById", *one[1:]).out
    assert re.search(rf"^Pub +{name}-sender .* success ", table, re.MULTILINE)
    assert re.search(rf"^Sub +{name} .* success ", table, re.MULTILINE)
    nothing = commands.run(*one[:-1], "nix", status=1)
    assert "its clients wrote none" in nothing.err


# Exports


def test_topics_groups_settings_and_metrics_are_exported(
    commands: Commands,
    admin: cometmq.AdminClient,
    face: BlockingFace,
    name: str,
    sent: list[SendResult],
    tmp_path: Path,
) -> None:
    consume(admin, face, name, len(sent))
    [at] = admin.brokers.addresses()
    to = ("-c", at.cluster, "-f", str(tmp_path / "new"))
    [done] = commands.json("exportMetadata", *to)
    assert done == {"path": str(tmp_path / "new" / "metadata.json"), "result": "success"}
    metadata = json.loads((tmp_path / "new" / "metadata.json").read_text())
    assert metadata["topicConfigTable"][name]["readQueueNums"] == 2
    assert metadata["subscriptionGroupTable"][name]["groupName"] == name
    assert not {"TBW102", f"%RETRY%{name}", at.broker_name} & {*metadata["topicConfigTable"]}
    assert "TOOLS_CONSUMER" not in metadata["subscriptionGroupTable"]
    one = ("exportMetadata", "-b", at.address, "-f", str(tmp_path), "-t", "-s")
    commands.run(*one)
    topics = json.loads((tmp_path / "topic.json").read_text())
    assert f"%RETRY%{name}" in topics["topicConfigTable"]
    assert "subscriptionGroupTable" not in topics
    assert "give --brokerAddr or --clusterName" in commands.refused("exportMetadata", status=2)

    commands.run("exportConfigs", *to)
    configs = json.loads((tmp_path / "new" / "configs.json").read_text())
    assert configs["brokerConfigs"][at.broker_name]["brokerName"] == at.broker_name
    scale = {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 0}
    assert configs["clusterScale"] == scale

    commands.run("exportMetrics", *to)
    metrics = json.loads((tmp_path / "new" / "metrics.json").read_text())
    report = metrics["evaluateReport"][at.broker_name]
    assert report["runtimeQuota"]["topicSize"] >= 1
    assert any("%V" in client for client in report["runtimeVersion"]["clientInfo"])
    total = metrics["totalData"]["totalTps"]["totalNormalInTps"]
    assert total == report["runtimeQuota"]["tps"]["normalInTps"]

    (tmp_path / "file").write_text("")
    taken = ("exportConfigs", "-c", at.cluster, "-f", str(tmp_path / "file"))
    assert "cannot be written" in commands.refused(*taken, status=2)
    assert "--clusterName" in commands.refused("exportConfigs", status=2)


def test_records_of_pop_consumers_are_refused_by_our_broker(commands: Commands) -> None:
    refused = commands.run("exportPopRecord", "-c", "DefaultCluster", status=1)
    assert "pop" in refused.err + refused.out
    dry = commands.run("exportPopRecord", "-c", "DefaultCluster", "-d", "true")
    assert "would export" in dry.out


def test_the_records_of_a_file_are_printed(
    commands: Commands, cluster: Cluster, name: str, sent: list[SendResult], tmp_path: Path
) -> None:
    [file] = (cluster.directory / "broker-a" / "commitlog").iterdir()
    found = commands.json("dumpCompactionLog", "-f", str(file))
    assert bodies(m for m in found if m["topic"] == name) == ["0", "1", "2", "3"]
    (tmp_path / "no-log").write_bytes(b"no record at all" * 20)
    assert (
        "is none of a record"
        in commands.run("dumpCompactionLog", "-f", str(tmp_path / "no-log"), status=1).err
    )
    (tmp_path / "empty").write_bytes(b"")
    assert commands.json("dumpCompactionLog", "-f", str(tmp_path / "empty")) == []
    assert "does not exist" in commands.refused("dumpCompactionLog", "-f", "nowhere", status=2)


# Messages that nobody consumes


def test_dead_letters_are_listed_and_sent_again(
    commands: Commands, face: BlockingFace, name: str, sent: list[SendResult]
) -> None:
    refuser = face.consumer(
        name,
        name,
        lambda _: ConsumeResult.RECONSUME_LATER,
        consume_from=FIRST,
        max_reconsume_times=0,
    )
    letters = eventually(
        lambda: commands.json("deadLetters", "-g", name),
        lambda found: len(found) == 4,
        passing=(AssertionError,),
    )
    refuser.close()
    assert {letter["originTopic"] for letter in letters} == {name}
    assert sorted(bodies(letters)) == ["0", "1", "2", "3"]
    some = ("redriveDeadLetters", "-g", name, "-k", "k1,k2")
    assert sorted(bodies(commands.json(*some, "--dry-run"))) == ["1", "2"]
    assert "repeat it with --yes" in commands.refused(*some, status=2)
    for _ in range(2):  # under one id no letter is sent twice
        [at] = commands.json(*some, "--yes", "--redriveId", name)
        assert (at["sentCount"], at["skippedCount"]) == (2, 0)
    found = eventually(lambda: commands.json("printMsg", "-t", name), lambda it: len(it) == 6)
    assert sorted(bodies(found)) == ["0", "1", "1", "2", "2", "3"]
    assert "has the group" in commands.refused("deadLetters", "-g", f"{name}-2")
    known = letters[0]["msgId"]
    for mode in ("--dry-run", "--yes"):  # ids that were not found are named
        printed = commands.run(
            "redriveDeadLetters", "-g", name, "-i", f"{known},AA", mode, status=1
        )
        assert "cometmq: AA: no dead letter" in printed.err
        assert known not in printed.err
    twice = commands.refused("redriveDeadLetters", "-g", name, "-i", "AA", "-i", known, status=2)
    assert "-i/--msgId is given 2 times" in twice


class Undecided:
    """Does not know how its transactions end until `verdict` is set."""

    def __init__(self) -> None:
        self.verdict = LocalTransactionState.UNKNOWN

    def execute(self, _message: Message, _arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check(self, _message: MessageExt) -> LocalTransactionState:
        return self.verdict


def test_halves_that_were_given_up_are_listed_and_resumed(
    commands: Commands, namesrv: str, face: BlockingFace, name: str
) -> None:
    listener = Undecided()
    with TransactionProducer(name, listener, namesrv=namesrv) as producer:
        producer.send_in_transaction(Message(name, b"half"))

        def given_up() -> Any:
            found = commands.json("givenUpHalves")
            return next((half for half in found if half["originTopic"] == name), None)

        half = eventually(given_up, passing=(AssertionError,))
        assert (half["producerGroup"], half["body"]) == (name, "half")
        assert int(half["checkTimes"]) >= 12
        listener.verdict = LocalTransactionState.COMMIT
        one = ("resumeHalf", "-i", half["offsetMsgId"])
        assert "would be resumed" in commands.run(*one, "--dry-run").out
        assert commands.json(*one, "--yes")[0]["result"] == "resumed"
        received = Received()
        face.consumer(name, name, received.handle, consume_from=FIRST)
        assert received.wait_for(1)[0].msg_id == half["msgId"]
    nonsense = commands.run("resumeHalf", "-i", "nonsense", "--yes", status=1)
    assert "not hex text" in nonsense.err


# Terminals


def test_a_terminal_is_asked_and_sees_the_progress(
    namesrv: str,
    admin: cometmq.AdminClient,
    name: str,
    sent: list[SendResult],
    tmp_path: Path,
) -> None:
    def on_a_terminal(answer: bytes, *arguments: str) -> tuple[int, str, str]:
        """Run a command whose stdin and stderr are a terminal; return what it printed there, too."""
        primary, secondary = pty.openpty()
        out = tmp_path / "out"
        with out.open("wb") as file, os.fdopen(primary, "rb+", buffering=0) as screen:
            process = subprocess.Popen(
                [sys.executable, "-m", "cometmq", "admin", *arguments, "-n", namesrv],
                stdin=secondary,
                stdout=file,
                stderr=secondary,
            )
            os.close(secondary)
            screen.write(answer)
            shown = b""
            try:
                while piece := screen.read(4096):
                    shown += piece
            except OSError:
                pass  # so Linux says that nobody has the terminal open any more
            status = process.wait(WAIT_S)
        return status, out.read_text(), shown.decode()

    again = ("queryMsgById", "-t", name, "-i", sent[0].offset_msg_id, "-s", "true", "-o", "json")
    status, out, shown = on_a_terminal(b"n\n", *again)
    assert (status, out) == (1, "")
    assert "This will send the message to" in shown
    status, out, shown = on_a_terminal(b"y\n", *again)
    assert (status, json.loads(out)[0]["sendStatus"]) == (0, "SEND_OK")
    eventually(lambda: sum(at.max_offset for at in admin.offsets.of_topic(name)) == 5)
    status, out, shown = on_a_terminal(b"", "printMsg", "-t", name, "-o", "json")
    assert (status, len(json.loads(out))) == (0, 5)
    assert "messages: 5 of 5" in shown
