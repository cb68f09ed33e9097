"""Iterate over the messages that a simple consumer receives, one by one, or in lists for another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

from cometmq.client.popping.message import ReceivedMessage


class ReceivingIteration(AsyncIterator[ReceivedMessage]):
    """Returns the messages of `lists` in turn, and ends with `lists`."""

    def __init__(
        self, lists: AsyncIterator[list[ReceivedMessage]], is_closed: Callable[[], bool]
    ) -> None:
        self._lists = lists
        self._is_closed = is_closed
        self._left: deque[ReceivedMessage] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while not self._left:
            self._left.extend(await anext(self._lists))
        return self._left.popleft()

    @property
    def has_ended(self) -> bool:
        """True once the consumer is closed. For any thread."""
        return self._is_closed()

    async def next_list(self) -> list[ReceivedMessage]:
        """Return the messages of one `receive`, or an empty list once the consumer closes."""
        return await anext(self._lists, [])
