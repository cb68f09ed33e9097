"""Delivering many messages at once equals delivering each, up to the messages at which it stops."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.record_fields import RECORD_FIELDS
from tests.seeds import seed_of
from tests.unit.broker.delay_box import DelayBox
from tests.unit.store.store_box import CLIENT, Box, damage_body

from cometmq.broker.delays.delivery import Delivery, UndeliverableError
from cometmq.errors import MessageIllegalError, StoreBusyError
from cometmq.model.sysflag import TRANSACTION_COMMIT
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.store.delivery_note import named_origins
from cometmq.store.log.following import LogFollower
from cometmq.store.refusals import RefusalCause
from cometmq.store.store import MessageStore

WAITING = "SCHEDULE_TOPIC_XXXX"
GOOD = "UNIQ_KEY\x01U1\x02TAGS\x01t\x02REAL_TOPIC\x01orders\x02REAL_QID\x012\x02"


class Room:
    """A store with waiting messages."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.box = Box(
            root,
            **{
                "mapped_file_size_commit_log": 512 * 1024,
                "mapped_file_size_consume_queue": 20 * 1000,
                "message_index_enable": False,
            }
            | settings,
        )
        self.store: MessageStore = self.box.open()
        self.delivery = Delivery(self.store)

    def wait(
        self, properties: str, *, topic: str = WAITING, body: bytes = b"body", **fields: Any
    ) -> tuple[int, int]:
        """Put a waiting record with these properties; return its offset and size."""
        host = fields.pop("born_host", CLIENT)
        place = self.store.append(
            self.store.queue(topic, 0), body, properties.encode(), 0, 77, host, **fields
        )[1]
        data = self.store.record_at(place)
        assert data is not None
        return place, len(data)

    def one_by_one(self, place: tuple[int, int], suffix: bytes = b"") -> None:
        waiting = self.delivery.read(*place)
        more = suffix % waiting.store_timestamp if suffix else b""
        self.delivery.deliver(waiting, more)

    def delivered(self) -> list[tuple[int, StoredRecord]]:
        """Return tags code and record of all messages outside the waiting topic, by queue."""
        found = []
        for topic, queue_ids in sorted(self.store.topics().items()):
            for queue_id in queue_ids if topic != WAITING else ():
                queue = self.store.queue(topic, queue_id)
                for offset in range(queue.next_offset):
                    unit = queue.unit(offset)
                    assert unit is not None
                    data = self.store.record_at(unit.physical_offset)
                    assert data is not None
                    assert len(data) == unit.size
                    found.append((unit.tags_code, decode_record(data, check_crc=True)))
        return found


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """Its queue for what is delivered has a file already: making one needs a closer look too."""
    room = Room(tmp_path / "store")
    room.one_by_one(room.wait(GOOD))
    yield room
    room.box.close()


def fields(record: StoredRecord) -> tuple[object, ...]:
    """Return all fields but the log offset, which differs: a note for one copy is shorter than a
    note for many.
    """
    return tuple(getattr(record, name) for name in RECORD_FIELDS if name != "physical_offset")


def named(store: MessageStore) -> list[int]:
    """Return the offsets of the records that the notes of the log name, note by note."""
    notes = [offset for offset, _, origin in LogFollower(store.commit_log, 0) if origin < 0]
    return [
        origin
        for offset in notes
        if (data := store.record_at(offset)) is not None
        for origin in named_origins(decode_record(data, check_crc=True))
    ]


def random_properties(rng: random.Random) -> str:
    entries = [
        f"UNIQ_KEY\x01{rng.randrange(10**6):032X}",
        f"TAGS\x01{rng.choice(('t', 'täg', 'long' * 9))}",
        f"REAL_TOPIC\x01{rng.choice(('orders', 'audit', 'x' * 127))}",
        f"REAL_QID\x01{rng.choice((0, 1, 7))}",
        "XTAGS\x01other",
        "TAGS\x01",
        "mine\x01REAL_TOPIC",
        "KEYS\x01a b",
    ]
    rng.shuffle(entries)
    chosen = [entry for entry in entries if entry.startswith("REAL_") or rng.random() < 0.6]
    return "\x02".join(chosen) + rng.choice(("", "\x02"))


@pytest.mark.parametrize("suffix", [b"", b"STORED\x01%d\x02"], ids=["", "suffix"])
def test_many_at_once_are_as_one_by_one(tmp_path: Path, suffix: bytes) -> None:
    rng = random.Random(seed_of("COMETMQ_DELIVERY_SEED"))
    rooms = Room(tmp_path / "many"), Room(tmp_path / "one")
    many, one = rooms
    places = []
    for _ in range(400):
        text, body = random_properties(rng), rng.randbytes(rng.choice((0, 10, 3000)))
        more: dict[str, Any] = {
            "flag": rng.randrange(-5, 5),
            "sys_flag": rng.choice((0, 1)),
            "reconsume_times": 3,
        }
        places.append(many.wait(text, body=body, **more))
        assert one.wait(text, body=body, **more) == places[-1]
    at_once = done = 0
    while done < len(places):
        count = many.delivery.deliver_many(places[done:], suffix)
        at_once += count
        if not count:
            many.one_by_one(places[done], suffix)
        done += count or 1
    for place in places:
        one.one_by_one(place, suffix)
    assert at_once > 100
    assert [(code, fields(record)) for code, record in many.delivered()] == [
        (code, fields(record)) for code, record in one.delivered()
    ]
    assert many.delivery.delivered_count == one.delivery.delivered_count == 400
    assert many.box.arrivals == one.box.arrivals
    for room in rooms:
        room.box.close()


