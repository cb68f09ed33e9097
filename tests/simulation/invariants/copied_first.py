"""A message that a synchronous master acknowledged with SEND_OK is on a slave, byte for byte and at the
same offset of the log, in the moment in which its producer gets the answer (Java: GroupTransferService,
SYNC_MASTER waits for an acknowledgement of `inSyncReplicas` brokers, at least of one slave).

That it stays there is judged by "a slave's log is its master's" (logs keep what they have), and that it is
there after a switch by "acknowledged and not lost".

Leniencies, and why: SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT say that no slave may have it, and WAIT=false
that nobody waited. A slave that lost its power or its disk since the send began may have had the
message, and so may one that became the master since then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import POWER_LOSS, WIPE, Evidence, Violation
from tests.simulation.history import CopiesSeen, SendAcknowledged

NAME: Final = "acknowledged by slaves"


def judge(evidence: Evidence) -> Iterator[Violation]:
    for seen in evidence.history.of(CopiesSeen):
        acknowledged = evidence.acknowledged.get(seen.send)
        if acknowledged is not None and _is_promised(evidence, acknowledged):
            yield from _judge(evidence, acknowledged, seen)


def _is_promised(evidence: Evidence, acknowledged: SendAcknowledged) -> bool:
    """Say whether a message had to be on slaves when it was acknowledged."""
    broker, started = acknowledged.queue.broker, evidence.sends[acknowledged.send]
    return (
        acknowledged.status == "SEND_OK"
        and evidence.brokers[broker].role == "SYNC_MASTER"
        and all(message.wait_store_ok for message in started.messages)
        and evidence.master_at(broker, started.at_s)
        == evidence.master_at(broker, acknowledged.at_s)
    )


def _judge(
    evidence: Evidence, acknowledged: SendAcknowledged, seen: CopiesSeen
) -> Iterator[Violation]:
    started = evidence.sends[acknowledged.send]
    master = evidence.master_at(seen.broker, acknowledged.at_s)
    slaves = evidence.slaves_at(seen.broker, acknowledged.at_s)
    wanted = evidence.brokers[seen.broker].copies
    lost = {
        slave
        for slave in slaves
        if evidence.injected_at(slave, (*POWER_LOSS, *WIPE), started.at_s, acknowledged.at_s)
    }
    for index, message in enumerate(started.messages):
        digests = {
            server: each[index] for server, each in seen.digests.items() if index < len(each)
        }
        # A master that lost its power meanwhile may have the record no more; then slaves say what it was.
        of_slaves = Counter(digests.get(slave, 0) for slave in slaves if digests.get(slave, 0))
        record = digests.get(master, 0) or next((each for each, _ in of_slaves.most_common(1)), 0)
        have = [slave for slave in slaves if slave in lost or digests.get(slave, 0) == record != 0]
        if len(have) < wanted:
            what = (
                f"message {message.number} was acknowledged by {master}, and {len(have)} of "
                f"{len(slaves)} slaves had it; {wanted} had to"
            )
            yield Violation(invariant=NAME, what=what, events=(started, acknowledged, seen))
