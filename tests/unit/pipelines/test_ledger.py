"""The ledger of a replay or redrive: what it keeps, and who may hold it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.pipelines.resending.ledger import Ledger, Plan, Progress


class Small(Plan):
    number: int


def test_what_was_decided_and_done_is_there_again(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "r1", Small)
    asked = {"topics": ("orders",), "since": None}
    with ledger.held():
        assert ledger.plan(asked) is None
        assert ledger.progress() == Progress()
        ledger.begin(Small(asked=asked, number=7))
        ledger.save(Progress(chunks_done=2, bases=[5, 6], sent=10))
    again = Ledger(str(tmp_path), "r1", Small)
    with again.held():
        plan = again.plan({"topics": ["orders"], "since": None})
        assert plan is not None
        assert plan.number == 7
        assert again.progress() == Progress(chunks_done=2, bases=[5, 6], sent=10)
    assert Ledger(str(tmp_path), "r2", Small).plan(asked) is None


def test_another_configuration_under_the_same_id_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "r1", Small)
    with ledger.held():
        ledger.begin(Small(asked={"topics": ["orders"], "to": None}, number=1))
        with pytest.raises(ConfigError, match=r"to: the id r1 was begun with None, not 'copy'"):
            ledger.plan({"topics": ["orders"], "to": "copy"})


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with Ledger(str(tmp_path), "r1", Small).held():
        with (
            pytest.raises(ConfigError, match=r"id: r1 is being run by process \d+ on "),
            Ledger(str(tmp_path), "r1", Small).held(),
        ):
            raise AssertionError("two runs hold the lock")
        with Ledger(str(tmp_path), "r2", Small).held():
            pass
    with Ledger(str(tmp_path), "r1", Small).held():
        pass


def test_a_state_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"state: .*file/r1 cannot be written to"),
        Ledger(str(tmp_path / "file"), "r1", Small).held(),
    ):
        raise AssertionError("it cannot be held")


def test_a_damaged_ledger_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match=r"plan\.json is damaged"):
        Ledger(str(tmp_path), "r1", Small).plan({})