@pytest.mark.parametrize(
    "properties",
    [
        "UNIQ_KEY\x01U1\x02",
        GOOD.replace("\x012\x02", "\x01two\x02"),
        GOOD.replace("orders", "RMQ_SYS_TRANS_HALF_TOPIC"),
        GOOD.replace("orders", "../orders"),
    ],
    ids=["meant for nothing", "queue is no number", "half topic", "no directory"],
)
def test_what_can_never_be_delivered_is_left_to_a_closer_look(room: Room, properties: str) -> None:
    places = [room.wait(GOOD), room.wait(properties), room.wait(GOOD)]
    assert room.delivery.deliver_many(places) == 1
    assert room.delivery.deliver_many(places[1:]) == 0
    with pytest.raises((UndeliverableError, MessageIllegalError)):
        room.one_by_one(places[1])
    assert room.delivery.deliver_many(places[2:]) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"born_host": pack_host("::1", 1)},
        {"sys_flag": TRANSACTION_COMMIT},
        {"topic": "y" * 200},
    ],
    ids=["IPv6", "committed", "long waiting topic"],
)
def test_what_is_unusual_is_left_to_a_closer_look(room: Room, more: dict[str, Any]) -> None:
    places = [room.wait(GOOD), room.wait(GOOD, **more), room.wait(GOOD)]
    assert room.delivery.deliver_many(places) == 1
    room.one_by_one(places[1])
    assert room.delivery.deliver_many(places[2:]) == 1
    assert [record.queue_offset for _, record in room.delivered() if record.topic == "orders"] == [
        0, 1, 2, 3
    ]  # fmt: skip


def test_a_body_that_the_disk_has_altered_is_not_delivered_as_intact(room: Room) -> None:
    place, size = room.wait(GOOD)
    damage_body(room.store, place)
    with pytest.raises(UndeliverableError, match="contradicts its CRC"):
        room.delivery.read(place, size)


def test_places_without_a_record_are_left_to_a_closer_look(room: Room) -> None:
    place, size = room.wait(GOOD)
    for wrong in [
        (place + 1, size - 1),
        (place, size - 1),
        (place, 0x7FFFFFFF),
        (place, 4),
        (-1, size),
        (1 << 40, size),
        (room.store.commit_log.end, 100),
    ]:
        assert room.delivery.deliver_many([wrong]) == 0, wrong
        with pytest.raises(UndeliverableError):
            room.delivery.read(*wrong)
    assert room.delivery.deliver_many([]) == 0
    assert len(room.delivered()) == 1


def test_a_store_that_takes_nothing_is_given_nothing(room: Room) -> None:
    places = [room.wait(GOOD)]
    room.store.refusals.set(RefusalCause.PAGE_CACHE_BUSY, StoreBusyError("behind"))
    assert room.delivery.deliver_many(places) == 0
    room.store.refusals.lift(RefusalCause.PAGE_CACHE_BUSY)
    assert room.delivery.deliver_many(places) == 1


def test_a_suffix_without_room_is_left_to_a_closer_look(room: Room) -> None:
    place = room.wait("x\x01" + "y" * 32_600 + "\x02" + GOOD)
    assert room.delivery.deliver_many([place], b"%d" + b"z" * 200) == 0
    assert room.delivery.deliver_many([place], b"%d") == 1


def test_a_body_above_a_limit_that_was_lowered_is_left_to_a_closer_look(tmp_path: Path) -> None:
    room = Room(tmp_path / "store")
    place = room.wait(GOOD, body=b"x" * 2000)
    room.box.close()
    room = Room(tmp_path / "store", max_message_size=1000)
    room.one_by_one(room.wait(GOOD))
    assert room.delivery.deliver_many([place]) == 0
    with pytest.raises(MessageIllegalError, match="maxMessageSize is 1000"):
        room.one_by_one(place)
    room.box.close()


def test_records_in_the_transient_store_pool_are_delivered_once_they_are_readable(
    tmp_path: Path,
) -> None:
    room = Room(tmp_path / "store", transient_store_pool_enable=True)
    places = [room.wait(GOOD) for _ in range(50)]
    done = 0
    while done < len(places):
        count = room.delivery.deliver_many(places[done:])
        if not count:
            room.one_by_one(places[done])
        done += count or 1
    room.store.commit()
    room.store.publish()
    assert [record.prepared_transaction_offset for _, record in room.delivered()] == [0] * 50
    assert named(room.store) == [place for place, _ in places]
    assert len([arrival for arrival in room.box.arrivals if arrival[0] == "orders"]) == 50
    room.box.close()


@pytest.mark.parametrize(
    "delay", [{"DELAY": "2"}, {"TIMER_DELIVER_MS": ""}], ids=["level", "timer"]
)
def test_a_topic_that_is_being_deleted_doubles_nothing_of_others(
    tmp_path: Path, delay: dict[str, str]
) -> None:
    # Found by a review: what had been copied in front of its message was copied at each try.
    box = DelayBox(tmp_path / "store")
    asked = {name: value or str(box.start_ms + 5000) for name, value in delay.items()}
    front = [b"front %d" % number for number in range(5)]
    for body in front:
        box.put(dict(asked), topic="orders", body=body)
    box.put(dict(asked), topic="gone", body=b"lost")
    box.put(dict(asked), topic="orders", body=b"behind")
    box.store.queue("gone", 2)
    steps = box.store.deletion(["gone"])
    noting = next(steps)
    for at_ms in (7000, 8000, 9000):
        box.run_at(at_ms)
        assert box.bodies("orders") == front
    noting.do()
    for work in steps:
        work.do()
    box.run_at(20_000)
    assert box.bodies("orders") == [*front, b"behind"]
    box.box.close()
