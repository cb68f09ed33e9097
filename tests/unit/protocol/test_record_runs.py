"""Records that lie in several runs of a window, as the answers to many pulls do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import encode_record
from cometmq.protocol.messages.record_columns import RecordColumns, read_columns, read_runs


def record(body_bytes: int = 3, *, wide: bool = False) -> bytes:
    host = pack_host("::1" if wide else "10.0.0.1", 10911)
    return encode_record(
        topic=b"orders",
        body=bytes(body_bytes),
        properties=b"KEYS\x01a",
        queue_id=1,
        flag=0,
        queue_offset=7,
        physical_offset=9,
        sys_flag=(BORN_HOST_V6 | STORE_HOST_V6) if wide else 0,
        born_timestamp=1,
        born_host=host,
        store_timestamp=2,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


def in_window(runs: list[list[bytes]], between: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    window, bounds = b"", []
    for run in runs:
        window += between
        bounds.append((len(window), len(window) + sum(map(len, run))))
        window += b"".join(run)
    return window, bounds


def places(columns: RecordColumns | None) -> list[tuple[int, ...]]:
    assert columns is not None
    assert columns.fit.all()
    return list(
        zip(
            columns.starts.tolist(),
            columns.ends.tolist(),
            columns.body_starts.tolist(),
            columns.body_ends.tolist(),
            columns.topic_starts.tolist(),
            columns.sys_flags.tolist(),
            strict=True,
        )
    )


records = st.builds(record, st.integers(0, 40), wide=st.booleans())


@given(
    # Few runs are read one by one, many side by side.
    runs=st.lists(st.lists(records, min_size=1, max_size=5), min_size=1, max_size=4)
    | st.lists(st.lists(records, min_size=1, max_size=5), min_size=20, max_size=24),
    between=st.binary(max_size=9),
)
def test_the_records_of_all_runs_are_found(runs: list[list[bytes]], between: bytes) -> None:
    window, bounds = in_window(runs, between)
    wanted = []
    for start, end in bounds:
        wanted += places(read_columns(window, start, end, None))
    assert places(read_runs(window, bounds)) == wanted
    assert len(wanted) == sum(map(len, runs))


@pytest.mark.parametrize("count", [1, 40])
def test_of_no_record_there_is_none(count: int) -> None:
    good = [[record(), record(9)]] * count
    window, bounds = in_window(good, b"--")
    start, end = bounds[-1]
    size = len(record())

    def changed(at: int, to: bytes) -> bytes:
        return window[:at] + to + window[at + len(to) :]

    assert places(read_runs(window, bounds))
    assert read_runs(window, [*bounds[:-1], (start, end - 1)]) is None
    assert read_runs(window + b"x", [*bounds[:-1], (start, end + 1)]) is None
    assert read_runs(window, [*bounds[:-1], (start, start)]) is None
    for size_of_second in (0, 5, len(record(9)) + 1, 0x7FFF_FFFF, 0xFFFF_FFFF):
        wrong = changed(start + size, size_of_second.to_bytes(4, "big"))
        assert read_runs(wrong, bounds) is None
    assert read_runs(changed(start + 4, b"\x00"), bounds) is None  # the magic
    assert read_runs(changed(start + 84, b"\x00\x00\x01"), bounds) is None  # the body's length


def test_no_runs_hold_no_records() -> None:
    assert places(read_runs(b"", [])) == []


@given(window=st.binary(min_size=200, max_size=400), count=st.sampled_from([1, 20]))
def test_any_bytes_give_records_or_none(window: bytes, count: int) -> None:
    end = len(window) // count
    bounds = [(at * end, (at + 1) * end) for at in range(count)]
    assert read_runs(window, bounds) is None or window.count(b"\xda\xa3\x20") >= count
