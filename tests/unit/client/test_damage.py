"""Bytes among the records of an answer that are no message of the queue."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from tests.unit.client.fakes import FakeInstance
from tests.unit.client.test_pulling import PULL, QUEUE, Member, answer, record
from tests.waits import until

from cometmq.client.pulling import damage
from cometmq.client.pulling.damage import DamageControl
from cometmq.client.pulling.received import DamagedRecord
from cometmq.errors import RemotingError
from cometmq.model.results import DamageCounts, DamagedMessage
from cometmq.protocol.messages.record import NoRecord, StoredRecord, encode_record, read_records
from cometmq.runtime.tasks import TaskOwner

HOST = bytes(8)


def broken(offset: int) -> bytes:
    """Make a record whose body is not the one that was stored."""
    data = bytearray(record(offset, b"body"))
    data[88] ^= 1
    return bytes(data)


def foreign(topic: bytes = b"t", queue_id: int = 0, offset: int = 1) -> bytes:
    return encode_record(
        topic=topic, body=b"foreign", properties=b"", queue_id=queue_id, queue_offset=offset,
        physical_offset=4711, sys_flag=0, born_timestamp=1, born_host=HOST, store_timestamp=1,
        store_host=HOST,
    )  # fmt: skip


GARBAGE = {
    "no record at all": b"\xa5" * 300,
    "less than a record": b"\xa5" * 7,
    "zeros": bytes(500),
    "a size that spans the rest": b"\x7f" + record(1)[1:],
    "a size of zero": bytes(4) + record(1)[4:],
    "a size that is too small": b"\0\0\0\x10" + record(1)[4:],
    "another magic": record(1)[:4] + b"\0\0\0\0" + record(1)[8:],
    "a body longer than the record": record(1)[:84] + b"\0\0\xff\0" + record(1)[88:],
    "a record of another queue": foreign(queue_id=7),
    "a record of another topic": foreign(topic=b"other"),
    "a record of an offset far away": foreign(offset=1 << 50),
    "a record of an offset in front": foreign(offset=-1),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_the_client_goes_past_what_is_no_record_and_says_where(
    fake: FakeInstance, garbage: bytes
) -> None:
    served = answer(0, 4, record(0), garbage, record(2), record(3))
    # Asked for once more, in case that the broker has mended it.
    member = Member(fake, served, served, answer(0, 5, record(4)))
    with structlog.testing.capture_logs() as lines:
        await member.start()
        await until(lambda: len(member.delivered) == 4)
    assert [message.queue_offset for message in member.delivered] == [0, 2, 3, 4]
    assert [header.queue_offset for header in member.asked()[:3]] == [0, 0, 4]
    (line,) = [line for line in lines if "damaged message" in line["event"]]
    place = (line["topic"], line["broker"], line["queue_id"], line["queue_offset"])
    assert place == ("t", "a", 0, 1)
    assert line["log_level"] == "error"
    await member.stop()


async def test_bytes_between_neighbours_are_no_message_of_anybody(fake: FakeInstance) -> None:
    served = answer(0, 2, record(0), b"\xa5" * 100, record(1))
    member = Member(fake, served, served)
    await member.start(damage=(control := DamageControl(DamagedMessage.STOP, "g")))
    await until(lambda: len(member.delivered) == 2)
    assert control.counts() == DamageCounts(skipped=1)
    await member.stop()


async def test_an_answer_of_garbage_alone_does_not_stop_the_queue(fake: FakeInstance) -> None:
    garbage = answer(0, 8, b"\xa5" * 4000)
    member = Member(fake, garbage, garbage, answer(0, 9, record(8)))
    await member.start()
    await until(lambda: member.delivered)
    assert member.delivered[0].queue_offset == 8
    await member.stop()


async def test_a_stopped_queue_commits_nothing_from_there_on(fake: FakeInstance) -> None:
    member = Member(fake, answer(0, 4, record(0), record(1), broken(2), record(3)))
    control = DamageControl(DamagedMessage.STOP, "g")
    await member.start(damage=control)
    await until(lambda: member.ended)
    assert [message.queue_offset for message in member.delivered] == [0, 1]
    assert control.counts() == DamageCounts(stopped={QUEUE: 2})
    assert member.process_queue.remove([0, 1]) == 2
    assert control.properties()["damagedStoppedQueues"] == "t/a/0@2"
    assert len(fake.remoting.sent(PULL)) == 1
    # Given up here, it is no longer this member's to tell of.
    member.process_queue.dropped = True
    assert control.counts() == DamageCounts()
    await member.stop()


async def test_nothing_is_committed_past_a_dead_letter_that_is_not_stored(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "BURY_AGAIN_FIRST_S", 0.005)
    member = Member(fake, answer(0, 4, record(0), broken(1), record(2), record(3)))
    buried: list[DamagedRecord] = []
    attempts = 0
    stored = asyncio.Event()

    async def bury(damaged: DamagedRecord) -> None:
        nonlocal attempts
        attempts += 1
        if not stored.is_set():
            raise RemotingError("the broker is away")
        buried.append(damaged)

    owner = TaskOwner("test")
    control = DamageControl(
        DamagedMessage.DEAD_LETTER, "g", offsets=member.offsets, bury=bury, tasks=owner
    )
    await member.start(damage=control)
    await until(lambda: len(member.delivered) == 3 and attempts > 2)
    assert [message.queue_offset for message in member.delivered] == [0, 2, 3]
    assert member.process_queue.remove([0, 2, 3]) == 1
    stored.set()
    await until(lambda: control.counts().dead_lettered == 1)
    assert member.offsets.get(QUEUE) == 4
    assert (buried[0].data, buried[0].queue_offset) == (broken(1), 1)
    await owner.close()
    await member.stop()


def test_reading_goes_on_at_the_next_record() -> None:
    good = [record(0), record(1), record(2)]
    buffer = b"junk" * 9 + good[0] + b"\xff" * 100 + good[1] + broken(7) + good[2] + b"rest"
    found = list(read_records(buffer))
    records = [item.queue_offset for item in found if isinstance(item, StoredRecord)]
    assert records == [0, 1, 7, 2]
    gaps = [buffer[item.start : item.end] for item in found if isinstance(item, NoRecord)]
    assert gaps == [b"junk" * 9, b"\xff" * 100, b"rest"]


def test_made_up_bytes_do_not_take_long_to_pass() -> None:
    """Every piece looks like the beginning of a record that is as long as the rest of the
    answer.
    """
    lines: list[int] = []

    def made_up(count: int) -> bytes:
        size = 1 << 20
        return b"".join(
            (size - 100 * number).to_bytes(4, "big") + record(0)[4:88] + bytes(12)
            for number in range(count)
        ).ljust(size, b"\0")

    for count in (100, 1000, 10_000):
        lines.append(sum(1 for _ in read_records(made_up(count))))
    assert lines == [1, 1, 1]
