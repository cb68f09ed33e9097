"""The behaviour that all stores of keys share, and that of each store."""

from __future__ import annotations

import importlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.idempotent.stores import new_store, redis_server, run
from tests.waits import PROCESS_WAIT_S, eventually

from cometmq.errors import ConfigError, IllegalArgumentError, KeyStoreError
from cometmq.idempotent import (
    KeyState,
    KeyStore,
    MemoryStore,
    RedisStore,
    SQLiteStore,
    redis_store,
    sqlite_store,
)
from cometmq.runtime.clock import SYSTEM_CLOCK

FREE, BUSY, DONE = KeyState.FREE, KeyState.BUSY, KeyState.DONE
KINDS = ("memory", "sqlite", "redis")
Place = Callable[[str], str]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a function that says where a store of a kind keeps its keys."""

    def of(kind: str) -> str:
        if kind == "redis":
            url: str = request.getfixturevalue("redis_url")
            redis: Any = importlib.import_module("redis")
            with redis.Redis.from_url(url) as client:
                client.flushall()
            return url
        return str(tmp_path / "done.db")

    return of


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, place: Place) -> Iterator[KeyStore]:
    store = new_store(request.param, place(request.param))
    yield store
    store.close()


def test_a_key_is_begun_once_and_done_for_good(store: KeyStore) -> None:
    begun = store.begin("k", 60.0)
    assert begun.state is FREE
    assert store.begin("k", 60.0).state is BUSY
    assert store.begin("other", 60.0).state is FREE
    assert store.finish("k", begun.token)
    assert store.begin("k", 60.0).state is DONE
    assert store.finish("k", begun.token)  # said again, nothing changes
    assert store.begin("k", 60.0).state is DONE


def test_an_abandoned_key_is_free_again(store: KeyStore) -> None:
    first = store.begin("k", 60.0)
    store.abandon("k", "of somebody else")
    assert store.begin("k", 60.0).state is BUSY
    store.abandon("k", first.token)
    assert store.begin("k", 60.0).state is FREE
    store.abandon("never begun", first.token)


def test_a_lease_runs_out(store: KeyStore) -> None:
    first = store.begin("k", 0.05)
    second = eventually(lambda: b if (b := store.begin("k", 60.0)).state is FREE else None)
    assert second.token != first.token
    # The first comes back: the key is not its any more, to finish or to free.
    assert not store.finish("k", first.token)
    store.abandon("k", first.token)
    assert store.begin("k", 60.0).state is BUSY
    assert store.finish("k", second.token)
    assert store.begin("k", 60.0).state is DONE


def test_a_lease_that_ran_out_unnoticed_is_still_finished(store: KeyStore) -> None:
    begun = store.begin("k", 0.01)
    probe = store.begin("probe", 0.02)
    eventually(lambda: store.begin("probe", 60.0).token not in ("", probe.token))
    assert store.finish("k", begun.token)
    assert store.begin("k", 60.0).state is DONE


@pytest.mark.parametrize("kind", KINDS)
def test_done_keys_are_forgotten_after_their_time(kind: str, place: Place) -> None:
    store = new_store(kind, place(kind), keep_s=0.05)
    store.finish("k", store.begin("k", 60.0).token)
    eventually(lambda: store.begin("k", 60.0).state is FREE)
    store.close()


def test_keys_are_any_text(store: KeyStore) -> None:
    for key in ("ключ", "a b\n'; DROP TABLE keys; --", "x" * 1000, "\x00"):
        begun = store.begin(key, 60.0)
        assert (begun.state, store.finish(key, begun.token)) == (FREE, True)
        assert store.begin(key, 60.0).state is DONE


def test_threads_that_contend_begin_a_key_once(store: KeyStore) -> None:
    begun: Counter[int] = Counter()
    lock = threading.Lock()

    def contend() -> None:
        for number in range(100):
            answer = store.begin(f"key-{number}", 60.0)
            if answer.state is FREE:
                with lock:
                    begun[number] += 1
                assert store.finish(f"key-{number}", answer.token)

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun == dict.fromkeys(range(100), 1)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_processes_that_contend_begin_a_key_once(kind: str, place: Place) -> None:
    where = place(kind)
    processes = [run("contend", kind, where) for _ in range(3)]
    begun: Counter[str] = Counter()
    for process in processes:
        begun.update(process.communicate(timeout=PROCESS_WAIT_S)[0].split())
        assert process.returncode == 0
    assert begun == {str(number): 1 for number in range(200)}


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_what_a_process_had_in_progress_when_it_was_killed_is_free_later(
    kind: str, place: Place
) -> None:
    where = place(kind)
    process = run("crash", kind, where)
    process.communicate(timeout=PROCESS_WAIT_S)
    assert process.returncode == -9
    store = new_store(kind, where)
    assert store.begin("before", 60.0).state is DONE
    eventually(lambda: store.begin("in between", 60.0).state is FREE)
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_store_may_be_used_after_a_fork(kind: str, place: Place) -> None:
    store = new_store(kind, place(kind))
    store.finish("parent", store.begin("parent", 60.0).token)
    pid = os.fork()
    if pid == 0:
        try:
            seen = store.begin("parent", 60.0).state is DONE
            ours = store.finish("child", store.begin("child", 60.0).token)
            os._exit(0 if seen and ours else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.begin("child", 60.0).state is DONE
    assert store.begin("parent", 60.0).state is DONE
    store.close()


# Memory


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def done(store: KeyStore, key: str) -> None:
    assert store.finish(key, store.begin(key, 60.0).token)


def test_memory_drops_what_was_asked_for_longest_ago() -> None:
    store = MemoryStore(max_keys=3)
    for key in "abc":
        done(store, key)
    assert store.begin("a", 60.0).state is DONE
    done(store, "d")
    assert [store.begin(key, 60.0).state for key in "acd"] == [DONE, DONE, DONE]
    assert len(store) == 3
    assert store.begin("b", 60.0).state is FREE


def test_memory_drops_what_has_expired() -> None:
    clock = Hands()
    store = MemoryStore(keep_s=10.0, clock=clock)
    for key in "abc":
        done(store, key)
    clock.now += 11.0
    done(store, "d")
    assert len(store) == 1


def test_memory_bounds_what_is_in_progress() -> None:
    clock = Hands()
    store = MemoryStore(max_keys=2, clock=clock)
    store.begin("a", 5.0)
    store.begin("b", 50.0)
    with pytest.raises(KeyStoreError, match="the limit max_keys is 2"):
        store.begin("c", 5.0)
    clock.now += 6.0
    assert store.begin("c", 5.0).state is FREE


class MemoryModel(RuleBasedStateMachine):
    """The memory store against two plain dicts."""

    keys = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Hands()
        self.store = MemoryStore(keep_s=20.0, clock=self.clock)
        self.done: dict[str, float] = {}
        self.held: dict[str, tuple[str, float]] = {}
        self.tokens = ["nobody's"]

    @rule(key=keys, lease_s=st.sampled_from([1.0, 5.0]))
    def begin(self, key: str, lease_s: float) -> None:
        begun = self.store.begin(key, lease_s)
        now = self.clock.now
        if self.done.get(key, 0.0) > now:
            assert begun.state is DONE
        elif key in self.held and self.held[key][1] > now:
            assert begun.state is BUSY
        else:
            assert begun.state is FREE
            self.held[key] = (begun.token, now + lease_s)
            self.tokens.append(begun.token)

    @rule(key=keys, data=st.data())
    def finish(self, key: str, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        held = self.held.get(key)
        foreign = held is not None and held[0] != token and held[1] > self.clock.now
        assert self.store.finish(key, token) is not foreign
        if not foreign:
            self.held.pop(key, None)
            self.done[key] = self.clock.now + 20.0

    @rule(key=keys, data=st.data())
    def abandon(self, key: str, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        self.store.abandon(key, token)
        if key in self.held and self.held[key][0] == token:
            del self.held[key]

    @rule(seconds=st.sampled_from([0.5, 3.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def nothing_expired_is_counted_for_ever(self) -> None:
        assert len(self.store) <= 4


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


# SQLite


def test_sqlite_keeps_its_keys_over_a_restart(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "done.db") as store:
        done(store, "k")
    with SQLiteStore(tmp_path / "done.db") as store:
        assert store.begin("k", 60.0).state is DONE


def test_sqlite_removes_what_is_to_be_forgotten(tmp_path: Path) -> None:
    clock = Hands()
    with SQLiteStore(tmp_path / "done.db", keep_s=10.0, clock=clock) as store:
        for number in range(999):
            store.begin(f"k{number}", 5.0)
        clock.now += 60.0
        store.begin("the thousandth", 5.0)
    with closing(sqlite3.connect(tmp_path / "done.db")) as connection:
        rows = connection.execute("SELECT key FROM keys").fetchall()
    assert rows == [("the thousandth",)]


def test_sqlite_waits_for_another_process_that_makes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of processes that opened a new file at the same time one got the error that it is locked: SQLite
    switches a file to WAL or refuses to, but does not wait.
    """
    path = tmp_path / "done.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                other.execute("COMMIT")

        clock = SimpleNamespace(monotonic=SYSTEM_CLOCK.monotonic, sleep=pause)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_store, "SYSTEM_CLOCK", clock)
            store = SQLiteStore(path, clock=Hands())
        assert len(pauses) == 3
        done(store, "k")
        store.close()


