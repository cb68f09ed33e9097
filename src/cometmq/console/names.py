"""Gives the names of all topics and groups, which many pages and the palette need."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cometmq.console.asking import in_time
from cometmq.console.recent import known
from cometmq.model.names import is_retry_topic, is_system_group, is_system_topic

if TYPE_CHECKING:
    from cometmq.console.state import Console

# A name that is made elsewhere is found after so long; an action of this console is seen at once.
AGE_S: Final = 5.0
# Of more names a form proposes none.
_MAX_PROPOSED: Final = 500


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


async def proposals(console: Console) -> dict[str, list[str]]:
    """Return the names of topics, groups and brokers that the inputs of a form propose.

    There are none of what is not known now, or is too many for a form.
    """
    topics, groups = await asyncio.gather(
        in_time(topic_names(console)), in_time(group_names(console))
    )
    found = {
        "topics": [
            name
            for name in topics.value or ()
            if not is_system_topic(name) and not is_retry_topic(name)
        ],
        "groups": [name for name in groups.value or () if not is_system_group(name)],
        "brokers": sorted({state.at.broker_name for state in console.watch.brokers}),
    }
    return {kind: names if len(names) <= _MAX_PROPOSED else [] for kind, names in found.items()}
