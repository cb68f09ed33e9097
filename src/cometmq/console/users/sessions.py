"""Keep the sessions of the console. A session ends by time, by logging out, or with the
console.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cometmq.console.users.accounts import Account, Role
from cometmq.runtime.clock import Clock
from cometmq.runtime.randomness import secret_bytes

MAX_SESSIONS: Final = 1000
# Without this limit one account could end everybody's sessions by logging in again and again.
MAX_SESSIONS_OF_ACCOUNT: Final = 200
MAX_NOTES: Final = 20


@dataclass(slots=True)
class Note:
    """Is a note that a page shows once after an action: a sentence, and a line for each server or
    message.

    `shown_at` is the address of the page that shows what the action has made.
    """

    text: str
    failed: bool = False
    lines: list[str] = field(default_factory=list)
    shown_at: str = ""


@dataclass(slots=True)
class Session:
    """Is a browser that is logged in. `token` is the one that its forms carry."""

    account: Account
    token: str
    began_s: float
    used_s: float
    notes: list[Note] = field(default_factory=list)

    @property
    def is_operator(self) -> bool:
        return self.account.role is Role.OPERATOR

    def note(self, note: Note) -> None:
        """Have the next page show a note."""
        self.notes = [*self.notes, note][-MAX_NOTES:]

    def take_notes(self) -> list[Note]:
        """Return the note for the page that is made now, and forget it."""
        notes, self.notes = self.notes, []
        return notes

    def accepts(self, token: str) -> bool:
        """Return whether a form carries this session's token."""
        return hmac.compare_digest(self.token.encode(), token.encode())


class Sessions:
    """Holds the sessions by the hash of their cookie, the one used longest ago first.

    For the loop's thread only. If an account has more than MAX_SESSIONS_OF_ACCOUNT, its least
    recently used session ends; if all accounts have more than MAX_SESSIONS, the least recently used
    session of all ends. `on_limit` gets the name of the limit that ended a session.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        idle_s: float,
        session_s: float,
        on_limit: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._session_s = session_s
        self._on_limit = on_limit
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def begin(self, account: Account) -> str:
        """Begin a session and return its cookie."""
        same = [key for key, one in self._sessions.items() if one.account.name == account.name]
        for key in same[: max(0, len(same) + 1 - MAX_SESSIONS_OF_ACCOUNT)]:
            self._on_limit("MAX_SESSIONS_OF_ACCOUNT")
            del self._sessions[key]
        cookie = secret_bytes(32).hex()
        now_s = self._clock.monotonic()
        self._sessions[_key(cookie)] = Session(account, secret_bytes(32).hex(), now_s, now_s)
        while len(self._sessions) > MAX_SESSIONS:
            self._on_limit("MAX_SESSIONS")
            self._sessions.popitem(last=False)
        return cookie

    def find(self, cookie: str, *, uses: bool = True) -> Session | None:
        """Return the session of a cookie, None if there is none (any more).

        With `uses` it counts as used now; the page that refreshes itself does not count, or a
        browser that is left open would keep its session for ever.
        """
        key = _key(cookie)
        session = self._sessions.get(key)
        if session is None:
            return None
        now_s = self._clock.monotonic()
        if now_s - session.used_s > self._idle_s or now_s - session.began_s > self._session_s:
            del self._sessions[key]
            return None
        if uses:
            session.used_s = now_s
            self._sessions.move_to_end(key)
        return session

    def end_of(self, name: str) -> None:
        """End all sessions of an account."""
        for key in [key for key, one in self._sessions.items() if one.account.name == name]:
            del self._sessions[key]

    def end(self, cookie: str) -> None:
        """End the session of a cookie, if there is one."""
        self._sessions.pop(_key(cookie), None)


def _key(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
