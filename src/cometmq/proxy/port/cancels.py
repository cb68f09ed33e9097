"""Limit how many calls the clients of an address cancel (frames RST_STREAM of HTTP/2).

gRPC's library limits the calls that are open, and a call that is cancelled at once is open no longer, though the
library and its handler still begin and end it. So one connection could keep a proxy busy for seconds with a few
megabytes ("rapid reset", CVE-2023-44487).
"""

from __future__ import annotations

from cometmq.proxy.configuration import front_config


class Cancels:
    """Counts the cancelled calls of each address, of IPv6 of each /64. For the loop's thread only.

    An address may cancel `MAX_CANCELS_PER_SECOND` calls a second, and as many at once as in two seconds.
    """

    def __init__(self) -> None:
        # For each address how many calls it may cancel at the moment, and the moment.
        self._left: dict[str, tuple[float, float]] = {}

    def count(self, network: str, now_s: float) -> bool:
        """Count a cancelled call of a `network_of` an address; return whether it is within the limit."""
        per_second = front_config.MAX_CANCELS_PER_SECOND
        left, then_s = self._left.get(network, (2.0 * per_second, now_s))
        left = min(left + (now_s - then_s) * per_second, 2.0 * per_second)
        self._left[network] = max(left - 1.0, 0.0), now_s
        return left >= 1.0

    def forget(self, now_s: float) -> None:
        """Forget the addresses that may cancel as many calls as others again."""
        for network, (_, then_s) in list(self._left.items()):
            if now_s - then_s > 2.0:
                del self._left[network]
