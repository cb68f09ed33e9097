"""SYNC_FLUSH and SYNC_MASTER: a send is answered when its message is safe, refused, or overdue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from tests.unit.broker.broker_box import turns
from tests.unit.remoting.line import ECHO, EchoHeader, Line
from tests.waits import WAIT_S, until

from cometmq.broker.storage.group_commit import DiskLine, GroupCommit, SlaveLine
from cometmq.errors import ANSWER_MEANINGS, Stored, StoreError, StoreStarvedError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import FLAG_ONEWAY, Request
from cometmq.protocol.frame import Frame
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing import virtual

OK = ResponseCode.SUCCESS
LATE = ResponseCode.FLUSH_DISK_TIMEOUT
SLAVE_LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE
FAILED = ResponseCode.SYSTEM_ERROR
TIMEOUT_S = 5.0


class HeldFlusher:
    """A disk whose syncs end when the test says so."""

    def __init__(self) -> None:
        self.syncs: list[asyncio.Future[int]] = []

    def flush(self, least_pages: int) -> asyncio.Future[int]:
        assert least_pages == 0, "a sync send waits for every byte, not for full pages"
        self.syncs.append(asyncio.get_running_loop().create_future())
        return self.syncs[-1]


class Sends:
    """One producer whose sends wait for `disk`."""

    def __init__(self) -> None:
        self.disk = HeldFlusher()
        self.timeout_s = TIMEOUT_S
        self.tasks = TaskOwner("test")
        self.line = Line()
        disk = DiskLine(cast("Any", self.disk), lambda: self.timeout_s, self.tasks)
        self.commit = GroupCommit(disk, None)

    def send(self, opaque: int, end: int, *, oneway: bool = False) -> None:
        """Have a send wait whose message ends at `end` in the log."""
        request = Request(
            code=ECHO,
            header=EchoHeader(number=opaque),
            opaque=opaque,
            flag=FLAG_ONEWAY if oneway else 0,
            frame=Frame(0, b"", b""),
        )
        ext_json = b'"queueOffset":"%d"' % opaque
        self.commit.answer_when_safe(end, self.line.connection, request, ext_json)

    async def synced(self, number: int, end: int | Exception) -> None:
        """End the sync of that number, and let the answers go out."""
        sync = self.disk.syncs[number]
        if isinstance(end, Exception):
            sync.set_exception(end)
        else:
            sync.set_result(end)
        await turns(5)

    @property
    def answers(self) -> list[tuple[int, int]]:
        """Opaque and code of every answer so far, in their order."""
        return [(answer.opaque, answer.code) for answer in self.line.received()]


Scene = Callable[[Sends], Coroutine[Any, Any, None]]


def scene(play: Scene) -> None:
    async def run() -> None:
        sends = Sends()
        await play(sends)
        await sends.tasks.close()

    virtual.run(run())


def test_no_send_is_answered_before_the_disk_has_it() -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100)
        await turns(5)
        assert sends.answers == []
        await sends.synced(0, 100)
        assert sends.answers == [(1, OK)]
        assert sends.line.received()[0].ext == {"queueOffset": "1"}

    scene(play)


def test_one_sync_answers_all_sends_of_a_turn_in_log_order() -> None:
    async def play(sends: Sends) -> None:
        for number in range(1, 51):
            sends.send(number, end=number * 10)
        await turns(5)
        assert len(sends.disk.syncs) == 1
        await sends.synced(0, 500)
        assert sends.answers == [(number, OK) for number in range(1, 51)]
        assert len(sends.disk.syncs) == 1, "nobody waits, so nothing is synced"

    scene(play)


def test_who_is_above_the_synced_offset_waits_for_the_next_sync() -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100)
        await turns(5)
        # These come while the first sync runs, which began without them.
        sends.send(2, end=200)
        sends.send(3, end=201)
        await sends.synced(0, 100)
        assert sends.answers == [(1, OK)]
        assert len(sends.disk.syncs) == 2
        await sends.synced(1, 200)
        assert sends.answers == [(1, OK), (2, OK)]
        await sends.synced(2, 201)
        assert sends.answers == [(1, OK), (2, OK), (3, OK)]

    scene(play)


def test_an_answer_that_fails_keeps_no_other_from_being_sent() -> None:
    async def play(sends: Sends) -> None:
        def fail() -> None:
            raise RuntimeError("a fault of ours")

        other = Line()
        request = Request(
            code=ECHO, header=EchoHeader(number=1), opaque=1, frame=Frame(0, b"", b"")
        )
        sends.commit.answer_when_safe(100, other.connection, request, b"", fail)
        sends.send(2, end=200)
        await turns(5)
        await sends.synced(0, 200)
        assert sends.answers == [(2, OK)]
        assert other.connection.closed
        assert sends.commit.waiting_count == 0

    scene(play)


def test_a_later_send_begins_a_new_sync() -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100)
        await turns(5)
        await sends.synced(0, 100)
        sends.send(2, end=200)
        await turns(5)
        assert len(sends.disk.syncs) == 2
        await sends.synced(1, 200)
        assert sends.answers == [(1, OK), (2, OK)]

    scene(play)


def test_a_disk_that_fails_refuses_all_that_wait_and_says_why() -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100)
        await turns(5)
        sends.send(2, end=200)
        await sends.synced(0, StoreError("commitlog/0: Input/output error"))
        assert sends.answers == [(1, FAILED), (2, FAILED)]
        assert {a.remark for a in sends.line.received()} == {"commitlog/0: Input/output error"}
        # They are in the log, so nobody may say that they are not stored.
        assert ANSWER_MEANINGS[FAILED].stored is Stored.UNKNOWN
        # The next send asks the disk again, and hears the same or something better.
        sends.send(3, end=300)
        await turns(5)
        await sends.synced(1, 300)
        assert sends.answers[2:] == [(3, OK)]

    scene(play)


def test_a_lack_of_descriptors_refuses_nobody_and_is_tried_again() -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100)
        await turns(5)
        await sends.synced(0, StoreStarvedError("no descriptor is free"))
        assert sends.answers == []
        await asyncio.sleep(0.1)
        assert len(sends.disk.syncs) == 2
        await sends.synced(1, 100)
        assert sends.answers == [(1, OK)]

    scene(play)


def test_a_lack_of_descriptors_that_lasts_makes_sends_overdue() -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100)
        while not sends.answers:
            await turns(5)
            assert asyncio.get_running_loop().time() < 2 * TIMEOUT_S
            if not sends.disk.syncs[-1].done():
                sends.disk.syncs[-1].set_exception(StoreStarvedError("no descriptor is free"))
            await asyncio.sleep(0.01)
        assert sends.answers == [(1, LATE)]
        assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_S, abs=0.2)

    scene(play)


def test_sends_to_a_disk_that_hangs_were_overdue_for_twice_their_time() -> None:
    async def play(sends: Sends) -> None:
        answered: dict[int, float] = {}
        loop = asyncio.get_running_loop()

        async def look() -> None:
            while len(answered) < 3:
                for opaque, code in sends.answers:
                    assert code == LATE
                    answered.setdefault(opaque, loop.time())
                await asyncio.sleep(0.01)

        looking = sends.tasks.spawn(look(), "look")
        sends.send(1, end=100)
        await asyncio.sleep(2.0)
        sends.send(2, end=200)
        await asyncio.sleep(4.0)
        sends.send(3, end=300)
        async with asyncio.timeout(WAIT_S):
            await looking
        for opaque, sent_s in ((1, 0.0), (2, 2.0), (3, 6.0)):
            assert answered[opaque] == pytest.approx(sent_s + TIMEOUT_S, abs=0.1)
        # The answer has the message's place all the same: it stays in the log.
        assert sends.line.received()[0].ext == {"queueOffset": "1"}
        # And no sync queues up behind the one that hangs.
        assert len(sends.disk.syncs) == 1

    scene(play)


def test_a_disk_that_works_again_answers_who_is_not_overdue() -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100)
        await asyncio.sleep(TIMEOUT_S - 1)
        sends.send(2, end=200)
        await asyncio.sleep(1.5)
        assert sends.answers == [(1, LATE)]
        await sends.synced(0, 100)
        assert len(sends.disk.syncs) == 2, "the second is not on disk by the first one's sync"
        await sends.synced(1, 200)
        assert sends.answers == [(1, LATE), (2, OK)]

    scene(play)


@pytest.mark.parametrize("end", [100, StoreError("broken")])
def test_a_one_way_send_is_not_answered_whatever_becomes_of_it(end: int | Exception) -> None:
    async def play(sends: Sends) -> None:
        sends.send(1, end=100, oneway=True)
        sends.send(2, end=100)
        await turns(5)
        await sends.synced(0, end)
        assert [opaque for opaque, _ in sends.answers] == [2]

    scene(play)


class HeldCopies:
    """Slaves that report when the test says so."""

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.available = True
        self.at = 0
        self.limit_s = 3.0

    def is_available(self, end: int) -> bool:
        return self.available

    def reached(self) -> int:
        return self.at

    def timeout_s(self) -> float:
        return self.limit_s

    def report(self, offset: int) -> None:
        self.at = offset
        for callback in self.on_change:
            callback()


class CopiedSends(Sends):
    """One producer whose sends wait for slaves, with `flushed` for the disk, too."""

    def __init__(self, *, flushed: bool) -> None:
        super().__init__()
        self.copies = HeldCopies()
        disk = DiskLine(cast("Any", self.disk), lambda: self.timeout_s, self.tasks)
        self.commit = GroupCommit(disk if flushed else None, SlaveLine(self.copies))


CopiedScene = Callable[[CopiedSends], Coroutine[Any, Any, None]]


def copied_scene(play: CopiedScene, *, flushed: bool = True) -> None:
    async def run() -> None:
        sends = CopiedSends(flushed=flushed)
        await play(sends)
        await sends.tasks.close()
        assert sends.commit.waiting_count == 0

    virtual.run(run())


def test_one_report_answers_all_sends_that_it_covers_in_log_order() -> None:
    async def play(sends: CopiedSends) -> None:
        for number in range(1, 51):
            sends.send(number, end=number * 10)
        await turns(5)
        assert sends.answers == []
        assert sends.commit.waiting_count == 50
        sends.copies.report(205)
        await turns(5)
        assert sends.answers == [(number, OK) for number in range(1, 21)]
        sends.copies.report(500)
        await turns(5)
        assert sends.answers == [(number, OK) for number in range(1, 51)]
        assert not sends.disk.syncs

    copied_scene(play, flushed=False)


@pytest.mark.parametrize("disk_first", [True, False])
def test_a_send_waits_for_the_disk_and_for_slaves_at_once(disk_first: bool) -> None:
    async def play(sends: CopiedSends) -> None:
        sends.send(1, end=100)
        await turns(5)
        assert len(sends.disk.syncs) == 1, "the sync does not wait for the slaves"
        if disk_first:
            await sends.synced(0, 100)
        else:
            sends.copies.report(100)
            await turns(5)
        assert sends.answers == []
        if disk_first:
            sends.copies.report(100)
            await turns(5)
        else:
            await sends.synced(0, 100)
        assert sends.answers == [(1, OK)]

    copied_scene(play)


def test_slaves_that_do_not_report_make_a_send_overdue_after_slave_timeout() -> None:
    async def play(sends: CopiedSends) -> None:
        loop = asyncio.get_running_loop()
        sends.send(1, end=100)
        await turns(5)
        await sends.synced(0, 100)
        await until(lambda: bool(sends.answers), pause_s=0.01)
        assert sends.answers == [(1, SLAVE_LATE)]
        assert loop.time() == pytest.approx(3.0, abs=0.1)
        # A shorter time-out counts for those that wait already, within a second.
        sends.send(2, end=200)
        await turns(5)
        await sends.synced(1, 200)
        sends.copies.limit_s = 0.5
        began_s = loop.time()
        await until(lambda: len(sends.answers) == 2, pause_s=0.01)
        assert loop.time() - began_s == pytest.approx(1.0, abs=0.1)

    copied_scene(play)


def test_both_overdue_is_told_as_the_slaves() -> None:
    async def play(sends: CopiedSends) -> None:
        sends.send(1, end=100)
        await asyncio.sleep(4)
        assert sends.answers == [], "the disk has time until five seconds"
        await asyncio.sleep(2)
        assert sends.answers == [(1, SLAVE_LATE)]

    copied_scene(play)


@pytest.mark.parametrize("flushed", [True, False])
def test_without_slaves_a_send_still_waits_for_the_disk(flushed: bool) -> None:
    async def play(sends: CopiedSends) -> None:
        sends.copies.available = False
        sends.send(1, end=100)
        await turns(5)
        assert sends.answers == ([] if flushed else [(1, NO_SLAVE)])
        if flushed:
            await sends.synced(0, 100)
        assert sends.answers == [(1, NO_SLAVE)]
        # Slaves that are there again do not change the order of others.
        sends.copies.available = True
        sends.send(2, end=200)
        sends.copies.report(200)
        await turns(5)
        if flushed:
            await sends.synced(1, 200)
        assert sends.answers == [(1, NO_SLAVE), (2, OK)]

    copied_scene(play, flushed=flushed)


def test_a_disk_that_fails_refuses_at_once_what_waits_for_slaves_too() -> None:
    async def play(sends: CopiedSends) -> None:
        sends.send(1, end=100)
        await turns(5)
        await sends.synced(0, StoreError("commitlog/0: Input/output error"))
        assert sends.answers == [(1, FAILED)]
        sends.copies.report(100)
        await asyncio.sleep(5)
        assert sends.answers == [(1, FAILED)], "it is answered once"

    copied_scene(play)
