"""Masters, slaves and name servers that are lost under load, and a slave that becomes the master.

Two groups of a SYNC_MASTER and a slave, and two name servers, each a process on a host of its own, while
producers send and consumers read. A round loses nodes in every way that the machine allows, then a
slave takes its master's place by hand. An independent checker reads what clients saw and what the files
hold: every message that a SYNC_MASTER acknowledged as SEND_OK is on the slave, also after it has become
the master; offsets are dense, never given twice and never go back; each of these messages is received at
least once, in the order of its queue.

COMETMQ_LOSSES says how many losses there are together (default 16, a round), COMETMQ_CRASH_SEED what is
drawn (`tests.seeds`).
"""

from __future__ import annotations

import os
import random
import struct
import sys
from pathlib import Path

import pytest
from tests.crash.lost_nodes import DEADLINE_S, GROUPS, Cluster, Member
from tests.crash.lost_nodes_judge import (
    History,
    check_order,
    check_promoted,
    check_queue_order,
    check_received,
    missed,
    raw_log,
    stored_in,
)
from tests.crash.lost_nodes_member import TOPIC
from tests.seeds import seed_of
from tests.waits import CLOCK, eventually

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

LOSSES = int(os.environ.get("COMETMQ_LOSSES", "16"))
# A loss of each kind, where the machine allows all of them, and a promotion.
A_ROUND = 16


