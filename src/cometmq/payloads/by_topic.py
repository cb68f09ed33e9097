"""Find the value that is given for a topic, by its name or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from cometmq.errors import IllegalArgumentError

T = TypeVar("T")

_PATTERN: Final = re.compile(r"[%|a-zA-Z0-9_*?-]+")


class ByTopic(Generic[T]):
    """Holds values by topic, or by patterns of topics with `*` and `?`.

    An exact topic takes precedence over patterns, and the first pattern that matches over later ones. Raises
    IllegalArgumentError for a key that is neither a topic nor a pattern. For any thread.
    """

    def __init__(self, by_topic: Mapping[str, T]) -> None:
        for topic in by_topic:
            if not isinstance(topic, str) or _PATTERN.fullmatch(topic) is None:
                raise IllegalArgumentError(
                    f"{topic!r:.80} is neither a topic nor a pattern of topics with * and ?"
                )
        self._exact = dict(by_topic)
        self._patterns = [
            (_matching(topic), value) for topic, value in by_topic.items() if is_pattern(topic)
        ]

    def of(self, topic: str) -> T | None:
        """Return the value of a topic; None if there is none."""
        value = self._exact.get(topic)
        if value is not None:
            return value
        return next((each for pattern, each in self._patterns if pattern.fullmatch(topic)), None)


def is_pattern(topic: str) -> bool:
    return "*" in topic or "?" in topic


def _matching(pattern: str) -> re.Pattern[str]:
    return re.compile(
        "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in pattern), re.ASCII
    )
