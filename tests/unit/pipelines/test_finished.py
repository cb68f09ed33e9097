"""Ledgers of finished replays and redrives: which are dropped, and what is left of them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from tests.unit.pipelines.dying import MOST_STEPS, die_at

from cometmq.errors import ConfigError
from cometmq.pipelines.resending.finished import Finished
from cometmq.pipelines.resending.ledger import Ledger, Plan, Progress

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def run(state: Path, name: str, *, days_ago: int | None, sent: int = 3) -> None:
    """Leave the ledger of a run that was finished so many days ago, or is not finished."""
    ledger = Ledger(str(state), name, Plan)
    with ledger.held():
        ledger.begin(Plan(asked={"topics": ["orders"]}))
        ledger.save(Progress(sent=1))  # which leaves a backup of it, too
        ended = None if days_ago is None else NOW - timedelta(days=days_ago)
        ledger.save(Progress(sent=sent, finished=days_ago is not None, ended=ended))


def ledgers(state: Path) -> set[str]:
    return {path.name for path in state.iterdir() if path.is_dir()}


def test_only_what_was_finished_long_ago_is_dropped(tmp_path: Path) -> None:
    run(tmp_path, "old", days_ago=91)
    run(tmp_path, "older", days_ago=400)
    run(tmp_path, "recent", days_ago=89)
    run(tmp_path, "killed", days_ago=None)
    run(tmp_path, "mine", days_ago=500)
    run(tmp_path, "held", days_ago=500)
    (tmp_path / "notes.txt").write_text("of somebody")
    finished = Finished(str(tmp_path))
    # However old it is, what is not finished can go on.
    os.utime(tmp_path / "killed" / "progress.json", (0, 0))
    with Ledger(str(tmp_path), "held", Plan).held():
        assert finished.drop(90, NOW, but="mine") == ["old", "older"]
    assert ledgers(tmp_path) == {"recent", "killed", "mine", "held"}
    assert finished.drop(90, NOW, but="mine") == ["held"]
    assert finished.drop(90, NOW, but="mine") == []
    # An id is never free again, since nothing says any more what was sent.
    for name in ("old", "older", "held"):
        with pytest.raises(ConfigError, match=rf"id: {name} was finished on 202[56]-") as reported:
            finished.check(name)
        assert "with 3 messages in their targets" in str(reported.value)
    for name in ("recent", "killed", "mine", "unheard-of"):
        finished.check(name)
    assert (tmp_path / "notes.txt").exists()


def test_a_ledger_of_a_version_that_noted_no_time_is_as_old_as_its_file(tmp_path: Path) -> None:
    for name, days_ago in (("old", 91), ("recent", 89)):
        run(tmp_path, name, days_ago=days_ago)
        file = tmp_path / name / "progress.json"
        file.write_text('{"chunks_done":1,"sent":3,"finished":true}')
        time = (NOW - timedelta(days=days_ago)).timestamp()
        os.utime(file, (time, time))
    assert Finished(str(tmp_path)).drop(90, NOW, but="") == ["old"]


def test_a_run_that_is_killed_while_it_drops_ledgers_frees_no_id(tmp_path: Path) -> None:
    seen = set()
    for step in range(MOST_STEPS):
        state = tmp_path / str(step)
        state.mkdir()
        run(state, "old", days_ago=91)
        run(state, "killed", days_ago=None)
        finished = Finished(str(state))
        died = die_at(step, state, partial(finished.drop, 90, NOW, ""))
        # Either its ledger says that all is sent, or the line does.
        ledger = Ledger(str(state), "old", Plan)
        try:
            finished.check("old")
        except ConfigError:
            seen.add("line")
        else:
            seen.add("ledger")
            assert ledger.plan({"topics": ["orders"]}) is not None
            assert ledger.progress().finished
        finished.drop(90, NOW, but="")
        with pytest.raises(ConfigError, match="id: old was finished"):
            finished.check("old")
        assert ledgers(state) == {"killed"}
        assert not Ledger(str(state), "killed", Plan).progress().finished
        if not died:
            break
    else:
        raise AssertionError(f"it takes more than {MOST_STEPS} steps")
    assert seen == {"line", "ledger"}


def test_a_damaged_list_of_ids_frees_none(tmp_path: Path) -> None:
    run(tmp_path, "old", days_ago=91)
    Finished(str(tmp_path)).drop(90, NOW, but="")
    (tmp_path / "_finished.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"_finished\.jsonl cannot be read .* restore it"):
        Finished(str(tmp_path)).check("new")
    run(tmp_path, "another", days_ago=91)
    assert Finished(str(tmp_path)).drop(90, NOW, but="") == []
    assert ledgers(tmp_path) == {"another"}
