"""Keep keys in a Redis server, which the processes of many hosts share.

The value of a key in progress is `p:` and its holder's token; that of a key that is done is `done`.
Redis itself lets keys expire.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, Self

from cometmq.errors import ConfigError, KeyStoreError
from cometmq.extras import needs
from cometmq.idempotent.keys import WEEK_S, Begun, KeyState, check_seconds, new_token

PREFIX: Final = "cometmq:idempotent:"
SOCKET_TIMEOUT_S: Final = 5.0

# The server runs one script at a time, so each script compares and changes a key in one step.
# A client that lost the answer asks again, with the same token: the key is still its own.
_BEGIN: Final = """
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then
  return value == 'done' and 2 or 1
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 0
"""
_FINISH: Final = """
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] and value ~= 'done' then
  return 0
end
redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2])
return 1
"""
_ABANDON: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 0
"""
_STATES: Final = {0: KeyState.FREE, 1: KeyState.BUSY, 2: KeyState.DONE}


class RedisStore:
    """Remembers keys that are done for `keep_s` seconds at `url` (`redis://host:6379/0`).

    Needs the extra `redis`, and raises ConfigError without it or for a `url` that is no address of
    a Redis server. `options` are those of `redis.Redis.from_url`. The server's configuration
    decides how well keys survive its crash (`appendonly yes`), and must keep it from evicting them
    (`maxmemory-policy noeviction`). The store connects when the first key is begun.
    """

    blocking = True

    def __init__(
        self, url: str, *, keep_s: float = WEEK_S, prefix: str = PREFIX, **options: Any
    ) -> None:
        check_seconds("keep_s", keep_s)
        with needs("redis", "RedisStore"):
            redis: Any = importlib.import_module("redis")
        self._url = url
        self._keep_ms = round(keep_s * 1000)
        self._prefix = prefix
        self._error: type[Exception] = redis.RedisError
        settings = {
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S,
            **options,
        }
        # The pool of this client gives every thread a connection of its own, and after a fork every
        # process.
        try:
            self._redis: Any = redis.Redis.from_url(url, **settings)
        except ValueError as error:
            raise ConfigError(f"{url!r} is no address of a Redis server: {error}") from error
        self._begin = self._redis.register_script(_BEGIN)
        self._finish = self._redis.register_script(_FINISH)
        self._abandon = self._redis.register_script(_ABANDON)

    def begin(self, key: str, lease_s: float) -> Begun:
        token = new_token()
        lease_ms = max(1, round(lease_s * 1000))
        state = _STATES[self._run(self._begin, key, f"p:{token}", lease_ms)]
        return Begun(state, token if state is KeyState.FREE else "")

    def finish(self, key: str, token: str) -> bool:
        return self._run(self._finish, key, f"p:{token}", self._keep_ms) == 1

    def abandon(self, key: str, token: str) -> None:
        self._run(self._abandon, key, f"p:{token}", 0)

    def close(self) -> None:
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(self, script: Any, key: str, value: str, duration_ms: int) -> int:
        try:
            return int(script(keys=[self._prefix + key], args=[value, duration_ms]))
        except self._error as error:
            raise KeyStoreError(
                f"the Redis server at {self._url} did not serve: {error}"
            ) from error
