"""A store is open to its owner only, and a planted link leads no file elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.store_box import Box, bodies, put

from cometmq.errors import StoreUnusableError
from cometmq.store.files.disk import Disk
from cometmq.store.queues.queue_ledger import QueueLedger


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode)
        for path in (root, *root.rglob("*"))
    }


def test_all_that_a_store_makes_is_for_its_owner(make_box: Callable[..., Box]) -> None:
    box = make_box()
    store = box.open()
    for _ in range(100):
        put(store, b"x" * 1000)
    open_modes = modes(box.root)
    store.close()
    found = {**open_modes, **modes(box.root)}
    for name in ("abort", "lock", "checkpoint", "queues.json", "commitlog", "consumequeue"):
        assert name in found
    for name, mode in found.items():
        is_directory = (box.root / name).is_dir()
        assert mode == (0o700 if is_directory else 0o600), name


def test_a_store_of_java_opens_and_is_closed_to_others(
    make_box: Callable[..., Box], log_lines: list[dict[str, Any]]
) -> None:
    box = make_box()
    store = box.open()
    put(store, b"kept")
    store.close()
    for path in (box.root, *box.root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    log_lines.clear()
    store = box.open()
    assert bodies(store) == [b"kept"]
    assert set(modes(box.root).values()) == {0o700, 0o600}
    said = [line["event"] for line in log_lines if "other users" in line["event"]]
    assert said == ["other users could reach parts of the store; they cannot any more"]
    store.close()
    log_lines.clear()
    box.open().close()
    assert not [line for line in log_lines if "other users" in line["event"]]


def test_a_root_that_holds_something_else_is_left_as_it_is(
    make_box: Callable[..., Box], log_lines: list[dict[str, Any]]
) -> None:
    box = make_box()
    store = box.open()
    put(store)
    store.close()
    (box.root / "letters").mkdir()
    box.root.chmod(0o755)
    (box.root / "commitlog").chmod(0o755)
    box.open().close()
    assert stat.S_IMODE(box.root.stat().st_mode) == 0o755
    assert stat.S_IMODE((box.root / "commitlog").stat().st_mode) == 0o700
    assert any("letters, which is not the store's" in str(line) for line in log_lines)


def test_a_link_in_a_store_is_not_followed_when_rights_are_taken(
    make_box: Callable[..., Box], tmp_path: Path
) -> None:
    box = make_box()
    box.open().close()
    shared = tmp_path / "shared"
    shared.write_text("for all")
    shared.chmod(0o644)
    (box.root / "config").mkdir(mode=0o755)
    (box.root / "config" / "link").symlink_to(shared)
    box.open().close()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o644


@pytest.mark.parametrize("name", [f"commitlog/{0:020d}", "lock", "checkpoint"])
def test_a_link_where_a_file_is_to_be_made_is_refused_and_named(
    make_box: Callable[..., Box], tmp_path: Path, name: str
) -> None:
    box = make_box()
    victim = tmp_path / "victim"
    path = box.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("commitlog"):
        store = box.open()
        path.symlink_to(victim)
    else:
        path.symlink_to(victim)
        store = None
    with pytest.raises(StoreUnusableError, match=f"{path.name} is a symbolic link"):
        put(store or box.open())
    assert not victim.exists()


@pytest.mark.parametrize("name", ["abort", "queues.json.tmp"])
def test_a_link_in_place_of_a_small_file_is_replaced(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / name
    path.symlink_to(victim)
    if name == "abort":
        Disk().write(path, b"1")
        assert path.read_bytes() == b"1"
    else:
        QueueLedger(Disk(), tmp_path / "queues.json").save()
    assert victim.read_text() == "precious"
    assert not path.is_symlink()


def test_many_queues_are_not_all_mapped_at_once(
    make_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "open_files_limit", lambda _: 400)
    box = make_box()
    store = box.open()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    for round_ in range(3):
        for at in range(300):
            put(store, b"%d" % round_, topic=f"t{at}")
    assert len(os.listdir("/proc/self/fd")) < before + 150  # noqa: PTH208 - a count
    for at in range(300):
        assert store.max_offset(f"t{at}", 0) == 3
        assert bodies(store, f"t{at}") == [b"0", b"1", b"2"]
    box.crash(store)
    again = box.open()
    assert [again.max_offset(f"t{at}", 0) for at in range(300)] == [3] * 300
    again.close()
