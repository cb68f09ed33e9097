"""Each invariant's verdict on a run that keeps it, and on one that breaks it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from tests.simulation import checker
from tests.simulation.checker import check
from tests.simulation.evidence import StoreImage, Violation
from tests.simulation.history import (
    BrokerConfigured,
    Comparison,
    Consumed,
    Filter,
    History,
    MemberStarted,
    OffsetSeen,
    OffsetsReset,
    Queue,
    QueueSeen,
    RangeRead,
    Read,
    SendFailed,
    TransactionDecided,
)
from tests.simulation.invariants import INVARIANTS
from tests.unit.simulation.story import (
    BROKER,
    EPOCH_MS,
    GROUP,
    LEVELS_MS,
    QUEUE,
    TOPIC,
    MadeStore,
    Story,
    sent_properties,
)

RETRY = f"%RETRY%{GROUP}"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


def only(violations: list[Violation]) -> Violation:
    """Return the one violation that there is."""
    assert len(violations) == 1, "\n".join(map(str, violations))
    return violations[0]


def names(violations: list[Violation]) -> set[str]:
    return {each.invariant for each in violations}


def test_a_run_that_keeps_all_invariants_is_not_blamed() -> None:
    story = Story()
    for number in range(3):
        story.send(number, tags="red", keys=("k1", "k2"))
        story.deliver(number)
    story.record(MemberStarted, member="m", group=GROUP, topic=TOPIC)
    story.record(OffsetSeen, group=GROUP, queue=QUEUE, offset=3)
    story.record(QueueSeen, queue=QUEUE, min_offset=0, max_offset=3)
    story.end(live=True)
    assert story.judged() == []
    assert len(INVARIANTS) == 25


def test_the_checker_shares_no_code_with_what_it_judges() -> None:
    directory = Path(checker.__file__).parent
    modules = ["checker", "evidence", "history", "store_reader"]
    files = [directory / f"{name}.py" for name in modules]
    files += sorted((directory / "invariants").glob("*.py"))
    assert len(files) == 4 + 1 + len(INVARIANTS)
    own = {"tests.simulation." + name for name in (*modules, "invariants")}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                imported = [each.name for each in node.names]
            for name in imported:
                assert not name.startswith("cometmq"), file
                assert not name.startswith("tests") or name.startswith(tuple(own)), file


# -- acknowledged and not lost --


def lost(flush: Any, fault: str | None, *, status: Any = "SEND_OK", wait_s: float = 0) -> Story:
    """Write the history of a message that was acknowledged and is not in the log."""
    story = Story(flush)
    story.send(0)
    story.start(1)
    story.acknowledge(1, 1, 5000, status)
    story.now_s += wait_s
    if fault is not None:
        story.fault(fault)
    story.end()
    return story


@pytest.mark.parametrize(
    ("flush", "fault", "status", "wait_s", "may"),
    [
        ("SYNC_FLUSH", None, "SEND_OK", 0, False),
        ("SYNC_FLUSH", "kill", "SEND_OK", 0, False),
        ("SYNC_FLUSH", "power_off", "SEND_OK", 0, False),
        ("SYNC_FLUSH", "power_off", "FLUSH_DISK_TIMEOUT", 0, True),
        ("SYNC_FLUSH", "kill", "FLUSH_DISK_TIMEOUT", 0, False),
        ("ASYNC_FLUSH", "kill", "SEND_OK", 0, False),
        ("ASYNC_FLUSH", "power_off", "SEND_OK", 0, True),
        ("ASYNC_FLUSH", "power_off", "SEND_OK", 60, False),
        ("ASYNC_FLUSH", "pause", "SEND_OK", 0, False),
        ("SYNC_FLUSH", "wipe", "SEND_OK", 0, True),
    ],
)
def test_what_may_be_lost_is_what_the_flush_mode_says(
    flush: Any, fault: str | None, status: Any, wait_s: float, may: bool
) -> None:
    violations = lost(flush, fault, status=status, wait_s=wait_s).judged()
    if may:
        assert violations == []
    else:
        violation = only(violations)
        assert violation.invariant == "acknowledged and not lost"
        assert violation.what == "message 1 is not in the log"
        assert [type(each).__name__ for each in violation.events] == [
            "SendStarted",
            "SendAcknowledged",
        ]


@pytest.mark.parametrize(("paused_s", "may"), [(58, True), (40, False)])
@pytest.mark.parametrize("resumes", [True, False])
def test_a_paused_broker_cannot_flush(paused_s: float, may: bool, resumes: bool) -> None:
    story = Story("ASYNC_FLUSH")
    story.start(0)
    story.acknowledge(0, 0, 5000)
    story.now_s += 60 - paused_s
    story.fault("pause")
    story.now_s += paused_s
    if resumes:
        story.fault("resume")
    story.fault("power_off")
    story.end()
    assert names(story.judged()) == (set() if may else {"acknowledged and not lost"})


def test_a_slow_disk_that_became_fast_again_is_no_excuse_by_itself() -> None:
    story = Story("ASYNC_FLUSH")
    story.start(0)
    story.acknowledge(0, 0, 5000)
    story.now_s += 60
    story.fault("slow_disk", seconds=0)
    story.fault("power_off")
    story.end()
    assert only(story.judged()).what == "message 0 is not in the log"


def test_a_loss_of_power_takes_from_the_tail_only() -> None:
    story = Story("ASYNC_FLUSH")
    story.send(0)
    for number in (1, 2):
        story.start(number)
        story.acknowledge(number, number, 1000 * number)
    story.fault("power_off")
    story.end()
    assert story.judged() == []
    story = Story("ASYNC_FLUSH")
    story.start(0)
    story.acknowledge(0, 0, 5)
    story.store.add(story.start(1), offset=1)
    behind = story.start(2)
    story.acknowledge(2, 2, story.store.add(behind, offset=2))
    story.fault("power_off")
    story.end()
    violation = only(story.judged())
    assert violation.what == ("message 0 is lost and message 2, which was stored behind it, is not")
    assert violation.events[-1] == story.events[-2]


def test_a_stop_excuses_losses_only_behind_a_bit_that_was_flipped_in_the_log() -> None:
    story = lost("SYNC_FLUSH", None)
    story.events.pop()
    story.fault("flip_bit", path="consumequeue", offset=7)
    story.fault("kill")
    story.end()
    assert names(story.judged()) == {"acknowledged and not lost"}
    story = lost("SYNC_FLUSH", None)
    story.events.pop()
    story.fault("flip_bit", path="commitlog", offset=7)
    story.fault("kill")
    story.end()
    assert story.judged() == []


def test_each_flip_makes_one_record_unreadable_at_most() -> None:
    """Seed 50074: a record that a flip had hit was called lost, though the broker had not stopped."""
    for is_lost, count in ((1, 0), (2, 1)):
        story = Story()
        for number in range(3):
            made = story.start(number)
            position = story.store.add(made) if number >= is_lost else 7000 + number
            story.acknowledge(number, number, position)
        story.fault("flip_bit", path="commitlog", offset=7)
        story.end()
        assert len(story.judged()) == count


@pytest.mark.parametrize(
    ("path", "file", "size"),
    [
        ("commitlog", f"commitlog/{0:020}", 438),
        ("consumequeue", f"consumequeue/{TOPIC}/0/{0:020}", 60),
    ],
)
def test_whatever_bit_is_flipped_the_broker_is_not_blamed(path: str, file: str, size: int) -> None:
    """Most bits of a record have no CRC: seeds failed, or the checker did, by what one had become."""
    story = Story()
    for number in range(3):
        story.send(number, keys=(f"k{number}",), tags="red")
        story.deliver(number)
    story.fault("flip_bit", path=path, offset=1)
    story.end()
    files = story.store.image().files
    assert not files[file][size:].strip(b"\0")
    for bit in range(0, 8 * size, 3):
        data = bytearray(files[file])
        data[bit // 8] ^= 1 << bit % 8
        image = StoreImage(files={**files, file: bytes(data)}, state="running")
        assert check(History(story.events), {BROKER: image}) == [], bit


@pytest.mark.parametrize("is_altered", [False, True])
def test_behind_a_flip_only_a_bodys_content_is_judged(is_altered: bool) -> None:
    story = Story()
    story.send(0)
    story.send(1)
    story.deliver(0)
    story.fault("flip_bit", path="commitlog", offset=1)
    named = {**sent_properties(story.messages[1]), "simMessage": "0", "UNIQ_KEY": "another"}
    body = b"another" if is_altered else story.messages[1].body
    story.deliver(1, times=7, offset=99, body=body, properties=named, topic="orderz")
    story.end()
    assert names(story.judged()) == ({"never altered"} if is_altered else set())


# -- refused is not stored --


@pytest.mark.parametrize(
    ("stored", "is_blamed"), [("no", True), ("unknown", False), ("yes", False)]
)
def test_what_was_refused_is_nowhere(stored: Any, is_blamed: bool) -> None:
    story = Story()
    story.store.add(story.start(0))
    story.record(SendFailed, send=0, error="refused", stored=stored)
    story.end()
    violations = story.judged()
    assert (names(violations) == {"refused is not stored"}) is is_blamed
    assert is_blamed or violations == []


# -- never altered --


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"body": b"another"}, "body"),
        ({"topic": "payments"}, "topic payments"),
        ({"properties": {"TAGS": "blue"}}, "property TAGS"),
        ({"properties": {"KEYS": "k1"}}, "property KEYS"),
        ({"properties": {"colour": "grey"}}, "property colour"),
        ({"properties": {"new": "1"}}, "property new"),
        ({"properties": {"UNIQ_KEY": "other"}}, "unique id"),
    ],
)
def test_a_delivery_that_is_altered_is_named_with_what_was_altered(
    changed: dict[str, Any], part: str
) -> None:
    story = Story()
    story.send(0, tags="red", keys=("k1", "k2"), properties={"colour": "green"})
    sent = sent_properties(story.messages[0])
    if "properties" in changed:
        changed = {"properties": {**sent, **changed["properties"]}}
    delivered = story.deliver(0, **changed)
    story.end()
    violation = only(story.judged())
    assert violation.invariant == "never altered"
    assert violation.what.endswith(f"has another {part}")
    if part != "unique id":
        assert violation.events == (story.events[2], delivered)


def test_a_record_that_is_altered_is_found_in_the_log() -> None:
    story = Story()
    story.acknowledge(0, 0, story.store.add(story.start(0), body=b"another"))
    story.end()
    assert only(story.judged()).what == f"message 0 as {BROKER} has it has another body"


def test_a_message_that_nobody_sent_is_named() -> None:
    story = Story()
    story.message(0)
    story.deliver(0)
    story.end()
    assert only(story.judged()).what == f"a message from {BROKER} was sent by nobody"


# -- offsets dense and never reused --


def test_an_offset_is_given_once() -> None:
    story = Story()
    story.send(0)
    story.start(1)
    story.acknowledge(1, 0, story.store.add(story.messages[1], offset=1))
    story.end()
    violations = [each for each in story.judged() if "is that of messages 0 and 1" in each.what]
    assert only(violations).events == (story.events[3], story.events[5])


@pytest.mark.parametrize("fault", ["power_off", "kill"])
def test_an_offset_is_given_again_only_after_its_message_was_lost(fault: str) -> None:
    story = Story("ASYNC_FLUSH")
    story.start(0)
    story.acknowledge(0, 0, 0)
    story.fault(fault)
    story.start(1)
    story.acknowledge(1, 0, story.store.add(story.messages[1], offset=0))
    story.end()
    assert ("offsets dense and never reused" in names(story.judged())) is (fault == "kill")


@pytest.mark.parametrize("lost_s", [3, 13])
def test_a_commit_that_was_lost_gives_its_offset_to_an_older_message(lost_s: int) -> None:
    """The transaction was sent later, but came first: what counts is when the two were seen."""
    story = Story("ASYNC_FLUSH")
    older = story.start(0)
    story.start(1, is_transaction=True)
    story.record(TransactionDecided, send=1, decision="commit")
    if lost_s == 3:
        story.deliver(1, offset=0)
        story.fault("power_off")
    story.acknowledge(0, 0, story.store.add(older, offset=0))
    if lost_s == 13:
        story.deliver(1, offset=0)
        story.fault("power_off")
    story.deliver(0, offset=0)
    story.end()
    assert ("offsets dense and never reused" in names(story.judged())) is (lost_s == 13)


def test_a_hole_in_the_offsets_of_the_log_is_named() -> None:
    story = Story()
    story.send(0)
    story.send(2)
    story.end()
    found = {each.what for each in story.judged()}
    assert f"in {BROKER}'s log offset 2 of {TOPIC}/0 follows offset 0" in found


def test_the_end_of_a_queue_does_not_go_back() -> None:
    story = Story()
    story.record(QueueSeen, queue=QUEUE, min_offset=0, max_offset=3)
    story.record(QueueSeen, queue=QUEUE, min_offset=0, max_offset=2)
    story.end()
    assert only(story.judged()).what == f"{QUEUE} went back"


# -- order --


def test_messages_lie_in_the_order_in_which_they_were_sent() -> None:
    story = Story()
    first = story.start(0)
    story.acknowledge(0, 1, None)
    story.acknowledge(1, 0, story.store.add(story.start(1), offset=0))
    story.store.add(first, offset=1)
    story.end()
    assert only(story.judged()).what == (
        f"message 1 lies before message 0 in {QUEUE}, though it was sent later"
    )


def test_an_orderly_group_is_done_with_a_message_before_the_next() -> None:
    story = Story(is_orderly=True)
    for number in range(3):
        story.send(number)
    story.deliver(0, "suspend")
    story.deliver(0, "success", times=1, queue=QUEUE)
    story.deliver(1, "success")
    story.deliver(2)
    story.end()
    assert story.judged() == []
    story = Story(is_orderly=True)
    for number in range(3):
        story.send(number)
    story.deliver(0, "suspend")
    early = story.deliver(1, "success")
    story.end()
    violation = only(story.judged())
    assert violation.what == (
        f"orderly group g is given offset 1 of {QUEUE} before it is done with offset 0 (message 0)"
    )
    assert violation.events == (early,)


def test_messages_of_one_call_are_one_step_of_the_order() -> None:
    story = Story(is_orderly=True)
    for number in range(3):
        story.send(number)
    story.deliver(0, None)
    story.now_s -= 1
    story.deliver(1, None)
    story.end()
    assert story.judged() == []


def test_messages_of_one_key_are_consumed_in_their_order() -> None:
    story = Story(is_orderly=True, max_reconsume_times=0)
    story.send(0, order_key="k", order_number=0)
    story.send(1, order_key="k", order_number=1)
    story.deliver(0, "suspend")  # its last try
    story.deliver(1)
    story.deliver(0)
    story.end()
    violation = only(story.judged())
    assert violation.what == "orderly group g consumed number 0 of key k after number 1"


# -- delays --


def delayed(early_ms: int = 0, delivered_s: float = 20.0, **fields: Any) -> Story:
    story = Story()
    message = story.start(0, **{"delay_level": 3, **fields})
    due = EPOCH_MS + LEVELS_MS[2]
    real: dict[str, Any] = {"REAL_TOPIC": TOPIC, "REAL_QID": "0", "DELAY": "3"}
    position = story.store.add(message, topic=SCHEDULE, queue_id=2, tags_code=due, **real)
    story.acknowledge(0, 0, position)
    story.store.add(message, store_ms=due - early_ms, **real)
    story.now_s += delivered_s
    story.deliver(0)
    story.end()
    return story


def test_a_delayed_message_comes_in_time() -> None:
    assert delayed().judged() == []


def test_a_delayed_message_that_comes_early_by_the_clock_of_its_broker_is_named() -> None:
    violation = only(delayed(early_ms=7).judged())
    assert violation.what == (
        f"message 0 was delivered to {TOPIC} 7 ms early by the clock of {BROKER}"
    )


def test_a_delayed_message_that_comes_early_by_the_time_of_the_world_is_named() -> None:
    violation = only(delayed(delivered_s=0).judged())
    assert violation.what.startswith("delivery 0 of message 0 to g came 8.000 s early")


def test_a_clock_that_jumped_is_not_compared() -> None:
    story = delayed(early_ms=7)
    story.events.insert(2, story.fault("skew_clock", ms=-1000))
    assert story.judged() == []


def test_a_retry_comes_after_the_time_of_its_level() -> None:
    for wait_s, is_blamed in ((40, False), (3, True)):
        story = Story()
        story.send(0)
        story.deliver(0, "later")
        story.now_s += wait_s
        story.deliver(0, times=1)
        story.end()
        found = story.judged()
        assert (names(found) == {"delays never early"}) is is_blamed, found
        assert is_blamed or found == []


def test_of_two_copies_the_first_verdict_counts() -> None:
    """Seed 50138: the copy that was delivered first had its verdict second, and so its retry."""
    story = Story()
    made = story.start(0)
    story.acknowledge(0, 0, story.store.add(made, offset=0))
    story.store.add(made, offset=1)
    first = story.deliver(0, None)
    story.deliver(0, "later", offset=1)
    story.now_s += 7
    story.record(Consumed, delivery=first.delivery, verdict="later")
    story.now_s += 3
    story.deliver(0, times=1)
    story.end()
    assert story.judged() == []


def test_a_timed_message_waits_for_its_delay() -> None:
    story = Story()
    message = story.start(0, delay_ms=60_000)
    story.acknowledge(0, 0, story.store.add(message, topic="rmq_sys_wheel_timer"))
    story.store.add(message)
    story.deliver(0)
    story.end()
    assert only(story.judged()).invariant == "delays never early"


# -- transactions --


def transaction(*decisions: Any, is_visible: bool, is_delivered: bool = False) -> Story:
    story = Story()
    half = story.start(0, is_transaction=True)
    story.acknowledge(0, 0, story.store.add(half, topic=HALF))
    for decision in decisions:
        story.record(TransactionDecided, send=0, decision=decision)
    if is_visible:
        story.store.add(half, sys_flag=8)
    if is_delivered:
        story.deliver(0)
    story.end(live=True)
    return story


@pytest.mark.parametrize(
    ("decisions", "is_visible", "what"),
    [
        (("commit",), True, None),
        (("unknown", "commit"), True, None),
        (("rollback",), False, None),
        (("unknown",), False, None),
        (("commit", "rollback"), False, None),
        (("rollback",), True, "message 0 is to be seen, and no producer decided to commit it"),
        (("unknown",), True, "message 0 is to be seen, and no producer decided to commit it"),
        (
            ("commit",),
            False,
            "message 0 was to be committed; its half message is there, its commit is not",
        ),
    ],
)
def test_a_transaction_goes_the_way_that_was_decided(
    decisions: tuple[str, ...], is_visible: bool, what: str | None
) -> None:
    violations = transaction(*decisions, is_visible=is_visible).judged()
    if what is None:
        assert violations == []
    else:
        assert only(violations).what == what
        assert len(only(violations).events) == 1 + len(decisions)


@pytest.mark.parametrize(("checks", "is_blamed"), [("15", False), ("14", True)])
def test_a_transaction_is_given_up_after_its_last_check(checks: str, is_blamed: bool) -> None:
    """The decision to commit was lost, and no producer was there for any check."""
    story = Story()
    half = story.start(0, is_transaction=True)
    story.acknowledge(0, 0, story.store.add(half, topic=HALF))
    story.record(TransactionDecided, send=0, decision="commit")
    story.store.add(half, topic="TRANS_CHECK_MAX_TIME_TOPIC", TRANSACTION_CHECK_TIMES=checks)
    story.end(live=True)
    assert names(story.judged()) == ({"transactions one way"} if is_blamed else set())


@pytest.mark.parametrize("given_up_at", [BROKER, "broker-b"])
def test_a_transaction_that_is_committed_is_given_up_at_another_broker_only(
    given_up_at: str,
) -> None:
    """The producer gave up waiting for broker-b and sent to the other one."""
    story, other = Story(), MadeStore()
    story.record(BrokerConfigured, broker="broker-b", flush="SYNC_FLUSH", delay_levels_ms=LEVELS_MS)
    half = story.start(0, is_transaction=True)
    other.add(half, topic=HALF)
    story.acknowledge(0, 0, story.store.add(half, topic=HALF))
    story.record(TransactionDecided, send=0, decision="commit")
    story.store.add(half)
    stores = {BROKER: story.store, "broker-b": other}
    stores[given_up_at].add(half, topic="TRANS_CHECK_MAX_TIME_TOPIC", TRANSACTION_CHECK_TIMES="15")
    story.end(live=True)
    found = names(story.judged(others={"broker-b": other}))
    assert ("transactions one way" in found) == (given_up_at == BROKER)


def test_a_rolled_back_transaction_is_delivered_to_nobody() -> None:
    story = transaction("rollback", is_visible=False, is_delivered=True)
    assert "transactions one way" in names(story.judged())


# -- retries counted, dead letters --


def tries(*verdicts: Any, letter: bool, last_times: int | None = None) -> Story:
    """Write the history of a message that was tried with these verdicts, with 2 retries allowed."""
    story = Story()
    story.send(0)
    for times, verdict in enumerate(verdicts):
        story.now_s += 100
        counted = times if last_times is None or times < len(verdicts) - 1 else last_times
        story.deliver(0, verdict, times=counted, offset=times)
    if letter:
        story.store.add(story.messages[0], topic=f"%DLQ%{GROUP}", reconsume_times=2)
    story.record(MemberStarted, member="m", group=GROUP, topic=TOPIC)
    story.end(live=True)
    return story


def test_each_try_counts_one() -> None:
    assert tries("later", "later", "success", letter=False).judged() == []
    assert tries("later", "raised", "later", letter=True).judged() == []


def test_a_skipped_try_is_named() -> None:
    story = tries("later", "success", letter=False, last_times=2)
    violation = only(story.judged())
    assert violation.what == "delivery 2 of message 0 to g comes without delivery 1"


def test_a_try_too_many_is_named() -> None:
    found = tries("later", "later", "later", "success", letter=False).judged()
    assert only(found).what == "delivery 3 of message 0 to g, where 2 is the last"


def test_a_retry_of_what_succeeded_is_named() -> None:
    found = tries("success", "success", letter=False).judged()
    assert only(found).what == "delivery 1 of message 0 to g comes though delivery 0 succeeded"


def test_a_dead_letter_before_the_last_try_is_named() -> None:
    found = tries("later", "later", letter=True).judged()
    assert only(found).what == (f"message 0 is a dead letter of g at {BROKER} before its last try")


def test_a_dead_letter_that_is_missing_is_named() -> None:
    found = tries("later", "later", "later", letter=False).judged()
    assert names(found) == {"dead letters after the last try", "delivered at least once"}


# -- commits --


@pytest.mark.parametrize(
    ("verdict", "offset", "is_blamed"),
    [
        ("success", 1, False),
        ("later", 1, False),
        (None, 1, True),
        ("success", 2, True),
    ],
)
def test_a_commit_is_not_ahead_of_what_was_consumed(
    verdict: Any, offset: int, is_blamed: bool
) -> None:
    story = Story()
    story.send(0)
    story.send(1)
    story.deliver(0, verdict)
    seen = story.record(OffsetSeen, group=GROUP, queue=QUEUE, offset=offset)
    story.deliver(1)
    story.end()
    found = story.judged()
    if is_blamed:
        violation = only(found)
        assert violation.invariant == "commits behind consumption"
        assert violation.what.startswith(f"g committed {offset} of {QUEUE} before it had consumed")
        assert violation.events[-1] == seen
    else:
        assert found == []


def test_no_commit_lies_behind_the_end_of_its_queue() -> None:
    story = Story()
    story.send(0)
    story.deliver(0)
    seen = story.record(OffsetSeen, group=GROUP, queue=QUEUE, offset=2)
    story.end()
    violation = only(story.judged())
    assert violation.what == f"g committed 2 of {QUEUE}, which ends at 1"
    assert violation.events == (seen,)


def test_a_commit_in_the_state_file_is_not_ahead_either() -> None:
    story = Story()
    story.send(0)
    story.store.files["config/consumerOffset.json"] = (
        b'{\n\t"dataVersion":{},"offsetTable":{"orders@g":{0:1}}}'
    )
    story.end()
    assert only(story.judged()).invariant == "commits behind consumption"


def test_an_orderly_group_does_not_commit_what_it_suspended() -> None:
    story = Story(is_orderly=True)
    story.send(0)
    story.deliver(0, "suspend")
    story.record(OffsetSeen, group=GROUP, queue=QUEUE, offset=1)
    story.end()
    assert only(story.judged()).invariant == "commits behind consumption"


@pytest.mark.parametrize("is_done", [False, True])
def test_an_operator_may_move_offsets_ahead(is_done: bool) -> None:
    story = Story()
    for number in range(3):
        story.send(number)
    reset = {"group": GROUP, "topic": TOPIC, "timestamp_ms": EPOCH_MS}
    story.record(OffsetsReset, **reset)
    if is_done:
        story.record(OffsetsReset, **reset, offsets={str(QUEUE): 2}, done=True)
    story.record(OffsetSeen, group=GROUP, queue=QUEUE, offset=2)
    story.record(OffsetSeen, group=GROUP, queue=QUEUE, offset=3)
    story.end()
    assert len(story.judged()) == is_done


# -- filters, at least once, broadcasting --


@pytest.mark.parametrize(
    ("wanted", "tags", "properties", "is_wanted"),
    [
        (Filter(tags=("red",)), "red", {}, True),
        (Filter(tags=("red", "blue")), "green", {}, False),
        (Filter(tags=("red",)), None, {}, False),
        (Filter(comparisons=(Comparison("price", ">", 5),)), None, {"price": "6"}, True),
        (Filter(comparisons=(Comparison("price", ">", 5),)), None, {"price": "5"}, False),
        (Filter(comparisons=(Comparison("price", "<>", 5),)), None, {}, False),
    ],
)
def test_a_filtered_group_is_given_exactly_what_its_filter_wants(
    wanted: Filter, tags: str | None, properties: dict[str, str], is_wanted: bool
) -> None:
    for is_delivered in (False, True):
        story = Story(filter=wanted)
        story.send(0, tags=tags, properties=properties)
        if is_delivered:
            story.deliver(0)
        story.record(MemberStarted, member="m", group=GROUP, topic=TOPIC)
        story.end(live=True)
        found = names(story.judged())
        if is_delivered is is_wanted:
            assert found == set()
        else:
            assert found == {"filtered exactly" if is_delivered else "delivered at least once"}


def test_only_a_live_run_owes_messages() -> None:
    story = Story()
    story.send(0)
    story.record(MemberStarted, member="m", group=GROUP, topic=TOPIC)
    story.end(live=False)
    assert story.judged() == []
    story.end(live=True)
    violation = only(story.judged())
    assert violation.what == f"message 0 (offset 0 of {QUEUE}) was never delivered to g"


def test_a_delayed_message_that_never_comes_is_named() -> None:
    story = Story()
    message = story.start(0, delay_level=3)
    due = EPOCH_MS + LEVELS_MS[2]
    position = story.store.add(message, topic=SCHEDULE, queue_id=2, tags_code=due)
    story.acknowledge(0, 0, position)
    story.end(live=True)
    assert only(story.judged()).what == f"message 0 waits in {SCHEDULE} and never came to its topic"


@pytest.mark.parametrize(("quiet_s", "is_blamed"), [(10, False), (200, True)])
def test_each_member_of_a_broadcasting_group_is_given_each_message(
    quiet_s: float, is_blamed: bool
) -> None:
    story = Story(is_broadcasting=True)
    for member in ("m", "n"):
        story.record(MemberStarted, member=member, group=GROUP, topic=TOPIC)
    story.send(0)
    story.deliver(0, member="m")
    story.now_s += quiet_s
    story.end(live=True)
    found = story.judged()
    assert len(found) == is_blamed
    if found:
        assert "was not delivered to member n of the broadcasting group g" in found[0].what


# -- ranges --


@pytest.mark.parametrize(
    ("offsets", "error", "is_blamed"),
    [
        ((0, 1), None, False),
        ((0,), None, True),
        ((1,), None, True),
        ((0, 0, 1), None, True),
        ((1, 0), None, True),
        ((0,), "DataLossError", False),
        ((1,), "DataLossError", True),
    ],
)
def test_a_range_is_complete_or_an_error_says_so(
    offsets: tuple[int, ...], error: str | None, is_blamed: bool
) -> None:
    story = Story()
    story.send(0)
    story.send(1)
    reads = tuple(
        Read(
            offset=each,
            topic=TOPIC,
            body=story.messages[each].body,
            properties=sent_properties(story.messages[each]),
        )
        for each in offsets
    )
    story.record(RangeRead, queue=QUEUE, begin=0, end=2, messages=reads, error=error)
    story.end()
    assert names(story.judged()) == ({"ranges complete"} if is_blamed else set())


# -- files --


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"has_unit": False}, "offset 0 of orders/0 has no unit in its queue"),
        ({"tags_code": 5}, "unit 0 of orders/0 and its record differ in the tags code, 5 for 0"),
    ],
)
def test_files_that_disagree_are_named(wrong: dict[str, Any], what: str) -> None:
    story = Story()
    story.acknowledge(0, 0, story.store.add(story.start(0), offset=0, **wrong))
    story.end()
    assert only(story.judged()).what == f"in the store of {BROKER} {what}"
    assert "files agree" not in names(story.judged("dead"))


def test_a_key_that_the_index_does_not_find_is_named() -> None:
    story = Story()
    story.send(0, keys=("k",), is_indexed=False)
    story.send(1, keys=("k",))
    story.end()
    assert {each.what for each in story.judged("closed")} == {
        f"in the store of {BROKER} the index does not find {TOPIC}'s key {key} at 0"
        for key in ("ID0", "k")
    }


@pytest.mark.parametrize(("later_s", "is_due"), [(10, False), (100, True)])
def test_a_running_broker_indexes_behind(later_s: float, is_due: bool) -> None:
    story = Story()
    story.send(0, is_indexed=False)
    story.now_s += later_s
    story.end()
    assert (names(story.judged("running")) == {"files agree"}) is is_due


def test_a_queue_of_another_broker_is_none_of_this_one() -> None:
    story = Story()
    story.send(0)
    story.record(OffsetSeen, group=GROUP, queue=Queue(TOPIC, "broker-b", 0), offset=9)
    story.end()
    assert story.judged() == []
