"""Dead letters are sent once more, and never twice under one id."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.unit.broker.delay_box import DelayBox
from tests.unit.store.store_box import CLIENT, HOST

from cometmq.broker.refusal import Refused
from cometmq.broker.retries.redrive import MAX_SELECTED_CHARACTERS, Redrives
from cometmq.errors import StoreBusyError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.ids import encode_offset_id
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord
from cometmq.protocol.redrive import LetterSelection
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.state_files.state_writer import StateWriter

ALL = LetterSelection()


class Letters:
    """`count` dead letters of the group audit, from the topic orders, one second apart."""

    def __init__(self, delays: DelayBox, count: int = 6) -> None:
        self.delays = delays
        delays.topics.put(TopicConfig(topic_name="orders", write_queue_nums=4, read_queue_nums=4))
        for number in range(count):
            delays.clock.value = delays.start_ms + number * 1_000
            place = delays.put(
                {"UNIQ_KEY": f"U{number}", "KEYS": f"k{number} all"}, body=b"%d" % number
            )
            first_id = encode_offset_id(HOST, place)
            delays.put(
                {
                    "UNIQ_KEY": f"U{number}",
                    "KEYS": f"k{number} all",
                    "RETRY_TOPIC": "orders",
                    "ORIGIN_MESSAGE_ID": first_id,
                    "DELAY": "0",
                    "REAL_TOPIC": "%RETRY%audit",
                    "REAL_QID": "0",
                    "WAIT": "false",
                },
                topic="%DLQ%audit",
                queue_id=0,
                body=b"%d" % number,
                reconsume_times=17,
                flag=number,
            )
        self.reopen()

    def reopen(self) -> None:
        async def flush() -> None:
            self.delays.store.flush_commit_log()

        self.redrives = Redrives(
            self.delays.store,
            self.delays.clock,
            self.delays.topics,
            flush,
            StateWriter(),
            Randomness(1),
        )
        self.redrives.open()

    def kill(self) -> None:
        self.delays.box.crash(self.delays.store)
        self.delays.open(None)
        self.reopen()

    def sent(self, topic: str = "orders", queues: int = 4) -> list[StoredRecord]:
        return [
            record
            for queue_id in range(queues)
            for record in self.delays.records(topic, queue_id)
            if "REDRIVE_ID" in record.properties
        ]

    def bodies(self, topic: str = "orders") -> list[bytes]:
        return sorted(record.body for record in self.sent(topic))


@pytest.fixture
def letters(delays: DelayBox) -> Letters:
    return Letters(delays)


async def test_a_letter_goes_back_to_its_topic_as_it_was_sent(letters: Letters) -> None:
    state = await letters.redrives.redrive("r1", "audit", LetterSelection(ids=("U3",)))
    assert (state.finished, state.sent_count, state.skipped_count) == (True, 1, 0)
    (record,) = letters.sent()
    assert (record.topic, record.queue_id) == ("orders", 2)
    assert (record.body, record.flag, record.reconsume_times) == (b"3", 3, 0)
    properties = decode_properties(record.properties)
    assert properties.pop("ORIGIN_MESSAGE_ID")
    assert properties == {"UNIQ_KEY": "U3", "KEYS": "k3 all", "REDRIVE_ID": "r1"}


async def test_a_letter_that_a_java_broker_wrote_goes_back_to_the_queue_of_its_message(
    letters: Letters,
) -> None:
    """A Java broker gives the letter the id of the batch, and not the message's own."""
    place = letters.delays.put_of_java_batch("A", "B")
    given = {"UNIQ_KEY": "B", "RETRY_TOPIC": "orders"}
    given["ORIGIN_MESSAGE_ID"] = encode_offset_id(HOST, place)
    letters.delays.put(given, topic="%DLQ%audit", queue_id=0, body=b"b")
    for attempt in range(8):  # any other queue would be chosen by chance
        await letters.redrives.redrive(f"b{attempt}", "audit", LetterSelection(ids=("B",)))
    assert [record.queue_id for record in letters.sent()] == [2] * 8


async def test_a_group_can_have_them_alone(letters: Letters) -> None:
    await letters.redrives.redrive("r1", "audit", LetterSelection(keys=("k2",)), only_group=True)
    assert letters.sent() == []
    (record,) = letters.sent("%RETRY%audit", 1)
    properties = decode_properties(record.properties)
    assert (properties["RETRY_TOPIC"], properties["UNIQ_KEY"]) == ("orders", "U2")


