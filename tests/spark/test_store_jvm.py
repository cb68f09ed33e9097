"""The JVM's reader of stores against the Python one: the same rows, errors and gaps from any store."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lz4.frame
import numpy as np
import pytest
from backports import zstd
from tests.golden.golden import unpack_store
from tests.spark.rows import rows_of

from cometmq.errors import StoreCorruptError
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import MAGIC_BLANK, encode_record
from cometmq.protocol.messages.record_layout import HEAD
from cometmq.spark.jvm import jar_path, reader_for
from cometmq.spark.rows.columns import COLUMNS
from cometmq.spark.stores.options import StoreOptions
from cometmq.spark.stores.source import StoreReader
from cometmq.store.reading.units import UNIT_DTYPE

pytestmark = pytest.mark.skipif(jar_path() is None, reason="scripts/store-jar made no jar")

FILE_BYTES: Final = 32 * 1024
COUNT: Final = 260
TOPICS: Final = (b"orders", b"pay\x02k\x01v", b"y" * 200, "é".encode(), b"bad\xed\xa0\x80\xff")
PLAIN: Final[dict[str, Any]] = {
    "topic": b"orders", "body": b"body", "properties": b"TAGS\x01a", "sys_flag": 0, "store_timestamp": 1,
    "born_timestamp": 1, "born_host": pack_host("10.0.0.1", 1), "store_host": pack_host("10.0.0.1", 1),
}  # fmt: skip
PLACEHOLDER: Final = (0, 2**31 - 1, 0)

ADDRESSES: Final = (
    "10.0.0.1", "255.0.255.1", "2001:db8::1", "::", "::1", "::ffff:1.2.3.4", "::1.2.3.4", "1::2:0:0:3",
    "1:0:0:2::3", "fe80::1:0:0:1",
)  # fmt: skip
TEXTS: Final = (
    b"a", b"AaBB", b"BBAa", "rö😀t".encode(), b"\xf0\x90", b"\xe2\x82", b"\xed\xa0\x80x", b"\xff\xfe",
    b"12", b"1234567890", b"1234567890123456789", b"007", b" x  y ", b"a\x01b", b"", b"soon", b"\xf4\x90\x80\x80",
)  # fmt: skip
NAMES: Final = (
    b"KEYS", b"TAGS", b"TAGS", b"DELAY", b"TIMER_DELIVER_MS", b"TIMER_OUT_MS", b"__transactionId__",
    b"color", b"", b"TAG", b"KEYS2", "größe".encode(),
)  # fmt: skip


def properties(dice: random.Random) -> bytes:
    """Properties as clients write them, and as none should."""
    entries = []
    if dice.random() < 0.7:
        entries.append(b"UNIQ_KEY\x01%032X" % dice.getrandbits(128))
    for _ in range(dice.choice((0, 1, 3, 6, 40, 90))):
        entries.append(dice.choice(NAMES) + b"\x01" + dice.choice(TEXTS))
    if dice.random() < 0.1:  # names of which many have one hash in Java
        words = [b"".join(dice.choices((b"Aa", b"BB"), k=6)) for _ in range(60)]
        entries += [word + b"\x01" + dice.choice(TEXTS) for word in words]
    if "batch_msg_id" in COLUMNS:
        for _ in range(dice.choice((0, 0, 1, 2))):
            entries.append(b"UNIQ_KEY\x01" + dice.choice((b"B1", b"B2", b"")))
    if dice.random() < 0.1:
        entries.append(bytes(dice.choices(b"\x01\x02aK", k=12)))
    return b"\x02".join(entries) + b"\x02" * dice.randrange(2)


def body(dice: random.Random) -> tuple[bytes, int]:
    """A stored body, and the bits of the sys flag that say how it is compressed."""
    plain = dice.choice(
        (b"", b"body", b"abc" * 5000, dice.randbytes(300), dice.randbytes(70) * 2000)
    )
    kind = dice.choice((None, None, None, 0, 0x100, 0x200, 0x300, 0x400))
    if kind is None:
        return plain[:2000], 0
    if kind == 0x100:
        linked = dice.random() < 0.5
        size = dice.choice((lz4.frame.BLOCKSIZE_DEFAULT, lz4.frame.BLOCKSIZE_MAX64KB))
        packed = lz4.frame.compress(
            plain, block_linked=linked, block_size=size, store_size=dice.random() < 0.5,
            content_checksum=dice.random() < 0.5, block_checksum=dice.random() < 0.5,
        )  # fmt: skip
    elif kind == 0x200:
        sized = dice.random() < 0.5
        if sized:
            checks = dice.random() < 0.5
            packed = zstd.compress(plain, options={zstd.CompressionParameter.checksum_flag: checks})
        else:
            maker = zstd.ZstdCompressor()  # in a stream, which does not say its length
            packed = maker.compress(plain) + maker.flush()
    else:
        packed = zlib.compress(plain)
    if dice.random() < 0.2:
        packed = packed[: dice.randrange(len(packed) + 1)]
    elif dice.random() < 0.1:
        packed += b"more"
    return packed, 1 | kind


def encoded(fields: dict[str, Any], at: int) -> bytes:
    return encode_record(**fields, physical_offset=at)


class Written:
    """A store that the test wrote itself, with the places of its records."""

    def __init__(self, root: Path, seed: int) -> None:
        dice = random.Random(seed)
        self.root = root
        self.places: list[tuple[int, int]] = []
        queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        files: list[bytearray] = [bytearray()]
        for _ in range(COUNT):
            topic = dice.choice((*TOPICS[:1] * 4, *TOPICS))
            # Bytes that are no name of a directory are queued elsewhere.
            name = topic.decode("utf-8", "ignore").replace("\x02", "").replace("\x01", "")
            key = name, dice.randrange(3)
            queue = queues.setdefault(key, [])
            stored, flags = body(dice)
            kind = dice.choice((0, 0, 0, 4, 8, 12))
            base = FILE_BYTES * (len(files) - 1)
            text = properties(dice)
            times = [dice.choice((0, 1_700_000_000_123, -5, 2**62)) for _ in range(2)]
            hosts = [
                pack_host(dice.choice(ADDRESSES), dice.choice((0, 10911, 2**32 - 1))) for _ in "ab"
            ]
            fields = {
                "topic": topic, "body": stored, "properties": text, "queue_id": key[1],
                "queue_offset": len(queue), "sys_flag": flags | kind, "flag": -7, "reconsume_times": 3,
                "born_timestamp": times[0], "store_timestamp": times[1],
                "born_host": hosts[0], "store_host": hosts[1], "prepared_transaction_offset": 2**40,
            }  # fmt: skip
            record = encoded(fields, base + len(files[-1]))
            left = FILE_BYTES - len(files[-1])
            if len(record) + HEAD.size > left:
                files[-1] += HEAD.pack(left, MAGIC_BLANK) + bytes(left - HEAD.size)
                files.append(bytearray())
                record = encoded(fields, FILE_BYTES * (len(files) - 1))
            place = FILE_BYTES * (len(files) - 1) + len(files[-1])
            files[-1] += record
            self.places.append((place, len(record)))
            if kind in (0, 8):
                queue.append((place, len(record), 0))
        files[-1] += bytes(FILE_BYTES - len(files[-1]))
        files.append(bytearray(FILE_BYTES))
        for at, data in enumerate(files):
            self._write("commitlog", at * FILE_BYTES, data)
        queues["%LMQ%mine", 0] = [
            unit for units in list(queues.values())[:3] for unit in units[::5]
        ]
        for (topic_name, queue_id), units in queues.items():
            per_file = 16
            whole = np.zeros(-(-max(len(units), 1) // per_file) * per_file, UNIT_DTYPE)
            whole[: len(units)] = np.array(units, UNIT_DTYPE)
            for at in range(0, len(whole), per_file):
                directory = f"consumequeue/{topic_name}/{queue_id}"
                self._write(directory, at * 20, whole[at : at + per_file].tobytes())
        (root / "lock").write_bytes(b"lock")
        self.topics = ",".join(sorted({name for name, _ in queues}))

    def _write(self, directory: str, offset: int, data: bytes | bytearray) -> None:
        folder = self.root / directory
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{offset:020d}").write_bytes(data)

    def change(self, offset: int, new: bytes) -> None:
        base = offset // FILE_BYTES * FILE_BYTES
        path = self.root / "commitlog" / f"{base:020d}"
        data = bytearray(path.read_bytes())
        data[offset - base : offset - base + len(new)] = new
        path.write_bytes(data[:FILE_BYTES])


# What happens to a store


def healthy(store: Written, dice: random.Random) -> None:
    """Nothing."""


def killed(store: Written, dice: random.Random) -> None:
    (store.root / "abort").touch()


def flipped(store: Written, dice: random.Random) -> None:
    """Bytes anywhere in records have changed, their sizes and magics among them."""
    for _ in range(12):
        place, size = dice.choice(store.places)
        at = place + dice.choice((0, 1, 2, 3, 5, 21, 30, 39, 85, 86, dice.randrange(size)))
        store.change(at, dice.randbytes(1))


def flipped_and_killed(store: Written, dice: random.Random) -> None:
    flipped(store, dice)
    killed(store, dice)


def zeroed(store: Written, dice: random.Random) -> None:
    """A page of the log was never written, and units of queues neither."""
    place, _ = dice.choice(store.places)
    store.change(place - dice.randrange(50) if place > 50 else place, bytes(5000))
    for path in sorted((store.root / "consumequeue").rglob("0" * 20))[:3]:
        data = bytearray(path.read_bytes())
        data[40:100] = bytes(60)
        path.write_bytes(data)


def torn(store: Written, dice: random.Random) -> None:
    """The last file was cut, and the broker killed."""
    last = sorted((store.root / "commitlog").iterdir())[-2]
    with last.open("r+b") as file:
        file.truncate(dice.randrange(100, 3000))
    killed(store, dice)


def short(store: Written, dice: random.Random) -> None:
    """A file in the middle was cut, queues have placeholders in front and units that lie."""
    with sorted((store.root / "commitlog").iterdir())[1].open("r+b") as file:
        file.truncate(dice.randrange(1000, FILE_BYTES))
    for path in sorted((store.root / "consumequeue" / "orders").rglob("0" * 20)):
        units = np.fromfile(path, UNIT_DTYPE)
        units[0] = PLACEHOLDER
        units[5]["size"] -= 1
        units[7]["physical_offset"] = 2**63 - 100
        units[9]["physical_offset"] = -5
        units[11]["size"] = 30
        units.tofile(path)


def expired(store: Written, dice: random.Random) -> None:
    """Retention has deleted the first files of the log."""
    for path in sorted((store.root / "commitlog").iterdir())[:2]:
        path.unlink()


def lost(store: Written, dice: random.Random) -> None:
    """A file in the middle of the log is missing."""
    sorted((store.root / "commitlog").iterdir())[2].unlink()


# Both readers

Outcome = tuple[list[Any], dict[str, bytes]]


def gaps_in(directory: Path) -> dict[str, bytes]:
    files = directory.iterdir() if directory.is_dir() else ()
    return {path.name: path.read_bytes() for path in files}


def python(path: Path, options: dict[str, str], gaps: Path) -> Outcome | set[str]:
    """Return the rows of the Python reader, or all errors that it may raise first."""
    given = options | {"path": str(path)}
    if "failOnDataLoss" in given:
        given["gapLog"] = str(gaps)
    reader = StoreReader(StoreOptions(given, streaming=False), list(COLUMNS))
    rows: list[Any] = []
    errors = set()
    try:
        parts = reader.partitions()
    except StoreCorruptError as error:
        return {str(error)}
    for part in parts:
        try:
            for batch in reader.read(part):
                rows += rows_of(batch)
        except StoreCorruptError as error:
            errors.add(str(error))
    return errors or (rows, gaps_in(gaps))


def in_jvm(
    spark: Any, path: Path, options: dict[str, str], gaps: Path, columns: str = "all"
) -> Any:
    given = options | {"reader": "jvm", "columns": columns}
    if "failOnDataLoss" in given:
        given["gapLog"] = str(gaps)
    return spark.read.format("rocketmq-store").options(**given).load(str(path))


def check(spark: Any, path: Path, work: Path, options: dict[str, str]) -> bool:
    """Compare the readers; return whether there were rows."""
    work.mkdir()
    expected = python(path, options, work / "python")
    frame = in_jvm(spark, path, options, work / "jvm")
    if isinstance(expected, set):
        with pytest.raises(Exception, match="no record is at offset") as raised:
            frame.toArrow()
        assert any(text in str(raised.value) for text in expected), (expected, raised.value)
        return False
    rows, noted = expected
    assert rows_of(frame.toArrow()) == rows
    assert gaps_in(work / "jvm") == noted
    return bool(rows)


HAPPENINGS: Final[tuple[Callable[[Written, random.Random], None], ...]] = (
    healthy, killed, flipped, flipped_and_killed, zeroed, torn, short, expired, lost,
)  # fmt: skip


@pytest.mark.parametrize("happens", HAPPENINGS, ids=lambda happens: happens.__name__)
def test_both_readers_give_the_same(
    spark: Any, tmp_path: Path, happens: Callable[[Written, random.Random], None]
) -> None:
    seed = HAPPENINGS.index(happens)
    store = Written(tmp_path / "store", seed)
    dice = random.Random(seed)
    happens(store, dice)
    lenient = {"failOnDataLoss": "false", "checkCrc": "true", "brokerName": 'bröker "a"\x1f'}
    asked: tuple[dict[str, str], ...] = (
        lenient,
        lenient | {"subscribe": store.topics, "minPartitions": "7"},
        {"subscribePattern": "or.*|%LMQ%.*", "decompress": "false"},
        {"minPartitions": "9", "checkCrc": "on"},
    )
    had_rows = [
        check(spark, store.root, tmp_path / str(at), options) for at, options in enumerate(asked)
    ]
    assert had_rows[0]
    assert had_rows[1]


@pytest.mark.skipif("batch_msg_id" not in COLUMNS, reason="Python takes the last UNIQ_KEY yet")
def test_a_store_of_java(spark: Any, tmp_path: Path) -> None:
    root = unpack_store(tmp_path)
    assert check(spark, root, tmp_path / "1", {"minPartitions": "3"})


def test_columns_and_filters_narrow_what_is_made(spark: Any, tmp_path: Path) -> None:
    store = Written(tmp_path / "store", 77)
    everything = in_jvm(spark, store.root, {"subscribe": "orders"}, tmp_path)
    for filter_ in (
        "tags = 'AaBB' and queue_id in (0, 2)",
        "tags <=> null",
        "tags like '%\ufffd%'",
        "queue_offset >= 3 and queue_offset < 9 and topic = 'orders'",
        "queue_offset in (2, 4, 6) or tags = 'a'",
        "queue_offset > 9223372036854775806",
        "queue_id = null",
    ):
        kept = everything.where(filter_)
        wanted = spark.createDataFrame(everything.toArrow()).where(filter_)
        picked = ("tags", "queue_offset", "body")
        found = kept.select(*picked).toArrow().to_pylist()
        assert found == wanted.select(*picked).toArrow().to_pylist(), filter_
        assert kept.count() == wanted.count()
    plan = everything.where("tags = 'a'").select("queue_offset")
    text = plan._jdf.queryExecution().executedPlan().toString()  # the plan as `explain` prints it
    assert "(JVM), topics orders; columns: queue_offset, tags; pushed: EqualTo(tags,a)" in text


def test_the_metrics_count_rows_bytes_and_columns(spark: Any, tmp_path: Path) -> None:
    store = Written(tmp_path / "store", 5)
    frame = in_jvm(spark, store.root, {}, tmp_path).select("topic").where("tags = 'a'")
    execution = frame._jdf.queryExecution()
    rows = execution.executedPlan().executeCollect()
    metrics = execution.executedPlan().collectLeaves().head().metrics()

    def metric(name: str) -> int:
        value: int = metrics.get(f"cometmq{name}").get().value()
        return value

    assert metric("Rows") >= len(rows)
    assert metric("Rows") + metric("PassedOver") == COUNT
    assert metric("Bytes") >= sum(size for _, size in store.places)
    assert metric("PrunedColumns") == len(COLUMNS) - 2
    assert metric("Gaps") == 0


@pytest.mark.parametrize("reader", ["python", "jvm"])
def test_filters_leave_the_rows_of_queues_that_borrow_from_other_topics(
    spark: Any, tmp_path: Path, reader: str
) -> None:
    store = Written(tmp_path / "store", 77)
    source = spark.read.format("rocketmq-store").options(reader=reader, subscribe="%LMQ%mine")
    rows = source.load(str(store.root)).select("topic", "queue_id", "queue_offset").toArrow()
    chosen = "topic = 'orders' and queue_id = 1 and queue_offset > 5"
    kept = source.load(str(store.root)).where(chosen)
    wanted = spark.createDataFrame(rows).where(chosen).count()
    assert kept.count() == wanted > 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subscribe": "none"}, "has no consume queue of none; there are"),
        ({"subscribe": "orders,,x"}, "an empty topic name"),
        ({"minPartitions": "many"}, "must be a whole number"),
        ({"colour": "red"}, "has no option colour"),
        ({"reader": "fast"}, "it must be one of auto, python, jvm"),
        ({"subscribePattern": r"\w+", "reader": "jvm"}, "the JVM's reader does not take this read"),
    ],
)
def test_what_the_jvm_does_not_take_the_python_reader_explains(
    spark: Any, tmp_path: Path, options: dict[str, str], error: str
) -> None:
    store = Written(tmp_path / "store", 1)
    with pytest.raises(Exception, match=error):
        spark.read.format("rocketmq-store").options(**options).load(str(store.root)).count()


def test_an_expression_of_pythons_own_is_left_to_python(spark: Any, tmp_path: Path) -> None:
    store = Written(tmp_path / "store", 1)
    frame = spark.read.format("rocketmq-store").option("subscribePattern", r"\w{6}")
    frame = frame.load(str(store.root))
    assert "(JVM)" not in frame._jdf.queryExecution().executedPlan().toString()
    assert {row.topic for row in frame.select("topic").collect()} == {"orders"}


def test_a_queue_that_its_files_names_make_larger_than_any_disk(spark: Any, tmp_path: Path) -> None:
    store = Written(tmp_path / "store", 3)
    queue = store.root / "consumequeue" / "orders" / "0"
    first = next(iter(sorted(queue.iterdir()))).read_bytes()
    (queue / f"{2**62 // 20 * 20:020d}").write_bytes(first)
    read = spark.read.format("rocketmq-store").option("subscribe", "orders")
    with pytest.raises(Exception, match="orders:0 are named as if it had 2305843009213"):
        read.load(str(store.root)).count()


def test_a_record_too_large_for_the_jvm_is_refused_by_its_size(spark: Any, tmp_path: Path) -> None:
    limit = 128 * 1024 * 1024
    small = encoded({**PLAIN, "body": b"", "queue_id": 0, "queue_offset": 0}, 0)
    size = len(small) + limit
    body_length_at = 84
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    with (tmp_path / "store" / "commitlog" / ("0" * 20)).open("wb") as file:
        # The body is a hole in the file.
        file.write(size.to_bytes(4, "big") + small[4:body_length_at] + limit.to_bytes(4, "big"))
        file.seek(body_length_at + 4 + limit)
        file.write(small[body_length_at + 4 :])
    frame = in_jvm(spark, tmp_path / "store", {}, tmp_path, "topic")
    with pytest.raises(
        Exception, match=f"has {size} bytes, more than the {limit} .* reader=python"
    ):
        frame.count()


def test_many_small_queues_share_tasks(spark: Any, tmp_path: Path) -> None:
    """A task of its own for each of 10,000 queues would cost minutes before the first row."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    log = b""
    for queue_id in range(700):
        units = np.zeros(3, UNIT_DTYPE)
        for at in range(queue_id % 3 + 1):
            record = encoded({**PLAIN, "queue_id": queue_id, "queue_offset": at}, len(log))
            units[at] = (len(log), len(record), 0)
            log += record
        directory = root / "consumequeue" / "orders" / str(queue_id)
        directory.mkdir(parents=True)
        units.tofile(directory / ("0" * 20))
    (root / "commitlog" / ("0" * 20)).write_bytes(log)
    options = {"subscribe": "orders"}
    assert check(spark, root, tmp_path / "rows", options)
    tasks = len(
        StoreReader(
            StoreOptions({**options, "path": str(root)}, streaming=False), ["topic"]
        ).partitions()
    )
    assert in_jvm(spark, root, options, tmp_path).rdd.getNumPartitions() == tasks
    assert 256 <= tasks < 600
    more = {**options, "minPartitions": "650"}
    assert in_jvm(spark, root, more, tmp_path).rdd.getNumPartitions() >= 650


