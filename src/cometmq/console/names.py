"""Gives the names of all topics and groups, which many pages and the palette need."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cometmq.console.asking import in_time
from cometmq.console.recent import Known, known
from cometmq.model.names import is_retry_topic, is_system_group, is_system_topic

if TYPE_CHECKING:
    from cometmq.console.state import Console

# A name that is made elsewhere is found after so long; an action of this console is seen at once.
AGE_S: Final = 5.0
# With more names than this a form proposes none.
_MAX_PROPOSED: Final = 500


async def topic_names(console: Console) -> list[str]:
    """Return the names of all topics, sorted. Raises CometMQError."""
    return await console.recent.get("topics", AGE_S, console.admin.topics.names)


async def group_names(console: Console) -> Known[list[str]]:
    """Return the names of all groups that brokers report, sorted, and why some brokers do not
    answer.
    """

    async def ask() -> Known[list[str]]:
        found = await known(console.admin.brokers.addresses(slaves=False))
        if found.value is None:
            return Known(None, found.error)
        told = await asyncio.gather(
            *(known(console.admin.groups.names(broker=at.address)) for at in found.value)
        )
        names = {name for each in told for name in each.value or ()}
        errors = [each.error for each in told if each.error is not None]
        return Known(sorted(names), errors[0] if errors else None)

    return await console.recent.get("groups", AGE_S, ask)


async def groups_of_topic(console: Console, topic: str, age_s: float) -> Known[list[str]]:
    """Return the groups of a topic, sorted. With an error, only those that some brokers reported."""
    asked = console.recent.get(
        ("groups of", topic), age_s, lambda: console.admin.groups.of_topic(topic)
    )
    return await in_time(
        asked, lambda told: sorted({name for each in told.values() for name in each})
    )


async def proposals(console: Console) -> dict[str, list[str]]:
    """Return the names of topics, groups and brokers that the inputs of a form propose.

    A kind of name that is unknown now, or has too many names for a form, has none.
    """
    topics, told = await asyncio.gather(
        in_time(topic_names(console)), in_time(group_names(console))
    )
    groups = told.value.value if told.value is not None else None
    found = {
        "topics": [
            name
            for name in topics.value or ()
            if not is_system_topic(name) and not is_retry_topic(name)
        ],
        "groups": [name for name in groups or () if not is_system_group(name)],
        "brokers": sorted({state.at.broker_name for state in console.watch.brokers}),
    }
    return {kind: names if len(names) <= _MAX_PROPOSED else [] for kind, names in found.items()}
