"""Produce each cause why a group is behind with real clients, and see it named.

Each test has a topic and a group of its own in one cluster. `explained` waits until the cause is named,
because members report only after a moment.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.client_faces import BlockingFace, Received
from tests.integration.fixtures import prompt_face as face
from tests.integration.raw_client import RawClient
from tests.waits import WAIT_S, eventually

import cometmq
from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageModel, MessageQueue
from cometmq.admin.explain.records import Cause, GroupExplanation
from cometmq.admin.explain.room import Explanations
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.model.reports.finding import Severity
from cometmq.runtime.clock import SystemClock

__all__ = ["face"]

FIRST = ConsumeFromWhere.FIRST_OFFSET
LOCK_BATCH_MQ, HEART_BEAT = 41, 34

pytestmark = [
    pytest.mark.cluster(
        properties={"autoCreateSubscriptionGroup": "true", "enablePropertyFilter": "true"}
    )
]


@pytest.fixture
def admin(namesrv: str) -> Iterator[cometmq.AdminClient]:
    with cometmq.AdminClient(namesrv, timeout_ms=int(WAIT_S * 1000)) as admin:
        yield admin


@pytest.fixture
def address(admin: cometmq.AdminClient) -> str:
    [at] = admin.brokers.addresses()
    return at.address


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    """Yield what listeners wait for; they go on when the test ends."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def topic(admin: cometmq.AdminClient, face: BlockingFace, name: str) -> str:
    """Make the test's topic with two queues."""
    admin.topics.create(name, read_queues=2, write_queues=2)
    [at] = admin.brokers.addresses()
    face.until_routed(name, at.broker_name)
    return name


def send(face: BlockingFace, topic: str, count: int = 6, **options: Any) -> None:
    producer = face.producer(f"p-{topic}")
    queues = producer.queues(topic)
    for number in range(count):
        message = Message(topic, b"%d" % number, **options)
        face.until_readable(producer.send(message, queue=queues[number % len(queues)]))


def listener(hold: threading.Event) -> Any:
    def listen(_messages: list[Any]) -> ConsumeResult:
        hold.wait(WAIT_S)
        return ConsumeResult.SUCCESS

    return listen


def explained(
    admin: cometmq.AdminClient,
    group: str,
    cause: Cause,
    before: Callable[[], None] = lambda: None,
) -> GroupExplanation:
    """Return the explanation that gives `cause` as the first reason; call `before` before each question."""

    def ask() -> GroupExplanation:
        before()
        return admin.explain.group(group, deadline_s=WAIT_S)

    found = eventually(
        ask,
        lambda explanation: explanation.reasons[0].cause is cause,
        passing=(RemoteError,),
    )
    reason = found.reasons[0]
    assert reason.evidence
    assert all(e.request and e.address and e.at_ms > 0 for e in reason.evidence)
    assert found.unasked == ()
    return found


def has_queues(consumer: Any, topic: str) -> None:
    eventually(lambda: [q for q in consumer.assigned_queues() if q.topic == topic])


def test_a_group_that_has_consumed_all_is_caught_up(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    send(face, name)
    received.wait_for(6)
    found = explained(admin, name, Cause.CAUGHT_UP)
    assert (found.severity, found.lag) == (Severity.OK, 0)


def test_a_group_without_a_member_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    send(face, name)
    received.wait_for(6)
    consumer.close()
    send(face, name)
    found = explained(admin, name, Cause.NO_MEMBER)
    assert found.lag == 6
    assert "start a member" in found.reasons[0].remedy


def test_a_slow_listener_is_told_by_what_its_member_holds(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, hold: threading.Event
) -> None:
    face.consumer(name, name, listener(hold), consume_from=FIRST)
    send(face, name)
    found = explained(admin, name, Cause.SLOW_LISTENER)
    assert "finished none in the last minute" in found.answer
    assert Cause.FLOW_CONTROLLED not in found.causes


def test_flow_control_is_told_behind_the_listener_that_causes_it(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, hold: threading.Event
) -> None:
    limits: Any = {"pull_threshold_for_queue": 1, "pull_batch_size": 2}
    face.consumer(name, name, listener(hold), consume_from=FIRST, **limits)
    send(face, name, 12)
    found = eventually(
        lambda: admin.explain.group(name, deadline_s=WAIT_S),
        # At first a queue may have no owner yet.
        lambda explanation: (
            explanation.causes[0] is Cause.SLOW_LISTENER
            and Cause.FLOW_CONTROLLED in explanation.causes
        ),
        passing=(RemoteError,),
    )
    [reason] = [r for r in found.reasons if r.cause is Cause.FLOW_CONTROLLED]
    assert "pullThresholdForQueue=1" in reason.evidence[0].value


def test_a_paused_member_is_told(admin: cometmq.AdminClient, face: BlockingFace, name: str) -> None:
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    send(face, name, 2)
    received.wait_for(2)
    consumer.pause()
    # A pull that is under way when a member pauses still brings all that is there, so send more before each question.
    found = explained(admin, name, Cause.MEMBER_PAUSED, before=lambda: send(face, name, 4))
    assert consumer.client_id in found.answer
    consumer.resume()
    explained(admin, name, Cause.CAUGHT_UP)


@pytest.mark.parametrize("kind", ["push", "poll"])
def test_a_paused_topic_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, kind: str
) -> None:
    consumer: Any
    if kind == "push":
        consumer = face.consumer(name, name, Received().handle, consume_from=FIRST)
    else:
        consumer = face.new_lite_pull_consumer(name, consume_from=FIRST)
        consumer.subscribe(name)
        face.started(consumer)
    consumer.pause(name)
    found = explained(admin, name, Cause.MEMBER_PAUSED, before=lambda: send(face, name, 4))
    assert f"paused by {consumer.client_id}" in found.answer
    assert any(f"{name}@" in each.value for each in found.reasons[0].evidence)