def test_sqlite_names_a_file_that_it_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match=r"missing/done.db cannot be used: unable to open"):
        SQLiteStore(tmp_path / "missing" / "done.db")
    (tmp_path / "text").write_bytes(b"no database, but long enough to be looked at" * 100)
    with pytest.raises(KeyStoreError, match=r"text cannot be used: file is not a database"):
        SQLiteStore(tmp_path / "text")


def test_sqlite_is_not_used_after_the_close(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "done.db")
    store.close()
    store.close()
    with pytest.raises(KeyStoreError, match=r"done.db is closed"):
        store.begin("k", 60.0)


# Redis


def test_redis_gives_a_key_to_who_lost_the_answer_and_asks_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package redis repeats a call that timed out; then the key was busy for all of its lease."""
    store = new_store("redis", place("redis"))
    with monkeypatch.context() as patch:
        patch.setattr(redis_store, "new_token", lambda: "the same")
        assert [store.begin("k", 60.0).state for _ in range(2)] == [FREE, FREE]
    assert store.begin("k", 60.0).state is BUSY
    assert store.finish("k", "the same")
    store.close()


def test_redis_that_is_not_there_is_named() -> None:
    pytest.importorskip("redis", reason="the extra redis is not installed")
    store = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(KeyStoreError, match=r"redis://127.0.0.1:1/0 did not serve"):
        store.begin("k", 60.0)
    store.close()
    with pytest.raises(ConfigError, match="'nonsense' is no address of a Redis server"):
        RedisStore("nonsense")


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'cometmq\[redis\]'"):
        RedisStore("redis://127.0.0.1:1/0")


def test_the_package_does_not_need_the_extra() -> None:
    code = "import sys, cometmq.idempotent; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Options


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MemoryStore(max_keys=0), "max_keys is 0; it must be 1 or more"),
        (lambda: MemoryStore(keep_s=0), "keep_s is 0; it must be more than 0"),
        (lambda: SQLiteStore("/tmp/x", keep_s=-1.0), "keep_s is -1.0; it must be more"),
        (lambda: RedisStore("redis://h", keep_s=True), "keep_s is True, a bool; give seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Callable[[], KeyStore], says: str) -> None:
    with pytest.raises(IllegalArgumentError, match=says):
        make()
