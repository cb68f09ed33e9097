"""A slave has the offsets that groups committed at its master, at most one copy late (Java: SlaveSynchronize
copies tables every 10 s), and goes on with them when it is promoted.

- What the master's file said at one look, the slave's file says COPIED_S later: its offsets are not
  lower.
- The first file of a promoted slave has no lower offsets than its last one before.

Leniencies, and why: near a fault the slave may not reach its master; each fault ends within LASTS_S. A
reset turns offsets back, so groups with one are left out. A slave whose log differs from its master's
copies nothing: whether it may differ is judged by "a slave's log is its master's".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import POWER_LOSS, WIPE, Evidence, Violation
from tests.simulation.history import MasterChanged, TableSeen
from tests.simulation.invariants.slaves_follow import differs

NAME: Final = "tables are copied"
# The master is asked every 10 s. Its answer counts when the slave's disk has the log up to it, with
# ASYNC_FLUSH after 10 s; one that comes meanwhile is the next. 5 s later the file is written.
COPIED_S: Final = 40.0
# Drawn faults last for a minute; a node that was down or paused has its routes again some time later.
LASTS_S: Final = 100.0


def judge(evidence: Evidence) -> Iterator[Violation]:
    seen: dict[str, list[TableSeen]] = defaultdict(list)
    for each in evidence.history.of(TableSeen):
        seen[each.server].append(each)
    reset = {each.group for each in evidence.resets}
    for server, tables in seen.items():
        for table in tables:
            master = evidence.master_at(table.broker, table.at_s)
            if server != master:
                yield from _copied(evidence, reset, table, seen.get(master, []))
    for switch in evidence.promoted:
        yield from _kept(evidence, reset, switch, seen.get(switch.server, []))


def _copied(
    evidence: Evidence, reset: set[str], table: TableSeen, of_master: list[TableSeen]
) -> Iterator[Violation]:
    earlier = [each for each in of_master if each.at_s <= table.at_s - COPIED_S]
    if not earlier:
        return
    since_s = earlier[-1].at_s - LASTS_S
    if any(since_s <= fault.at_s <= table.at_s for fault in evidence.faults):
        return
    if any(
        differs(look)
        for look in evidence.looks.get(table.server, ())
        if since_s <= look.at_s <= table.at_s
    ):
        return
    yield from _lower(reset, earlier[-1], table, f"{table.server} lacks what its master had")


def _kept(
    evidence: Evidence, reset: set[str], switch: MasterChanged, tables: list[TableSeen]
) -> Iterator[Violation]:
    before = [each for each in tables if each.at_s < switch.at_s]
    after = [each for each in tables if each.at_s >= switch.at_s]
    if not before or not after:
        return
    lost = evidence.injected_at(switch.server, (*POWER_LOSS, *WIPE), before[-1].at_s, after[0].at_s)
    if not lost:
        yield from _lower(
            reset, before[-1], after[0], f"{switch.server} forgot when it was promoted"
        )


def _lower(reset: set[str], before: TableSeen, after: TableSeen, what: str) -> Iterator[Violation]:
    for queue, offset in before.offsets.items():
        if queue.partition("@")[0] not in reset and after.offsets.get(queue, -1) < offset:
            text = f"{what}: {queue} had offset {offset}, and has {after.offsets.get(queue)}"
            yield Violation(invariant=NAME, what=text, events=(before, after))
            return
