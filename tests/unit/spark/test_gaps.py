"""The gaps that a read notes for what it has left out."""

from __future__ import annotations

import json
from pathlib import Path

from cometmq.model.queue import MessageQueue
from cometmq.spark.gaps import DAMAGE, NOT_STORED, RETENTION, Gap, GapLog, noted_gaps

QUEUE = MessageQueue("orders", "broker-a", 1)


def gap(start: int, end: int, cause: str = NOT_STORED) -> Gap:
    return Gap(QUEUE.topic, QUEUE.broker_name, QUEUE.queue_id, start, end, cause)


def test_a_range_may_have_several_gaps(tmp_path: Path) -> None:
    log = GapLog(str(tmp_path / "gaps"))
    log.replace(QUEUE, 0, [gap(3, 5), gap(9, 10)])
    log.replace_planned(QUEUE, gap(0, 2, RETENTION))
    of_log = Gap(None, "broker-a", None, 100, 180, DAMAGE)
    log.write(of_log)
    found = noted_gaps(tmp_path / "gaps")
    assert found == (of_log, gap(0, 2, RETENTION), gap(3, 5), gap(9, 10))
    assert [each.count for each in found] == [80, 2, 2, 1]
    assert [each.queue for each in found] == [None, QUEUE, QUEUE, QUEUE]
    lines = [
        json.loads(line)
        for path in (tmp_path / "gaps").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["count"] for line in lines) == [1, 2, 2, 80]


def test_what_is_read_again_has_the_gaps_of_the_last_time(tmp_path: Path) -> None:
    log = GapLog(str(tmp_path))
    log.replace(QUEUE, 0, [gap(3, 5)])
    log.replace(QUEUE, 10, [gap(12, 13)])
    log.replace(QUEUE, 0, [])
    assert noted_gaps(tmp_path) == (gap(12, 13),)
    log.forget({QUEUE: (0, 10)})
    assert noted_gaps(tmp_path) == (gap(12, 13),)
    log.forget({QUEUE: (0, 11)})
    assert noted_gaps(tmp_path) == ()


def test_what_is_half_written_is_passed_over(tmp_path: Path) -> None:
    GapLog(str(tmp_path)).write(gap(0, 1))
    (tmp_path / ".half.json").write_text('{"topic": "ord')
    assert noted_gaps(tmp_path) == (gap(0, 1),)
    assert noted_gaps(tmp_path / "nothing") == ()


def test_gaps_that_were_read_share_their_texts(tmp_path: Path) -> None:
    log = GapLog(str(tmp_path))
    for start in (0, 10):
        log.replace(QUEUE, start, [gap(start, start + 1)])
    first, second = noted_gaps(tmp_path)
    assert first.topic is second.topic
    assert first.broker is second.broker
    assert first.cause is second.cause
