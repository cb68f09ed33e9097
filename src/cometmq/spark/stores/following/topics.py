"""Choose the records of a log that belong to the topics of a read."""

from __future__ import annotations

import re

import numpy as np

from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.messages.record_columns import Bools, RecordColumns

# The answer for each topic is cached. With more topics than this, the cache is emptied.
_MOST_KEPT = 100_000


class ChosenTopics:
    """Selects the records of the topics that a consume queue would list: no half messages of transactions,
    and no messages that were rolled back. It can be pickled.
    """

    def __init__(self, names: frozenset[str] | None, pattern: re.Pattern[str] | None) -> None:
        self._names = names
        self._pattern = pattern
        self._known: dict[bytes, bool] = {}

    @property
    def takes_all(self) -> bool:
        """Return whether all records of the log are wanted, including RocketMQ's own."""
        return self._names is None and self._pattern is None

    def among(self, view: memoryview, columns: RecordColumns) -> Bools:
        """Say for each record whether it is wanted."""
        if self.takes_all:
            return np.ones(len(columns), bool)
        kinds = columns.sys_flags & TRANSACTION_MASK
        wanted = (kinds == TRANSACTION_NOT) | (kinds == TRANSACTION_COMMIT)
        places = zip(columns.topic_starts.tolist(), columns.topic_ends.tolist(), strict=True)
        takes = self._takes
        wanted &= np.fromiter((takes(bytes(view[low:high])) for low, high in places), bool)
        found: Bools = wanted
        return found

    def _takes(self, topic: bytes) -> bool:
        answer = self._known.get(topic)
        if answer is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            name = topic.decode(errors="replace")
            if self._pattern is not None:
                answer = self._pattern.fullmatch(name) is not None
            else:
                answer = self._names is None or name in self._names
            self._known[topic] = answer
        return answer
