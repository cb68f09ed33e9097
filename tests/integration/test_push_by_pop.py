"""Test the push consumer that pops, by both faces against a real broker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from tests.integration.client_faces import Face
from tests.integration.test_receiving import fill
from tests.waits import CLOCK, WAIT_S, eventually

from cometmq import ConsumeReport, ConsumeResult, Message, MessageExt, MessageQueue
from cometmq.client.popping.acknowledging import Acknowledgements
from cometmq.client.popping.received import Receipt
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.protocol.codes import ResponseCode

pytestmark = [pytest.mark.faces("virtual", "blocking")]

# The shortest time for which a push consumer hides what it pops.
HIDDEN_MS = 5_000
FIRST = {"mode": "pop", "consume_from": "CONSUME_FROM_FIRST_OFFSET"}


class Heard:
    """Remembers the messages that listeners got. `refused` says how often to refuse each body."""

    def __init__(self, **refused: int) -> None:
        self.messages: list[MessageExt] = []
        self.refused = refused
        self.lock = threading.Lock()

    def __call__(self, messages: list[MessageExt]) -> ConsumeResult:
        with self.lock:
            self.messages += messages
            body = messages[0].body.decode()
            if self.refused.get(body, 0) > 0:
                self.refused[body] -= 1
                return ConsumeResult.RECONSUME_LATER
        return ConsumeResult.SUCCESS

    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages]

    def until(self, count: int) -> None:
        eventually(lambda: len(self.messages) >= count)


def consumer_of(face: Face, topic: str, handle: Any, **options: Any) -> Any:
    return face.consumer(topic, topic, handle, **{**FIRST, **options})


def test_listeners_get_all_messages_and_what_they_refuse_again(face: Face, name: str) -> None:
    fill(face, name, *(b"%d" % number for number in range(40)))
    heard = Heard(**{"7": 1})
    consumer = consumer_of(face, name, heard)
    # The refused message comes again after the ten seconds of pull mode's first delay.
    heard.until(41)
    counts = Counter(heard.bodies())
    assert counts.pop("7") == 2
    assert set(counts.values()) == {1}
    again = [message for message in heard.messages if message.body == b"7"][1]
    assert (again.topic, again.reconsume_times) == (name, 1)
    assert MessageQueue(name, "broker-a", -1) in consumer.assigned_queues()
    consumer.close()
    # All messages were acknowledged: another member gets none.
    other = Heard()
    consumer_of(face, name, other)
    CLOCK.sleep(0.9)
    assert other.bodies() == []


def test_more_members_than_queues_and_no_gap_when_one_leaves(face: Face, name: str) -> None:
    fill(face, name, b"first")
    heard = [Heard() for _ in range(3)]

    def slow(by: Heard) -> Any:
        def handle(messages: list[MessageExt]) -> Generator[float, None, ConsumeResult]:
            by(messages)
            yield 0.05
            return ConsumeResult.SUCCESS

        return handle

    options = {"concurrency": 1, "pop_batch_size": 1, "pop_threshold_for_queue": 1}
    members = [consumer_of(face, name, slow(by), **options) for by in heard]
    producer = face.producer(f"{name}-more")
    queue = MessageQueue(name, "broker-a", 0)
    for number in range(60):
        producer.send(Message(name, b"%d" % number), queue=queue)
    eventually(lambda: sum(len(by.messages) for by in heard) == 61)
    assert all(by.messages for by in heard), "one queue is shared by all members"
    members[0].close()
    begun = CLOCK.monotonic()
    producer.send(Message(name, b"after"), queue=queue)
    eventually(lambda: any("after" in by.bodies() for by in heard[1:]))
    assert CLOCK.monotonic() - begun < WAIT_S / 2


@pytest.mark.faces("virtual")
def test_a_message_stays_hidden_while_its_listener_works(face: Face, name: str) -> None:
    fill(face, name, b"long")
    heard = Heard()

    done: list[bytes] = []

    def handle(messages: list[MessageExt]) -> Generator[float, None, ConsumeResult]:
        heard(messages)
        for _ in range(26):
            yield HIDDEN_MS / 10_000
        done.append(messages[0].body)
        return ConsumeResult.SUCCESS

    consumer_of(face, name, handle, pop_invisible_ms=HIDDEN_MS)
    heard.until(1)
    consumer_of(face, name, heard, pop_invisible_ms=HIDDEN_MS)
    eventually(lambda: done)
    CLOCK.sleep(0.9)
    assert heard.bodies() == ["long"]


def test_a_message_that_is_refused_too_often_is_a_dead_letter(face: Face, name: str) -> None:
    fill(face, name, b"bad", b"good")
    heard = Heard(bad=99)
    consumer_of(face, name, heard, max_reconsume_times=0)
    heard.until(2)
    letters = Heard()
    eventually(lambda: _routed(face, f"%DLQ%{name}"))
    face.consumer(
        f"{name}-letters", f"%DLQ%{name}", letters, consume_from="CONSUME_FROM_FIRST_OFFSET"
    )
    letters.until(1)
    assert letters.bodies() == ["bad"]
    assert sorted(heard.bodies()) == ["bad", "good"]


def test_a_member_does_not_count_a_delivery_that_it_repeats_itself(
    face: Face, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gives a message back, but no slave confirms that. The member took the delivery that it then
    repeated for the last, and sent the message to the retry topic, for up to two hours.
    """
    fill(face, name, b"bad")
    hide = Acknowledgements.hide
    unconfirmed: list[Receipt] = []

    async def unconfirmed_once(
        self: Acknowledgements, receipt: Receipt, invisible_ms: int, **options: bool
    ) -> bool:
        was_in_flight = await hide(self, receipt, invisible_ms, **options)
        if not unconfirmed:
            unconfirmed.append(receipt)
            raise RemoteError("no slave has it", code=ResponseCode.SLAVE_NOT_AVAILABLE)
        return was_in_flight

    monkeypatch.setattr(Acknowledgements, "hide", unconfirmed_once)
    counts: list[int] = []

    def handle(messages: list[MessageExt]) -> ConsumeResult:
        counts.append(messages[0].reconsume_times)
        return ConsumeResult.RECONSUME_LATER

    consumer_of(face, name, handle, max_reconsume_times=1)
    eventually(lambda: _routed(face, f"%DLQ%{name}"))
    # The first delivery, the member's repetition of it, and the last delivery.
    assert counts == [0, 0, 1]


