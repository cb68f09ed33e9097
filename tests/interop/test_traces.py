"""Traces and namespaces: what our clients write Java's read, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.clients import CometClient, JavaClient
from tests.interop.conftest import need
from tests.waits import eventually

from cometmq import LitePullConsumer
from cometmq.client.tracing.codec import (
    ContextCode,
    MessageType,
    TraceContext,
    TraceType,
    decode_traces,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.clients import Event
    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TRACE = "RMQ_SYS_TRACE_TOPIC"
COMET = CometClient()
COUNT = 12
# Message 0 fails its consumer once, the others do not.
FAIL_FIRST = "1" + ",0" * (COUNT - 1)


@pytest.fixture(params=["comet_servers", "java_servers"])
def namesrv(request: pytest.FixtureRequest) -> Namesrv:
    need("java", "mvn")
    address: Namesrv = request.getfixturevalue(request.param)
    return address


def traced(namesrv: Namesrv, fresh: Callable[[str], str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a producer and a consumer, both traced."""
    base: dict[str, Any] = {
        "namesrv": namesrv,
        "topic": fresh("topic"),
        "group": fresh("group"),
        "trace": True,
    }
    produce = {**base, "count": COUNT, "tags": "a,b", "prefix": "key"}
    return produce, {**base, "fail_times": FAIL_FIRST}


def times_of(event: Event) -> int:
    """How often a message that was sent comes."""
    return 2 if event["index"] == 0 else 1


@pytest.mark.parametrize("line", [4, 5])
def test_java_reads_our_traces(namesrv: Namesrv, fresh: Callable[[str], str], line: int) -> None:
    produce, consume = traced(namesrv, fresh)
    sent = COMET.produce(**produce)
    events = COMET.run("consume", **consume, expected=COUNT + 1)
    assert sum(event["event"] == "message" for event in events) == COUNT + 1

    def afters_of(traces: list[Event], event: Event) -> int:
        return sum(
            (e["event"], e.get("type"), e.get("msgId")) == ("trace", "SubAfter", event["msgId"])
            for e in traces
        )

    # A Java broker puts messages into their queues behind the answers.
    traces = eventually(
        lambda: JavaClient(line).run("traces", namesrv=namesrv, topic=TRACE),
        lambda traces: all(afters_of(traces, event) >= times_of(event) for event in sent),
    )
    for event in sent:
        mine = [e for e in traces if e["event"] == "trace" and e["msgId"] == event["msgId"]]
        (pub,) = [e for e in mine if e["type"] == "Pub"]
        index = event["index"]
        assert pub["topic"] == fresh("topic")
        assert pub["group"] == fresh("group")
        assert pub["success"] is True
        assert pub["msgType"] == "Normal_Msg"
        assert (pub["tags"], pub["keys"]) == ("ab"[index % 2], f"key-{index} all-key")
        assert pub["offsetMsgId"] == event["offsetMsgId"]
        assert pub["bodyLength"] == 64
        assert event["msgId"] in pub["messageKeys"].split()
        times = times_of(event)
        befores = [e for e in mine if e["type"] == "SubBefore"]
        afters = {e["requestId"]: e for e in mine if e["type"] == "SubAfter"}
        assert sorted(e["retryTimes"] for e in befores) == list(range(times))
        assert {e["requestId"] for e in befores} == set(afters)
        for before in befores:
            after = afters[before["requestId"]]
            failed = index == 0 and before["retryTimes"] == 0
            assert after["success"] is not failed
            assert after["contextCode"] == (4 if failed else 0)
            assert (before["group"], after["group"]) == (fresh("group"), fresh("group"))


@pytest.mark.parametrize("line", [4, 5])
def test_we_read_javas_traces(namesrv: Namesrv, fresh: Callable[[str], str], line: int) -> None:
    produce, consume = traced(namesrv, fresh)
    client = JavaClient(line)

    def of(read: list[TraceContext], event: Event) -> list[TraceContext]:
        return [c for c in read if c.beans[0].msg_id == event["msgId"]]

    def all_came(read: list[TraceContext]) -> bool:
        return all(len(of(read, event)) >= 1 + 2 * times_of(event) for event in sent)

    # They stay until all came: a Java client that is shut down drops what it has not sent soon.
    with (
        client.start("produce", **produce, until_stdin=True) as producer,
        client.start("consume", **consume, until_stdin=True) as consumer,
        LitePullConsumer(fresh("reader"), namesrv=namesrv) as reader,
    ):
        consumer.wait_messages(COUNT + 1)
        eventually(lambda: len(producer.named("sent")) == COUNT)
        sent = producer.named("sent")
        read = eventually(lambda: read_traces(reader), all_came, pause_s=0.1)
        events = consumer.finish()
        producer.finish()
    assert sum(event["event"] == "message" for event in events) == COUNT + 1
    for event in sent:
        mine = of(read, event)
        (pub,) = [c for c in mine if c.type is TraceType.PUB]
        bean = pub.beans[0]
        index = event["index"]
        assert (bean.topic, pub.group, pub.success) == (fresh("topic"), fresh("group"), True)
        assert (bean.tags, bean.keys) == ("ab"[index % 2], f"key-{index} all-key")
        assert bean.message_type == MessageType.NORMAL
        befores = [c for c in mine if c.type is TraceType.SUB_BEFORE]
        afters = [c for c in mine if c.type is TraceType.SUB_AFTER]
        assert {c.request_id for c in befores} == {c.request_id for c in afters}
        codes = {c.context_code for c in afters}
        expected = (
            {ContextCode.FAILED, ContextCode.SUCCESS} if index == 0 else {ContextCode.SUCCESS}
        )
        assert codes == expected


def read_traces(consumer: LitePullConsumer) -> list[TraceContext]:
    """All traces that the broker has now."""
    read: list[TraceContext] = []
    for queue in consumer.queues(TRACE):
        offset = consumer.min_offset(queue)
        end = consumer.max_offset(queue)
        while offset < end:
            pulled = consumer.pull(queue, offset)
            for message in pulled.messages:
                read += decode_traces(message.body.decode())
            offset = pulled.next_begin_offset
    return read


@pytest.mark.parametrize("line", [4, 5])
@pytest.mark.parametrize("ours_sends", [True, False])
def test_a_namespace_is_the_same_for_both(
    namesrv: Namesrv, fresh: Callable[[str], str], line: int, ours_sends: bool
) -> None:
    java = JavaClient(line)
    sender, receiver = (COMET, java) if ours_sends else (java, COMET)
    base: dict[str, Any] = {"namesrv": namesrv, "topic": fresh("topic"), "namespace": "ns1"}
    sent = sender.produce(**base, count=COUNT)
    events = receiver.run(
        "consume", **base, group=fresh("group"), expected=COUNT + 1, fail_times=FAIL_FIRST
    )
    got = [event for event in events if event["event"] == "message"]
    assert {event["msgId"] for event in got} == {event["msgId"] for event in sent}
    assert {event["topic"] for event in got} == {fresh("topic")}
    assert {event["properties"]["INSTANCE_ID"] for event in got} == {"ns1"}
    # The retried one too came under its own name.
    assert max(event["reconsumeTimes"] for event in got) == 1
    with LitePullConsumer(fresh("reader"), namesrv=namesrv) as consumer:
        wire = f"ns1%{fresh('topic')}"
        queues = eventually(lambda: consumer.queues(wire))
        assert sum(consumer.max_offset(queue) for queue in queues) == COUNT
