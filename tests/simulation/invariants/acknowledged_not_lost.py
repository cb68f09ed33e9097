"""Acknowledged messages are in the log, as far as the flush mode promises (Java: SendStatus,
CommitLog.GroupCommitService, FlushRealTimeService, PutMessageStatus).

- A killed process takes nothing with it, in any mode: the page cache has it. With
  transientStorePoolEnable a killed broker loses what it had not yet copied there.
- After SYNC_FLUSH's SEND_OK a loss of power takes nothing either. FLUSH_DISK_TIMEOUT says that the
  disk did not confirm it, and WAIT=false that nobody waited: both promise what ASYNC_FLUSH does.
- ASYNC_FLUSH may lose, by a loss of power, what was stored less than `flushed_within_s` before, and
  only from the tail of the log: never a message with another behind it that survived.

- A manual switch takes from an asynchronous master at most what the promoted slave lacked when the master
  ended. A message that a synchronous master answered with SEND_OK is on the promoted slave, if that one
  had it then and has not lost its power or its disk since.

Leniencies, and why:

- A wiped disk takes all messages of a broker without a slave. With a flipped bit in the log, recovery
  may end the log there, as Java's does, so any later stop may take what lies behind it. Without a
  stop each flip may have made one record unreadable, and no more.
- Behind a failing or slow disk, and a drifting clock, ASYNC_FLUSH has no time within which it flushes;
  that the loss is at the tail still holds. While a broker is paused its time stands still.
- What lies before the beginning of the log was retired, if its time was over or the disk was full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import (
    BAD_DISK,
    KILL,
    POWER_LOSS,
    PROMOTE,
    WIPE,
    WRONG_CLOCK,
    Evidence,
    Stored,
    Violation,
)
from tests.simulation.history import BrokerConfigured, CopiesSeen, FaultInjected, MasterChanged

NAME: Final = "acknowledged and not lost"


def judge(evidence: Evidence) -> Iterator[Violation]:
    by_broker: dict[str, list[Stored]] = defaultdict(list)
    for stored in evidence.stored:
        by_broker[stored.broker].append(stored)
    for broker, all_stored in by_broker.items():
        yield from _judge_broker(evidence, broker, all_stored)


def _judge_broker(evidence: Evidence, broker: str, all_stored: list[Stored]) -> Iterator[Violation]:
    unreadable = len(evidence.damaged(broker))
    survivors = [each for each in all_stored if each.record is not None]
    for lost in all_stored:
        configured = evidence.configured_at(broker, lost.acknowledged.at_s)
        if lost.record is not None or _excused(evidence, configured, lost):
            continue
        crash = _taken_by(evidence, configured, lost)
        behind = [each for each in survivors if crash and _is_behind(each, lost, crash)]
        if (
            crash is None
            and unreadable
            and evidence.damaged(configured.broker, since_s=lost.started.at_s)
        ):
            unreadable -= 1
        elif crash is None:
            yield _violation(f"message {lost.outgoing.number} is not in the log", lost)
        elif behind:
            yield _violation(
                f"message {lost.outgoing.number} is lost and message {behind[0].outgoing.number}, "
                "which was stored behind it, is not",
                lost,
                behind[0],
                fault=crash,
            )


def _excused(evidence: Evidence, configured: BrokerConfigured, lost: Stored) -> bool:
    started_s = lost.started.at_s
    if evidence.injected(configured.broker, WIPE, started_s):
        return True
    if evidence.damaged(configured.broker):
        stops = (*POWER_LOSS, *KILL, "restart")
        if evidence.injected(configured.broker, stops, started_s):
            return True
    store = evidence.all_stores[configured.broker]
    if lost.position is None or lost.position >= store.min_position:
        return False
    is_over = evidence.end_s - started_s >= configured.file_reserved_hours * 3600
    return is_over or bool(evidence.injected(configured.broker, BAD_DISK, started_s))


def _taken_by(
    evidence: Evidence, configured: BrokerConfigured, lost: Stored
) -> FaultInjected | None:
    """Return the fault that was allowed to take a message."""
    broker, acknowledged = configured.broker, lost.acknowledged
    if configured.transient_store_pool:
        crashes = evidence.injected(broker, (*KILL, *POWER_LOSS), lost.started.at_s)
    else:
        crashes = evidence.injected(broker, POWER_LOSS, lost.started.at_s)
    switch = _switched_away(evidence, lost)
    if switch is not None:
        return switch
    is_synced = (
        configured.flush == "SYNC_FLUSH"
        and acknowledged.status == "SEND_OK"
        and all(message.wait_store_ok for message in lost.started.messages)
    )
    if is_synced or not crashes:
        return None
    unbounded = evidence.injected(broker, (*BAD_DISK, *WRONG_CLOCK))
    within_s = configured.flushed_within_s
    for crash in crashes:
        paused_s = _paused_s(evidence, broker, acknowledged.at_s, crash.at_s)
        if unbounded or crash.at_s - acknowledged.at_s - paused_s <= within_s:
            return crash
    return None


def _paused_s(evidence: Evidence, broker: str, since_s: float, until_s: float) -> float:
    """Return for how long a broker that ran at `since_s` was paused from then on."""
    paused_s, since = 0.0, None
    for turn in evidence.injected(broker, ("pause", "resume"), since_s, until_s):
        if turn.name == "pause" and since is None:
            since = turn.at_s
        elif turn.name == "resume" and since is not None:
            paused_s, since = paused_s + turn.at_s - since, None
    return paused_s if since is None else paused_s + until_s - since


def _switched_away(evidence: Evidence, lost: Stored) -> FaultInjected | None:
    """Return the switch that was allowed to take a message: the promoted slave lacked it."""
    for switch in evidence.switches:
        if switch.broker != lost.broker or switch.at_s < lost.started.at_s:
            continue
        looks = [
            each
            for each in evidence.looks.get(switch.server, ())
            if each.master == switch.former and each.at_s <= switch.at_s
        ]
        same_until = (looks[-1].same_as_master or 0) if looks else 0
        if looks and evidence.injected_at(
            switch.server, (*POWER_LOSS, *WIPE), looks[-1].at_s, switch.at_s
        ):
            same_until = 0  # the disk has lost since then what that look saw
        is_there = lost.position is not None and lost.position < same_until
        if not is_there and (not _is_copied(lost, evidence) or _may_lack(evidence, switch, lost)):
            at_switch = evidence.injected(lost.broker, PROMOTE, switch.at_s, switch.at_s)
            return at_switch[0] if at_switch else None
    return None


def _is_copied(lost: Stored, evidence: Evidence) -> bool:
    """Say whether a message was acknowledged because slaves have it."""
    return (
        evidence.brokers[lost.broker].role == "SYNC_MASTER"
        and lost.acknowledged.status == "SEND_OK"
        and all(message.wait_store_ok for message in lost.started.messages)
    )


def _may_lack(evidence: Evidence, switch: MasterChanged, lost: Stored) -> bool:
    """Say whether the promoted slave may lack a message that slaves had: another one had it, or it has
    lost its disk's content since.
    """
    if evidence.injected_at(switch.server, (*POWER_LOSS, *WIPE), lost.started.at_s, switch.at_s):
        return True
    return any(
        not any(seen.digests.get(switch.server, ()))
        for seen in evidence.history.of(CopiesSeen)
        if seen.send == lost.started.send
    )


def _is_behind(survivor: Stored, lost: Stored, crash: FaultInjected) -> bool:
    return (
        survivor.position is not None
        and lost.position is not None
        and survivor.position > lost.position
        and survivor.acknowledged.at_s < crash.at_s
    )


def _violation(what: str, *stored: Stored, fault: FaultInjected | None = None) -> Violation:
    events = [event for each in stored for event in (each.started, each.acknowledged)]
    return Violation(
        invariant=NAME, what=what, events=(*events, *([fault] if fault is not None else []))
    )
