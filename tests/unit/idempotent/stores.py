"""Open stores for the tests, and start programs that compete for the keys of one store."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.idempotent.contender import open_store
from tests.waits import WAIT_S, eventually

from cometmq.errors import KeyStoreError
from cometmq.idempotent import KeyStore, RedisStore
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
    # A busy machine may keep a server from its answer for longer than users would wait.
    return open_store(kind, place, WAIT_S, keep_s)


def run(program: str, kind: str, place: str) -> subprocess.Popen[str]:
    """Start another process that uses the same keys: `contend` or `crash`."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.unit.idempotent.contender",
            program,
            kind,
            place,
            str(WAIT_S),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
