"""Write down changes of topics and groups for other brokers of this machine, and read theirs.

A line of the file is the JSON of a `Change`. Numbers grow along the file. When it is written anew,
the last change of each topic and group stays, with its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import structlog

from cometmq.errors import ProtocolError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.json_dialect import decode_body, encode_body
from cometmq.runtime.shared_lines import COMPACT_FROM_BYTES, SharedLines

log = structlog.get_logger(__name__)

# How many removals are remembered for brokers that were away meanwhile.
MOST_REMOVALS: Final = 10_000

# A kind, "topic" or "group", and a name.
Key: TypeAlias = tuple[str, str]


class Change(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """One change that `broker` made. Without a config it removed the topic or group."""

    number: int
    broker: str
    kind: str
    name: str
    topic: TopicConfig | None = None
    group: SubscriptionGroupConfig | None = None

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def is_removal(self) -> bool:
        return self.topic is None and self.group is None


class Changes:
    """One broker's view of the file. All methods block and raise OSError; one call at a time."""

    def __init__(
        self, path: Path, broker: str, *, compact_from_bytes: int = COMPACT_FROM_BYTES
    ) -> None:
        self._lines = SharedLines(path, _kept_lines, compact_from_bytes=compact_from_bytes)
        self.broker = broker
        # The number of the last change that was read or written.
        self.number = 0

    @property
    def path(self) -> Path:
        return self._lines.path

    def has_news(self) -> bool:
        return self._lines.has_news()

    def read(self) -> dict[Key, Change]:
        """Return the last change of each topic and group that changed since the last call."""
        return self._news(self._lines.read())

    def append(
        self, choose: Callable[[dict[Key, Change]], Iterable[Change]]
    ) -> tuple[dict[Key, Change], dict[Key, Change]]:
        """Add the changes that `choose` makes of the news; return the news and what was added.

        The numbers of the changes are given here. Raises BlockingIOError if another broker is
        writing.
        """
        news: dict[Key, Change] = {}
        added: dict[Key, Change] = {}

        def make(lines: list[bytes]) -> Iterable[bytes]:
            news.update(self._news(lines))
            number = self.number
            for change in choose(news):
                number += 1
                numbered = msgspec.structs.replace(change, number=number, broker=self.broker)
                added[numbered.key] = numbered
            return [encode_body(change) for change in added.values()]

        self._lines.append(make)
        if added:
            self.number = max(change.number for change in added.values())
        return news, added

    def close(self) -> None:
        self._lines.close()

    def _news(self, lines: Iterable[bytes]) -> dict[Key, Change]:
        changes = [change for change in _decoded(lines) if change.number > self.number]
        self.number = max((change.number for change in changes), default=self.number)
        return {change.key: change for change in changes}


def _decoded(lines: Iterable[bytes]) -> Iterable[Change]:
    for line in lines:
        try:
            yield decode_body(line, Change)
        except ProtocolError as error:
            if line:  # a broker that was killed while it wrote leaves half a line
                log.warning("line of a shared file is damaged", reason=str(error))


def _kept_lines(lines: list[bytes]) -> Iterable[bytes]:
    last = {change.key: change for change in _decoded(lines)}
    in_order = sorted(last.values(), key=lambda change: change.number)
    surplus = sum(change.is_removal for change in in_order) - MOST_REMOVALS
    for change in in_order:
        if change.is_removal and surplus > 0:
            surplus -= 1
        else:
            yield encode_body(change)
