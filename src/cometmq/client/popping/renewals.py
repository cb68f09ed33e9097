"""Hide received messages for longer while a program works on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from cometmq.client.popping.message import ReceivedMessage
from cometmq.errors import ClientStateError, CometMQError
from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

# `renew` makes this many attempts within the time that a message is hidden, so two of them may fail.
_ATTEMPTS: Final = 3


class Renewals:
    """Holds the messages that a simple consumer received, until each is settled. For the loop's thread only.

    While `renew` runs, it hides each message for `invisible_ms` again and again, for `longest_ms` at most.
    `name` names the holder in the log.
    """

    def __init__(self, name: str, invisible_ms: int, longest_ms: int) -> None:
        self._name = name
        self._invisible_ms = invisible_ms
        self._longest_s = longest_ms / 1000
        # The held messages, and when each came, by the loop's clock in s.
        self._held: dict[ReceivedMessage, float] = {}

    def add(self, messages: Iterable[ReceivedMessage]) -> None:
        self._held.update(dict.fromkeys(messages, asyncio.get_running_loop().time()))

    def let_go(self, message: ReceivedMessage) -> None:
        """Hold a message no longer. Do nothing if it is not held."""
        self._held.pop(message, None)

    async def give_back(self, messages: Iterable[ReceivedMessage] | None = None) -> None:
        """Give messages back, by default all held ones. If this fails, they come again when their time is over."""
        given = list(self._held if messages is None else messages)
        for message in given:
            self.let_go(message)
        await asyncio.gather(
            *(message.nack() for message in given if not message.is_settled),
            return_exceptions=True,
        )

    async def renew(self) -> None:
        """Hide the held messages for longer, until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._invisible_ms / 1000 / _ATTEMPTS)
            for message, came in list(self._held.items()):
                if message.is_settled:
                    self.let_go(message)
                elif loop.time() - came > self._longest_s:
                    self.let_go(message)
                    log.warning(
                        "the work on a message takes longer than allowed, so the message comes again",
                        holder=self._name,
                        msg_id=message.msg_id,
                        keys=message.keys,
                        longest_s=self._longest_s,
                    )
            await asyncio.gather(*map(self._extend, list(self._held)))

    async def _extend(self, message: ReceivedMessage) -> None:
        with contextlib.suppress(ClientStateError):  # it was settled meanwhile
            try:
                await message.extend(self._invisible_ms)
            except ClientStateError:
                raise
            except CometMQError as error:
                log.warning(
                    "a message could not be hidden for longer, so it may come again",
                    holder=self._name,
                    msg_id=message.msg_id,
                    keys=message.keys,
                    reason=str(error),
                )
