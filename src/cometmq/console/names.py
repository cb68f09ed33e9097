"""Gives the names of all topics and groups, which many pages and the palette need."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cometmq.console.recent import known

if TYPE_CHECKING:
    from cometmq.console.state import Console

# A name that is made elsewhere is found after so long; an action of this console is seen at once.
AGE_S: Final = 5.0


async def topic_names(console: Console) -> list[str]:
    """Return the names of all topics, sorted. Raises CometMQError."""
    return await console.recent.get("topics", AGE_S, console.admin.topics.names)


async def group_names(console: Console) -> list[str]:
    """Return the names of all groups of all clusters, sorted. Raises CometMQError.

    Of several brokers those that do not answer are left out, unless all of them fail.
    """

    async def ask() -> list[str]:
        brokers = await console.admin.brokers.addresses(slaves=False)
        told = await asyncio.gather(
            *(known(console.admin.groups.names(broker=at.address)) for at in brokers)
        )
        names = {name for each in told for name in each.value or ()}
        errors = [each.error for each in told if each.error is not None]
        if errors and len(errors) == len(told):
            raise errors[0]
        return sorted(names)

    return await console.recent.get("groups", AGE_S, ask)
