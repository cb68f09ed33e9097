"""When a supervisor starts a process again, and how it joins the logs of several."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cometmq.logs.file import LogFile
from cometmq.runtime.supervision import lines as lines_module
from cometmq.runtime.supervision.lines import Lines, SharedLog
from cometmq.runtime.supervision.plan import Member, Plan, read_plan
from cometmq.runtime.supervision.restarts import MANY, Restarts


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_steady_time() -> None:
    restarts = Restarts(0.5, 4.0, steady_s=60.0)
    assert [restarts.died(now).pause_s for now in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    restarts.ready(100.0)
    assert restarts.died(159.0).pause_s == 4.0
    restarts.ready(200.0)
    assert restarts.died(260.0)[:2] == (0.5, 1)


def test_a_process_that_dies_at_each_start_is_told_of_once() -> None:
    restarts = Restarts(0.5, 4.0, steady_s=60.0)
    reported = [restarts.died(now).is_hopeless for now in range(3 * MANY)]
    assert reported.index(True) == MANY - 1
    assert sum(reported) == 1


def test_a_plan_survives_the_way_through_a_pipe() -> None:
    plan = Plan(members=[Member("m-0", ["a", "b"])], ready_mark="é", log_file="/x")
    reading, writing = os.pipe()
    os.write(writing, plan.to_json().encode())
    os.close(writing)
    assert read_plan(reading) == plan


# -- lines --


def test_bytes_become_whole_lines_wherever_they_are_cut() -> None:
    whole = "one\ntwo: é\n\nrest".encode()
    for cut in range(len(whole)):
        lines = Lines()
        found = [*lines.feed(whole[:cut]), *lines.feed(whole[cut:]), *lines.end()]
        assert found == ["one", "two: é", "", "rest"]
        assert lines.end() == []


def test_a_line_without_an_end_is_cut_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 10)
    lines = Lines()
    assert lines.feed(b"x" * 10) == []
    assert lines.feed(b"x" * 10) == ["x" * 20]
    assert lines.feed(b"y\n") == ["y"]


NewLog = Callable[..., tuple[SharedLog, Path]]


@pytest.fixture
def new_log(tmp_path: Path) -> NewLog:
    def new(*, json_lines: bool) -> tuple[SharedLog, Path]:
        path = tmp_path / "log"
        file = LogFile(path, file_bytes=1 << 20, kept_files=2)
        now = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)
        log = SharedLog(
            ["m-0", "m-10"], json_lines=json_lines, threshold=20, file=file, now=lambda: now
        )
        return log, path

    return new


def test_each_line_of_json_names_its_broker_once(new_log: NewLog) -> None:
    log, path = new_log(json_lines=True)
    log.relay("m-0", '{"level": "info", "event": "here"}')
    log.relay("m-1", '{"event": "registered", "broker": "m-1"}')
    log.relay("m-0", "Fatal Python error: none of ours")
    log.relay("m-0", "{}")
    log.say("debug", "nobody wants this")
    log.say("warning", "mine", broker="m-1", pause_s=0.5)
    log.drain()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    stamp = "2026-11-23T06:00:00Z"
    foreign = {"timestamp": stamp, "level": "error", "logger": "stderr", "broker": "m-0"}
    assert found == [
        {"level": "info", "event": "here", "broker": "m-0"},
        {"event": "registered", "broker": "m-1"},
        {**foreign, "event": "Fatal Python error: none of ours"},
        {**foreign, "event": "{}"},
        {
            "timestamp": stamp,
            "level": "warning",
            "logger": "cometmq.runtime.supervision",
            "event": "mine",
            "broker": "m-1",
            "pause_s": 0.5,
        },
    ]
    assert path.read_text().count('"broker": "m-1"') == 2


def test_each_line_of_text_begins_with_its_broker(new_log: NewLog) -> None:
    log, path = new_log(json_lines=False)
    log.relay("m-0", "2026 [info] here")
    log.relay("m-10", "  a traceback's line")
    log.say("info", "mine", broker="m-0")
    log.drain()
    relayed, traceback, own = path.read_text().splitlines()
    assert relayed == "m-0         2026 [info] here"
    assert traceback == "m-10          a traceback's line"
    assert own.startswith("supervisor  2026-11-23T")
    assert own.endswith("broker='m-0'")