def test_files_made_ahead_of_need_are_read_once_to_plan(spark: Any, tmp_path: Path) -> None:
    """Of 10,000 queues they are 60 GB of nothing. They were read twice, unit by unit; then once, but by each
    batch of an archive, which asks for a hundred messages of each queue.
    """
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    log = b""
    ahead = 300_000
    # The reader reads 4096 units at a time.
    counts = [0, 1, 4095, 4096, 4097, *[2] * 20]
    for queue_id, count in enumerate(counts):
        units = np.zeros(count, UNIT_DTYPE)
        for at in range(count):
            record = encoded({**PLAIN, "queue_id": queue_id, "queue_offset": at}, len(log))
            units[at] = (len(log), len(record), 0)
            log += record
        directory = root / "consumequeue" / "orders" / str(queue_id)
        directory.mkdir(parents=True)
        with (directory / ("0" * 20)).open("wb") as file:
            units.tofile(file)
            file.truncate(ahead * UNIT_DTYPE.itemsize)
    (root / "commitlog" / ("0" * 20)).write_bytes(log)
    assert check(spark, root, tmp_path / "rows", {"subscribe": "orders"})
    stat = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/io")

    def read_bytes() -> int:
        fields = dict(line.split(": ") for line in stat.read_text().splitlines())
        return int(fields["rchar"])

    frame = in_jvm(spark, root, {"subscribe": "orders"}, tmp_path, "queue_offset")
    before = read_bytes()
    assert frame.count() == sum(counts)
    made = ahead * UNIT_DTYPE.itemsize
    assert len(counts) * made / 2 < read_bytes() - before < 1.5 * len(counts) * made
    before = read_bytes()
    assert frame.where("queue_offset < 2").count() == sum(min(count, 2) for count in counts)
    # Only of the two queues that end before offset 2 has the end to be looked for.
    assert read_bytes() - before < 3 * made


def test_a_jar_of_other_sources_is_not_used_by_pipelines(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reader_for(spark) == "auto"
    monkeypatch.setattr("cometmq.spark.jvm.checksum", lambda: "that of another version")
    assert reader_for(spark) == "python"
    assert reader_for(object()) == "auto"  # as with Spark Connect


def test_the_lock_is_given_up_by_the_last_reader(spark: Any, tmp_path: Path) -> None:
    store = Written(tmp_path / "store", 3)
    taken = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "except OSError: print('held')\n"
    )

    def held() -> bool:
        program = [sys.executable, "-c", taken, str(store.root / "lock")]
        return bool(subprocess.run(program, check=True, capture_output=True).stdout)

    frame = in_jvm(spark, store.root, {"minPartitions": "8"}, tmp_path)
    assert frame.count() == COUNT
    assert not held()

    lock = spark._jvm.cometmq.spark.store.StoreLocks.lock(str(store.root))
    assert (
        frame.count() == COUNT
    )  # its readers share the lock, and leave it to the one that is left
    assert held()
    lock.close()
    assert not held()