def test_a_group_that_may_not_consume_is_told_with_its_refused_pulls(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    received = Received()
    admin.groups.create(name)
    face.consumer(name, name, received.handle, consume_from=FIRST)
    admin.groups.update(name, consume_enable=False)
    send(face, name)
    explained(admin, name, Cause.CONSUMPTION_DISABLED)
    found = eventually(
        lambda: admin.explain.group(name, deadline_s=WAIT_S),
        lambda explanation: Cause.PULLS_REFUSED in explanation.causes,
    )
    [refused] = [r for r in found.reasons if r.cause is Cause.PULLS_REFUSED]
    assert "NO_PERMISSION" in refused.said


def test_a_topic_that_may_not_be_read_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    send(face, name, 2)
    received.wait_for(2)
    admin.topics.update(name, permission=2)
    send(face, name)
    found = explained(admin, name, Cause.TOPIC_UNREADABLE)
    assert "perm=2" in found.answer


def test_a_broker_that_may_not_be_read_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    send(face, name, 2)
    received.wait_for(2)
    admin.brokers.update_config({"brokerPermission": "2"})
    try:
        send(face, name)
        explained(admin, name, Cause.BROKER_UNREADABLE)
    finally:
        admin.brokers.update_config({"brokerPermission": "6"})


def test_a_group_that_is_forbidden_a_topic_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    send(face, name, 2)
    received.wait_for(2)
    admin.groups.set_may_read(name, name, readable=False)
    send(face, name)
    explained(admin, name, Cause.GROUP_FORBIDDEN)


def test_members_with_different_subscriptions_are_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, hold: threading.Event
) -> None:
    for tags in ("a", "b"):
        face.consumer(
            name, name, listener(hold), tags, consume_from=FIRST, instance_name=f"{name}-{tags}"
        )
    send(face, name, tags="a")
    found = explained(admin, name, Cause.DIFFERENT_SUBSCRIPTIONS)
    assert f"{name} by TAG a" in found.answer
    assert f"{name} by TAG b" in found.answer


def test_a_queue_whose_lock_another_client_holds_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, address: str
) -> None:
    queues = [{"topic": name, "brokerName": "broker-a", "queueId": n} for n in (0, 1)]
    body = {"consumerGroup": name, "clientId": "somebody", "mqSet": queues}
    with RawClient(address) as client:
        assert client.ask(LOCK_BATCH_MQ, {}, json.dumps(body).encode()).code == 0
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST, orderly=True)
    send(face, name)
    found = explained(admin, name, Cause.QUEUE_LOCKED)
    assert "another client holds the lock" in found.answer
    assert any("holds the lock" in e.value for e in found.reasons[0].evidence)


class LaterClock(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() + 60_000


async def test_queues_without_an_owner_are_rebalanced_or_lost(
    cluster: Any, face: BlockingFace, name: str
) -> None:
    def give_none(*_: Any) -> list[MessageQueue]:
        return []

    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST, allocation=give_none)
    send(face, name)
    async with cometmq.aio.AdminClient(cluster.namesrv, timeout_ms=int(WAIT_S * 1000)) as admin:
        soon = await admin.explain.group(name, deadline_s=WAIT_S)
        # A minute later it is no rebalance any more.
        later = await Explanations(admin.explain._servers, LaterClock()).group(
            name, deadline_s=WAIT_S
        )
    assert soon.causes[0] is Cause.REBALANCING
    assert later.causes[0] is Cause.QUEUE_WITHOUT_OWNER