@pytest.mark.parametrize(
    ("selection", "bodies"),
    [
        (ALL, [b"0", b"1", b"2", b"3", b"4", b"5"]),
        (LetterSelection(ids=("U1", "U4", "U9")), [b"1", b"4"]),
        (LetterSelection(keys=("k1", "k5")), [b"1", b"5"]),
        (LetterSelection(keys=("all",), ids=("U5",)), [b"5"]),
        (LetterSelection(keys=("k1",), ids=("U5",)), []),
    ],
)
async def test_letters_are_chosen_by_id_and_key(
    letters: Letters, selection: LetterSelection, bodies: list[bytes]
) -> None:
    await letters.redrives.redrive("r1", "audit", selection)
    assert letters.bodies() == bodies


async def test_letters_are_chosen_by_time_and_offset_id(letters: Letters) -> None:
    start = letters.delays.start_ms
    times = LetterSelection(begin_ms=start + 2_000, end_ms=start + 3_999)
    await letters.redrives.redrive("r1", "audit", times)
    assert letters.bodies() == [b"2", b"3"]
    letter = letters.delays.records("%DLQ%audit", 0)[5]
    own_id = encode_offset_id(letter.store_host, letter.physical_offset)
    first_id = decode_properties(letter.properties)["ORIGIN_MESSAGE_ID"]
    for number, name in enumerate((own_id, first_id)):
        await letters.redrives.redrive(f"o{number}", "audit", LetterSelection(ids=(name,)))
    assert letters.bodies() == [b"2", b"3", b"5", b"5"]


async def test_the_same_id_never_sends_twice(letters: Letters) -> None:
    for _ in range(3):
        state = await letters.redrives.redrive("r1", "audit", ALL)
        assert state.sent_count == 6
        letters.kill()
    assert letters.bodies() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    # A letter that came later is not part of it.
    letters.delays.put(
        {"UNIQ_KEY": "U9", "RETRY_TOPIC": "orders"}, topic="%DLQ%audit", queue_id=0, body=b"9"
    )
    await letters.redrives.redrive("r1", "audit", ALL)
    assert len(letters.bodies()) == 6
    await letters.redrives.redrive("r2", "audit", ALL)
    assert len(letters.bodies()) == 13


def fail_behind(letters: Letters, count: int) -> None:
    """Have the store take so many records more, and then none until it is opened again."""
    append = letters.delays.store.append
    left = count

    def fails(*args: object, **fields: object) -> tuple[int, int]:
        nonlocal left
        if not left:
            raise StoreBusyError("the disk is behind")
        left -= 1
        return append(*args, **fields)  # type: ignore[arg-type]  # it hands on whatever it is given

    letters.delays.store.append = fails


@pytest.mark.parametrize("failing", range(6))
async def test_an_interrupted_redrive_goes_on_where_it_was(letters: Letters, failing: int) -> None:
    append = letters.delays.store.append
    fail_behind(letters, failing)
    with pytest.raises(StoreBusyError):
        await letters.redrives.redrive("r1", "audit", ALL)
    assert len(letters.bodies()) == failing
    if failing % 2:
        letters.kill()
    else:
        letters.delays.store.append = append
    state = await letters.redrives.redrive("r1", "audit", ALL)
    assert state.sent_count == 6
    assert letters.bodies() == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_letters_that_share_the_id_of_a_batch_are_each_sent_once_also_after_a_kill(
    delays: DelayBox,
) -> None:
    """Records that a Java broker wrote have its id alone; some here also have their own in front of
    it.
    """
    letters = Letters(delays, 0)
    delays.put_of_java_batch("A1", "B")
    dead = delays.store.queue("%DLQ%audit", 0)
    for number in range(6):
        own = f"UNIQ_KEY\x01A{number}\x02" if number % 2 else ""
        text = f"{own}RETRY_TOPIC\x01orders\x02UNIQ_KEY\x01B\x02"
        delays.store.append_batch(
            dead, [BatchEntry(0, b"%d" % number, text.encode())], [0], 77, CLIENT
        )
    fail_behind(letters, 3)
    with pytest.raises(StoreBusyError):
        await letters.redrives.redrive("r1", "audit", ALL)
    letters.kill()
    state = await letters.redrives.redrive("r1", "audit", ALL)
    assert (state.finished, state.sent_count) == (True, 6)
    ids = {
        record.body: [
            entry for entry in record.properties.split("\x02") if entry.startswith("UNIQ_KEY")
        ]
        for record in letters.sent()
    }
    assert len(letters.sent()) == 6
    assert ids == {
        b"%d" % number: [f"UNIQ_KEY\x01{f'A{number}' if number % 2 else 'B'}"]
        for number in range(6)
    }


