"""Masters, slaves and name servers that are lost under load, and a slave that becomes the master.

Two groups of a SYNC_MASTER and a slave, and two name servers, each a process on a host of its own, while
producers send and consumers read. A round loses nodes in every way that the machine allows, then a
slave takes its master's place by hand. An independent checker reads what clients saw and what the files
hold: every message that a SYNC_MASTER acknowledged as SEND_OK is on the slave, also after it has become
the master; offsets are dense, never given twice and never go back; each of these messages is received at
least once, in the order of its queue.

COMETMQ_LOSSES says how many losses there are together (default 12, a round), COMETMQ_CRASH_SEED what is
drawn.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from tests.crash.lost_nodes import (
    DEADLINE_S,
    GROUPS,
    Cluster,
    History,
    Member,
    check_order,
    check_promoted,
    check_queue_order,
    check_received,
    missed,
    stored_in,
)
from tests.waits import CLOCK, eventually

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

LOSSES = int(os.environ.get("COMETMQ_LOSSES", "12"))
A_ROUND = 12
SEED = int(os.environ.get("COMETMQ_CRASH_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.mark.parametrize("number", range(-(-LOSSES // A_ROUND)))
def test_what_a_sync_master_acknowledged_survives_lost_nodes(
    tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(f"{SEED}-{number}")
    history_path = tmp_path / "history"
    history_path.touch()
    with Cluster(tmp_path, rng, history_path) as cluster, Member(cluster) as member:
        member.expect("running")
        wait_in_step(history_path)
        losses = min(A_ROUND, LOSSES - number * A_ROUND) - 1
        kinds = cluster.losses()
        rng.shuffle(kinds)
        for index in range(losses):
            cluster.lose(kinds[index % len(kinds)])
            CLOCK.sleep(rng.uniform(0.1, 0.9))
        # The last loss is for good. A slave that is not in step would not be promoted.
        wait_in_step(history_path)
        group = rng.choice(GROUPS)
        old = cluster.promote(group)
        cluster.counts["promotion"] += 1
        new = cluster.masters[group]
        before = History.read(history_path)
        kept = check_promoted(before, group, new.store)
        new.start()
        wait_sent(history_path)
        # A master without a slave that calls a message safe waits for nobody: then all of the above
        # would have been luck.
        alone = [
            status
            for _, _, status, place in History.read(history_path).acknowledged
            if place[0] == group and place not in before.places()
        ]
        assert set(alone) == {"SLAVE_NOT_AVAILABLE"}, alone[:10]
        member.tell("stop")
        member.expect("stopped")
        excused = wait_received(history_path)
        member.tell("end")
        member.wait()
        history = History.read(history_path)
        check_order(history)
        for consumer in history.received:
            check_queue_order(history, consumer) if consumer == "pull" else None
        for node in cluster.nodes.values():
            node.stop()
        check_stores(cluster, history)
        assert old.process is None
        with capsys.disabled():
            sys.stdout.write(report(cluster, history, number, kept, excused))


def wait_in_step(history: Path) -> None:
    """Wait until each group acknowledges again that messages are on its slave."""
    sent = len(History.read(history).acknowledged)

    def waiting() -> set[str]:
        acknowledged = History.read(history).acknowledged[sent:]
        sure = {place[0] for _, _, status, place in acknowledged if status == "SEND_OK"}
        return set(GROUPS) - sure

    eventually(waiting, lambda left: not left, wait_s=DEADLINE_S, pause_s=0.1)


def wait_sent(history: Path) -> None:
    """Wait until each group acknowledges messages, be they on a slave or not."""
    sent = len(History.read(history).acknowledged)

    def waiting() -> set[str]:
        acknowledged = History.read(history).acknowledged[sent:]
        return set(GROUPS) - {place[0] for _, _, _, place in acknowledged}

    eventually(waiting, lambda left: not left, wait_s=DEADLINE_S, pause_s=0.1)


def wait_received(path: Path) -> int:
    """Wait until both consumers have all that they must have; return how many are excused."""

    def left() -> int:
        history = History.read(path)
        excused = 0
        for consumer in history.received:
            try:
                excused += check_received(history, consumer)
            except AssertionError:
                return len(missed(history, consumer))
        return -1

    eventually(left, lambda count: count < 0, wait_s=DEADLINE_S, pause_s=0.2)
    history = History.read(path)
    return sum(check_received(history, consumer) for consumer in history.received)


def check_stores(cluster: Cluster, history: History) -> None:
    """All that a group acknowledged for sure is in its master's files, and its slave's log is a part of
    its master's.
    """
    for group in GROUPS:
        master, slave = cluster.masters[group], cluster.slave_of(group)
        check_promoted(history, group, master.store)
        of_master, end = stored_in(master.store)
        of_slave, slave_end = stored_in(slave.store)
        if cluster.nodes[f"{group}-0"] is master:
            assert slave_end <= end
            assert of_slave.items() <= of_master.items(), f"the logs of {group} differ"


def report(cluster: Cluster, history: History, number: int, kept: int, excused: int) -> str:
    statuses: dict[str, int] = {}
    for _, _, status, _ in history.acknowledged:
        statuses[status] = statuses.get(status, 0) + 1
    told = [cluster.hosts.why_not and f"no namespaces ({cluster.hosts.why_not}), so no partitions"]
    told += [cluster.no_disks and f"no disk of its own ({cluster.no_disks}), so none is full"]
    told += [f"links slowed by {cluster.hosts.shaper}" if cluster.hosts.shaper else ""]
    return (
        f"\nround {number}, seed {SEED}: {sum(cluster.counts.values())} losses "
        f"({', '.join(f'{kind} {count}' for kind, count in sorted(cluster.counts.items()))}); "
        f"{statuses}, {len(history.failed)} failed; {kept} sure on the promoted slave, "
        f"{excused} deliveries excused; {'; '.join(filter(None, told))} "
    )
