"""Iterate over the pulled messages of a lite pull member, one by one, or in lists for another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, Self

from cometmq.client.consuming.listeners.consume_hooks import ConsumeHooks
from cometmq.client.consuming.listeners.undecodable import Payloads
from cometmq.client.consuming.lite_pull_member import LitePullMember
from cometmq.client.consuming.pulled_message import PulledMessage
from cometmq.model.queue import MessageQueue

# The largest number of messages that one wake-up brings to another thread.
HANDED_OVER: Final = 64


class Iteration(AsyncIterator[PulledMessage]):
    """Returns the member's messages in turn, and ends when the consumer is closed.

    `member` is called at the first message. A thread that iterates takes messages out of `handed` by
    `take_handed`, and has the loop run `hand_over` whenever there are none. Messages in `handed` are open,
    like messages that the user has. `put_back` returns the messages that the thread did not take.
    """

    def __init__(
        self,
        member: Callable[[], LitePullMember],
        hooks: ConsumeHooks,
        payloads: Payloads | None,
    ) -> None:
        self._member_now = member
        self._member: LitePullMember | None = None
        self._hooks = hooks
        self._payloads = payloads
        # The loop appends, and the thread takes from the other end; both are atomic.
        self.handed: deque[PulledMessage] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PulledMessage:
        found = await self._take(1)
        if not found:
            raise StopAsyncIteration
        self._show(found[0])
        return found[0]

    @property
    def has_ended(self) -> bool:
        """True once the consumer closes. For any thread."""
        return self._member is not None and self._member.is_closing

    async def hand_over(self) -> None:
        """Wait for messages, and append them to `handed`. Appends none when the consumer closes."""
        self.handed.extend(await self._take(HANDED_OVER))

    def take_handed(self) -> PulledMessage | None:
        """Return the next message, or None without one. For the thread that iterates.

        A message of a queue that went to another member, or to another place, is left out.
        """
        handed = self.handed
        while handed:
            message = handed.popleft()
            if not message.is_withdrawn:
                self._show(message)
                return message
        return None

    def put_back(self) -> None:
        """Give the messages in `handed` back to the consumer, which returns them again."""
        if self._member is None or not self.handed:
            return
        messages = list(self.handed)
        self.handed.clear()
        self._member.put_back(messages)

    async def _take(self, most: int) -> list[PulledMessage]:
        """Return up to `most` messages, at least one, or none when the consumer closes."""
        member = self._member
        if member is None:
            member = self._member = self._member_now()
            member.follow_retries()
        while True:
            messages = member.take_ready(most) or await member.next_messages(most)
            if self._payloads is None or not messages:
                return messages
            try:
                kept = await self._payloads.admit(messages, member.return_undecodable)
            except BaseException:  # a wait with a timeout was cancelled
                member.put_back(messages)
                raise
            if len(kept) < len(messages):
                left = {id(message) for message in kept}
                for message in messages:
                    if id(message) not in left:
                        self._show(message)
                        await message.ack()
            if kept:
                return kept

    def _show(self, message: PulledMessage) -> None:
        if self._hooks:
            queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
            self._hooks.polled(queue, [message])
            message.watch(self._hooks)