async def test_random_kills_double_none(delays: DelayBox) -> None:
    letters = Letters(delays, 40)
    rng = random.Random(5)
    for redrive in range(6):
        finished = False
        while not finished:
            append, left = delays.store.append, rng.randrange(25)

            def fails(*args: object, **fields: object) -> tuple[int, int]:
                nonlocal left
                left -= 1
                if left < 0:
                    raise StoreBusyError("the disk is behind")
                return append(*args, **fields)  # type: ignore[arg-type]  # noqa: B023 - called before the loop goes on

            delays.store.append = fails
            try:
                state = await letters.redrives.redrive(f"r{redrive}", "audit", ALL)
                finished = state.finished
            except StoreBusyError:
                letters.kill()
            delays.store.append = append if finished else delays.store.append
        assert len(letters.bodies()) == 40 * (redrive + 1)


async def test_an_id_stands_for_one_request(letters: Letters) -> None:
    await letters.redrives.redrive("r1", "audit", LetterSelection(ids=("U1",)))
    with pytest.raises(Refused, match="choose a new id"):
        await letters.redrives.redrive("r1", "audit", LetterSelection(ids=("U2",)))
    for redrive_id in ("", "x" * 121, "a\x01b"):
        with pytest.raises(Refused, match="1 to 120 printable characters"):
            await letters.redrives.redrive(redrive_id, "audit", ALL)
    with pytest.raises(Refused, match="no dead letters") as refusal:
        await letters.redrives.redrive("r9", "nobody", ALL)
    assert refusal.value.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_letter_whose_topic_is_gone_is_counted(letters: Letters) -> None:
    letters.delays.topics.remove("orders")
    state = await letters.redrives.redrive("r1", "audit", ALL)
    assert (state.sent_count, state.skipped_count) == (0, 6)


async def test_a_letter_does_not_choose_a_topic_that_its_group_may_not_send_to(
    letters: Letters,
) -> None:
    """A client that may send to a group's retry topic decides what its dead letters say of their
    origin.
    """
    letters.delays.topics.put(TopicConfig(topic_name="SCHEDULE_TOPIC_XXXX"))
    letters.delays.put(
        {"UNIQ_KEY": "U9", "RETRY_TOPIC": "SCHEDULE_TOPIC_XXXX"},
        topic="%DLQ%audit",
        queue_id=0,
        body=b"9",
    )
    asked: list[str] = []
    state = await letters.redrives.redrive("all", "audit", ALL)
    assert (state.sent_count, state.skipped_count) == (6, 1)
    assert letters.sent("SCHEDULE_TOPIC_XXXX") == []

    def may_send(topic: str) -> bool:
        asked.append(topic)
        return False

    state = await letters.redrives.redrive("mine", "audit", ALL, may_send=may_send)
    assert (state.sent_count, state.skipped_count, set(asked)) == (0, 7, {"orders"})


def test_a_broker_without_redrives_writes_no_file(letters: Letters, tmp_path: Path) -> None:
    assert not (letters.delays.box.root / "config" / "redrives.json").exists()
    assert letters.redrives.get("r1") is None


async def test_a_redrive_of_large_letters_lets_others_in(delays: DelayBox) -> None:
    letters = Letters(delays, count=0)
    size = 200_000
    for _ in range(30):
        delays.put({"RETRY_TOPIC": "orders"}, topic="%DLQ%audit", queue_id=0, body=bytes(size))
    letters.reopen()
    redrive = asyncio.ensure_future(letters.redrives.redrive("r1", "audit", ALL))
    end = delays.store.commit_log.end
    longest = 0
    while not redrive.done():
        await asyncio.sleep(0)
        longest = max(longest, delays.store.commit_log.end - end)
        end = delays.store.commit_log.end
    assert (await redrive).sent_count == 30
    # Not all 6 MB in one turn of the loop, as when letters were counted and not bytes.
    assert longest < 10 * size


async def test_what_redrives_select_is_bounded_in_all(letters: Letters) -> None:
    many = LetterSelection(ids=("x" * (MAX_SELECTED_CHARACTERS // 2),))
    await letters.redrives.redrive("r1", "audit", many)
    await letters.redrives.redrive("r2", "audit", many)
    with pytest.raises(Refused, match="MAX_SELECTED_CHARACTERS"):
        await letters.redrives.redrive("r3", "audit", LetterSelection(keys=("k2",)))
    assert (await letters.redrives.redrive("r4", "audit", ALL)).sent_count == 6
