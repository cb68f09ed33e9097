"""Produce what keeps messages from groups and writes from brokers, and see it named.

One cluster serves all cases. Its log has files of a MiB, which are deleted as soon as an administrator
asks for it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import BlockingFace, Received
from tests.integration.fixtures import prompt_face as face
from tests.integration.own_broker import OwnBroker, nameless
from tests.integration.raw_client import RawClient, send_ext
from tests.waits import WAIT_S, eventually
from typer.testing import CliRunner

import cometmq
from cometmq import ConsumeFromWhere, ConsumeResult, Message, SendResult
from cometmq.admin.explain.records import (
    Cause,
    MessageExplanation,
    RestartExplanation,
    WriteExplanation,
)
from cometmq.cli.main import app, main
from cometmq.errors import IllegalArgumentError, RemoteError, RouteNotFoundError
from cometmq.model.reports.finding import Severity
from cometmq.store.config import StoreConfig
from cometmq.testing.ports import HeldPort

__all__ = ["face"]

FIRST = ConsumeFromWhere.FIRST_OFFSET
SEND, DELETE_TOPIC_IN_NAMESRV = 10, 216
MIB = 1 << 20

pytestmark = [
    pytest.mark.cluster(
        properties={
            "autoCreateSubscriptionGroup": "true",
            "mappedFileSizeCommitLog": str(MIB),
            "fileReservedTime": "0",
            # No file goes because of the hour.
            "deleteWhen": f"{(datetime.now().astimezone().hour + 12) % 24:02d}",
            "cleanResourceInterval": "100",
        }
    )
]


@pytest.fixture
def admin(namesrv: str) -> Iterator[cometmq.AdminClient]:
    with cometmq.AdminClient(namesrv, timeout_ms=int(WAIT_S * 1000)) as admin:
        yield admin


@pytest.fixture
def topic(admin: cometmq.AdminClient, face: BlockingFace, name: str) -> str:
    """Make the test's topic with one queue."""
    admin.topics.create(name, read_queues=1, write_queues=1)
    [at] = admin.brokers.addresses()
    face.until_routed(name, at.broker_name)
    return name


@pytest.fixture
def address(admin: cometmq.AdminClient) -> str:
    [at] = admin.brokers.addresses()
    return at.address


def send(face: BlockingFace, topic: str, body: bytes = b"body", **options: Any) -> SendResult:
    result: SendResult = face.producer(f"p-{topic}").send(Message(topic, body, **options))
    if not options.keys() & {"delay_level"}:
        face.until_readable(result)
    return result


def followed(
    admin: cometmq.AdminClient, result: Any, topic: str, cause: Cause, **options: Any
) -> MessageExplanation:
    """Return the explanation of a message by its unique id, when it names `cause` first."""
    found = eventually(
        lambda: admin.explain.message(result.msg_id, topic, deadline_s=WAIT_S, **options),
        lambda explanation: explanation.reasons[0].cause is cause,
        # The heartbeat of a member that has just started makes its group known.
        passing=(RemoteError,),
    )
    assert found.unasked == ()
    return found


# Messages


