"""Compete for the keys of one store, as a program: python -m tests.unit.idempotent.contender PROGRAM KIND PLACE WAIT_S.

It imports nothing but the stores: a server of this project beside them would take half a second to load.
"""

from __future__ import annotations

import os
import signal
import sys

from cometmq.idempotent import KeyState, KeyStore, MemoryStore, RedisStore, SQLiteStore


def open_store(kind: str, place: str, wait_s: float, keep_s: float = 60.0) -> KeyStore:
    """Open a store of that kind; `place` is a file or a URL, and a server may take `wait_s` to answer."""
    if kind == "memory":
        return MemoryStore(keep_s=keep_s)
    if kind == "sqlite":
        return SQLiteStore(place, keep_s=keep_s)
    return RedisStore(place, keep_s=keep_s, socket_timeout=wait_s, socket_connect_timeout=wait_s)


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
    program, kind, place, wait_s = sys.argv[1:]
    {"contend": contend, "crash": crash}[program](open_store(kind, place, float(wait_s)))
