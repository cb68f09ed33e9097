"""Asks a running cluster for what a test asserts: messages, dead letters, how far a group is.

    assert [order.body for order in await cluster.messages("orders", 2)] == [b"tea", b"milk"]
    await cluster.wait_consumed("billing", "orders")
    assert await cluster.lag("billing") == 0
    [letter] = await cluster.dead_letters("billing", 1)

A `Cluster` has these calls as coroutines, the broker of the fixture `cometmq_broker` has the same
calls and blocks. A call that waits fails with an AssertionError that lists what there was.
"""

from __future__ import annotations

from typing import Final

from cometmq.model.message import MessageExt

# The time of the cluster's clock: a virtual minute takes milliseconds.
WITHIN_S: Final = 60.0


class Assertions:
    """Asks the cluster of `namesrv`, on the running loop; `Cluster` inherits the calls."""

    @property
    def namesrv(self) -> str:
        """The name servers' addresses in one text, as clients take it."""
        raise NotImplementedError

    async def messages(
        self, topic: str, count: int | None = None, *, within_s: float = WITHIN_S
    ) -> list[MessageExt]:
        """Return the messages of a topic, oldest first; a topic that does not exist has none.

        With `count`, wait until exactly that many are there. Raises AssertionError, which lists the
        messages, when there are more, or still fewer after `within_s` seconds.
        """
        raise NotImplementedError

    async def dead_letters(
        self, group: str, count: int | None = None, *, within_s: float = WITHIN_S
    ) -> list[MessageExt]:
        """Return the dead letters of a group like `messages`."""
        raise NotImplementedError

    async def lag(self, group: str, topic: str | None = None) -> int:
        """Return how many messages the group has not consumed yet, in one topic or in all of its own.

        Retries that wait for their delay count, too.
        """
        raise NotImplementedError

    async def wait_consumed(
        self, group: str, topic: str | None = None, *, within_s: float = WITHIN_S
    ) -> None:
        """Wait until the group has consumed all messages, of one topic or of all of its own.

        Raises AssertionError after `within_s` seconds, which says what is left in which queue.
        """
        raise NotImplementedError
