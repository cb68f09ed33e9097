"""A message's trace as a line of time."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.console.actors import Actors
from tests.console.running import Visitor
from tests.waits import eventually

from cometmq import AdminClient
from cometmq.admin.messages.room import TraceEvent
from cometmq.client.tracing.codec import ContextCode, TraceType
from cometmq.console.views.timeline import WIDTH, timelines
from cometmq.model.message import MessageExt
from cometmq.testing import Cluster


@pytest.fixture(scope="module")
def actors(cluster: Cluster) -> Iterator[Actors]:
    with Actors(cluster.namesrv) as made:
        yield made


def test_a_trace_tells_who_sent_stored_and_consumed(
    actors: Actors, admin: AdminClient, reader: Visitor
) -> None:
    sent = actors.trace("traced-group", "traced-topic", b"x")
    eventually(lambda: len(admin.messages.trace(sent.msg_id)) == 3)
    page = reader.get("/trace", id=sent.msg_id)
    steps = re.findall(r'class="badge step-(\w+)"', page.html)
    assert steps == ["sent", "stored", "consumed"]
    assert re.search(r"offset \d", page.text)
    chinese = reader.send("GET", f"/trace?id={sent.msg_id}", headers={"Accept-Language": "zh"})
    assert re.search(r"位点 \d", chinese.text)
    assert "traced-group-sender" in page.text
    assert "traced-group" in page.text
    assert page.html.count("<rect") == 3
    by_key = reader.get("/trace", id="traced-topic-traced")
    assert sent.msg_id in by_key.text


def test_what_has_no_trace(reader: Visitor) -> None:
    assert "Enter the id or a key" in reader.get("/trace").text
    assert "has no trace of it" in reader.get("/trace", id="no-such-message").text
    assert reader.get("/trace", id="two words").status == 400
    assert reader.get("/trace", id="x" * 300).status == 400
    assert reader.get("/trace", id="x", trace_topic="no topic!").status == 400
    assert "Not known" in reader.get("/trace", id="x", trace_topic="never-made").text


def event(kind: TraceType, at_ms: int, **values: object) -> TraceEvent:
    given: dict[str, object] = {
        "kind": kind, "msg_id": "m", "topic": "", "group": "g", "client": "10.0.0.1",
        "timestamp_ms": at_ms, "cost_ms": 0, "success": True, "request_id": "", "retry_times": 0,
        "context": None, **values,
    }  # fmt: skip
    return TraceEvent(**given)  # type: ignore[arg-type]  # by name


def test_steps_lie_where_they_belong_in_time() -> None:
    events = [
        event(TraceType.PUB, 1000, cost_ms=10, topic="t"),
        event(TraceType.SUB_BEFORE, 1050, request_id="r1"),
        event(TraceType.SUB_AFTER, 0, request_id="r1", cost_ms=50, success=False,
              context=ContextCode.FAILED, group=""),
        event(TraceType.SUB_BEFORE, 1100, request_id="r2", retry_times=1),
    ]  # fmt: skip
    stored = {"m": [MessageExt("t", b"", store_timestamp_ms=1002, broker_name="b")]}
    [line] = timelines(events, stored)
    assert (line.topic, line.begin_ms, line.end_ms) == ("t", 1000, 1100)
    assert [step.kind for step in line.steps] == ["sent", "stored", "consumed", "consumed"]
    failed, running = line.steps[2:]
    assert (failed.at_ms, failed.took_ms, failed.good, failed.outcome) == (
        1050, 50, False, "to be retried",
    )  # fmt: skip
    assert (failed.x, failed.width) == (500.0, 500.0)
    assert (running.took_ms, running.good, running.retries) == (None, None, 1)
    for step in line.steps:
        assert step.x >= 0
        assert step.x + step.width <= WIDTH


def test_an_end_without_its_beginning_has_a_time_if_its_client_tells() -> None:
    old = event(TraceType.SUB_AFTER, 0, request_id="r1", cost_ms=5)
    new = event(TraceType.SUB_AFTER, 2000, request_id="r2", cost_ms=5, context=ContextCode.SUCCESS)
    [line] = timelines([old, new], {})
    assert [step.at_ms for step in line.steps] == [1995, None]
    assert [step.outcome for step in line.steps] == ["consumed", "consumed"]