def test_retries_are_told_even_if_nothing_else_waits(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    def fail(_messages: list[Any]) -> ConsumeResult:
        return ConsumeResult.RECONSUME_LATER

    face.consumer(name, name, fail, consume_from=FIRST)
    send(face, name)
    found = explained(admin, name, Cause.RETRY_STORM)
    assert "100% of what the listener gets fails" in found.answer
    assert any("SNDBCK_PUT_NUMS" in e.figure for e in found.reasons[0].evidence) or any(
        "consumeFailedTPS" in e.figure for e in found.reasons[0].evidence
    )


def test_a_suspended_queue_of_an_orderly_group_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    def suspend(_messages: list[Any]) -> ConsumeResult:
        return ConsumeResult.SUSPEND

    pause: Any = {"suspend_current_queue_time_ms": 100}
    face.consumer(name, name, suspend, consume_from=FIRST, orderly=True, **pause)
    send(face, name)
    found = explained(admin, name, Cause.QUEUE_SUSPENDED)
    assert found.lag == 6
    assert Cause.SLOW_LISTENER not in found.causes


@pytest.mark.parametrize("by", ["tags", "sql"])
def test_a_filter_that_passes_over_what_waits_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, by: str
) -> None:
    received = Received()
    consumer = face.new_consumer(name, received.handle, consume_from=FIRST)
    if by == "tags":
        consumer.subscribe(name, "a")
    else:
        consumer.subscribe(name, sql="TAGS = 'a'")
    face.started(consumer)
    send(face, name, 2, tags="a")
    received.wait_for(2)
    explained(admin, name, Cause.CAUGHT_UP)

    def look() -> GroupExplanation:
        # The pulls wait at the end, and what they do not select does not wake them. But every 15 s
        # they end and begin again, behind all of it.
        send(face, name, 6, tags="b")
        return admin.explain.group(name, deadline_s=WAIT_S)

    found = eventually(look, lambda explanation: explanation.causes[0] is Cause.FILTER)
    assert re.search(r"passes over (\d+) of \1 messages", found.answer)


def test_members_without_a_queue_are_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, hold: threading.Event
) -> None:
    for number in range(3):
        face.consumer(
            name, name, listener(hold), consume_from=FIRST, instance_name=f"{name}-{number}"
        )
    send(face, name)
    found = eventually(
        lambda: admin.explain.group(name, deadline_s=WAIT_S),
        # While members share the queues, one may have no owner, or its owner nothing yet.
        lambda explanation: (
            explanation.causes[0] is Cause.SLOW_LISTENER
            and Cause.MORE_MEMBERS_THAN_QUEUES in explanation.causes
        ),
        passing=(RemoteError,),
    )
    [idle] = [r for r in found.reasons if r.cause is Cause.MORE_MEMBERS_THAN_QUEUES]
    assert "3 members share 2 queues" in idle.said


def test_a_broadcasting_group_has_no_lag_at_brokers(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, tmp_path: Any
) -> None:
    received = Received()
    face.consumer(
        name,
        name,
        received.handle,
        consume_from=FIRST,
        message_model=MessageModel.BROADCASTING,
        local_offset_dir=str(tmp_path),
    )
    send(face, name)
    received.wait_for(6)
    assert explained(admin, name, Cause.BROADCASTING).severity is Severity.OK


def test_a_program_that_does_not_poll_is_told(
    admin: cometmq.AdminClient, face: BlockingFace, name: str
) -> None:
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST)
    consumer.subscribe(name)
    face.started(consumer)
    has_queues(consumer, name)
    send(face, name)
    found = explained(admin, name, Cause.BEHIND)
    assert "its program pulls by itself" in found.answer


def test_a_member_that_does_not_answer_is_named(
    admin: cometmq.AdminClient, face: BlockingFace, name: str, address: str
) -> None:
    admin.groups.create(name)
    send(face, name)
    subscription = {"topic": name, "subString": "*", "expressionType": "TAG", "subVersion": 1}
    member = {
        "groupName": name,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": f"silent-{name}", "consumerDataSet": [member], "producerDataSet": []}
    with RawClient(address) as client:
        assert client.ask(HEART_BEAT, {}, json.dumps(body).encode()).code == 0
        # On a busy machine others may not answer in so short a time either.
        found = eventually(
            lambda: admin.explain.group(name, deadline_s=2),
            lambda explanation: [e.address for e in explanation.unasked] == [f"silent-{name}"],
            passing=(RemoteError,),
        )
    assert Cause.MEMBER_SILENT in found.causes
    assert found.severity is Severity.WARNING


def test_a_group_or_a_time_that_cannot_be_is_refused(
    admin: cometmq.AdminClient, topic: str
) -> None:
    with pytest.raises(RemoteError, match=r"no broker that answered knows the group 'nobody'"):
        admin.explain.group("nobody")
    with pytest.raises(RemoteError, match=r"no broker that answered knows the group 'nobody'"):
        admin.explain.group("nobody", topic)
    with pytest.raises(IllegalArgumentError, match="deadline_s is 0"):
        admin.explain.group("nobody", deadline_s=0)
    with pytest.raises(IllegalArgumentError):
        admin.explain.group("no group")
