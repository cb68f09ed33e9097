"""Time the requests of a server by their codes, for its metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from cometmq.model.measures.histogram import Histogram, latencies
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.dispatch import AsyncHandler, Handler

# Of these every microsecond counts: the broker times some of them itself, by topic and group.
UNTIMED_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
)


class RequestMeter:
    """Holds a histogram of microseconds for each code that is served. For the loop's thread only.

    Work that a handler leaves for later when it returns, such as an answer that waits, is not timed;
    the time for which a coroutine waits is.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.times: dict[int, Histogram] = {}

    def timed(
        self, code: int, handler: Handler[Any] | AsyncHandler[Any]
    ) -> Handler[Any] | AsyncHandler[Any]:
        """Return a handler that does the same and is timed."""
        if code in UNTIMED_CODES:
            return handler
        times = self.times[code] = latencies()
        monotonic = self._monotonic
        if inspect.iscoroutinefunction(handler):

            async def serve_later(*request: Any) -> Any:
                began_s = monotonic()
                try:
                    return await handler(*request)
                finally:
                    times.add(int((monotonic() - began_s) * 1e6))

            return serve_later

        def serve(*request: Any) -> Any:
            began_s = monotonic()
            try:
                return handler(*request)
            finally:
                times.add(int((monotonic() - began_s) * 1e6))

        return serve