@pytest.mark.parametrize("number", range(-(-LOSSES // A_ROUND)))
def test_what_a_sync_master_acknowledged_survives_lost_nodes(
    tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of("COMETMQ_CRASH_SEED")
    rng = random.Random(f"{seed}-{number}")
    history_path = tmp_path / "history"
    history_path.touch()
    with Cluster(tmp_path, rng, history_path) as cluster, Member(cluster) as member:
        member.expect("running")
        wait_in_step(history_path)
        # As an operator sees to it: a slave that becomes the master serves the topics that it knows.
        eventually(lambda: cluster.slaves_know(TOPIC), wait_s=DEADLINE_S, pause_s=0.1)
        losses = min(A_ROUND, LOSSES - number * A_ROUND) - 1
        kinds = cluster.losses()
        rng.shuffle(kinds)
        switch = rng.randrange(losses + 1)
        for index in range(losses + 1):
            if index == switch:
                kept, mended = change_master(cluster, rng.choice(GROUPS), history_path)
            if index < losses:
                cluster.lose(kinds[index % len(kinds)])
                CLOCK.sleep(rng.uniform(0.1, 0.9))
        wait_in_step(history_path)
        member.tell("stop")
        member.expect("stopped")
        excused = wait_received(history_path)
        member.tell("end")
        member.wait()
        history = History.read(history_path)
        check_order(history)
        check_queue_order(history, "pull")
        for node in cluster.nodes.values():
            node.stop()
        check_stores(cluster, history)
        with capsys.disabled():
            sys.stdout.write(
                f"\nround {number}, seed {seed}: "
                f"{report(cluster, history, kept, excused, mended=mended)} "
            )


def change_master(cluster: Cluster, group: str, history: Path) -> tuple[int, bool]:
    """Lose a master for good and have its slave take its place; then it comes back as the slave.

    Return how many messages had to be on the slave, and whether the former master had to be mended.
    """
    # A slave that is not in step would not be promoted.
    wait_in_step(history)
    old = cluster.promote(group)
    new = cluster.masters[group]
    before = History.read(history)
    kept = check_promoted(before, group, new.store)
    new.start()
    wait_sent(history)
    # A master without a slave that calls a message safe waits for nobody: then all of the above would
    # have been luck.
    acknowledged = History.read(history).acknowledged[len(before.acknowledged) :]
    alone = {status for _, _, status, place in acknowledged if place[0] == group}
    assert alone == {"SLAVE_NOT_AVAILABLE"}, alone
    return kept, cluster.come_back(group, old)


def wait_in_step(history: Path) -> None:
    """Wait until each group acknowledges again that messages are on its slave."""
    _wait_for_each_group(history, {"SEND_OK"})


def wait_sent(history: Path) -> None:
    """Wait until each group acknowledges messages, be they on a slave or not."""
    _wait_for_each_group(history, {"SEND_OK", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"})


def _wait_for_each_group(path: Path, statuses: set[str]) -> None:
    new = History.from_now(path)

    def waiting() -> set[str]:
        new.go_on(path)
        return set(GROUPS) - {place[0] for _, _, got, place in new.acknowledged if got in statuses}

    eventually(waiting, lambda left: not left, wait_s=DEADLINE_S, pause_s=0.1)


def wait_received(path: Path) -> int:
    """Wait until both consumers have all that they must have; return how many are excused."""
    history = History()

    def left() -> int:
        history.go_on(path)
        for consumer in history.received:
            try:
                check_received(history, consumer)
            except AssertionError:
                return len(missed(history, consumer))
        return -1

    eventually(left, lambda count: count < 0, wait_s=DEADLINE_S, pause_s=0.2)
    return sum(check_received(history, consumer) for consumer in history.received)


def check_stores(cluster: Cluster, history: History) -> None:
    """All that a group acknowledged for sure is in its master's files, and its slave's log is the
    beginning of its master's.
    """
    for group in GROUPS:
        master, slave = cluster.masters[group], cluster.slave_of(group)
        check_promoted(history, group, master.store)
        _, end = stored_in(master.store)
        _, slave_end = stored_in(slave.store)
        assert slave_end <= end
        assert raw_log(slave.store, slave_end) == raw_log(master.store, slave_end), group


def report(cluster: Cluster, history: History, kept: int, excused: int, *, mended: bool) -> str:
    statuses: dict[str, int] = {}
    for _, _, status, _ in history.acknowledged:
        statuses[status] = statuses.get(status, 0) + 1
    reported = [
        cluster.hosts.why_not and f"no namespaces ({cluster.hosts.why_not}), so no partitions"
    ]
    reported += [cluster.no_disks and f"no disk of its own ({cluster.no_disks}), so none is full"]
    reported += [f"links slowed by {cluster.hosts.shaper}" if cluster.hosts.shaper else ""]
    return (
        f"{sum(cluster.counts.values())} losses "
        f"({', '.join(f'{kind} {count}' for kind, count in sorted(cluster.counts.items()))}); "
        f"{statuses}, {len(history.failed)} failed; {kept} sure on the promoted slave, "
        f"{'' if mended else 'not '}mended as it came back, {excused} deliveries excused; {'; '.join(filter(None, reported))}"
    )


# -- the judge itself --


def judged(*lines: str) -> History:
    return History.of(lines)


def test_the_judge_finds_an_offset_that_is_given_twice() -> None:
    history = judged(
        "A 1 0 SEND_OK a 0 5", "A 2 0 FLUSH_SLAVE_TIMEOUT a 0 6", "A 3 0 SEND_OK a 0 6"
    )
    assert history.sure() == {("a", 0, 5): 1, ("a", 0, 6): 3}
    with pytest.raises(AssertionError, match="given twice"):
        judged("A 1 0 SEND_OK a 0 5", "A 2 1 SEND_OK a 0 5").sure()


def test_the_judge_finds_an_offset_that_goes_back() -> None:
    check_order(judged("A 1 0 SEND_OK a 0 5", "A 2 1 SEND_OK a 0 4", "A 3 0 SEND_OK a 0 6"))
    with pytest.raises(AssertionError, match="go back to 4"):
        check_order(judged("A 1 0 SEND_OK a 0 5", "A 2 0 SEND_OK a 0 4"))


def test_the_judge_finds_a_message_that_never_came() -> None:
    sent = ("A 1 0 SEND_OK a 0 5", "A 2 0 SEND_OK a 0 6")
    assert check_received(judged(*sent, "R pull a 0 6 2", "R pull a 0 5 1"), "pull") == 0
    with pytest.raises(AssertionError, match="never got 1 messages"):
        check_received(judged(*sent, "R pull a 0 6 2", "R push a 0 5 1"), "pull")
    # It had read another message at the place, which went with the old master.
    assert check_received(judged(*sent, "R pull a 0 6 2", "R pull a 0 5 9"), "pull") == 1


def test_the_judge_finds_a_queue_that_came_out_of_order() -> None:
    sent = ("A 1 0 SEND_OK a 0 5", "A 2 0 SEND_OK a 0 6")
    again = ("R pull a 0 5 1", "R pull a 0 6 2", "R pull a 0 5 1")
    check_queue_order(judged(*sent, *again), "pull")
    with pytest.raises(AssertionError, match="behind offset 6"):
        check_queue_order(judged(*sent, "R pull a 0 6 2", "R pull a 0 5 1"), "pull")


def test_the_judge_finds_what_a_promoted_slave_lacks(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    records = b"".join(record(offset, 10 + offset, 200 * offset) for offset in range(3))
    (store / "commitlog" / ("0" * 20)).write_bytes(records.ljust(4096, b"\0"))
    found, end = stored_in(store)
    assert found == {(0, 0): 10, (0, 1): 11, (0, 2): 12}
    assert end == len(records) == 600
    assert check_promoted(judged("A 11 0 SEND_OK a 0 1", "A 7 0 SEND_OK b 0 9"), "a", store) == 1
    with pytest.raises(AssertionError, match="1 acknowledged messages are not on the slave"):
        check_promoted(judged("A 13 0 SEND_OK a 0 3"), "a", store)
    (store / "commitlog" / ("0" * 20)).write_bytes(records[:200] + record(2, 12, 200))
    with pytest.raises(AssertionError, match="a gap or a repetition"):
        stored_in(store)


def record(queue_offset: int, number: int, place: int) -> bytes:
    """A stored record of 200 bytes."""
    topic = TOPIC.encode()
    head = struct.pack(">IIIIqqIq", 0xDAA320A7, 0, 0, 0, queue_offset, place, 0, 0)
    tail = bytes([len(topic)]) + topic + struct.pack(">H", 0)
    body = str(number).encode().ljust(200 - 4 - len(head) - 36 - 4 - len(tail), b".")
    return struct.pack(">I", 200) + head + bytes(36) + struct.pack(">I", len(body)) + body + tail
