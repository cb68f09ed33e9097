"""Limit the frames of HTTP/2 that the clients of an address send and that carry no part of a request.

gRPC's library limits the calls that are open, but a call that is cancelled at once is open no longer, though the
library and its handler still begin and end it ("rapid reset", CVE-2023-44487). Frames like PING and SETTINGS cost the
relay and the library little, but a connection can send millions of them in a second.
"""

from __future__ import annotations

from collections.abc import Callable


class FrameLimit:
    """Counts frames of each address, of IPv6 of each /64. For the loop's thread only.

    An address may send as many a second as `per_second` returns, and as many at once as in two seconds.
    """

    def __init__(self, per_second: Callable[[], int]) -> None:
        self._per_second = per_second
        # By address: how many frames it might still send at a moment, and that moment in seconds.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, network: str, count: int, now_s: float) -> bool:
        """Count frames of an address (its `network_of`); return whether they are within the limit."""
        per_second = self._per_second()
        left, then_s = self._left.get(network, (2.0 * per_second, now_s))
        left = min(left + (now_s - then_s) * per_second, 2.0 * per_second)
        self._left[network] = max(left - count, 0.0), now_s
        return left >= count

    def forget(self, now_s: float) -> None:
        """Forget the addresses that may send as many frames as an unknown one again."""
        for network, (_, then_s) in list(self._left.items()):
            if now_s - then_s > 2.0:
                del self._left[network]
