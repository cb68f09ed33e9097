"""How often a group wants a message again: the last consumer to start with another number wins.

A consumer names its number (maxReconsumeTimes) with each message that it sends back; 16 is what clients
name that were not told any. Java counts each consumer's own number for the messages that it sends
back, so with different numbers in one group chance decides when a message becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cometmq.broker.clients import Member
from cometmq.remoting.connection import Connection

DEFAULT_MAX_TIMES: Final = 16


class RetryLimits:
    """What live members of groups have named. `members` gives those of a group in the order in which
    they came. For the loop's thread only.
    """

    def __init__(self, members: Callable[[str], Iterable[Member]]) -> None:
        self._members = members
        self._named: dict[str, dict[Connection, int]] = {}

    def named(self, group: str, connection: Connection | None, max_times: int) -> int:
        """A consumer of `group` names `max_times`; returns the number that counts.

        Over the connection of no member, or None, a number is not kept for others.
        """
        numbers = self._named.get(group)
        if numbers is None and max_times == DEFAULT_MAX_TIMES:
            return max_times
        members = list(self._members(group))
        if connection is not None and any(member.connection is connection for member in members):
            numbers = self._named.setdefault(group, {})
            numbers[connection] = max_times
        if numbers is not None:
            for member in reversed(members):
                wanted = numbers.get(member.connection, DEFAULT_MAX_TIMES)
                if wanted != DEFAULT_MAX_TIMES:
                    return wanted
        return max_times

    def members_changed(self, group: str, members: list[Member]) -> None:
        """Forget the numbers of those who are gone."""
        numbers = self._named.pop(group, None)
        if numbers is None:
            return
        here = {member.connection for member in members}
        kept = {connection: number for connection, number in numbers.items() if connection in here}
        if kept:
            self._named[group] = kept
