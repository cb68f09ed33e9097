"""The calls with which a consumer says that queues come and go, and their order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from tests.integration.client_faces import Face, Received
from tests.integration.test_positions import fill, polled, queue_of
from tests.waits import eventually

from cometmq import ConsumeFromWhere, MessageQueue
from cometmq.errors import IllegalArgumentError

FIRST = ConsumeFromWhere.FIRST_OFFSET
pytestmark = [
    pytest.mark.faces("virtual", "blocking"),
    pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"}),
]


class Heard:
    """Keeps the queues of one topic that came and went, in their order."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.events: list[tuple[str, set[int]]] = []

    def options(self) -> dict[str, Callable[[list[MessageQueue]], None]]:
        return {
            "on_assigned": lambda queues: self._add("assigned", queues),
            "on_revoked": lambda queues: self._add("revoked", queues),
        }

    def _add(self, event: str, queues: list[MessageQueue]) -> None:
        ids = {queue.queue_id for queue in queues if queue.topic == self.topic}
        if ids:
            self.events.append((event, ids))

    def now(self) -> set[int]:
        held: set[int] = set()
        for event, ids in list(self.events):
            held = held | ids if event == "assigned" else held - ids
        return held


@pytest.mark.parametrize("orderly", [False, True])
def test_members_hear_of_their_queues(face: Face, name: str, *, orderly: bool) -> None:
    fill(face, name, b"0")
    first, second = Heard(name), Heard(name)
    received = Received()
    options: dict[str, Any] = {"consume_from": FIRST, "orderly": orderly}
    one = face.consumer(name, name, received.handle, **options, **first.options())
    eventually(lambda: first.events == [("assigned", {0, 1, 2, 3})])
    other = face.consumer(name, name, received.handle, **options, **second.options())
    eventually(lambda: first.now() | second.now() == {0, 1, 2, 3} and len(first.now()) == 2)
    assert first.now() & second.now() == set()
    kept = second.now()
    other.close()
    assert second.events[-1] == ("revoked", kept)
    eventually(lambda: first.now() == {0, 1, 2, 3})
    one.close()
    assert first.events[-1] == ("revoked", {0, 1, 2, 3})


def test_on_revoked_commits_before_the_next_member_begins(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1", b"2")
    consumer: Any = None

    def on_revoked(_queues: list[MessageQueue]) -> None:
        consumer.commit()

    consumer = lite(
        face, name, auto_commit=False, on_revoked=revoking(face, on_revoked, lambda: consumer)
    )
    assert polled(consumer, 3) == [b"0", b"1", b"2"]
    consumer.close()
    again = lite(face, name)
    fill(face, name, b"3")
    assert polled(again, 1) == [b"3"]


def lite(face: Face, name: str, **options: Any) -> Any:
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST, **options)
    consumer.subscribe(name)
    return face.started(consumer)


def revoking(face: Face, plain: Callable[[Any], None], consumer: Callable[[], Any]) -> Any:
    """Return `plain` for the blocking face, and for the asyncio one a coroutine function that does the same."""

    async def on_loop(_queues: list[MessageQueue]) -> None:
        await consumer().client.commit()

    return on_loop if hasattr(face, "driver") else plain


def test_a_seek_in_on_assigned_comes_before_the_first_message(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1", b"2")
    received = Received()
    consumer: Any = None

    def seek(queues: list[MessageQueue]) -> None:
        if queue_of(name) in queues:
            consumer.seek(queue_of(name), 2)

    async def seek_on_loop(queues: list[MessageQueue]) -> None:
        if queue_of(name) in queues:
            await consumer.client.seek(queue_of(name), 2)

    callback = seek_on_loop if hasattr(face, "driver") else seek
    consumer = face.new_consumer(
        name, face.listener(received.handle), consume_from=FIRST, on_assigned=callback
    )
    consumer.subscribe(name)
    face.started(consumer)
    assert [m.body for m in received.wait_for(1)] == [b"2"]
    eventually(lambda: consumer.committed(queue_of(name)) == 3)
    assert received.bodies == [b"2"]


def test_a_callback_that_is_stuck_is_named_and_holds_up_nothing(face: Face, name: str) -> None:
    fill(face, name, b"0")
    received = Received()
    released = threading.Event()

    def is_stuck(_queues: list[MessageQueue]) -> Any:
        released.wait()

    async def is_stuck_on_loop(_queues: list[MessageQueue]) -> None:
        import asyncio

        await asyncio.Event().wait()

    on_loop = hasattr(face, "driver")
    with structlog.testing.capture_logs() as logs:
        consumer = face.consumer(
            name,
            name,
            received.handle,
            consume_from=FIRST,
            on_assigned=is_stuck_on_loop if on_loop else is_stuck,
            rebalance_callback_timeout_ms=100,
        )
        received.wait_for(1)
        consumer.close()
    released.set()
    [said, *_] = [line for line in logs if "callback takes too long" in line["event"]]
    assert said["callback"] == "on_assigned"
    assert "is_stuck" in said["function"]
    assert "rebalance_callback_timeout_ms" in said["remedy"]


def test_a_callback_that_fails_is_logged_and_holds_up_nothing(face: Face, name: str) -> None:
    fill(face, name, b"0")
    received = Received()

    def fails(_queues: list[MessageQueue]) -> None:
        raise ValueError("no database")

    with structlog.testing.capture_logs() as logs:
        face.consumer(name, name, received.handle, consume_from=FIRST, on_assigned=fails)
        received.wait_for(1)
    assert any("a callback failed" in line["event"] for line in logs)


def test_callbacks_are_refused_where_no_queue_belongs_to_a_member(face: Face, name: str) -> None:
    with pytest.raises(
        IllegalArgumentError, match="on_revoked means nothing to a consumer of mode='pop'"
    ):
        face.new_consumer(name, mode="pop", on_revoked=print)
    with pytest.raises(IllegalArgumentError, match=r"on_assigned.*coroutine function"):
        face.new_consumer(name, on_assigned="bill")


def test_an_iteration_acknowledges_in_on_revoked(face: Face, name: str) -> None:
    """Messages that are open when their queue goes may be ended in the callback, and are committed."""
    fill(face, name, b"0", b"1")
    opened: list[Any] = []

    def ack(_queues: list[MessageQueue]) -> None:
        for message in opened:
            message.ack()

    async def ack_on_loop(_queues: list[MessageQueue]) -> None:
        for message in opened:
            await message.client.ack()

    consumer = lite(face, name, on_revoked=ack_on_loop if hasattr(face, "driver") else ack)
    messages = face.following(consumer)
    opened += [next(messages), next(messages)]
    consumer.close()
    again = lite(face, name)
    fill(face, name, b"2")
    assert polled(again, 1) == [b"2"]
