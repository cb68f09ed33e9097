"""Take one-way messages from other threads, which do not wait for the loop.

To wait until the loop has sent a message costs a thread four times as much as the send. So the thread checks and encodes
the message itself, because errors of the message are errors of its caller, and puts it in this line. One wake-up of the
loop sends all messages of the line. A message for which the loop would have to wait first (for a route, a connection, or
a broker that does not read) does not come here: its caller waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.client.limits import MessageChecks
from cometmq.client.producing.encoding import MessageEncoder, Outgoing
from cometmq.client.producing.oneways import Oneways
from cometmq.client.producing.sending import Sender
from cometmq.errors import ClientStateError, CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model.message import Message
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# While the line has so many messages, callers wait for the loop. So the memory of the line is bounded, too.
MOST_WAITING: Final = 256
MOST_BODY_BYTES: Final = 64 * 1024

# Calls a function on the loop soon.
Post = Callable[[Callable[[], object]], None]


class OnewayLine:
    """Sends the one-way messages of other threads, in the order in which they came.

    `put` is for any thread, all else for the producer's loop.
    """

    def __init__(
        self,
        sender: Sender,
        encoder: MessageEncoder,
        checks: MessageChecks,
        oneways: Oneways,
        tasks: TaskOwner,
        timeout_s: float,
    ) -> None:
        self._sender = sender
        self._encoder = encoder
        self._checks = checks
        self._oneways = oneways
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._waiting: deque[Outgoing] = deque()
        self._is_woken = False
        self._is_closed = False
        # Tasks for messages that could not be sent at once after all, each with its message.
        self._late: dict[asyncio.Task[None], Outgoing] = {}

    def put(self, message: Message, post: Post) -> bool:
        """Have the loop send a message, or return False if the caller has to wait for the loop. `post` calls a
        function on the loop.

        Raises IllegalArgumentError for a message that may not be sent, and the errors of `post`.
        """
        if not isinstance(message, Message) or message.is_unencoded:
            return False
        self._checks.check(message)
        if len(message.body) > MOST_BODY_BYTES:
            return False
        if len(self._waiting) + len(self._late) >= MOST_WAITING:
            return False
        outgoing = self._encoder.encode_now(message)
        if outgoing is None or not self._sender.is_open(outgoing.topic):
            return False
        self._waiting.append(outgoing)
        try:
            if self._is_closed:
                raise ClientStateError("the producer was closed meanwhile; the message is not sent")
            if not self._is_woken:
                self._is_woken = True
                post(self._send_all)
        except BaseException as error:
            self._is_woken = False
            try:
                self._waiting.remove(outgoing)
            except ValueError:  # the loop has taken the message meanwhile
                if isinstance(error, Exception):
                    return True
            raise
        return True

    async def close(self) -> None:
        """Send the messages of the line. Note those that have not left after `timeout_s` as lost."""
        self._is_closed = True
        self._send_all()
        if self._late:
            await asyncio.wait(self._late, timeout=self._timeout_s)
        for task, outgoing in self._late.items():
            task.cancel()  # else it might still send the message, or list it a second time
            self._oneways.lose(outgoing.messages[0])

    # Inside

    def _send_all(self) -> None:
        # Clear the flag before looking, so that a thread that comes later wakes the loop again.
        self._is_woken = False
        waiting = self._waiting
        while waiting:
            outgoing = waiting.popleft()
            queued = self._sender.send_oneway_now(outgoing)
            if queued is None:
                task = self._tasks.spawn(self._send_late(outgoing), "send one-way")
                self._late[task] = outgoing
                task.add_done_callback(self._late.pop)
            else:
                self._oneways.sent(outgoing.messages[0], *queued)

    async def _send_late(self, outgoing: Outgoing) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            queue = await self._sender.next_queue(outgoing.topic, deadline)
            queued = await self._sender.send_oneway(outgoing, queue, deadline)
        except CometMQError as error:
            log.warning(
                "a one-way message could not be sent; it is in the producer's `unsent` after the close",
                topic=outgoing.topic,
                msg_id=outgoing.unique_id,
                reason=str(error),
            )
            self._oneways.lose(outgoing.messages[0])
        else:
            self._oneways.sent(outgoing.messages[0], *queued)
