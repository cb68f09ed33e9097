"""The audit log: what it keeps, also after a crash and when it is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cometmq.console.users import audit
from cometmq.console.users.audit import AuditLog, ended
from cometmq.runtime.clock import SYSTEM_CLOCK


async def opened(path: Path) -> AuditLog:
    log = AuditLog(path, SYSTEM_CLOCK)
    await log.open()
    return log


async def note(log: AuditLog, target: str, outcome: str = "done", **more: Any) -> None:
    await log.write("anna", "operator", "127.0.0.1", "delete topic", target, outcome, **more)


async def test_a_console_that_starts_again_knows_what_was_done(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await note(log, "orders", why="a test \U0001f600", action="1")
    again = await opened(tmp_path)
    assert list(again.entries) == list(log.entries)
    assert again.entries[0].why == "a test \U0001f600"
    assert (log.path.stat().st_mode & 0o777) == 0o600


async def test_a_line_that_a_crash_has_cut_spoils_no_other(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await note(log, "one")
    with log.path.open("ab") as file:
        file.write(b'{"at_ms": 5, "who')
    await note(log, "two")
    again = await opened(tmp_path)
    assert [entry.target for entry in again.entries] == ["one", "two"]


async def test_lines_of_another_kind_are_left_out(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    log.path.write_bytes(b'[]\n{"at_ms": "x"}\n\xff\n\n{}\n' + b"[" * 5000 + b"\n")
    await note(log, "one")
    assert [entry.target for entry in (await opened(tmp_path)).entries] == ["one"]


async def test_full_files_are_kept_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES", 100)
    monkeypatch.setattr(audit, "FILES", 3)
    log = await opened(tmp_path)
    for number in range(6):
        await note(log, f"topic-{number}")
    assert [path.name for path in log.paths()] == ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"]
    kept = [entry.target for entry in (await opened(tmp_path)).entries]
    assert kept == ["topic-3", "topic-4", "topic-5"]
    lines = b"".join([part async for part in log.lines(lambda entry: entry.target != "topic-4")])
    assert lines.count(b"\n") == 2
    assert b"topic-4" not in lines


async def test_huge_values_are_cut(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    details = {str(number): "x" * 5000 for number in range(100)}
    await log.write("a" * 5000, "", "", "b", "c" * 10**6, "done", details=details)
    assert log.path.stat().st_size < 20_000
    assert log.entries[0].target.endswith("… (1000000 characters)")
    [said] = log.entries[0].details.values()
    assert said.startswith("100 details of 20")


async def test_a_long_list_does_not_take_the_other_details_with_it(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await note(log, "g", details={"redrive_id": "r", "ids": ["0" * 32] * 500, "key": "k"})
    assert log.entries[0].details == {
        "redrive_id": "r",
        "ids": "left out: 18000 characters",
        "key": "k",
    }


async def test_refusals_of_a_kind_are_counted(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    for _ in range(50):
        await log.refuse("anna", "reader", "127.0.0.1", "/topics/delete")
    await log.refuse("anna", "reader", "127.0.0.1", "/groups/delete")
    assert [entry.what for entry in log.entries] == ["/topics/delete", "/groups/delete"]


async def test_a_refusal_that_could_not_be_written_is_told_with_the_next_one(
    tmp_path: Path,
) -> None:
    """After one on a full disk, those of the next minute were not written either."""
    log = await opened(tmp_path)
    log.path.symlink_to("/dev/full")
    for _ in range(2):
        await log.refuse("anna", "reader", "127.0.0.1", "delete topic")
    log.path.unlink()
    for _ in range(3):
        await log.refuse("anna", "reader", "127.0.0.1", "delete topic")
    assert [entry.said for entry in log.entries] == ["and 2 times more before"]


async def test_an_action_that_has_ended_shows_one_line(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await note(log, "orders", "begun", action="1")
    await note(log, "orders", "done", action="1")
    await note(log, "cut-off", "begun", action="2")
    shown = [(entry.target, entry.outcome) for entry in ended(log.entries)]
    assert shown == [("orders", "done"), ("cut-off", "begun")]
