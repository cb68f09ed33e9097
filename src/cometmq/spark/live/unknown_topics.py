"""Explain a read of an unknown topic: which names there are, and how a topic is created."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.model.names import is_system_topic

_MOST_ALIKE: Final = 5
_MOST_NAMED: Final = 10


def unknown_topics(
    reader: BlockingRangeReader, namesrv: str, topics: Iterable[str], error: RouteNotFoundError
) -> RouteNotFoundError:
    """Return the error for reading `topics`, of which some have no route.

    `error` is what the look-up raised. It stays as it is if the topics are known by now, or if the
    name server cannot be asked which there are. autoCreateTopicEnable is not among the remedies,
    because brokers make topics for senders only.
    """
    try:
        known = {name for name in reader.topics() if not is_system_topic(name)}
    except CometMQError:
        return error
    missing = sorted(name for name in topics if name not in known and not is_system_topic(name))
    if not missing:
        return error
    first, *others = missing
    also = f" (nor of {', '.join(others[:_MOST_NAMED])})" if others else ""
    return RouteNotFoundError(
        f"no name server of {namesrv} knows a route of topic {first}{also}; "
        f"{_there_are(first, known)} Correct the name, or make the topic, which reading does not: "
        f"cometmq admin updateTopic -n '{namesrv}' -c DefaultCluster -t "
        f"{reader.namespace.wrap(first)}, with the name of your cluster (mqadmin has the same command)",
        code=error.code,
    )


def _there_are(topic: str, known: set[str]) -> str:
    """Say which names resemble that of the topic, or which there are if none does."""
    if alike := difflib.get_close_matches(topic, known, _MOST_ALIKE):
        return f"did you mean {' or '.join(alike)}?"
    if not known:
        return "there is no topic yet."
    named = ", ".join(sorted(known)[:_MOST_NAMED])
    return f"there are {named}{', …' if len(known) > _MOST_NAMED else '.'}"
