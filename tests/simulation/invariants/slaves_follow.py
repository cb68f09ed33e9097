"""A slave's log is the beginning of its master's, byte for byte, at each look (Java: DefaultHAClient appends
what comes at the offset at which it lies in the master's log, and else closes the connection).

- The log of a server, master or slave, keeps what it has, and only grows.
- A slave's log differs from its master's only if the master lost the end of its own log after the slave had
  it, or if the slave was a master itself. Such a slave refuses: its log stays as it is.
- At the end of a live run each slave that runs has all that its master had 10 seconds before, unless its log
  differs from its master's for one of these reasons: it refuses then, and never catches up by itself.

Leniencies, and why: a loss of power takes what was not synced, a wipe takes all; `cometmq store` cuts a
log where the operator asks. Recovery ends a log at a flipped bit, so a broker with one is not judged.
With transientStorePoolEnable a killed master loses what was in its memory only. A slave that had
nothing may begin at the last file of its master; what is in front of it is not compared. A slave that
was paused takes, when it goes on, the bytes that its master sent before that lost its log: they are in
the slave's socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.simulation.evidence import KILL, POWER_LOSS, WIPE, Evidence, Violation
from tests.simulation.history import LogSeen, MasterChanged

NAME: Final = "a slave's log is its master's"
# What makes a log shorter.
_CUTS: Final = (*POWER_LOSS, *WIPE, "mend_store")
# A slave asks again every 5 s where its master is.
_CATCHES_UP_S: Final = 10.0


def judge(evidence: Evidence) -> Iterator[Violation]:
    for server, looks in evidence.looks.items():
        if evidence.broker_of(server) in evidence.flipped_s:
            continue
        for before, after in pairwise(looks):
            yield from _keeps(evidence, before, after)
            yield from _refuses(evidence, before, after)
        for seen in looks:
            yield from _is_same(evidence, seen)
        if evidence.live:
            yield from _caught_up(evidence, looks)


def _keeps(evidence: Evidence, before: LogSeen, after: LogSeen) -> Iterator[Violation]:
    if after.kept is None or after.former_end is None or after.kept >= after.former_end:
        return
    if not evidence.injected_at(after.server, _cuts(evidence, after), before.at_s, after.at_s):
        what = (
            f"the log of {after.server} had bytes up to {after.former_end} and has other ones, or none, "
            f"from {after.kept} on"
        )
        yield Violation(invariant=NAME, what=what, events=(before, after))


def _cuts(evidence: Evidence, seen: LogSeen) -> tuple[str, ...]:
    configured = evidence.servers[seen.server]
    return (*_CUTS, *KILL) if configured.transient_store_pool else _CUTS


def differs(seen: LogSeen) -> bool:
    """Say whether a slave has bytes that its master has not."""
    return seen.same_as_master is not None and seen.same_as_master < seen.end


def _is_same(evidence: Evidence, seen: LogSeen) -> Iterator[Violation]:
    if not differs(seen) or seen.master is None:
        return
    cuts = (*_cuts(evidence, seen), *KILL) if _has_pool(evidence, seen.master) else _CUTS
    has_reason = evidence.injected_at(seen.master, cuts, 0.0, seen.at_s) or any(
        # Also one that was called off: its successor was compared with as a master.
        each.broker == seen.broker and each.at_s <= seen.at_s
        for each in evidence.history.of(MasterChanged)
    )
    if not has_reason:
        what = (
            f"the log of {seen.server} ends at {seen.end}, and from {seen.same_as_master} on it is not "
            f"that of its master {seen.master}, which ends at {seen.master_end}"
        )
        yield Violation(invariant=NAME, what=what, events=(seen,))


def _has_pool(evidence: Evidence, server: str) -> bool:
    return evidence.servers[server].transient_store_pool


def _refuses(evidence: Evidence, before: LogSeen, after: LogSeen) -> Iterator[Violation]:
    if not differs(before) or before.master is None or after.end == before.end:
        return
    if evidence.master_at(after.broker, after.at_s) != before.master:
        return
    if evidence.injected_at(after.server, _CUTS, before.at_s, after.at_s):
        return
    if after.end <= _taken_late(evidence, before, after):
        return
    what = (
        f"the log of {after.server} ended at {before.end} and was from {before.same_as_master} on another "
        f"than that of {before.master}; it took more, and ends at {after.end}"
    )
    yield Violation(invariant=NAME, what=what, events=(before, after))


def _taken_late(evidence: Evidence, before: LogSeen, after: LogSeen) -> int:
    """Return up to where a slave may have what its master sent before it lost that: the slave was paused
    then, and went on between two looks.
    """
    losses = evidence.injected_at(before.master or "", _CUTS, 0.0, before.at_s)
    if not losses:
        return 0
    lost_s = losses[-1].at_s
    turns = evidence.injected_at(after.server, ("pause", "resume"), 0.0, lost_s)
    resumed = evidence.injected_at(after.server, ("resume",), lost_s, after.at_s)
    if not turns or turns[-1].name != "pause" or not resumed or resumed[0].at_s < before.at_s:
        return 0
    looks = evidence.looks.get(before.master or "", ())
    return max((seen.end for seen in looks if seen.at_s <= lost_s), default=0)


def _caught_up(evidence: Evidence, looks: list[LogSeen]) -> Iterator[Violation]:
    last = looks[-1]
    if last.same_as_master is None or not last.is_up or last.at_s < evidence.end_s - _CATCHES_UP_S:
        return
    if differs(last):
        return  # whether it may is judged by `_is_same`
    of_master = [
        each
        for each in evidence.looks.get(last.master or "", ())
        if each.at_s <= last.at_s - _CATCHES_UP_S
    ]
    if of_master and last.end < of_master[-1].end:
        what = (
            f"{last.server} ends at {last.end}, and its master {last.master} ended at "
            f"{of_master[-1].end} long before"
        )
        yield Violation(invariant=NAME, what=what, events=(of_master[-1], last))
