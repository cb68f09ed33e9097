"""Decide how often a group gets a message again: the number of the consumer that joined last
counts, if it is not the default.

A consumer sends its number (maxReconsumeTimes) with each message that it sends back. Java's clients
send 16 without such a setting; CometMQ's send none, and the group's retryMaxTimes counts. Java applies
each consumer's own number to the messages that it sends back. So with different numbers in one group
chance decides when a message becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cometmq.broker.groups.clients import Member
from cometmq.remoting.connection import Connection

DEFAULT_MAX_TIMES: Final = 16


class RetryLimits:
    """Keeps the numbers that live members of groups have sent. For the loop's thread only.

    `members` returns the members of a group in the order in which they joined.
    """

    def __init__(self, members: Callable[[str], Iterable[Member]]) -> None:
        self._members = members
        self._named: dict[str, dict[Connection, int]] = {}

    def named(
        self,
        group: str,
        connection: Connection | None,
        wanted: int | None,
        of_group: int = DEFAULT_MAX_TIMES,
    ) -> int:
        """Note the number that a consumer of `group` sent, if any; return the number that counts.

        That is `of_group` if no consumer has named one. Without a connection, or over a connection
        of a non-member, the number is not kept for other consumers.
        """
        max_times = DEFAULT_MAX_TIMES if wanted is None else wanted
        own = of_group if wanted is None else wanted
        numbers = self._named.get(group)
        if numbers is None and max_times == DEFAULT_MAX_TIMES:
            return own
        members = list(self._members(group))
        if connection is not None and any(member.connection is connection for member in members):
            numbers = self._named.setdefault(group, {})
            numbers[connection] = max_times
        if numbers is not None:
            for member in reversed(members):
                number = numbers.get(member.connection, DEFAULT_MAX_TIMES)
                if number != DEFAULT_MAX_TIMES:
                    return number
        return own

    def members_changed(self, group: str, members: list[Member]) -> None:
        """Forget the numbers of the members that have left."""
        numbers = self._named.pop(group, None)
        if numbers is None:
            return
        here = {member.connection for member in members}
        kept = {connection: number for connection, number in numbers.items() if connection in here}
        if kept:
            self._named[group] = kept
