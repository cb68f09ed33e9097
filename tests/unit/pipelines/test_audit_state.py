"""The state of an audit that goes on: after a kill at any step, all of a round is there or nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.pipelines.dying import MOST_STEPS, die_at

from cometmq.errors import ConfigError
from cometmq.pipelines.audit.found import Found, folded, merged
from cometmq.pipelines.audit.settings import Config
from cometmq.pipelines.audit.streaming.stream_state import (
    Judged,
    Place,
    State,
    StateDirectory,
)

NOW_MS = 1_700_000_000_000


def config(path: Path, **settings: object) -> Config:
    reported = {"topics": ["orders"], "mode": "stream", "state": str(path), **settings}
    return msgspec.convert(reported, Config)


def found(hour: int | None, times: int | None = None, *numbers: int) -> Found:
    place = ("orders", "broker-a", 0, hour)
    if times is None:
        return Found(*place, None, None, None, None, None, None, list(numbers))
    return Found(*place, "gap in the offsets", None, "x", True, times, "at 1", list(numbers))


def one_round(path: Path) -> None:
    """Write a round's tables and commit it."""
    directory = StateDirectory(str(path))
    with directory.held():
        state = directory.load(config(path), NOW_MS)
        names = []
        for kind in ("open", "pending", "judged"):
            table = directory.new_table(kind)
            table.mkdir()
            (table / "part-0.parquet").write_bytes(b"PAR1")
            names.append(table.name)
        number = state.rounds + 1
        directory.commit(
            msgspec.structs.replace(
                state,
                rounds=number,
                queues=(Place("orders", "broker-a", 0, 0, 10 * number, 0),),
                open=names[0],
                pending=names[1],
                judged=(*state.judged[-1:], Judged(names[2], NOW_MS + number)),
                totals=merged([*state.totals, found(0, None, 10, 10)]),
            )
        )


def seen(path: Path) -> State:
    """Return the state that a new process finds, with exactly the tables that it names."""
    directory = StateDirectory(str(path))
    with directory.held():
        state = directory.load(config(path), NOW_MS)
    tables = {one.name for one in path.iterdir() if one.is_dir()}
    assert tables == state.tables
    assert all((path / name / "part-0.parquet").read_bytes() == b"PAR1" for name in tables)
    return state


def test_a_round_that_is_killed_anywhere_is_all_there_or_not_at_all(tmp_path: Path) -> None:
    outcomes = set()
    for step in range(MOST_STEPS):
        path = tmp_path / str(step)
        one_round(path)
        one_round(path)
        died = die_at(step, path, lambda path=path: one_round(path))  # type: ignore[misc]  # mypy infers no type for a default
        state = seen(path)
        outcomes.add(state.rounds)
        assert [place.to for place in state.queues] == [10 * state.rounds]
        assert state.totals == (found(0, None, 10 * state.rounds, 10 * state.rounds),)
        assert len(state.judged) == 2
        one_round(path)
        assert seen(path).rounds == state.rounds + 1
        if not died:
            break
    else:
        raise AssertionError(f"a round takes more than {MOST_STEPS} steps")
    assert outcomes == {2, 3}


def test_one_stream_at_a_time_and_with_the_settings_that_it_began_with(tmp_path: Path) -> None:
    one_round(tmp_path)
    directory = StateDirectory(str(tmp_path))
    with (
        directory.held(),
        pytest.raises(ConfigError, match="another audit is at work"),
        StateDirectory(str(tmp_path)).held(),
    ):
        raise AssertionError("two streams hold the state")
    with pytest.raises(
        ConfigError, match=r"groups: the audit in .* was begun with \[\], not \['g'"
    ):
        directory.load(config(tmp_path, groups=["g"]), NOW_MS)
    # How often it looks and how long it waits may change.
    assert directory.load(config(tmp_path, hold_s=1.0, keep_days=2), NOW_MS).rounds == 1
    state = tmp_path / "_state.json"
    state.write_bytes(state.read_bytes().replace(b'"version":1', b'"version":9'))
    with pytest.raises(ConfigError, match="is of version 9, this is for 1"):
        directory.load(config(tmp_path), NOW_MS)
    state.write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"_state\.json cannot be read"):
        directory.load(config(tmp_path), NOW_MS)


def test_a_state_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="where nothing can be written"),
        StateDirectory(str(tmp_path / "file" / "state")).held(),
    ):
        raise AssertionError("nobody may write there")


def test_sums_of_old_hours_are_added_up() -> None:
    totals = merged([found(1, None, 5, 5), found(2, None, 1, 1), found(2, None, 2, 2), found(2, 3)])
    assert totals == (found(1, None, 5, 5), found(2, None, 3, 3), found(2, 3))
    assert folded(totals, 2) == (found(None, None, 5, 5), found(2, None, 3, 3), found(2, 3))
    assert folded(totals, 9) == (found(None, None, 8, 8), found(None, 3))
    # As often as it is done.
    assert folded(folded(totals, 2), 9) == folded(totals, 9)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"state": None}, "state is None; a stream needs a directory"),
        ({"state": "audits"}, "state is 'audits'; a stream needs a directory .* from the root on"),
        ({"stores": {"b": "/s"}}, 'mode is "stream", and stores are only read'),
        ({"mode": "once"}, 'state is for a stream; leave it out, or give mode = "stream"'),
        ({"hold_s": -1.0}, r"hold_s is -1.0, give 0 or more"),
        ({"patience_s": float("inf")}, "patience_s is inf, give 0 or more"),
        ({"max_messages": 0}, "max_messages is 0, give 1 or more"),
        ({"keep_days": 0}, "keep_days is 0, give 1 or more"),
    ],
)
def test_settings_of_a_stream_that_do_not_fit(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config(Path("/data/audits"), **settings)
