"""Take in lists of topics and of groups that are to be made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from cometmq.protocol.config_lists import LARGE_BYTES
from cometmq.protocol.limits import nothing_named
from cometmq.protocol.request_type import BodyKind
from cometmq.runtime.slices import run_slices

BodyT = TypeVar("BodyT")
ConfigT = TypeVar("ConfigT")


async def checked_configs(
    body: BodyKind[BodyT],
    data: bytes,
    configs_of: Callable[[BodyT], Iterable[ConfigT]],
    check: Callable[[ConfigT], ConfigT],
    what: str,
    wire_name: str,
) -> list[ConfigT]:
    """Return what `check` makes of each topic or group of a request's body, and serve others in between.

    `what` they are and the `wire_name` of their list are for errors.

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
        raise nothing_named(what, wire_name)
    return checked