def test_a_consumed_message_is_followed_by_either_id(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    received = Received()
    face.consumer(topic, topic, received.handle, consume_from=FIRST)
    result = send(face, topic)
    received.wait_for(1)
    found = followed(admin, result, topic, Cause.CONSUMED)
    [delivery] = found.deliveries
    assert (delivery.group, delivery.cause, delivery.retries) == (topic, Cause.CONSUMED, 0)
    assert delivery.owner.startswith("127.0.0.1@")
    [copy] = found.copies
    assert copy.offset_msg_id == result.offset_msg_id
    assert ("indexed", "yes") in [(e.figure, e.value) for e in found.reasons[0].evidence]
    assert admin.explain.message(result.offset_msg_id).causes == (Cause.CONSUMED,)


def test_a_message_that_no_group_consumes_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    followed(admin, send(face, topic), topic, Cause.NO_GROUP)


def test_a_message_that_the_group_does_not_select_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    face.consumer(topic, topic, Received().handle, "a", consume_from=FIRST)
    found = followed(admin, send(face, topic, tags="b"), topic, Cause.FILTERED, group=topic)
    assert "TAG 'a', and the message has the tag 'b'" in found.answer


def test_a_message_in_a_listener_is_told_with_its_member(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    hold = threading.Event()

    def listen(_messages: list[Any]) -> ConsumeResult:
        hold.wait(WAIT_S)
        return ConsumeResult.SUCCESS

    consumer = face.consumer(topic, topic, listen, consume_from=FIRST)
    result = send(face, topic)
    try:
        found = followed(admin, result, topic, Cause.IN_FLIGHT, group=topic)
        assert found.deliveries[0].owner == consumer.client_id
    finally:
        hold.set()


def test_a_message_that_waits_for_a_member_is_told_with_the_cause(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    received = Received()
    consumer = face.consumer(topic, topic, received.handle, consume_from=FIRST)
    send(face, topic)
    received.wait_for(1)
    consumer.close()
    found = followed(admin, send(face, topic), topic, Cause.NOT_PULLED)
    assert "0 before it; why the group is behind: no-member" in found.answer


def test_a_group_that_does_not_subscribe_is_not_sent_round_in_circles(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    """`explain message` led to `explain group`, which knew no cause: an offset was all that there was."""
    other = f"{topic}-other"
    admin.topics.create(other, read_queues=1, write_queues=1)
    [at] = admin.brokers.addresses()
    face.until_routed(other, at.broker_name)
    face.consumer(topic, other, Received().handle, consume_from=FIRST)
    eventually(lambda: admin.groups.connections(topic), passing=(RemoteError,))
    result = send(face, topic)
    admin.offsets.commit(topic, result.queue, 0)
    found = followed(admin, result, topic, Cause.NOT_SUBSCRIBED)
    assert f"does not subscribe to topic {topic}" in found.answer
    assert found.severity is Severity.WARNING
    # Brokers leave the topic out of the progress, as Java's do.
    group = admin.explain.group(topic, topic, deadline_s=WAIT_S)
    assert group.causes == (Cause.NOT_SUBSCRIBED,)
    assert "no member takes its messages" in group.answer
    [track] = admin.messages.tracks(admin.messages.by_id(result.offset_msg_id))
    assert track.reason == f"group {topic} does not subscribe to topic {topic}"


def test_a_retried_message_is_told_with_its_time(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    def fail(_messages: list[Any]) -> Any:
        return cometmq.ConsumeReport(ConsumeResult.RECONSUME_LATER, delay_level=18)

    face.consumer(topic, topic, fail, consume_from=FIRST)
    result = send(face, topic)
    found = followed(admin, result, topic, Cause.RETRIED)
    [delivery] = found.deliveries
    assert delivery.retries == 1
    assert delivery.next_ms is not None
    # Level 18 is two hours.
    assert 6_900_000 < delivery.next_ms - found.at_ms <= 7_200_000 + 60_000


def test_a_message_that_was_consumed_at_a_retry_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    def fail_once(messages: list[Any]) -> Any:
        if messages[0].reconsume_times:
            return ConsumeResult.SUCCESS
        return cometmq.ConsumeReport(ConsumeResult.RECONSUME_LATER, delay_level=1)

    face.consumer(topic, topic, fail_once, consume_from=FIRST)
    result = send(face, topic)
    found = eventually(
        lambda: admin.explain.message(result.msg_id, topic, group=topic, deadline_s=WAIT_S),
        lambda explanation: (
            [(each.cause, each.retries) for each in explanation.deliveries] == [(Cause.CONSUMED, 1)]
        ),
        passing=(RemoteError,),
    )
    assert "at retry 1" in found.answer


def test_a_dead_letter_is_told(admin: cometmq.AdminClient, face: BlockingFace, topic: str) -> None:
    def fail(_messages: list[Any]) -> ConsumeResult:
        return ConsumeResult.RECONSUME_LATER

    face.consumer(topic, topic, fail, consume_from=FIRST, max_reconsume_times=0)
    found = followed(admin, send(face, topic), topic, Cause.DEAD_LETTERED)
    assert f"%DLQ%{topic}" in found.reasons[0].evidence[0].figure
    assert "messages.redrive" in found.reasons[0].remedy


def test_a_delayed_message_is_told_with_its_time(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    found = followed(admin, send(face, topic, delay_level=18), topic, Cause.MESSAGE_DELAYED)
    assert found.severity is Severity.OK
    assert "DELAY=18" in found.reasons[0].evidence[1].value


def test_a_half_message_is_told_until_its_transaction_ends(
    admin: cometmq.AdminClient, face: BlockingFace, namesrv: str, topic: str
) -> None:
    verdicts = {b"open": cometmq.LocalTransactionState.UNKNOWN}

    class Listener:
        def execute(self, message: Message, _arg: Any) -> cometmq.LocalTransactionState:
            return verdicts.get(bytes(message.body or b""), cometmq.LocalTransactionState.ROLLBACK)

        def check(self, _message: Any) -> cometmq.LocalTransactionState:
            return cometmq.LocalTransactionState.UNKNOWN

    with cometmq.TransactionProducer(f"t-{topic}", Listener(), namesrv=namesrv) as producer:
        undone = producer.send_in_transaction(Message(topic, b"undone"))
        followed(admin, undone, topic, Cause.MESSAGE_ROLLED_BACK)
        half = producer.send_in_transaction(Message(topic, b"open"))
        found = followed(admin, half, topic, Cause.MESSAGE_HALF)
        assert ("producer group", f"t-{topic}") in [
            (e.figure, e.value) for e in found.reasons[0].evidence
        ]


def test_messages_that_were_deleted_or_never_stored_are_told_apart(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str, address: str
) -> None:
    received = Received()
    consumer = face.consumer(topic, topic, received.handle, consume_from=FIRST)
    send(face, topic)
    received.wait_for(1)
    consumer.close()
    lost = send(face, topic)
    followed(admin, lost, topic, Cause.NOT_PULLED)
    for _ in range(3):
        # What can be compressed would not fill a file.
        send(face, topic, os.urandom(700_000))
    before = admin.explain.disk()
    assert before.causes == (Cause.NEXT_DELETION,)
    deletion = before.deletions[address]
    assert deletion is not None
    assert deletion.file in before.answer

    def deleted() -> MessageExplanation:
        # What waits to be flushed or read stays, and one request holds only for a while.
        admin.brokers.delete_expired_files()
        return admin.explain.message(lost.offset_msg_id, topic)

    found = eventually(deleted, lambda explanation: explanation.causes == (Cause.MESSAGE_DELETED,))
    assert "commitLogMinOffset" in found.reasons[0].evidence[0].figure
    assert admin.explain.message(lost.offset_msg_id).causes == (Cause.MESSAGE_DELETED,)
    unknown = admin.explain.message("0" * 32, topic)
    assert unknown.causes == (Cause.MESSAGE_UNKNOWN,)
    # The group's offset lies before what is left of its queue.
    group = eventually(
        lambda: admin.explain.group(topic),
        lambda explanation: Cause.OFFSET_BEFORE_BEGINNING in explanation.causes,
    )
    assert Cause.NO_MEMBER in group.causes
    eventually(lambda: admin.explain.disk().causes == (Cause.NO_DELETION,))


def test_an_id_that_nobody_made_needs_a_topic(admin: cometmq.AdminClient) -> None:
    with pytest.raises(IllegalArgumentError, match="name its topic"):
        admin.explain.message("nonsense")
    with pytest.raises(IllegalArgumentError, match="no message id"):
        admin.explain.message("two words")


def test_a_group_that_nobody_knows_is_refused_for_a_message(
    admin: cometmq.AdminClient, face: BlockingFace, topic: str
) -> None:
    result = send(face, topic)
    with pytest.raises(RemoteError, match="no broker that answered knows the group 'nobody'"):
        admin.explain.message(result.msg_id, topic, group="nobody")


# Writes


def refused(admin: cometmq.AdminClient, topic: str, cause: Cause) -> WriteExplanation:
    found = eventually(
        lambda: admin.explain.write(topic, deadline_s=WAIT_S),
        lambda explanation: explanation.causes == (cause,),
    )
    [causes] = found.refusals.values()
    assert causes == ((cause,) if found.severity else ())
    assert found.reasons[0].evidence or cause is Cause.TOPIC_RESERVED
    return found


def test_a_write_that_is_taken_says_so(admin: cometmq.AdminClient, topic: str) -> None:
    assert refused(admin, topic, Cause.ACCEPTED).severity is Severity.OK


def test_an_unknown_topic_is_refused_unless_brokers_make_it(
    admin: cometmq.AdminClient, name: str
) -> None:
    refused(admin, name, Cause.TOPIC_CREATED_BY_FIRST_SEND)
    admin.brokers.update_config({"autoCreateTopicEnable": "false"})
    try:
        found = refused(admin, name, Cause.TOPIC_UNKNOWN)
        assert f"topics.create('{name}')" in found.reasons[0].remedy
    finally:
        admin.brokers.update_config({"autoCreateTopicEnable": "true"})


def test_permissions_to_write_are_told_apart(admin: cometmq.AdminClient, topic: str) -> None:
    admin.topics.update(topic, permission=4)
    refused(admin, topic, Cause.TOPIC_UNWRITABLE)
    admin.topics.update(topic, permission=6)
    refused(admin, topic, Cause.ACCEPTED)
    admin.brokers.wipe_write_permission("broker-a")
    try:
        refused(admin, topic, Cause.WRITE_PERMISSION_WIPED)
    finally:
        admin.brokers.add_write_permission("broker-a")
    refused(admin, topic, Cause.ACCEPTED)
    admin.brokers.update_config({"brokerPermission": "4"})
    try:
        refused(admin, topic, Cause.BROKER_UNWRITABLE)
    finally:
        admin.brokers.update_config({"brokerPermission": "6"})


def routed(admin: cometmq.AdminClient, topic: str, write_queues: int) -> None:
    """Wait until the name server knows that the topic has `write_queues` queues to write to."""
    eventually(
        lambda: [data.write_queue_nums for data in admin.topics.route(topic).queue_datas],
        lambda found: found == [write_queues],
    )


def test_a_topic_without_queues_or_route_is_told(
    admin: cometmq.AdminClient, namesrv: str, topic: str
) -> None:
    admin.topics.update(topic, write_queues=0)
    refused(admin, topic, Cause.NO_WRITE_QUEUES)
    routed(admin, topic, write_queues=0)
    admin.topics.update(topic, write_queues=1)
    refused(admin, topic, Cause.ACCEPTED)
    # A registration that came later would bring the removed topic back.
    routed(admin, topic, write_queues=1)
    with RawClient(namesrv) as client:
        cluster = {"topic": topic, "clusterName": "DefaultCluster"}
        assert client.ask(DELETE_TOPIC_IN_NAMESRV, cluster).code == 0
    refused(admin, topic, Cause.NOT_IN_ROUTE)


def test_a_body_that_is_too_large_and_a_topic_of_brokers_are_told(
    admin: cometmq.AdminClient, topic: str
) -> None:
    found = admin.explain.write(topic, size=5 * MIB)
    assert found.causes == (Cause.MESSAGE_TOO_LARGE,)
    assert "whose limit is 4194304" in found.answer
    assert Cause.TOPIC_RESERVED in admin.explain.write("SCHEDULE_TOPIC_XXXX").causes


def test_a_broker_that_is_away_is_told_by_its_address(admin: cometmq.AdminClient) -> None:
    with HeldPort() as nobody:
        broker = f"127.0.0.1:{nobody.port}"
        for found in (
            admin.explain.write("T", broker=broker),
            admin.explain.disk(broker=broker),
            admin.explain.restart(broker=broker),
        ):
            assert found.causes[0] is Cause.BROKER_AWAY
            assert found.unasked
    with pytest.raises(RouteNotFoundError, match="know no broker 'broker-z'"):
        admin.explain.disk(broker="broker-z")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnBroker]:
    settings = StoreConfig(
        store_path_root_dir=tmp_path,
        clean_resource_interval=50,
        mapped_file_size_commit_log=MIB,
        os_page_cache_busy_time_out_mills=100,
        flush_interval_commit_log=20,
        flush_commit_log_thorough_interval=20,
    )
    with OwnBroker(nameless(), settings) as running:
        yield running


def test_full_and_slow_disks_are_told_with_their_limits(own: OwnBroker) -> None:
    with cometmq.AdminClient([]) as admin, own.client() as client:

        def sent() -> None:
            # The machine's own disk may be too slow for the short limit for a moment.
            eventually(lambda: client.ask(SEND, send_ext("T"), b"x"), lambda a: a.code == 0)

        sent()

        def reported(cause: Cause) -> WriteExplanation:
            return eventually(
                lambda: admin.explain.write("T", broker=own.address),
                lambda explanation: explanation.causes == (cause,),
            )

        reported(Cause.ACCEPTED)
        own.disk.used = 95
        full = reported(Cause.DISK_FULL)
        assert "0.95 (limit 0.90)" in [e.value for e in full.reasons[0].evidence]
        assert admin.explain.disk(broker=own.address).causes == (Cause.DISK_FULL,)
        own.disk.used = 60
        reported(Cause.ACCEPTED)
        sent()
        own.disk.may_sync.clear()
        try:
            client.ask(SEND, send_ext("T"), b"x")  # to be flushed, unless something waits already
            reported(Cause.PAGE_CACHE_BUSY)
        finally:
            own.disk.may_sync.set()
        reported(Cause.ACCEPTED)


# Restarts


def test_a_restart_is_told_with_what_it_would_read_and_whom_it_disconnects(
    admin: cometmq.AdminClient, face: BlockingFace, cluster: Any, topic: str, address: str
) -> None:
    received = Received()
    face.consumer(topic, topic, received.handle, consume_from=FIRST)
    send(face, topic)
    received.wait_for(1)
    store = cluster.brokers[0].store

    def explained() -> tuple[RestartExplanation, int, int]:
        before = store.commit_log.end
        return admin.explain.restart(), before, store.commit_log.end

    # The broker itself may write meanwhile, such as another check of an open transaction.
    found, _, end = eventually(explained, lambda seen: seen[1] == seen[2])
    assert found.causes == (Cause.RESTART_COST, Cause.NO_OTHER_BROKER)
    cost = found.costs[address]
    begin = store.commit_log.min_offset
    assert cost.clean_bytes == end - store.commit_log.files.files[-3:][0].base
    assert cost.crash_bytes is not None
    assert 0 < cost.crash_bytes <= end - begin
    assert cost.queue_count == len(list(store.queues))
    assert topic in cost.groups
    assert cost.consumer_count >= 1
    assert cost.producer_count is not None
    assert cost.producer_count >= 1


# The command


def shown(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command_says_the_answer_first_and_ends_by_it(
    admin: cometmq.AdminClient, face: BlockingFace, namesrv: str, topic: str, address: str
) -> None:
    admin.groups.create(topic)
    result = send(face, topic)
    followed(admin, result, topic, Cause.NO_GROUP)
    status, text = shown("write", topic, "-n", namesrv)
    lines = text.splitlines()
    assert status == 0
    assert lines[0].endswith("nothing speaks against it  [accepted]")
    assert lines[1].startswith(f"  GET_TOPIC_CONFIG (351) at {address}, ")
    assert lines[2].split() == ["perm", "of", topic, "6"]
    # An option of the connection may stand on either side of the question.
    status, text = shown("-n", namesrv, "message", result.msg_id, "--topic", topic, "-o", "json")
    found = json.loads(text)
    assert status == 1
    assert (found["status"], found["causes"]) == ("warning", ["no-group"])
    assert found["copies"][0]["offset_msg_id"] == result.offset_msg_id
    assert found["reasons"][0]["evidence"][0]["request"] == "QUERY_MESSAGE (12)"
    for question in (["group", topic], ["disk"], ["restart", "--broker", "broker-a"]):
        status, text = shown(*question, "-n", namesrv, "-o", "json")
        assert json.loads(text)["answer"]
        assert status == (1 if question[0] == "restart" else 0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["group", "nobody"],
            "no broker that answered knows the group 'nobody'.*consumerProgress has",
        ),
        (["disk", "--broker", "broker-z"], "know no broker 'broker-z'.*did you mean broker-a"),
        (["message", "nonsense"], "name its topic"),
        (["write", "no topic"], "no topic"),
        (["group", "g", "--cluster", "nowhere"], "know no cluster 'nowhere'"),
    ],
)
def test_what_cannot_be_meant_has_the_status_of_bad_input(
    namesrv: str,
    arguments: list[str],
    reason: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["cometmq", "explain", *arguments, "-n", namesrv])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert re.search(reason, capfd.readouterr().err)
