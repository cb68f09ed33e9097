"""The state that a rebuild keeps in its target, and which targets it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.pipelines.rebuild.work import State, Work
from cometmq.store.config import StoreConfig


def state_in(target: Path, mark: str = "this store") -> State:
    return State(Work(StoreConfig(), target, (0,), False, {}, 0, mark))


def test_what_is_kept_is_there_again(tmp_path: Path) -> None:
    state = state_in(tmp_path / "rebuilt")
    state.load()
    state.values["report"] = {"queues": 3}
    state.save()
    again = state_in(tmp_path / "rebuilt")
    again.load()
    assert again.values == {"report": {"queues": 3}}
    with pytest.raises(ConfigError, match="was built from another store or an earlier state"):
        state_in(tmp_path / "rebuilt", "another one").load()


@pytest.mark.parametrize("text", ["{", "{}", "[]", "7"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "rebuild.json").write_text(text)
    with pytest.raises(ConfigError, match=r"rebuild\.json cannot be used .*: name another"):
        state_in(tmp_path).load()


def test_a_target_that_cannot_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("somebody's")
    with pytest.raises(ConfigError, match="has files that no rebuild made"):
        state_in(file).load()
    with pytest.raises(ConfigError, match="cannot be written to: Not a directory; name a dir"):
        state_in(file / "below").load()
