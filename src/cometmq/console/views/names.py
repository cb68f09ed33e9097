"""Give the names of all topics and groups, which many pages and the palette need."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.console.watching.asking import in_time
from cometmq.console.watching.recent import Known, known, known_of

if TYPE_CHECKING:
    from cometmq.console.state import Console

# A name that is made elsewhere is found after so long; an action of this console is seen at once.
AGE_S: Final = 5.0


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
        reported = await asyncio.gather(
            *(
                known_of(partial(console.admin.groups.names, broker=at.address))
                for at in found.value
            )
        )
        names = {name for each in reported for name in each.value or ()}
        errors = [each.error for each in reported if each.error is not None]
        return Known(sorted(names), errors[0] if errors else None)

    return await console.recent.get("groups", AGE_S, ask)


async def groups_of_topic(console: Console, topic: str, age_s: float) -> Known[list[str]]:
    """Return the groups of a topic, sorted. With an error, only those that some brokers reported."""
    asked = console.recent.get(
        ("groups of", topic), age_s, lambda: console.admin.groups.of_topic(topic)
    )
    return await in_time(
        asked, lambda reported: sorted({name for each in reported.values() for name in each})
    )
