"""Send the first commit of a group's offsets of a topic, which a Java broker must get alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cometmq.model.queue import MessageQueue


class FirstCommits:
    """Sends the first commit of a group for a topic alone to its broker. For the loop's thread.

    A Java broker makes its table of a group's offsets of a topic when the first commit arrives, and
    takes no lock for that (ConsumerOffsetManager.commitOffset). If it serves two first commits in
    two threads at once, even for different queues, one is acknowledged and lost.
    """

    def __init__(self) -> None:
        self._made: set[tuple[str, str, str]] = set()
        self._under_way: dict[tuple[str, str, str], asyncio.Future[None]] = {}

    def made(self, group: str, queue: MessageQueue) -> bool:
        """Say whether the queue's broker is known to have offsets of the group for the topic."""
        return _table(group, queue) in self._made

    def found(self, group: str, queue: MessageQueue) -> None:
        """Note that the queue's broker has an offset of the group for the topic."""
        self._made.add(_table(group, queue))

    async def commit(
        self, group: str, queue: MessageQueue, send: Callable[[], Awaitable[None]]
    ) -> None:
        """Call `send`, which stores one offset and waits for the broker. Raises what `send` raises.

        While the first commit for this table is under way, other commits wait until it succeeds or
        fails.
        """
        table = _table(group, queue)
        first = self._under_way.get(table)
        if first is not None:
            await asyncio.wait((first,))
        if first is not None or table in self._made:
            await send()
            return
        first = self._under_way[table] = asyncio.get_running_loop().create_future()
        try:
            await send()
            self._made.add(table)
        finally:
            del self._under_way[table]
            first.set_result(None)


def _table(group: str, queue: MessageQueue) -> tuple[str, str, str]:
    return queue.broker_name, queue.topic, group
