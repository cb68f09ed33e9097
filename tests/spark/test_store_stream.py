"""Test the source `rocketmq-store` as a stream of stores that a broker writes, and of copies that grow and are
damaged while the stream reads. Spark itself runs in `test_store_stream_on_spark`.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.seeds import seed_of
from tests.spark.micro_batches import CrashError, MicroBatches, Place
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.errors import DataLossError, IllegalArgumentError, StoreCorruptError
from cometmq.protocol.messages.record import encode_record
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.spark.gaps import noted_gaps
from cometmq.spark.stores.following import log_planner, log_walk, stream
from cometmq.spark.stores.source import RocketMQStoreSource
from cometmq.store.reading.files import StoreFiles
from cometmq.testing.cluster import Cluster

FILE_BYTES = 64 * 1024
COUNT = 500
SEED = seed_of("COMETMQ_SPARK_SEED", 0)


class HandClock:
    """A clock that advances only while a caller sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(stream.StoreStreamReader.__init__, "__defaults__", (clock,))
    return clock


PROPERTIES = {"mappedFileSizeCommitLog": str(FILE_BYTES)}


def filled(directory: Path, count: int = COUNT) -> Path:
    with Cluster(directory=directory, properties=PROPERTIES) as cluster:
        send(cluster, range(count))
    return directory / "broker-a"


