"""Stores for the tests, and programs that compete for the keys of one store."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waits import WAIT_S, eventually

from cometmq.errors import KeyStoreError
from cometmq.idempotent import KeyState, KeyStore, MemoryStore, RedisStore, SQLiteStore
from cometmq.testing.ports import HeldPort

ROOT = Path(__file__).parents[3]


def missing(what: str) -> None:
    """Skip the test and say why; in CI, where nothing may be missing, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """Run a server of Debian's package redis-server on a free port; yield its URL."""
    program = shutil.which("redis-server")
    if program is None:
        missing("redis-server is not installed (Debian's package redis-server)")
    if importlib.util.find_spec("redis") is None:
        missing("the package redis is not installed (the extra redis)")
    assert program is not None, "skipped without it"
    # Held, so that nobody else is given the port before the server takes it.
    held = HeldPort()
    options = {"bind": "127.0.0.1", "port": str(held.port), "save": "", "appendonly": "no"}
    command = [program, "--dir", str(directory)]
    for name, value in options.items():
        command += [f"--{name}", value]
    with held, subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            url = f"redis://127.0.0.1:{held.port}/0"
            with RedisStore(url) as store:
                eventually(lambda: _answers(store))
            yield url
        finally:
            server.terminate()


def _answers(store: RedisStore) -> bool:
    try:
        store.abandon("nothing", "")
    except KeyStoreError:
        return False
    return True


def new_store(kind: str, place: str, keep_s: float = 60.0) -> KeyStore:
    """Open a store of that kind; `place` is a file or a URL."""
    if kind == "memory":
        return MemoryStore(keep_s=keep_s)
    if kind == "sqlite":
        return SQLiteStore(place, keep_s=keep_s)
    # A busy machine may keep a server from its answer for longer than users would wait.
    return RedisStore(place, keep_s=keep_s, socket_timeout=WAIT_S, socket_connect_timeout=WAIT_S)


def run(program: str, kind: str, place: str) -> subprocess.Popen[str]:
    """Start another process that uses the same keys: `contend` or `crash`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.idempotent.stores", program, kind, place],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def contend(store: KeyStore) -> None:
    """Consume 200 keys that other processes want, too; print those that this process got."""
    for number in range(200):
        begun = store.begin(f"key-{number}", 60.0)
        if begun.state is KeyState.FREE:
            sys.stdout.write(f"{number}\n")
            assert store.finish(f"key-{number}", begun.token)


def crash(store: KeyStore) -> None:
    """Die in the middle of a message."""
    store.finish("before", store.begin("before", 60.0).token)
    store.begin("in between", 1.0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    {"contend": contend, "crash": crash}[sys.argv[1]](new_store(sys.argv[2], sys.argv[3]))
