"""Describe one request that waits, as the table of `broker/pulls/waiting.py` holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from cometmq.protocol.command import Request
from cometmq.remoting.connection import Connection

TagMatcher = Callable[[int], bool]

# The place of a request that waits for the messages of all queues of a topic.
ANY_QUEUE: Final = -1


class State(IntEnum):
    """Name the thing that a request waits for; see `waiting.py`."""

    MESSAGES = 0
    HEARTBEAT = 1
    FILTERS = 2
    DISK = 3
    DUE = 4
    PEER = 5


class Reason(IntEnum):
    """Say why a request comes back."""

    ARRIVED = 0
    HEARD = 1
    TURN = 2
    READ = 3
    DEADLINE = 4
    RELEASED = 5


class Waiter:
    """A request that may wait. Its handler sets the fields of the state before it calls `Waiting.wait`.

    connection, request: the owner, and the request that counts as held; `size` counts bytes held besides.
    resume: is called with the waiter and the reason. An error that it raises closes the connection.
    deadline: a time of the loop (MESSAGES, HEARTBEAT).
    places: topics and queues, ANY_QUEUE for all of a topic (MESSAGES).
    offset: messages before it are not waited for; `matches` and `matches_properties` say which of the others
        are. The latter may raise OutOfWorkError, but nothing else (MESSAGES).
    share, max_share: of the requests with the same `share`, a message wakes the one that has waited for
        longest, and at most `max_share` may wait; "" for one that every message wakes (MESSAGES).
    group: the group that a heartbeat may bring (HEARTBEAT).
    absent, error: the calls that a thread has to make, and the error of the one that failed, if any (DISK).
    reads: how often the disk was read for it since it last waited for messages; its handler counts.
    """

    __slots__ = (
        "absent", "connection", "deadline", "error", "group", "matches", "matches_properties",
        "mates", "max_share", "offset", "places", "reads", "reason", "request", "resume", "share", "size", "tick",
        "waits_for",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        request: Request[Any],
        resume: Callable[[Any, Reason], None],
    ) -> None:
        self.connection = connection
        self.request = request
        self.resume = resume
        self.size = 0
        self.deadline = 0.0
        self.places: tuple[tuple[str, int], ...] = ()
        self.offset = 0
        self.matches: TagMatcher | None = None
        self.matches_properties: Callable[[Mapping[str, str]], bool] | None = None
        self.share = ""
        self.max_share = 0
        self.group = ""
        self.absent: Sequence[Callable[[], None]] = ()
        self.error: Exception | None = None
        self.reads = 0
        # Set by the table: the state in which it waits, or did; the requests of its connection in the same
        # state, None if it is not in the table; the reason for which it is due.
        self.waits_for = State.MESSAGES
        self.mates: dict[Waiter, None] | None = None
        self.reason: Reason | None = None
        self.tick = 0


@dataclass(slots=True)
class Limit:
    """How many requests may wait for one thing, in all and of one connection, and how many do.

    One more is refused with SYSTEM_BUSY if `does` says what the others do, else `Waiting.wait` returns False.
    """

    name: str
    most: int
    name_of_connection: str
    most_of_connection: int
    does: str = ""
    remedy: str = ""
    count: int = 0