def send(cluster: Cluster, numbers: Iterable[int]) -> None:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in numbers:
            body = b"%d " % at * (at % 9 * 30 + 1)
            producer.send(Message(("orders", "bills")[at % 2], body, properties={"n": str(at)}))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a stopped broker, with several files."""
    return filled(tmp_path_factory.mktemp("stores"))


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "store"
    shutil.copytree(written / "commitlog", copy / "commitlog")
    return copy


def query(between: Callable[[], None] = lambda: None, seed: int = 0) -> MicroBatches:
    return MicroBatches(random.Random(seed), between, failures=0.0, source=RocketMQStoreSource)


def options(store: Path, **more: object) -> dict[str, str]:
    given = {"path": str(store), "brokerName": "broker-a", "subscribe": "orders,bills", **more}
    return {name: str(value) for name, value in given.items()}


def places(found: MicroBatches) -> list[Place]:
    return [place for batch in sorted(found.output) for place in found.output[batch]]


def drained(found: MicroBatches, given: dict[str, str]) -> list[Place]:
    found.drain(given)
    return places(found)


def log_files(store: Path) -> list[Path]:
    """The files with records: the last files may be preallocated."""
    return [Path(file.path) for file in StoreFiles(str(store)).log_files()]


def everything(written: Path) -> list[Place]:
    return drained(query(), options(written))


def test_each_message_comes_once_in_batches_of_the_size_asked_for(written: Path) -> None:
    found = query()
    rows = drained(found, options(written, maxMessagesPerTrigger=70))
    assert len(rows) == len(set(rows)) == COUNT
    sizes = [len(batch) for batch in found.output.values() if batch]
    assert sizes == [70] * (COUNT // 70) + [COUNT % 70]
    for topic in ("orders", "bills"):
        for queue_id in range(4):
            own = sorted(row[3] for row in rows if row[:3] == (topic, "broker-a", queue_id))
            assert own == list(range(len(own)))
            assert own


def test_batches_of_few_bytes_have_a_record_at_least(written: Path) -> None:
    found = query()
    rows = drained(found, options(written, maxBytesPerTrigger=1))
    assert len(rows) == len(set(rows)) == COUNT
    assert {len(batch) for batch in found.output.values()} == {0, 1}


def test_a_batch_is_divided_among_tasks_at_records(written: Path) -> None:
    source = RocketMQStoreSource(options(written, minPartitions=7))
    reader: Any = source.streamReader(source.schema())
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    # The first batch is empty, and its progress has the lag all the same.
    written_end = reader.reportLatestOffset()["commitLog"]
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["commitLog"] <= written_end < end["commitLog"] + 4096
    parts = reader.partitions(start, end)
    assert len(parts) >= 7
    rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
    assert rows == COUNT


def test_topics_that_come_later_match_a_pattern(written: Path) -> None:
    given = options(written, subscribePattern="bil.*")
    del given["subscribe"]
    rows = drained(query(), given)
    assert {row[0] for row in rows} == {"bills"}
    assert len(rows) == COUNT // 2
    del given["subscribePattern"]
    assert len(drained(query(), given)) >= COUNT


def test_rows_come_while_the_broker_writes_and_no_lock_is_taken(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path, properties=PROPERTIES) as cluster:
        send(cluster, range(20))
        found = query()
        given = options(tmp_path / "broker-a")
        assert len(drained(found, given)) == 20
        for at in range(20, 220, 20):
            send(cluster, range(at, at + 20))
            rows = drained(found, given)
            assert len(rows) == len(set(rows)) == at + 20


def test_a_file_that_is_copied_in_part_goes_on_where_it_ended(
    written: Path, tmp_path: Path, clock: HandClock
) -> None:
    """Cut at any place: in a head, a body, properties, at zeros, in the blank record."""
    rng = random.Random(SEED)
    copy = tmp_path / "store"
    (copy / "commitlog").mkdir(parents=True)
    found = query()
    for path in log_files(written):
        data = path.read_bytes()
        for cut in sorted(rng.randrange(len(data)) for _ in range(5)):
            # A copy by parts, and a file that was made in full size and is filled.
            zeros = rng.choice((0, len(data) - cut))
            (copy / "commitlog" / path.name).write_bytes(data[:cut] + bytes(zeros))
            drained(found, options(copy))
        shutil.copy(path, copy / "commitlog")
        drained(found, options(copy))
    rows = places(found)
    assert len(rows) == len(set(rows))
    assert set(rows) == set(everything(written))


def test_a_record_that_is_written_in_part_is_left_for_later(
    written: Path, store: Path, clock: HandClock
) -> None:
    """Its size and ends may be there already, and bytes between them not yet."""
    path = log_files(store)[-1]
    data = bytearray(path.read_bytes())
    ends = ends_of(data)
    start, end = ends[-2], ends[-1]
    for low, high in (
        (start + 4, start + 8),
        (start + 100, start + 101),
        (end - 1, end),
        (start, end),
    ):
        partial = bytearray(data)
        partial[low:high] = bytes(high - low)
        path.write_bytes(partial)
        found = query()
        assert len(drained(found, options(store))) == COUNT - 1
        path.write_bytes(data)
        rows = drained(found, options(store))
        assert set(rows) == set(everything(written))
        assert len(rows) == COUNT


def test_the_topic_of_a_record_without_properties_may_be_written_in_part(
    store: Path, clock: HandClock
) -> None:
    path = log_files(store)[-1]
    data = bytearray(path.read_bytes())
    end = ends_of(data)[-1]
    record = encode_record(
        topic=b"orders",
        body=b"x",
        properties=b"",
        queue_id=0,
        queue_offset=COUNT,
        physical_offset=int(path.name) + end,
        sys_flag=0,
        born_timestamp=1,
        born_host=bytes(8),
        store_timestamp=1,
        store_host=bytes(8),
    )
    topic_end = end + len(record) - 2
    data[end : end + len(record)] = record
    data[topic_end - 4 : topic_end] = bytes(4)
    path.write_bytes(data)
    found = query()
    assert len(drained(found, options(store))) == COUNT
    data[end : end + len(record)] = record
    path.write_bytes(data)
    assert len(drained(found, options(store))) == COUNT + 1


def test_a_planner_that_has_not_looked_yet_does_not_know_the_end(written: Path) -> None:
    source = RocketMQStoreSource(options(written))
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    assert reader.reportLatestOffset() is None
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    end = reader.latestOffset(end, reader.getDefaultReadLimit())
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest["commitLog"] >= end["commitLog"] > 0


def triggered_for_ever(found: MicroBatches, clock: HandClock) -> None:
    for _ in range(1000):
        found.trigger()
        clock.sleep(1)


def ends_of(data: bytes | bytearray) -> list[int]:
    """Where the records of a file end, from its beginning on."""
    ends = [0]
    while (size := struct.unpack_from(">I", data, ends[-1])[0]) and data[ends[-1] + 4] == 0xDA:
        ends.append(ends[-1] + size)
    return ends


def test_older_bytes_in_a_reused_file_are_no_record(
    written: Path, store: Path, clock: HandClock
) -> None:
    *_, before, path = log_files(store)
    data = path.read_bytes()
    end = ends_of(data)[-1]
    path.write_bytes(data[:end] + before.read_bytes()[end:])
    assert set(drained(query(), options(store))) == set(everything(written))


def test_files_that_come_out_of_order_are_waited_for(
    written: Path, store: Path, tmp_path: Path, clock: HandClock
) -> None:
    late = log_files(store)[1]
    aside = tmp_path / "late"
    late.rename(aside)
    found = query()
    found.start(options(store))
    while found.trigger():
        pass
    before = places(found)
    assert 0 < len(before) < COUNT
    for _ in range(5):
        clock.sleep(10)
        assert not found.trigger()
    aside.rename(late)
    clock.sleep(1)
    while found.trigger():
        pass
    found.stop()
    assert set(places(found)) == set(everything(written))
    assert len(places(found)) == COUNT


@pytest.mark.parametrize("available_now", [False, True])
def test_a_file_that_never_comes_fails_the_query_after_timeout_ms(
    store: Path, clock: HandClock, available_now: bool
) -> None:
    late = log_files(store)[1]
    late.unlink()
    found = query()
    found.start(options(store, timeoutMs=30_000), available_now=available_now)
    begun_s = clock.now_s
    with pytest.raises(
        StoreCorruptError, match=f"no record is at position {int(late.name)}"
    ) as error:
        triggered_for_ever(found, clock)
    found.stop()
    assert 30 <= clock.now_s - begun_s < 60
    assert "failOnDataLoss=false with gapLog" in str(error.value)
    assert "copy it again" in str(error.value)


def test_damage_is_left_out_and_kept_in_the_gap_log(
    written: Path, store: Path, tmp_path: Path, clock: HandClock
) -> None:
    gone, damaged = log_files(store)[1:3]
    gone.unlink()
    data = bytearray(damaged.read_bytes())
    third, fourth = ends_of(data)[2:4]
    data[third + 90 : third + 92] = b"??"
    damaged.write_bytes(data)
    gaps = tmp_path / "gaps"
    given = options(store, failOnDataLoss="false", gapLog=gaps, timeoutMs=5_000)
    found = query()
    rows = drained(found, given)
    base = int(damaged.name)
    noted = [(gap.start, gap.end, gap.cause) for gap in noted_gaps(gaps)]
    assert noted == [
        (int(gone.name), base, "damage"),
        (base + third, base + fourth, "damage"),
    ]
    missing = set(everything(written)) - set(rows)
    assert len(rows) == len(set(rows)) == COUNT - len(missing)
    assert len(missing) == 1 + len(ends_of((written / "commitlog" / gone.name).read_bytes())) - 1
    assert drained(found, given) == rows


def test_records_that_come_late_behind_damage_are_read(
    written: Path, store: Path, tmp_path: Path, clock: HandClock
) -> None:
    last = log_files(store)[-1]
    sound = last.read_bytes()
    data = bytearray(sound)
    _, second, third, fourth = ends_of(sound)[:4]
    for place in (second, third):
        data[place + 4 : place + 8] = b"????"
    last.write_bytes(data)
    gaps = tmp_path / "gaps"
    found = query()
    found.start(options(store, failOnDataLoss="false", gapLog=gaps, timeoutMs=5_000))
    while found.trigger():
        pass
    clock.sleep(4)
    assert not found.trigger()
    data[third:fourth] = sound[third:fourth]
    last.write_bytes(data)
    clock.sleep(2)
    while found.trigger():
        pass
    found.stop()
    base = int(last.name)
    (gap,) = noted_gaps(gaps)
    assert (gap.start, gap.end) == (base + second, base + third)
    assert len(set(places(found))) == COUNT - 1


def test_what_lies_behind_a_missing_file_is_searched_seldom(
    store: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a file of zeros may be a gigabyte to read."""
    late = log_files(store)[1]
    late.write_bytes(bytes(FILE_BYTES))
    searched: list[int] = []

    def counted(files: Any, position: int, limit: int) -> int | None:
        searched.append(position)
        return log_walk.record_behind(files, position, limit)

    monkeypatch.setattr(log_planner, "record_behind", counted)
    found = query()
    found.start(options(store, timeoutMs=60_000))
    while found.trigger():
        pass
    for _ in range(100):
        clock.sleep(0.5)
        assert not found.trigger()
    found.stop()
    assert 1 <= len(searched) <= 7