def _routed(face: Face, topic: str) -> bool:
    face.until_routed(topic, "broker-a")
    return True


def test_a_report_sends_a_message_to_the_dead_letters_at_once(face: Face, name: str) -> None:
    fill(face, name, b"poison")
    heard: list[bytes] = []

    def handle(messages: list[MessageExt]) -> Any:
        heard.extend(message.body for message in messages)
        return ConsumeReport(ConsumeResult.RECONSUME_LATER, delay_level=-1)

    consumer_of(face, name, handle)
    eventually(lambda: _routed(face, f"%DLQ%{name}"))
    assert heard == [b"poison"]


def test_in_order_a_refused_message_holds_up_those_behind_it(face: Face, name: str) -> None:
    fill(face, name, *(b"%d" % number for number in range(6)))
    heard = Heard(**{"2": 2})
    consumer_of(face, name, heard, orderly=True, suspend_current_queue_time_ms=50, pop_batch_size=2)
    heard.until(8)
    assert heard.bodies() == ["0", "1", "2", "2", "2", "3", "4", "5"]


def test_in_order_the_last_failure_is_a_dead_letter(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1")
    heard = Heard(**{"0": 99})
    consumer_of(
        face, name, heard, orderly=True, max_reconsume_times=1, suspend_current_queue_time_ms=50
    )
    heard.until(3)
    assert heard.bodies() == ["0", "0", "1"]
    eventually(lambda: _routed(face, f"%DLQ%{name}"))


def test_only_messages_of_the_tag_come(face: Face, name: str) -> None:
    fill(face, name, b"0", tags="new")
    fill(face, name, b"1", tags="paid")
    heard = Heard()
    consumer_of(face, name, heard, tags="paid")
    heard.until(1)
    CLOCK.sleep(0.5)
    assert heard.bodies() == ["1"]


@pytest.mark.faces("virtual", "blocking", seeds=5)
def test_a_close_gives_back_what_no_listener_began(face: Face, name: str) -> None:
    fill(face, name, *(b"%d" % number for number in range(20)))
    began = Heard()

    def handle(messages: list[MessageExt]) -> Generator[float, None, ConsumeResult]:
        began(messages)
        yield 0.9
        return ConsumeResult.SUCCESS

    first = consumer_of(face, name, handle, concurrency=1, pop_invisible_ms=300_000)
    began.until(1)
    first.close()
    heard = Heard()
    consumer_of(face, name, heard)
    # Long before the five minutes are over.
    begun = CLOCK.monotonic()
    heard.until(20 - len(began.messages))
    assert CLOCK.monotonic() - begun < 120
    assert sorted(heard.bodies() + began.bodies()) == sorted(map(str, range(20)))


def test_a_member_holds_no_more_than_its_threshold(face: Face, name: str) -> None:
    fill(face, name, *(b"%d" % number for number in range(30)))
    began = Heard()
    gate = threading.Event()

    def handle(messages: list[MessageExt]) -> Generator[float, None, ConsumeResult]:
        began(messages)
        while not gate.is_set():
            yield 0.02
        return ConsumeResult.SUCCESS

    consumer_of(face, name, handle, concurrency=1, pop_threshold_for_queue=4)
    began.until(1)
    rest = Heard()
    consumer_of(face, name, rest)
    # The other member gets all messages that the first one does not hold.
    rest.until(26)
    CLOCK.sleep(0.5)
    assert len(rest.messages) == 26
    gate.set()
    eventually(lambda: len(began.messages) + len(rest.messages) == 30)


@pytest.mark.parametrize(
    "options",
    [
        {"pull_batch_size": 16},
        {"message_model": "BROADCASTING"},
        {"consume_max_span": 10},
        {"on_damaged": "SKIP"},
        {"client_rebalance": False},
    ],
)
def test_options_of_pulls_are_refused_by_name(face: Face, options: dict[str, Any]) -> None:
    (option,) = options
    with pytest.raises(IllegalArgumentError, match=f"{option} means nothing.*mode='pop'"):
        face.new_consumer("g", mode="pop", **options)


def test_what_failed_before_a_change_to_pulls_is_pulled(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1", b"2")
    heard = Heard(**{"0": 99, "1": 99, "2": 99})
    popping = consumer_of(face, name, heard, pop_invisible_ms=HIDDEN_MS)
    heard.until(3)
    popping.close()
    # Their ten seconds are over now, and no member pops any more.
    face.until_routed(f"%RETRY%{name}_{name}", "broker-a")
    pulled = Heard()
    face.consumer(name, name, pulled, consume_from="CONSUME_FROM_FIRST_OFFSET")
    # They may come a second time from their queue: their offset is committed a little later. One that fails
    # again before the close, on a busy machine, comes with its second retry.
    eventually(
        lambda: {m.body for m in pulled.messages if m.reconsume_times >= 1} == {b"0", b"1", b"2"}
    )
    assert {message.topic for message in pulled.messages} == {name}


def test_what_failed_before_a_change_to_pops_is_pulled_beside(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1")
    refusing = Heard(**{"1": 1})
    pulling = face.consumer(name, name, refusing, consume_from="CONSUME_FROM_FIRST_OFFSET")
    refusing.until(2)
    pulling.close()
    heard = Heard()
    consumer_of(face, name, heard)
    heard.until(1)
    assert set(heard.bodies()) == {"1"}
