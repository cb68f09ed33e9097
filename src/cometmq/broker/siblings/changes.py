"""Write down what changes for other brokers of this machine, and read theirs: topics, groups, users
and their policies.

A line of the file is the JSON of a `Change`. Numbers grow along the file. When it is written anew,
what counts of each topic and group stays, with its numbers: see `note`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import structlog

from cometmq.errors import ProtocolError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.access_bodies import AclInfo, UserInfo
from cometmq.protocol.json_dialect import decode_body, encode_body
from cometmq.runtime.shared_lines import COMPACT_FROM_BYTES, SharedLines

log = structlog.get_logger(__name__)

# How many removals are remembered for brokers that were away meanwhile.
MOST_REMOVALS: Final = 10_000

# A kind, "topic", "group", "user" or "acl", and a name; that of an acl is its subject.
Key: TypeAlias = tuple[str, str]


class Change(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """One change that `broker` made. Without a value it removed what has the name."""

    number: int
    broker: str
    kind: str
    name: str
    topic: TopicConfig | None = None
    group: SubscriptionGroupConfig | None = None
    user: UserInfo | None = None
    acl: AclInfo | None = None

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def is_removal(self) -> bool:
        return self.value is None

    @property
    def value(self) -> object | None:
        return self.topic or self.group or self.user or self.acl


# Of each topic and group what counts, in order.
News: TypeAlias = dict[Key, list[Change]]


def note(news: News, change: Change) -> None:
    """Add a change to those before it: the last removal counts, and what was made after it.

    A topic that was removed and made again is another one: without the removal a broker that sees
    both at once would keep the messages.
    """
    before = [] if change.is_removal else news.get(change.key, [])
    news[change.key] = [*(one for one in before if one.is_removal), change]


class Changes:
    """One broker's view of the file. All methods block and raise OSError; one call at a time."""

    def __init__(
        self, path: Path, broker: str, *, compact_from_bytes: int = COMPACT_FROM_BYTES
    ) -> None:
        self._lines = SharedLines(path, _kept_lines, compact_from_bytes=compact_from_bytes)
        self.broker = broker
        # The number of the last change that was read or written.
        self.number = 0
        # What was read before a write that failed.
        self._unheard: News = {}

    @property
    def path(self) -> Path:
        return self._lines.path

    def has_news(self) -> bool:
        return self._lines.has_news()

    def read(self) -> News:
        """Return what was changed since the last call."""
        return self._news(self._lines.read())

    def append(self, choose: Callable[[News], Iterable[Change]]) -> tuple[News, set[Key]]:
        """Add the changes that `choose` makes of the news; return the news and whose changes were
        added.

        The numbers of the changes are given here. Raises BlockingIOError if another broker is
        writing.
        """
        news: News = {}
        added: list[Change] = []

        def make(lines: list[bytes]) -> Iterable[bytes]:
            news.update(self._news(lines))
            added.extend(
                msgspec.structs.replace(change, number=number, broker=self.broker)
                for number, change in enumerate(choose(news), self.number + 1)
            )
            return map(encode_body, added)

        try:
            self._lines.append(make)
        except BaseException:
            self._unheard = news or self._unheard
            raise
        self.number += len(added)
        return news, {change.key for change in added}

    def close(self) -> None:
        self._lines.close()

    def _news(self, lines: Iterable[bytes]) -> News:
        news, self._unheard = self._unheard, {}
        before = self.number
        for change in _decoded(lines):
            if change.number > before:
                self.number = max(self.number, change.number)
                note(news, change)
        return news


def _decoded(lines: Iterable[bytes]) -> Iterable[Change]:
    for line in lines:
        try:
            yield decode_body(line, Change)
        except ProtocolError as error:
            if line:  # a broker that was killed while it wrote leaves half a line
                log.warning("line of a shared file is damaged", reason=str(error))


def _kept_lines(lines: list[bytes]) -> Iterable[bytes]:
    news: News = {}
    for change in _decoded(lines):
        note(news, change)
    in_order = sorted(chain.from_iterable(news.values()), key=lambda change: change.number)
    surplus = sum(change.is_removal for change in in_order) - MOST_REMOVALS
    for change in in_order:
        if change.is_removal and surplus > 0:
            surplus -= 1
        else:
            yield encode_body(change)