def test_files_deleted_by_retention_fail_the_query_or_are_a_gap(
    written: Path, store: Path, tmp_path: Path, clock: HandClock
) -> None:
    first, second, third = log_files(store)[:3]
    kept = query()
    kept.start(options(store, maxMessagesPerTrigger=10))
    assert kept.trigger()
    assert kept.trigger()
    kept.stop()
    read = kept.output[1]
    first.unlink()
    second.unlink()
    kept.start(options(store, maxMessagesPerTrigger=10))
    with pytest.raises(
        DataLossError, match=f"to {int(third.name) - 1}|from .* on .retention"
    ) as error:
        kept.trigger()
    assert "deleted before the query had read them" in str(error.value)
    assert "failOnDataLoss=false with gapLog" in str(error.value)
    gaps = tmp_path / "gaps"
    rows = drained(kept, options(store, failOnDataLoss="false", gapLog=gaps))
    (gap,) = noted_gaps(gaps)
    assert (gap.end, gap.cause) == (int(third.name), "retention")
    lost = {
        place
        for path in (first.name, second.name)
        for place in file_places(written / "commitlog" / path, tmp_path / "one")
    }
    assert set(rows) == (set(everything(written)) - lost) | set(read)
    assert len(rows) == len(set(rows))


def file_places(path: Path, directory: Path) -> list[Place]:
    """The places of the messages in one file of a log."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "commitlog").mkdir(parents=True)
    shutil.copy(path, directory / "commitlog")
    return drained(query(), options(directory))


def test_a_batch_whose_files_are_deleted_before_its_tasks_run(
    store: Path, tmp_path: Path, clock: HandClock
) -> None:
    first = log_files(store)[0]
    for given in (
        options(store, maxMessagesPerTrigger=10),
        options(
            store,
            maxMessagesPerTrigger=10,
            failOnDataLoss="false",
            gapLog=tmp_path / "gaps",
        ),
    ):
        aside = tmp_path / "aside"
        found = query(partial(moved, first, aside))
        found.start(given)
        try:
            found.trigger()
            aside.rename(first)
            if "gapLog" not in given:
                with pytest.raises(DataLossError, match="deleted before the query had read them"):
                    found.trigger()
                continue
            found.trigger()
            assert found.output[1] == []
            (gap,) = noted_gaps(tmp_path / "gaps")
            assert gap.cause == "retention"
            assert gap.start == 0
        finally:
            found.stop()
            aside.rename(first)


def moved(path: Path, target: Path) -> None:
    if path.exists():
        path.rename(target)


def test_a_log_that_was_rolled_back_and_written_again_fails_the_query(
    store: Path, tmp_path: Path, clock: HandClock
) -> None:
    """A broker does this if it recovers without its last messages, and so does a slave that became master."""
    found = query()
    rows = drained(found, options(store, maxMessagesPerTrigger=150))
    path = log_files(store)[-1]
    data = bytearray(path.read_bytes())
    ends = ends_of(data)
    # The last record is another one of the same size, stored a day later.
    stored_at = ends[-2] + 56
    (stored_ms,) = struct.unpack_from(">q", data, stored_at)
    struct.pack_into(">q", data, stored_at, stored_ms + 86_400_000)
    path.write_bytes(data)
    for given in (
        options(store),
        options(store, failOnDataLoss="false", gapLog=tmp_path / "gaps"),
    ):
        found.start(given)
        with pytest.raises(
            DataLossError, match="the log was rolled back: the record at pos"
        ) as error:
            found.trigger()
        found.stop()
    position = int(path.name) + ends[-2]
    assert f"the record at position {position} is not the one" in str(error.value)
    assert "stored at" in str(error.value)
    # The remedy in the error works.
    safe = int(str(error.value).partition("startingOffsets=")[2].split(".")[0])
    assert 0 < safe <= position
    again = drained(query(), options(store, startingOffsets=safe))
    places_of = dict(zip(rows, positions(store, rows), strict=True))
    assert set(again) == {row for row in rows if places_of[row] >= safe}


def positions(store: Path, rows: list[Place]) -> list[int]:
    """Where each message lies in the log."""
    source = RocketMQStoreSource(options(store, columns="default,commit_log_offset"))
    reader: Any = source.streamReader(source.schema())
    start = {"commitLog": 0}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found: dict[Place, int] = {}
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            names = ("topic", "broker", "queue_id", "queue_offset")
            keys = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            found |= zip(keys, batch.column("commit_log_offset").to_pylist(), strict=True)
    return [found[row] for row in rows]


def test_a_log_that_became_shorter_is_waited_for_and_then_fails(
    store: Path, tmp_path: Path, clock: HandClock
) -> None:
    found = query()
    drained(found, options(store))
    path = log_files(store)[-1]
    data = path.read_bytes()
    end = ends_of(data)[-3]
    path.write_bytes(data[:end] + bytes(len(data) - end))
    found.start(options(store, timeoutMs=20_000))
    for _ in range(3):
        assert not found.trigger()
        clock.sleep(5)
    path.write_bytes(data)
    clock.sleep(1)
    assert not found.trigger()
    path.write_bytes(data[:end] + bytes(len(data) - end))
    clock.sleep(30)
    assert not found.trigger()
    clock.sleep(30)
    with pytest.raises(
        DataLossError, match=r"the record in front of this position is gone.*20 s \(timeoutMs\)"
    ):
        found.trigger()
    found.stop()


def test_a_query_begins_before_the_log_exists(
    written: Path, tmp_path: Path, clock: HandClock
) -> None:
    for start in ("earliest", "latest"):
        copy = tmp_path / start
        (copy / "commitlog").mkdir(parents=True)
        found = query()
        found.start(options(copy, startingOffsets=start))
        assert found.trigger()
        assert not found.trigger()
        # Retention has deleted the files before these, which is not a gap.
        for path in log_files(written)[2:]:
            shutil.copy(path, copy / "commitlog")
        clock.sleep(1)
        while found.trigger():
            pass
        found.stop()
        rows = places(found)
        assert 0 < len(rows) < COUNT
        assert set(rows) < set(everything(written))


def test_files_that_appear_in_front_of_the_first_one_are_logged(
    store: Path, tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    first = log_files(store)[0]
    aside = tmp_path / "first"
    first.rename(aside)
    found = query()
    found.start(options(store))
    assert found.trigger()
    assert found.trigger()
    before = places(found)
    aside.rename(first)
    clock.sleep(1)
    assert not found.trigger()
    found.stop()
    assert 0 < len(before) < COUNT
    assert "older files of the log have appeared" in caplog.text


def test_a_query_that_begins_at_the_end_reads_what_comes_then(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path, properties=PROPERTIES) as cluster:
        send(cluster, range(50))
        given = options(tmp_path / "broker-a", startingOffsets="latest")
        found = query()
        found.start(given)
        assert found.trigger()
        found.stop()
        send(cluster, range(50, 60))
        assert len(drained(found, given)) == 10


def test_a_record_larger_than_a_window_is_read(tmp_path: Path) -> None:
    properties = {"mappedFileSizeCommitLog": str(16 * 1024 * 1024)}
    with Cluster(directory=tmp_path, properties=properties) as cluster:
        with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for _ in range(5):
                producer.send(Message("orders", b"small"))
                producer.send(Message("orders", random.Random(1).randbytes(4_194_304)))
        assert len(drained(query(), options(tmp_path / "broker-a"))) == 10


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"startingOffsets": '{"orders": 1}'},
            "must be earliest, latest or the position of a record",
        ),
        ({"startingOffsets": "17"}, "no record begins there; the files of the log begin at 0"),
        ({"startingOffsets": "99999999999"}, "the log ends at"),
        ({"maxMessagesPerTrigger": "0"}, r"maxMessagesPerTrigger .* is 0, it must lie in 1\.\."),
        ({"timeoutMs": "-1"}, "timeoutMs .* is -1"),
        ({"reader": "jvm"}, "reader .* is jvm, which cannot read streams"),
        ({"endingOffsets": "latest"}, "has no option endingOffsets"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    written: Path, given: dict[str, str], words: str
) -> None:
    found = query()
    with pytest.raises(ValueError, match=words):
        drained(found, options(written, **given))


def test_options_of_a_stream_are_refused_for_a_batch(written: Path) -> None:
    source = RocketMQStoreSource(options(written, maxBytesPerTrigger=7))
    with pytest.raises(
        IllegalArgumentError, match=r"maxBytesPerTrigger .* is for a stream, not a b"
    ):
        source.reader(source.schema())


@pytest.mark.parametrize("seed", range(SEED, SEED + 12))
def test_any_sequence_of_copies_and_crashes_reads_each_message_once(
    written: Path, tmp_path: Path, clock: HandClock, seed: int
) -> None:
    rng = random.Random(seed)
    copy = tmp_path / "store"
    (copy / "commitlog").mkdir(parents=True)
    files = log_files(written)
    done = dict.fromkeys(files, 0)

    def copied() -> None:
        """Copy one more piece of a file, or a later file before an earlier one; sometimes in full size."""
        left = [path for path in files if done[path] < FILE_BYTES]
        if not left:
            return
        path = rng.choice(left[:2])
        done[path] = min(FILE_BYTES, done[path] + rng.randrange(FILE_BYTES))
        tail = rng.choice((b"", bytes(FILE_BYTES - done[path])))
        temporary = copy / "commitlog" / f".{path.name}.x1Yz"
        temporary.write_bytes(path.read_bytes()[: done[path]] + tail)
        temporary.replace(copy / "commitlog" / path.name)

    found = MicroBatches(
        rng, lambda: copied() if rng.random() < 0.2 else None, source=RocketMQStoreSource
    )

    def given() -> dict[str, str]:
        return options(
            copy, maxMessagesPerTrigger=rng.randrange(1, 200), minPartitions=rng.randrange(1, 4)
        )

    # A query begins with the first file that it finds, so the oldest file must come first.
    shutil.copy(files[0], copy / "commitlog")
    done[files[0]] = FILE_BYTES
    found.start(given())
    for _ in range(60):
        step = rng.choice((copied, copied, "trigger", "trigger", "crash"))
        clock.sleep(0.3)
        if callable(step):
            step()
            continue
        try:
            found.trigger(
                crash=rng.choice(("planned", "logged", "run")) if step == "crash" else None
            )
        except CrashError:
            found.start(given())
    for path in files:
        shutil.copy(path, copy / "commitlog")
    rows = drained(found, given())
    assert len(rows) == len(set(rows))
    assert set(rows) == set(everything(written))
