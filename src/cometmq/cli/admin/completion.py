"""Complete names that the cluster knows: topics, groups, clusters and brokers.

A shell waits for the completion, so the name server has a short time to answer. Nothing is completed,
and nothing is printed, if it does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from cometmq.admin.client import AdminClient

_DEADLINE_MS: Final = 1_000
_RETRY: Final = "%RETRY%"

Completer = Callable[[typer.Context, str], Iterable[str]]


async def _topics(admin: AdminClient) -> Iterable[str]:
    return await admin.topics.names()


async def _groups(admin: AdminClient) -> Iterable[str]:
    # Name servers know no groups, but the retry topic of each group that has ever consumed.
    return [
        topic.removeprefix(_RETRY)
        for topic in await admin.topics.names()
        if topic.startswith(_RETRY)
    ]


async def _clusters(admin: AdminClient) -> Iterable[str]:
    return await admin.brokers.clusters()


async def _broker_addresses(admin: AdminClient) -> Iterable[str]:
    return [at.address for at in await admin.brokers.addresses()]


async def _broker_names(admin: AdminClient) -> Iterable[str]:
    return {at.broker_name for at in await admin.brokers.addresses()}


# By the long name of the option.
_NAMES: Final[dict[str, Callable[[AdminClient], Awaitable[Iterable[str]]]]] = {
    "--topic": _topics,
    "--groupName": _groups,
    "--consumerGroup": _groups,
    "--group": _groups,
    "--srcGroup": _groups,
    "--destGroup": _groups,
    "--clusterName": _clusters,
    "--cluster": _clusters,
    "--brokerAddr": _broker_addresses,
    "--brokerName": _broker_names,
}


def completer(option: str) -> Completer | None:
    """Return the completion for the option with this long name, or None."""
    names = _NAMES.get(option)
    if names is None:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> Iterable[str]:
        return [name for name in _asked(names, ctx.params) if name.startswith(incomplete)]

    return complete


def _asked(
    names: Callable[[AdminClient], Awaitable[Iterable[str]]], given: dict[str, Any]
) -> list[str]:
    """Return the names that the cluster knows, none if it cannot be asked in time."""
    import asyncio
    from dataclasses import fields

    from cometmq.cli.connection import Security
    from cometmq.errors import CometMQError

    async def ask() -> list[str]:
        options: dict[str, Any] = {each.name: given.get(each.name) for each in fields(Security)}
        security = Security(**options)
        connection = security.connection(given.get("namesrv_addr"), _DEADLINE_MS)
        async with connection.admin() as admin:
            async with asyncio.timeout(_DEADLINE_MS / 1000):
                return sorted(await names(admin))

    try:
        return asyncio.run(ask())
    except (CometMQError, TimeoutError, OSError):
        return []
