"""Keys that are found for a whole window at once equal those found record by record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples
from tests.unit.store.index_model import key_hash, keys_of

from cometmq.protocol.messages.record import MAGIC_BLANK, decode_records, encode_record
from cometmq.store.index.index_file import hash_of
from cometmq.store.index.index_keys import find_keys

HOSTS = st.sampled_from([bytes(8), bytes(20)])
WORDS = st.text(st.sampled_from("ab Z9#é€😀\x01"), max_size=6) | st.just("k" * 140)
NAMES = st.sampled_from(["KEYS", "UNIQ_KEY", "XKEYS", "UNIQ_KEYS", "KEY", "TAGS", ""])
PROPERTIES = st.lists(st.tuples(NAMES, WORDS), max_size=6)
TERMINATORS = st.sampled_from(["\x02", ""])
TOPICS = st.sampled_from(["t", "orders", "%RETRY%gruppe", "thème", "x" * 127, "y" * 128, "z" * 250])
RECORDS = st.lists(
    st.tuples(TOPICS, PROPERTIES, TERMINATORS, st.integers(0, 40), HOSTS, HOSTS,
              st.sampled_from([0, 4, 8, 12])),
    max_size=8,
)  # fmt: skip
Records = list[tuple[str, list[tuple[str, str]], str, int, bytes, bytes, int]]


def window_of(records: Records, base: int) -> bytearray:
    window = bytearray()
    for topic, properties, terminator, body_length, born, store, transaction in records:
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties) + terminator
        window += encode_record(
            topic=topic.encode(),
            # A body that holds what properties look like must not matter.
            body=(b"\x02KEYS\x01body\x02" * 4)[:body_length],
            properties=text.encode(),
            queue_id=1,
            queue_offset=0,
            physical_offset=base + len(window),
            sys_flag=transaction,
            born_timestamp=5,
            born_host=born,
            store_timestamp=1_700_000_000_000 + len(window),
            store_host=store,
        )
    return window


def expected_of(window: bytearray, length: int) -> list[tuple[int, int, int]]:
    return [
        (key_hash(text), record.physical_offset, record.store_timestamp)
        for record in decode_records(memoryview(window)[:length])
        for text in keys_of(record)
    ]


def found_in(window: bytearray, base: int) -> tuple[list[tuple[int, int, int]], int]:
    keys, consumed = find_keys(window, base)
    columns = (keys.hashes.tolist(), keys.offsets.tolist(), keys.timestamps.tolist())
    return list(zip(*columns, strict=True)), consumed


@settings(max_examples=examples(300), deadline=None)
@given(RECORDS, st.integers(0, 1 << 40))
def test_all_keys_are_found(records: Records, base: int) -> None:
    window = window_of(records, base)
    assert found_in(window, base) == (expected_of(window, len(window)), len(window))


@settings(deadline=None)
@given(RECORDS, st.data())
def test_a_window_that_ends_in_a_record(records: Records, data: st.DataObject) -> None:
    """Only whole records are consumed, and all of them."""
    whole = window_of(records, 77)
    window = whole[: data.draw(st.integers(0, len(whole)))]
    found, consumed = found_in(window, 77)
    assert found == expected_of(whole, consumed)
    rest = decode_records(memoryview(whole)[consumed:])
    assert consumed == len(whole) or consumed + next(rest).total_size > len(window)


@settings(max_examples=examples(300), deadline=None)
@given(RECORDS, st.data())
def test_damage_ends_the_window_or_spoils_one_record(records: Records, data: st.DataObject) -> None:
    window = window_of(records, 77)
    for _ in range(data.draw(st.integers(1, 3)) if window else 0):
        place = data.draw(st.integers(0, len(window) - 1))
        window[place] = data.draw(st.integers(0, 255))
    found, consumed = found_in(window, 77)
    assert 0 <= consumed <= len(window)
    assert all(77 <= offset < 77 + consumed for _, offset, _ in found)


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    found, consumed = found_in(bytearray(data), 77)
    assert (found, consumed) == ([], 0)


def test_a_blank_record_is_not_consumed() -> None:
    window = window_of([("t", [("KEYS", "a")], "", 0, bytes(8), bytes(8), 0)], 0)
    length = len(window)
    window += (120).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big") + bytes(112)
    assert found_in(window, 0) == (expected_of(window, length), length)


def test_a_key_whose_hash_has_no_positive_counterpart() -> None:
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE; so is that of this text with a '#'.
    text = hashed_to_minimum()
    topic, key = text.split("#")
    assert key_hash(text) == hash_of(topic, key) == 0
    window = window_of([(topic, [("KEYS", key)], "", 0, bytes(8), bytes(8), 0)], 0)
    assert [value for value, _, _ in found_in(window, 0)[0]] == [0]


def hashed_to_minimum() -> str:
    """A text `t#…` with the hash -2^31: the value wanted, written in base 31."""
    rest = (1 << 31) - sum(31**place * ord(unit) for place, unit in enumerate("AAAAAAA#t"))
    digits = []
    for _ in range(7):
        rest, digit = divmod(rest % (1 << 32), 31)
        digits.append(chr(ord("A") + digit))
    return "t#" + "".join(reversed(digits))
