"""A transaction is never both committed and rolled back, never seen before it is committed, and a
decided one is not forgotten (Java: EndTransactionProcessor, TransactionalMessageServiceImpl).

- A message whose producer never decided to commit is in no queue of its topic and delivered to nobody.
- A message is in its topic only behind the first decision to commit.
- In a live run a half message that is in the log, and of whose decisions one was to commit, is in its
  topic; but not if another was to roll back, since the broker obeys the first that reaches it.
- A message that is in its topic has been given up by no check of the same broker
  (TRANS_CHECK_MAX_TIME_TOPIC).

Leniencies, and why: a decision travels one way, so after `transaction_check_max` decisions the broker
may never have heard one and gives the transaction up. So it does after as many checks that reached
nobody: it counts a check, as Java does, also while no producer of the group is connected. A commit may be stored twice, when the broker
dies between the record and its mark in the op topic and checks again, as in Java. A wiped broker, and
one whose log lost its end, may check again what was decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import GIVEN_UP_TOPIC, HALF_TOPIC, WIPE, Evidence, Violation
from tests.simulation.history import Delivered, SendStarted, TransactionDecided
from tests.simulation.store_reader import Record

NAME: Final = "transactions one way"


def judge(evidence: Evidence) -> Iterator[Violation]:
    decided: dict[int, list[TransactionDecided]] = defaultdict(list)
    for decision in evidence.history.of(TransactionDecided):
        decided[decision.send].append(decision)
    delivered = {number for _, number in evidence.delivered}
    for send in evidence.sends.values():
        if send.is_transaction:
            seen = send.messages[0].number in delivered
            yield from _judge(evidence, send, decided[send.send], is_delivered=seen)


def _judge(
    evidence: Evidence,
    send: SendStarted,
    decisions: list[TransactionDecided],
    *,
    is_delivered: bool,
) -> Iterator[Violation]:
    number = send.messages[0].number
    committed = [each for each in decisions if each.decision == "commit"]
    records = evidence.records.get(number, [])
    visible = [(at, each) for at, each in records if each.topic == send.topic]
    events = (send, *decisions)
    if (visible or is_delivered) and not committed:
        what = f"message {number} is to be seen, and no producer decided to commit it"
        yield Violation(invariant=NAME, what=what, events=events)
    seen_s = [each.at_s for each in _deliveries(evidence, number)]
    if committed and seen_s and seen_s[0] < committed[0].at_s:
        what = f"message {number} was delivered at {seen_s[0]:.3f} s, before it was committed"
        yield Violation(invariant=NAME, what=what, events=events)
    # A producer that sends to another broker after a timeout leaves a half message at the first one,
    # of which it does not know; that broker gives it up.
    if {at for at, _ in visible} & {at for at, each in records if each.topic == GIVEN_UP_TOPIC}:
        what = f"message {number} was committed and given up"
        if not _forgot(evidence, records):
            yield Violation(invariant=NAME, what=what, events=events)
    if committed and not visible and _is_owed(evidence, records, decisions):
        what = f"message {number} was to be committed; its half message is there, its commit is not"
        yield Violation(invariant=NAME, what=what, events=events)


def _deliveries(evidence: Evidence, number: int) -> list[Delivered]:
    found = [
        each
        for (_, delivered), deliveries in evidence.delivered.items()
        if delivered == number
        for each in deliveries
    ]
    return sorted(found, key=lambda each: each.at_s)


def _is_owed(
    evidence: Evidence, records: list[tuple[str, Record]], decisions: list[TransactionDecided]
) -> bool:
    halves = [at for at, each in records if each.topic == HALF_TOPIC]
    if not evidence.live or not halves:
        return False
    if any(each.decision == "rollback" for each in decisions):
        return False
    check_max = evidence.brokers[halves[0]].transaction_check_max
    if any(
        each.topic == GIVEN_UP_TOPIC
        and int(each.properties.get("TRANSACTION_CHECK_TIMES", "0")) >= check_max
        for _, each in records
    ):
        return False
    return len(decisions) < check_max


def _forgot(evidence: Evidence, records: list[tuple[str, Record]]) -> bool:
    return any(
        evidence.injected(at, (*evidence.may_forget(at), *WIPE)) for at in {at for at, _ in records}
    )
