"""Name the statement that fits a client when a program uses the one of the other face.

Both faces have classes of the same names, so Python's own error ("'Producer' object does not support the context manager
protocol") does not help. Type checkers do not see these methods, so they go on finding the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

BLOCKING_WITH: Final = (
    "it runs on asyncio, so write `async with`; the classes for `with` are in cometmq"
)
ASYNC_WITH: Final = "it blocks, so write `with`; the classes for `async with` are in cometmq.aio"
BLOCKING_FOR: Final = (
    "it runs on asyncio, so write `async for`; the classes for `for` are in cometmq"
)
ASYNC_FOR: Final = "it blocks, so write `for`; the classes for `async for` are in cometmq.aio"
LISTENER_FOR: Final = (
    "it hands messages to a listener; iterate over a LitePullConsumer or a SimpleConsumer"
)


def refuses(statement: str, reason: str) -> Callable[..., Any]:
    """Return a method that raises a TypeError for `statement`, as Python does for a class without the method."""

    def refuse(self: object, *_: object) -> NoReturn:
        raise TypeError(f"`{statement}` does not fit this {type(self).__name__}: {reason}")

    return refuse
