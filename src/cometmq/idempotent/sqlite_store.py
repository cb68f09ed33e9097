"""Keep keys in an SQLite file, which the threads and processes of one host share.

column      meaning
key         scope, topic and business key
token       the holder's token while the key is in progress; NULL once it is done
expires_ms  when the lease runs out or, once the key is done, when the store forgets it; ms since the
            epoch
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from cometmq.errors import KeyStoreError
from cometmq.forks import PROCESS
from cometmq.idempotent.keys import WEEK_S, Begun, KeyState, check_seconds, new_token
from cometmq.runtime.clock import SYSTEM_CLOCK

# How long one user of the file waits for another; each holds it for one small transaction.
BUSY_TIMEOUT_S: Final = 30.0
# Pause before another attempt to switch a new file to WAL, which others do at the same time.
_SWITCH_PAUSE_S: Final = 0.005
# After so many keys begun here, the store deletes keys that have expired.
PURGE_EVERY: Final = 1000
_PURGE_LIMIT: Final = 10 * PURGE_EVERY

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY, token TEXT, expires_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_by_expiry ON keys (expires_ms);
"""


def _wall_s() -> float:
    return SYSTEM_CLOCK.now_ms() / 1000


class SQLiteStore:
    """Remembers keys that are done for `keep_s` seconds in the file `path`, which it makes if
    needed.

    The keys that `finish` noted survive a crash of the process and of the host. The file must lie
    on a local disk: SQLite's locks do not work over network file systems. Raises KeyStoreError for
    a file that cannot be opened. `clock` returns seconds since the epoch.
    """

    blocking = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_s: float = WEEK_S,
        clock: Callable[[], float] = _wall_s,
    ) -> None:
        check_seconds("keep_s", keep_s)
        self._path = Path(path)
        self._keep_s = keep_s
        self._clock = clock
        self._lock = threading.Lock()
        self._generation = PROCESS.generation
        self._connection: sqlite3.Connection | None = None
        self._begun = 0
        self._closed = False
        with self._transaction():
            pass  # makes the file, or raises an error that says why it cannot

    def begin(self, key: str, lease_s: float) -> Begun:
        with self._transaction() as connection:
            now_ms = self._now_ms()
            row = connection.execute(
                "SELECT token, expires_ms FROM keys WHERE key = ?", (key,)
            ).fetchone()
            if row is not None and row[1] > now_ms:
                return Begun(KeyState.DONE if row[0] is None else KeyState.BUSY)
            token = new_token()
            self._put(connection, key, token, now_ms + round(lease_s * 1000))
            self._begun += 1
            if self._begun % PURGE_EVERY == 0:
                connection.execute(
                    "DELETE FROM keys WHERE key IN "
                    "(SELECT key FROM keys WHERE expires_ms <= ? LIMIT ?)",
                    (now_ms, _PURGE_LIMIT),
                )
            return Begun(KeyState.FREE, token)

    def finish(self, key: str, token: str) -> bool:
        with self._transaction() as connection:
            now_ms = self._now_ms()
            row = connection.execute(
                "SELECT token, expires_ms FROM keys WHERE key = ?", (key,)
            ).fetchone()
            if row is not None and row[0] not in (None, token) and row[1] > now_ms:
                return False
            self._put(connection, key, None, now_ms + round(self._keep_s * 1000))
            return True

    def abandon(self, key: str, token: str) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM keys WHERE key = ? AND token = ?", (key, token))

    def close(self) -> None:
        with self._locked():
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    def _put(
        self, connection: sqlite3.Connection, key: str, token: str | None, expires_ms: int
    ) -> None:
        connection.execute("REPLACE INTO keys VALUES (?, ?, ?)", (key, token, expires_ms))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the file alone for the context, and commit all its changes or none.

        Raises KeyStoreError.
        """
        with self._locked():
            if self._closed:
                raise KeyStoreError(f"the key store {self._path} is closed; make a new one")
            try:
                if self._connection is None:
                    self._connection = self._connect()
                connection = self._connection
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise KeyStoreError(
                    f"the key store {self._path} cannot be used: {error}; it must be a file of this "
                    "store's own, in a directory that may be written to"
                ) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            _use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    def _locked(self) -> threading.Lock:
        if self._generation != PROCESS.generation:
            # Two processes must not use one connection. The child must not close it either: closing
            # would release locks that the parent counts on.
            PROCESS.keep(self._connection)
            self._generation = PROCESS.generation
            self._connection = None
            self._lock = threading.Lock()
        return self._lock


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to WAL, with which readers and the one writer do not wait for each other, and a commit
    is one sync.

    While another process does the same to a new file, SQLite refuses at once, whatever the
    connection's timeout is.
    """
    deadline_s = SYSTEM_CLOCK.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if SYSTEM_CLOCK.monotonic() > deadline_s:
                raise
            SYSTEM_CLOCK.sleep(_SWITCH_PAUSE_S)
        else:
            return
