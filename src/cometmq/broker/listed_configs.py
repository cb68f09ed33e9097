"""Take in lists of topics and of groups that are to be made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from cometmq.protocol.config_lists import LARGE_BYTES, ConfigListBody
from cometmq.runtime.slices import run_slices

BodyT = TypeVar("BodyT")
ConfigT = TypeVar("ConfigT")


async def checked_configs(
    body: ConfigListBody[BodyT],
    data: bytes,
    configs_of: Callable[[BodyT], Iterable[ConfigT]],
    check: Callable[[ConfigT], ConfigT],
) -> list[ConfigT]:
    """Return what `check` makes of each topic or group of a request's body, and serve others in between.

    Raises what `check` raises, and ProtocolError for a list that exceeds a limit or has no entry.
    """
    if len(data) >= LARGE_BYTES:
        await asyncio.to_thread(body.prepare)
    checked: list[ConfigT] = []

    def steps() -> Iterator[None]:
        for part in body.name_steps(data):
            yield
            for config in configs_of(part) if part is not None else ():
                checked.append(check(config))
                yield

    await run_slices(steps())
    if not checked:
        raise body.nothing_named()
    return checked
