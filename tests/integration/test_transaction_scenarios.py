"""Test transactions by both faces against a real cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.client_faces import BlockingFace
from tests.integration.transaction_faces import (
    COMMIT,
    COMMITTED,
    QUICK,
    ROLLBACK,
    UNKNOWN,
    Face,
    Listener,
    unresolved,
)
from tests.waits import WAIT_S, eventually

import cometmq
import cometmq.aio
from cometmq import Message, SendStatus
from cometmq.errors import IllegalArgumentError
from cometmq.testing import Cluster

pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0", **QUICK})]


@pytest.fixture
def resolved(cluster: Cluster) -> Callable[[], bool]:
    """Return a function that says whether the broker asks for no transaction any more."""
    return lambda: unresolved(cluster) == 0


@pytest.fixture
def keeps_place() -> bool:
    """Whether a committed message says where its half message was meant for."""
    return True


@pytest.fixture
def commits_once() -> bool:
    """Say whether the broker commits a message once, however often a producer says so."""
    return True


@pytest.fixture
def face(face: BlockingFace) -> Face:
    return Face(face)


def test_what_is_committed_is_consumed_and_what_is_rolled_back_is_not(
    face: Face, name: str, resolved: Callable[[], bool], keeps_place: bool
) -> None:
    listener = face.listener()
    producer = face.producer(name, listener)
    # A broker without a verdict soon asks for one, and this machine may be slow.
    patient = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}
    own = {"own": "value", **patient}
    message = Message(name, b"kept", tags="paid", keys="k1", properties=own, flag=3)
    result = producer.send_in_transaction(message, {"an": "argument"})
    assert (result.status, result.state) == (SendStatus.SEND_OK, COMMIT)
    assert result.transaction_id == result.msg_id == message.transaction_id == message.unique_id
    executed, arg, _ = listener.executed[0]
    assert executed is message
    assert arg == {"an": "argument"}
    listener.verdicts["execute"] = ROLLBACK
    dropped = Message(name, b"dropped", properties=patient)
    assert producer.send_in_transaction(dropped).state is ROLLBACK
    listener.verdicts["execute"] = COMMIT
    producer.send_in_transaction(Message(name, b"z" * 20_000, properties=patient))
    producer.send(Message(name, b"ordinary"))
    received = face.received(name)
    received.wait_for(3)
    kept = next(m for m in received.messages if m.body == b"kept")
    assert {m.body[:8] for m in received.messages} == {b"kept", b"z" * 8, b"ordinary"}
    assert (kept.tags, kept.keys, kept.flag) == ("paid", ("k1",), 3)
    assert kept.msg_id == result.msg_id
    properties = kept.properties
    assert (properties["own"], properties["PGROUP"]) == ("value", name)
    place = (properties.get("REAL_TOPIC"), properties.get("REAL_QID"))
    assert place == ((name, str(kept.queue_id)) if keeps_place else (None, None))
    assert kept.sys_flag & 12 == COMMITTED
    half_offset = int(result.offset_msg_id[16:], 16)
    assert kept.prepared_transaction_offset == half_offset < kept.commit_log_offset
    eventually(resolved)
    assert listener.checked == []


@pytest.mark.faces("virtual", "blocking", seeds=2)
@pytest.mark.parametrize(
    "verdict", [UNKNOWN, ValueError("no database"), None], ids=["unknown", "raises", "none"]
)
def test_what_is_unknown_is_asked_for_until_somebody_knows(
    face: Face, name: str, resolved: Callable[[], bool], commits_once: bool, verdict: Any
) -> None:
    listener = face.listener(execute=verdict)
    producer = face.producer(name, listener)
    sent = Message(name, b"x" * 5000, properties={"order": "7"})
    result = producer.send_in_transaction(sent)
    assert result.state is UNKNOWN
    listener.wait_checked(2)
    listener.verdicts["check"] = COMMIT
    received = face.received(name)
    assert received.wait_for(1)[0].body == sent.body
    asked = listener.checked[0]
    assert (asked.topic, asked.body, asked.queue_id) == (name, sent.body, result.queue.queue_id)
    assert asked.msg_id == asked.transaction_id == result.msg_id
    assert asked.properties["order"] == "7"
    # Several threads answer, so of two questions that wait the second may be noted first.
    times = sorted(
        int(message.properties["TRANSACTION_CHECK_TIMES"]) for message in list(listener.checked)
    )
    # Questions that the broker asked before it had heard of the producer count, too.
    assert times == list(range(times[0], times[0] + len(times)))
    eventually(resolved)
    if commits_once:
        assert len(received.messages) == 1


@pytest.mark.faces("virtual", "blocking", seeds=2)
def test_a_member_of_the_group_answers_for_one_that_died(
    face: Face, name: str, resolved: Callable[[], bool], commits_once: bool
) -> None:
    died = face.producer(name, face.listener(execute=UNKNOWN), instance_name="died")
    died.send_in_transaction(Message(name, b"orphan"))
    died.send_in_transaction(Message(name, b"second"))
    died.close()
    survivor = face.listener(check=COMMIT)
    # This member never sent anything, and never heard of the topic.
    face.producer(name, survivor, instance_name="survivor")
    received = face.received(name)
    eventually(lambda: set(received.bodies) == {b"orphan", b"second"})
    eventually(resolved)
    if commits_once:
        assert sorted(received.bodies) == [b"orphan", b"second"]


def test_listeners_may_be_slow_and_many_run_at_once(face: Face, name: str) -> None:
    begun = threading.Barrier(4, timeout=WAIT_S)

    class Slow(Listener):
        def execute(self, message: Message, arg: Any) -> Any:
            begun.wait()
            return COMMIT

    producer = face.producer(name, Slow(), concurrency=4)
    results: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(producer.send_in_transaction(Message(name, b"slow")))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert [result.state for result in results] == [COMMIT] * 4


def test_refused_before_anything_is_sent(face: Face, name: str) -> None:
    listener = face.listener()
    producer = face.producer(name, listener)
    with pytest.raises(IllegalArgumentError, match="cannot be delayed"):
        producer.send_in_transaction(Message(name, b"x", properties={"DELAY": "3"}))
    with pytest.raises(IllegalArgumentError, match="PGROUP belong"):
        producer.send_in_transaction(Message(name, b"x", properties={"PGROUP": "g"}))
    with pytest.raises(IllegalArgumentError, match="has no method execute"):
        cometmq.TransactionProducer(name, object(), namesrv="h:1")  # type: ignore[arg-type]  # the wrong type is the test
    with pytest.raises(IllegalArgumentError, match=r"Listener'> is a class; pass an object of it"):
        cometmq.TransactionProducer(name, Listener, namesrv="h:1")  # type: ignore[arg-type]  # the wrong type is the test
    with pytest.raises(IllegalArgumentError, match="topics is 'orders'; pass a list"):
        cometmq.TransactionProducer(name, listener, namesrv="h:1", topics="orders")
    with pytest.raises(IllegalArgumentError, match="'a b' has characters outside"):
        cometmq.TransactionProducer(name, listener, namesrv="h:1", topics=["a b"])
    assert listener.executed == []
