"""Sessions and guesses at passwords, by a clock that stands where a test puts it."""

from __future__ import annotations

from cometmq.console.users.accounts import Account, Role
from cometmq.console.users.logins import Logins, TooManyLoginsError
from cometmq.console.users.sessions import MAX_SESSIONS, MAX_SESSIONS_OF_ACCOUNT, Sessions


class _Clock:
    """Stands where a test puts it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


def test_one_account_cannot_end_the_sessions_of_others() -> None:
    sessions = Sessions(_Clock(), idle_s=60, session_s=600)
    operator = sessions.begin(Account("operator", Role.OPERATOR))
    readers = [sessions.begin(Account("reader", Role.READER)) for _ in range(2 * MAX_SESSIONS)]
    assert sessions.find(operator) is not None
    assert sum(sessions.find(cookie) is not None for cookie in readers) == MAX_SESSIONS_OF_ACCOUNT
    assert sessions.find(readers[-1]) is not None


def test_a_page_that_refreshes_itself_keeps_no_session() -> None:
    clock = _Clock()
    sessions = Sessions(clock, idle_s=60, session_s=600)
    cookie = sessions.begin(Account("reader", Role.READER))
    clock.now_s += 50
    assert sessions.find(cookie, uses=False) is not None
    clock.now_s += 20
    assert sessions.find(cookie, uses=False) is None


class _NoAccounts:
    """Knows nobody."""

    changes = 0

    def verify(self, name: str, password: str) -> None:
        return None


async def _wrong(logins: Logins, name: str, address: str) -> bool:
    """Return whether a wrong password was looked at."""
    try:
        assert await logins.check(name, "wrong", address) is None
    except TooManyLoginsError:
        return False
    return True


async def test_an_address_that_guesses_names_waits() -> None:
    clock = _Clock()
    logins = Logins(_NoAccounts(), clock)  # type: ignore[arg-type]  # it has what is called
    looked_at = [await _wrong(logins, f"name {number}", "10.0.0.7") for number in range(60)]
    assert looked_at == [True] * 50 + [False] * 10
    assert await _wrong(logins, "name", "10.0.0.8")
    # IPv6 gives every client a whole network of addresses.
    looked_at = [await _wrong(logins, f"n{i}", f"2001:db8:1:2::{i:x}") for i in range(51)]
    assert looked_at == [True] * 50 + [False]
    # What was wrong long ago is forgotten: many people may be behind one address.
    clock.now_s += 3600
    assert all([await _wrong(logins, f"later {number}", "10.0.0.7") for number in range(40)])


async def test_guesses_at_a_name_come_down_to_one_a_minute() -> None:
    clock = _Clock()
    logins = Logins(_NoAccounts(), clock)  # type: ignore[arg-type]  # it has what is called
    guessed = 0
    for _ in range(24 * 3600):
        guessed += await _wrong(logins, "operator", "10.0.0.7")
        clock.now_s += 1
    assert guessed <= 24 * 60 + 20
