"""Each invariant's verdict on masters and slaves that keep it, and on some that break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simulation.checker import check
from tests.simulation.evidence import StoreImage, Violation
from tests.simulation.history import (
    BrokerConfigured,
    CopiesSeen,
    History,
    LogSeen,
    MasterChanged,
    OffsetsReset,
    QueueSeen,
    TableSeen,
)
from tests.simulation.replicas import Log, Replicas
from tests.simulation.workloads.stage import Stage
from tests.unit.simulation.story import BROKER, GROUP, LEVELS_MS, QUEUE, TOPIC, MadeStore, Story

from cometmq.testing import Cluster

SLAVE = f"{BROKER}-slave-1"
# The address in the offset message ids of a story.
ID_HOST = "127.0.0.1"
FOLLOWS = "a slave's log is its master's"


class Pair(Story):
    """Writes a run of a master and its slave."""

    def __init__(self, role: Any = "SYNC_MASTER", slave_host: str = "10.0.0.2") -> None:
        super().__init__()
        first = self.events[0]
        assert isinstance(first, BrokerConfigured)
        self.events[0] = msgspec.structs.replace(first, role=role, host="10.0.0.1")
        self.record(
            BrokerConfigured,
            broker=BROKER,
            server=SLAVE,
            host=slave_host,
            role="SLAVE",
            flush="ASYNC_FLUSH",
            delay_levels_ms=LEVELS_MS,
        )

    def look(self, end: int, same: int | None = None, **fields: Any) -> None:
        """Look at the slave's log; it is its master's unless `same` says how far."""
        self.record(
            LogSeen,
            **{
                "broker": BROKER,
                "server": SLAVE,
                "begin": 0,
                "end": end,
                "master": BROKER,
                "master_end": 1000,
                "same_as_master": end if same is None else same,
                **fields,
            },
        )

    def switch(self, **queue_ends: int) -> None:
        self.fault("promote", SLAVE)
        changed = {"broker": BROKER, "server": SLAVE, "former": BROKER}
        self.record(MasterChanged, **changed)
        self.events[-1] = msgspec.structs.replace(self.events[-1], at_s=self.events[-2].at_s)
        self.record(MasterChanged, **changed, queue_ends={str(QUEUE): 0, **queue_ends}, done=True)

    def table(self, server: str, wait_s: float = 0.0, **offsets: int) -> None:
        self.now_s += wait_s
        text = {f"{GROUP}@{queue}/0": offset for queue, offset in offsets.items()}
        self.record(TableSeen, broker=BROKER, server=server, offsets=text)

    def judge(self, slave: StoreImage | None = None, *, live: bool = False) -> list[Violation]:
        self.end(live=live)
        stores = {BROKER: self.store.image()}
        if slave is not None:
            stores[SLAVE] = slave
        again = History.from_lines(History(self.events).lines())
        assert again.events == self.events
        return check(again, stores)


def names(violations: list[Violation]) -> set[str]:
    return {each.invariant for each in violations}


# -- acknowledged by slaves --


@pytest.mark.parametrize(
    ("role", "status", "on_slave", "fault", "is_kept"),
    [
        ("SYNC_MASTER", "SEND_OK", 5, None, True),
        ("SYNC_MASTER", "SEND_OK", 0, None, False),
        ("SYNC_MASTER", "SEND_OK", 6, None, False),
        ("SYNC_MASTER", "FLUSH_SLAVE_TIMEOUT", 0, None, True),
        ("SYNC_MASTER", "SLAVE_NOT_AVAILABLE", 0, None, True),
        ("ASYNC_MASTER", "SEND_OK", 0, None, True),
        ("SYNC_MASTER", "SEND_OK", 0, "power_off", True),
        ("SYNC_MASTER", "SEND_OK", 0, "kill", False),
    ],
)
def test_a_synchronous_master_says_send_ok_when_a_slave_has_the_message(
    role: Any, status: Any, on_slave: int, fault: str | None, is_kept: bool
) -> None:
    story = Pair(role)
    position = story.store.add(story.start(0))
    if fault is not None:
        story.fault(fault, SLAVE)
    story.acknowledge(0, 0, position, status)
    digests = {BROKER: (5,), SLAVE: (on_slave,)}
    story.record(CopiesSeen, send=0, broker=BROKER, digests=digests)
    assert names(story.judge()) == (set() if is_kept else {"acknowledged by slaves"})


# -- logs --


def test_a_slave_that_follows_its_master_is_not_blamed() -> None:
    story = Pair()
    story.look(100)
    story.look(300, kept=100, former_end=100)
    assert story.judge() == []


def test_a_slave_whose_log_differs_without_a_reason_is_blamed() -> None:
    story = Pair()
    story.look(300, 100)
    assert names(story.judge()) == {FOLLOWS}


@pytest.mark.parametrize("reason", ["power_off", "wipe"])
def test_a_slave_may_differ_from_a_master_that_lost_its_end_but_takes_no_more(reason: str) -> None:
    story = Pair()
    story.fault(reason)
    story.look(300, 100)
    story.look(300, 100, kept=300, former_end=300)
    assert story.judge() == []
    story = Pair()
    story.fault(reason)
    story.look(300, 100)
    story.look(400, 100, kept=300, former_end=300)
    assert names(story.judge()) == {FOLLOWS}


@pytest.mark.parametrize(
    ("end", "is_paused", "is_kept"), [(380, True, True), (420, True, False), (380, False, False)]
)
def test_a_paused_slave_may_take_late_what_its_master_sent_before_it_lost_it(
    end: int, is_paused: bool, is_kept: bool
) -> None:
    """Its socket has that when it goes on: seed 7003033."""
    story = Pair()
    if is_paused:
        story.fault("pause", SLAVE)
    story.look(400, server=BROKER, master=None, same_as_master=None)
    story.fault("wipe")
    story.look(300, 100)
    if is_paused:
        story.fault("resume", SLAVE)
    story.look(end, 100, kept=300, former_end=300)
    assert names(story.judge()) == (set() if is_kept else {FOLLOWS})


@pytest.mark.parametrize(("is_called_off", "is_kept"), [(True, True), (False, False)])
def test_a_switch_that_was_called_off_leaves_the_master_what_it_was(
    is_called_off: bool, is_kept: bool
) -> None:
    """A fault had started the former master again, which took messages meanwhile: seed 7003397."""
    story = Pair("ASYNC_MASTER", "10.0.0.2")
    changed = {"broker": BROKER, "server": SLAVE, "former": BROKER}
    story.record(MasterChanged, **changed)
    # What is compared meanwhile is compared with the successor.
    story.look(300, 100, server=BROKER, master=SLAVE)
    story.send(0)
    if is_called_off:
        story.record(MasterChanged, broker=BROKER, server=BROKER, former=SLAVE)
    story.look(300)
    assert (names(story.judge(MadeStore().image())) == set()) == is_kept


@pytest.mark.parametrize(
    ("fault", "is_kept"),
    [("power_off", True), ("wipe", True), ("mend_store", True), ("kill", False), (None, False)],
)
def test_a_log_loses_nothing_but_by_what_takes_it(fault: str | None, is_kept: bool) -> None:
    story = Pair()
    story.look(300)
    if fault is not None:
        story.fault(fault, SLAVE)
    story.look(200, kept=200, former_end=300)
    assert names(story.judge()) == (set() if is_kept else {FOLLOWS})


@pytest.mark.parametrize(
    ("end", "is_up", "is_kept"), [(500, True, False), (900, True, True), (500, False, True)]
)
def test_in_a_live_run_a_slave_catches_up(end: int, is_up: bool, is_kept: bool) -> None:
    story = Pair()
    story.look(900, server=BROKER, master=None, same_as_master=None)
    story.now_s += 60
    story.look(end, is_up=is_up)
    assert names(story.judge(live=True)) == (set() if is_kept else {FOLLOWS})


@pytest.mark.parametrize(("reason", "is_kept"), [("power_off", True), ("kill", False)])
def test_a_slave_whose_master_lost_what_it_has_need_not_catch_up(
    reason: str, is_kept: bool
) -> None:
    """It refuses until somebody mends it, also in a live run, whose SYNC_FLUSH masters may lose power
    before a message that a slave has is on their own disk.
    """
    story = Pair()
    story.fault(reason)
    story.look(900, server=BROKER, master=None, same_as_master=None)
    story.now_s += 60
    story.look(500, 450)
    assert names(story.judge(live=True)) == (set() if is_kept else {FOLLOWS})


def test_logs_are_compared_from_where_both_begin() -> None:
    one = Log({0: b"abcd", 10: b"efgh"}, 0, 14)
    assert one.differs(one) == 14
    assert one.differs(Log({10: b"ef"}, 10, 12)) == 12
    assert Log({10: b"eX"}, 10, 12).differs(one) == 11
    assert one.differs(Log({0: b"abcd", 10: b"efghij"}, 0, 16)) == 14
    # A file that ends too early, though more follows.
    assert one.differs(Log({0: b"ab", 10: b"efgh"}, 0, 14)) == 2
    assert one.differs(Log({}, 0, 0)) == 0


def test_a_log_is_not_looked_at_while_it_is_cut(tmp_path: Path) -> None:
    """A look in the first ms of a cut had the log from before it: seed 7100164."""

    async def main() -> None:
        stage = Stage(cluster, History(), tmp_path)
        replicas = Replicas(cluster, stage)

        def looked_at() -> list[str]:
            stage.history.clear()
            replicas.look("broker-a", again=True)
            return [each.server for each in stage.history.of(LogSeen)]

        assert looked_at() == ["broker-a", "broker-a-slave-1"]
        with replicas.cutting("broker-a-slave-1"):
            assert looked_at() == ["broker-a"]
        assert looked_at() == ["broker-a", "broker-a-slave-1"]
        # What lost its power stays torn until it runs again.
        replicas.torn.add("broker-a")
        with replicas.cutting("broker-a"):
            pass
        assert looked_at() == ["broker-a-slave-1"]

    with Cluster(clock="virtual", slaves=1) as cluster:
        cluster.run(main())


# -- writes --


def test_a_message_that_a_slave_stored_is_seen() -> None:
    story = Pair("ASYNC_MASTER", ID_HOST)
    story.send(0)
    assert names(story.judge()) == {"slaves refuse writes"}


def test_a_promoted_slave_takes_messages() -> None:
    story = Pair("ASYNC_MASTER", ID_HOST)
    story.switch()
    story.send(0)
    slave, story.store = story.store, MadeStore()
    assert story.judge(slave.image()) == []


# -- tables --


@pytest.mark.parametrize(
    ("offset", "wait_s", "is_kept"), [(7, 50, True), (6, 50, False), (6, 5, True)]
)
def test_a_slave_has_its_masters_offsets_a_while_later(
    offset: int, wait_s: float, is_kept: bool
) -> None:
    story = Pair()
    story.now_s += 200
    story.table(BROKER, orders=7)
    story.table(SLAVE, wait_s, orders=offset)
    assert names(story.judge()) == (set() if is_kept else {"tables are copied"})


def test_near_a_fault_a_slave_may_lack_offsets() -> None:
    story = Pair()
    story.now_s += 200
    story.fault("cut", BROKER)
    story.table(BROKER, orders=7)
    story.table(SLAVE, 50, orders=6)
    assert story.judge() == []


@pytest.mark.parametrize(("same_until", "is_kept"), [(300, False), (250, True)])
def test_a_slave_whose_log_differs_copies_no_offsets(same_until: int, is_kept: bool) -> None:
    """It refuses its master until somebody mends it: seed 7101399."""
    story = Pair()
    story.fault("power_off")
    story.now_s += 200
    story.table(BROKER, orders=7)
    story.look(300, same_until)
    story.table(SLAVE, 50, orders=6)
    assert names(story.judge()) == (set() if is_kept else {"tables are copied"})


@pytest.mark.parametrize(
    ("after", "reset", "is_kept"), [(7, False, True), (3, False, False), (3, True, True)]
)
def test_a_promoted_slave_goes_on_with_the_offsets_that_it_has(
    after: int, reset: bool, is_kept: bool
) -> None:
    story = Pair()
    story.table(SLAVE, orders=7)
    if reset:
        story.record(OffsetsReset, group=GROUP, topic=TOPIC)
    story.switch()
    story.table(SLAVE, orders=after)
    assert names(story.judge()) == (set() if is_kept else {"tables are copied"})


# -- switches --


def switched(
    role: Any, same_until: int, *, fault: str | None = None, status: Any = "SEND_OK"
) -> Pair:
    """Write the history of a message that a master acknowledged and the promoted slave does not
    have.
    """
    story = Pair(role)
    position = story.store.add(story.start(0))
    story.acknowledge(0, 0, position, status)
    digests = {BROKER: (5,), SLAVE: (5,)}
    story.record(CopiesSeen, send=0, broker=BROKER, digests=digests)
    story.look(same_until)
    if fault is not None:
        story.fault(fault, SLAVE)
    story.fault("kill")
    story.switch()
    return story


@pytest.mark.parametrize(
    ("role", "same_until", "fault", "status", "may"),
    [
        ("ASYNC_MASTER", 0, None, "SEND_OK", True),
        ("ASYNC_MASTER", 500, None, "SEND_OK", False),
        ("SYNC_MASTER", 0, None, "SEND_OK", False),
        ("SYNC_MASTER", 0, "power_off", "SEND_OK", True),
        ("SYNC_MASTER", 0, None, "FLUSH_SLAVE_TIMEOUT", True),
        ("SYNC_MASTER", 500, None, "FLUSH_SLAVE_TIMEOUT", False),
    ],
)
def test_a_switch_takes_what_the_promoted_slave_lacked(
    role: Any, same_until: int, fault: str | None, status: Any, may: bool
) -> None:
    story = switched(role, same_until, fault=fault, status=status)
    violations = story.judge(MadeStore().image())
    lost = {each for each in names(violations) if each == "acknowledged and not lost"}
    assert lost == (set() if may else {"acknowledged and not lost"})


def test_a_switch_gives_free_the_offsets_that_the_slave_lacked() -> None:
    story = switched("ASYNC_MASTER", 0)
    slave = MadeStore()
    other = story.start(1)
    position = slave.add(other, offset=0)
    story.acknowledge(1, 0, position)
    assert story.judge(slave.image()) == []


@pytest.mark.parametrize(("end", "is_kept"), [(4, True), (3, False)])
def test_the_end_of_a_queue_does_not_go_back_behind_that_of_the_promoted_slave(
    end: int, is_kept: bool
) -> None:
    story = Pair("ASYNC_MASTER")
    story.record(QueueSeen, queue=QUEUE, min_offset=0, max_offset=9)
    story.switch(**{str(QUEUE): 4})
    story.record(QueueSeen, queue=QUEUE, min_offset=0, max_offset=end)
    violations = story.judge(MadeStore().image())
    assert names(violations) == (set() if is_kept else {"offsets dense and never reused"})


# -- files --


def test_the_queues_of_a_slave_agree_with_its_log() -> None:
    story, slave = Pair("ASYNC_MASTER"), MadeStore()
    made = story.start(0)
    story.store.add(made)
    slave.add(made, has_unit=False)
    assert names(story.judge(slave.image())) == {"files agree"}


@pytest.mark.parametrize(
    ("state", "fault", "is_kept"),
    [("dead", "power_off", True), ("dead", "kill", False), ("closed", "power_off", False)],
)
def test_the_log_of_a_former_master_that_lost_its_power_may_have_a_hole(
    state: Any, fault: str, is_kept: bool
) -> None:
    """Nothing has recovered it, since it stays away: seed 7102017."""
    story, slave = Pair("ASYNC_MASTER"), MadeStore()
    positions = []
    for number in range(3):
        made = story.start(number)
        story.store.add(made, offset=number)
        positions.append(slave.add(made, offset=number))
    story.fault(fault, SLAVE)
    image = slave.image()
    log = next(name for name in image.files if "commitlog" in name)
    torn = bytearray(image.files[log])
    torn[positions[1] + 5] ^= 1  # the magic number of a record that another follows
    found = names(
        story.judge(
            msgspec.structs.replace(image, files={**image.files, log: bytes(torn)}, state=state)
        )
    )
    assert found == (set() if is_kept else {"files agree"})


@pytest.mark.parametrize(("path", "is_kept"), [("consumequeue", True), (None, False)])
def test_a_queue_of_a_slave_that_a_flipped_bit_emptied_gives_its_offsets_again(
    path: str | None, is_kept: bool
) -> None:
    """Recovery takes the unit of a record beyond the log's end for one that was cut: seed 7001997."""
    story = Pair("ASYNC_MASTER", ID_HOST)
    story.send(0)
    if path is not None:
        story.fault("flip_bit", SLAVE, path=path, offset=1)
    story.now_s += 10
    later = story.start(1)
    story.acknowledge(1, 0, story.store.add(later, offset=0))
    assert ("order" not in names(story.judge())) == is_kept
