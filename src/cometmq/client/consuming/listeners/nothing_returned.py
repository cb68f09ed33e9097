"""Say what a listener means by returning nothing: that its messages are consumed, or the old meaning."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Final, cast

from cometmq.client.consuming.listeners.listening import (
    CoroutineListener,
    FunctionListener,
    Listener,
    takes_await,
)
from cometmq.client.options import choice
from cometmq.model.message import MessageExt
from cometmq.model.results import ConsumeResult


class _Nothing:
    """Is what a listener returns that `refusing_none` made, in place of None."""

    def __repr__(self) -> str:
        return "None"


_NOTHING: Final = _Nothing()


def refusing_none(listener: Listener) -> Listener:
    """Return a listener of the same kind that has its messages consumed again where `listener` returns None."""
    if takes_await(listener):
        coroutine = cast("CoroutineListener", listener)

        async def listen_on_loop(messages: list[MessageExt]) -> Any:
            returned = await coroutine(messages)
            return _NOTHING if returned is None else returned

        return listen_on_loop
    function = cast("FunctionListener", listener)

    def listen(messages: list[MessageExt]) -> Any:
        returned = function(messages)
        return _NOTHING if returned is None else returned

    return listen


def check_none_means(none_means: object) -> ConsumeResult:
    """Return the result that None stands for; warn of the deprecated one."""
    result = choice("none_means", none_means, ConsumeResult)
    if result is not ConsumeResult.SUCCESS:
        warnings.warn(
            f"none_means={result} is deprecated and will be removed: a listener that returns None has "
            "consumed its messages; raise an exception, or return ConsumeResult.RECONSUME_LATER, to "
            "have them come again",
            DeprecationWarning,
            stacklevel=_outside(),
        )
    return result


def _outside() -> int:
    """Return the stack level, for `warnings.warn` in the caller, of the code that is not ours."""
    level = 1
    frame = sys._getframe(1)  # noqa: SLF001 - warnings have no other way before Python 3.12
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("cometmq."):
        frame = frame.f_back
        level += 1
    return level
