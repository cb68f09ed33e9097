"""Fuzz targets of texts that people and clients write: filters, configuration, state files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final
from zlib import crc32

import msgspec
from tests.fuzz.mutation import mutate
from tests.fuzz.target import Target
from tests.golden import sql92

from cometmq.broker.config import broker_configs
from cometmq.broker.delays.state import DelayState, decode_timer_check
from cometmq.broker.delays.timer_progress import TimerProgress
from cometmq.broker.topics.journal import JournalFile, replay
from cometmq.errors import CometMQError, FilterExpressionError
from cometmq.filtering.sql92 import compile_sql
from cometmq.filtering.tags import accepts, build_subscription, tag_matcher
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies.cluster import TopicConfigSerializeWrapper
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.runtime.configuration.config import format_properties, parse_properties
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.queues.queue_ledger import QueueLedger
from cometmq.testing.virtual.storage.disk import VirtualDisk


def _compiles(expression: str) -> bool:
    try:
        compile_sql(expression)
    except FilterExpressionError:
        return False
    return True


_SQL: Final = [text.encode() for text in sql92.EXPRESSIONS if _compiles(text)]


def run_sql(random: Random, data: bytes) -> object:
    """An expression that compiles takes any properties, those in its own text too."""
    text = data.decode("utf-8", "replace")
    condition = compile_sql(text)
    odd = {name: random.choice(_SQL).decode() for name in "abcdAB"}
    outcomes = [condition(m) for m in (*sql92.MESSAGES, odd, dict.fromkeys("abcd", text))]
    assert all(outcome in (True, False, None) for outcome in outcomes)
    return outcomes


def run_tags(_: Random, data: bytes) -> object:
    subscription = build_subscription("t", data.decode(errors="replace"))
    matches = tag_matcher(subscription)
    assert matches is None or all(map(matches, subscription.code_set))
    assert all(accepts(subscription, tag) for tag in subscription.tags_set)
    return sorted(subscription.tags_set)


def run_configuration(_: Random, data: bytes) -> object:
    """A properties file is read, and makes configurations or says why not; what is written is read."""
    properties = parse_properties(data.decode(errors="replace"), "fuzz")
    assert parse_properties(format_properties(properties), "fuzz") == properties
    try:
        broker_configs(properties, source="fuzz")
    except CometMQError as error:
        return str(error)
    return properties


_DIRECTORY: Final = Path("/config")


def _table() -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper(DataVersion(0, 5, 1), None, {"old": TopicConfig("old")})


def _journal() -> bytes:
    """Return what a broker writes: the version that the table has, a new topic, one that went."""
    disk, path = VirtualDisk(), _DIRECTORY / "topics.journal"
    changes = [
        {"version": {"stateVersion": 0, "timestamp": 5, "counter": 1}},
        {
            "version": {"stateVersion": 0, "timestamp": 6, "counter": 2},
            "topic": {"topicName": "orders", "readQueueNums": 4, "writeQueueNums": 4},
        },
        {"version": {"stateVersion": 0, "timestamp": 7, "counter": 3}, "removed": "old"},
    ]
    lines = [msgspec.json.encode(change) for change in changes]
    file = JournalFile(path, disk.files)
    file.write([b"%08x %b\n" % (crc32(line), line) for line in lines])
    file.close()
    return disk.read(path)


def mutate_lines(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Damage the lines of a journal, most often with checksums that fit."""
    data = mutate(random, data, corpus)
    if random.random() < 0.3:
        return data
    lines = [line.partition(b" ")[2] for line in data.split(b"\n") if line]
    return b"".join(b"%08x %b\n" % (crc32(line), line) for line in lines)


def run_journal(_: Random, data: bytes) -> object:
    """A damaged journal gives the changes of its sound lines; a table takes them."""
    disk = VirtualDisk()
    disk.make_directory(_DIRECTORY)
    disk.write(_DIRECTORY / "topics.journal", data)
    table = _table()
    changes = JournalFile(_DIRECTORY / "topics.journal", disk.files).read()
    made = replay(table, changes, 10)
    return len(changes), len(made), sorted(table.topic_config_table)


def run_store_state(_: Random, data: bytes) -> object:
    """The small files of a store: checkpoint, ledger of queues, progress of delays."""
    disk, outcomes = VirtualDisk(), list[object]()
    disk.make_directory(_DIRECTORY)
    disk.write(_DIRECTORY / "file", data[1:])
    match data[0] % 3 if data else 0:
        case 0:
            checkpoint = Checkpoint(disk, _DIRECTORY / "file")
            checkpoint.load()
            outcomes += [checkpoint.min_timestamp]
            checkpoint.flush()
        case 1:
            ledger = QueueLedger(disk, _DIRECTORY / "file")
            ledger.load()
            ledger.follow_log(0, 1000)
            ledger.save()
        case _:
            state = decode_body(data[1:], DelayState)
            progress = TimerProgress(state.timer_segments)
            progress.finish(5)
            outcomes += [progress.is_done(4, 0), decode_timer_check(data[1:]) is None]
    return outcomes


_LEDGER: Final = json.dumps(
    {"queues": {"orders": {"0": [0, 5, 5, 400]}}, "deleted": {"gone": 300}, "index": {"a": 5}}
).encode()

TARGETS: Final = [
    Target("tags", [b"TagA || TagB", b"*", b"TagA"], run_tags),
    Target("sql92", _SQL, run_sql, cost=4),
    Target(
        "configuration",
        [
            b"brokerName=a\nlistenPort : 10911\n# c\n\\u4e2d=\\\n x",
            b"brokerRole=SLAVE\nbrokerId=1\nflushDiskType=SYNC_FLUSH\nmessageDelayLevel=1s 5s",
            b"adminFrom=10.0.0.0/8\nbrokerIP1=::1\nmappedFileSizeCommitLog=1073741824",
        ],
        run_configuration,
    ),
    Target("journal", [_journal()], run_journal, mutate_lines),
    Target(
        "store-state",
        [b"\0" + bytes(24), b"\1" + _LEDGER, b'\2{"offsetTable":{1:5}}'],
        run_store_state,
    ),
]
