"""Wait without a task for the answer to a message that was sent at once.

A task for each send costs as much as encoding the message and writing it. Nearly all sends need none: their request
goes out at once, and the answer says that the broker has the message.
"""

from __future__ import annotations

import asyncio
from typing import Any

from cometmq.client.hooks import CommunicationMode
from cometmq.client.producing.answers import Attempt
from cometmq.client.producing.encoding import Outgoing
from cometmq.client.producing.pending import Callback, Pending
from cometmq.client.producing.sending import Sender
from cometmq.errors import CometMQError
from cometmq.model.results import SendResult
from cometmq.protocol.command import RemotingCommand


class BegunSend(asyncio.Future[SendResult]):
    """Is the future of a send whose first attempt is on its way.

    If the attempt fails, or the broker refuses the message, a task of `pending` goes on with the send.
    """

    def __init__(
        self,
        sender: Sender,
        pending: Pending,
        outgoing: Outgoing,
        attempt: Attempt,
        size: int,
        callback: Callback[SendResult] | None,
    ) -> None:
        super().__init__()
        self._sender = sender
        self._pending = pending
        self._outgoing = outgoing
        self._attempt = attempt
        pending.follow(self, size, callback)
        attempt.answer.add_done_callback(self._answered)

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._pending.end(self)
        return is_cancelled

    def _answered(self, answer: asyncio.Future[RemotingCommand]) -> None:
        if self.done():  # its caller was cancelled
            if not answer.cancelled():
                answer.exception()  # else asyncio logs that nobody has read the error
            return
        attempt = self._attempt
        if not answer.cancelled() and answer.exception() is None:
            try:
                result = self._sender.result(
                    answer.result(), attempt.queue, self._outgoing, attempt.address
                )
            except CometMQError:
                pass  # the task gets the same error, and decides whether to try again
            else:
                self.set_result(result)
                self._pending.end(self)
                return
        self._pending.go_on(
            self,
            self._sender.send(self._outgoing, attempt.timeout_s, CommunicationMode.ASYNC, attempt),
        )
