"""Limit the bytes that a group can have stored by naming messages that it sent back before.

A request of 300 bytes that sends a message back makes the broker store up to maxMessageSize once
more, perhaps for a client that never pulled the message. The first request for each message costs
nothing. Every further request for it or for a retry of it is paid from an allowance and the bytes
that members of the group have pulled from this broker since its start. A consumer sends back only
messages that it was given, so it pays less than it has pulled, even if many members have the same
message after rebalances.

A client that is refused sends the message itself to the group's retry topic, as Java's client does
after any refusal. So it loses nothing, and the log grows only by the bytes that the client sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.refusal import Refused
from cometmq.protocol.codes import ResponseCode

MAX_RETRY_BYTES_BEYOND_PULLS: Final = 64 * 1024 * 1024
# How many messages that were sent back last are remembered, by a hash; 100 bytes each. A message is
# forgotten after this many others.
_REMEMBERED: Final = 65_536
# How many groups that have sent a message back again are remembered.
_ACCOUNTS: Final = 65_536


class RetryBudget:
    """Says whether a group may have a message stored once more. For the loop's thread only.

    `pulled_bytes` returns how much members of a group have pulled; it starts again from 0 when the
    group was deleted.
    """

    def __init__(self, pulled_bytes: Callable[[str], int]) -> None:
        self._pulled_bytes = pulled_bytes
        self._sent_back: dict[int, None] = {}
        # By group: the bytes left, and the bytes pulled when they were counted.
        self._accounts: dict[str, tuple[int, int]] = {}

    def spend(self, group: str, message_id: str, size: int) -> None:
        """Pay for storing a message of `size` bytes. Raises Refused if the group cannot."""
        key = hash((group, message_id))
        if key not in self._sent_back:
            self._sent_back[key] = None
            if len(self._sent_back) > _REMEMBERED:
                del self._sent_back[next(iter(self._sent_back))]
            return
        pulled = self._pulled_bytes(group)
        left, known = self._accounts.pop(group, (MAX_RETRY_BYTES_BEYOND_PULLS, 0))
        left += max(0, pulled - known) - size
        if left < 0:
            self._accounts[group] = left + size, pulled
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"group {group} has {size} bytes stored again of a message that it has sent back "
                f"before, and {left + size} bytes left for that beyond what it has pulled from "
                "this broker; the limit MAX_RETRY_BYTES_BEYOND_PULLS is "
                f"{MAX_RETRY_BYTES_BEYOND_PULLS}; send the message itself to the group's retry "
                "topic",
                limit="MAX_RETRY_BYTES_BEYOND_PULLS",
            )
        self._accounts[group] = left, pulled
        if len(self._accounts) > _ACCOUNTS:
            del self._accounts[next(iter(self._accounts))]
