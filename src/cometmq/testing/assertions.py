"""Ask a running cluster for the facts that a test asserts: messages, dead letters, how far a group
is.

    assert [order.body for order in await cluster.messages("orders", 2)] == [b"tea", b"milk"]
    await cluster.wait_consumed("billing", "orders")
    assert await cluster.lag("billing") == 0
    [letter] = await cluster.dead_letters("billing", 1)

A `Cluster` has these calls as coroutines; the broker of the fixture `cometmq_broker` has the same
calls and blocks. A call that waits fails with an AssertionError that lists what there was.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Final, TypeVar

from cometmq.admin.client import AdminClient
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.model.message import MessageExt
from cometmq.model.names import REPLY_TOPIC_POSTFIX, dlq_topic, is_system_topic
from cometmq.remoting.credentials import Credentials
from cometmq.testing.group_state import GroupState, group_state

T = TypeVar("T")

# By the cluster's clock: a virtual minute takes milliseconds.
WITHIN_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.01
_MOST_LISTED: Final = 20
_BODY_SHOWN: Final = 60


class Assertions(ABC):
    """Asks the cluster of `namesrv`, on the running loop; `Cluster` inherits the calls."""

    @property
    @abstractmethod
    def namesrv(self) -> str:
        """The name servers' addresses in one text, as clients take it."""

    @property
    def _asks_as(self) -> Credentials | None:
        """The account that signs the requests, None if the servers have no accounts."""
        return None

    async def messages(
        self, topic: str, count: int | None = None, *, within_s: float = WITHIN_S
    ) -> list[MessageExt]:
        """Return the messages of a topic, oldest first; a topic that does not exist has none.

        With `count`, wait until exactly that many are there. Raises AssertionError, which lists the
        messages, when there are more, or still fewer after `within_s` seconds. A delayed message is
        there when it is delivered, one of a transaction when that is committed.
        """
        __tracebackhide__ = True  # pytest shows the test's line, not these

        async def look(admin: AdminClient) -> list[MessageExt]:
            try:
                found = [message async for message in admin.messages.stored(topic)]
            except RouteNotFoundError:
                return []
            return sorted(
                found, key=lambda m: (m.store_timestamp_ms, m.broker_name, m.commit_log_offset)
            )

        async with self._admin() as admin:
            if count is None:
                return await look(admin)
            wanted: int = count
            found = await _wait(admin, look, lambda found: len(found) >= wanted, within_s)
            if len(found) != wanted:
                when = f" after {within_s:g} s" if len(found) < wanted else ""
                raise AssertionError(
                    f"topic {topic} has {_count(len(found), 'message')}{when}, and {wanted} are "
                    f"expected\n{_listed(map(_line, found))}topics: {await _topics(admin)}"
                )
            return found

    async def dead_letters(
        self, group: str, count: int | None = None, *, within_s: float = WITHIN_S
    ) -> list[MessageExt]:
        """Return the dead letters of a group like `messages`."""
        __tracebackhide__ = True
        return await self.messages(dlq_topic(group), count, within_s=within_s)

    async def lag(self, group: str, topic: str | None = None) -> int:
        """Return how many messages the group has not consumed yet, in one topic or in all of its own.

        Retries count, too, also while they wait for their delay; dead letters do not. Raises
        AssertionError if the group is not known or does not consume `topic`.
        """
        __tracebackhide__ = True
        async with self._admin() as admin:
            state = await group_state(admin, group, topic)
            if state.fault:
                raise AssertionError(f"{state.fault}\n{_listed(state.lines())}")
            return state.lag

    async def wait_consumed(
        self, group: str, topic: str | None = None, *, within_s: float = WITHIN_S
    ) -> None:
        """Wait until the group has consumed all messages, of one topic or of all of its own.

        A message is consumed when a listener of the group has succeeded with it or when it is a dead
        letter; a message whose retry is still to come is not. Raises AssertionError after `within_s`
        seconds, with the rest of each queue.
        """
        __tracebackhide__ = True

        def is_consumed(state: GroupState) -> bool:
            return not state.fault and state.lag == 0

        async with self._admin() as admin:
            state = await _wait(
                admin, lambda admin: group_state(admin, group, topic), is_consumed, within_s
            )
            if not is_consumed(state):
                what = state.fault or f"group {group} has {_count(state.lag, 'message')} to consume"
                raise AssertionError(f"{what} after {within_s:g} s\n{_listed(state.lines())}")

    def _admin(self) -> AdminClient:
        return AdminClient(self.namesrv, credentials=self._asks_as)


async def _wait(
    admin: AdminClient,
    look: Callable[[AdminClient], Awaitable[T]],
    is_there: Callable[[T], bool],
    within_s: float,
) -> T:
    """Look until the wanted state is there or the time is up; return the last state.

    The pauses grow with the time that has passed, so that hours of virtual time are few looks. A
    server that does not answer is asked again until the time is up.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        failure: CometMQError | None = None
        try:
            found = await look(admin)
            if is_there(found):
                return found
        except CometMQError as error:
            failure = error
        elapsed_s = loop.time() - began_s
        if elapsed_s >= within_s:
            if failure is not None:
                raise AssertionError(f"no answer after {within_s:g} s: {failure}") from failure
            return found
        pause_s = max(_FIRST_PAUSE_S, min(elapsed_s / 5, within_s / 10))
        await asyncio.sleep(min(pause_s, within_s - elapsed_s))


async def _topics(admin: AdminClient) -> str:
    """Return the users' topics in one text, dead letters and retries included."""
    brokers = await admin.brokers.addresses()
    # Every cluster and every broker has a topic of its name.
    of_servers = {at.cluster for at in brokers} | {at.broker_name for at in brokers}
    names = sorted(
        name
        for name in await admin.topics.names()
        if name not in of_servers
        and not is_system_topic(name)
        and not name.endswith(REPLY_TOPIC_POSTFIX)
    )
    shown = ", ".join(names[:_MOST_LISTED])
    return (f"{shown}, …" if len(names) > _MOST_LISTED else shown) or "none"


def _line(message: MessageExt) -> str:
    stored = datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC)
    body = message.body[:_BODY_SHOWN]
    return (
        f"{message.broker_name}/{message.queue_id}@{message.queue_offset} "
        f"{stored:%H:%M:%S.%f} tags={message.tags} keys={','.join(message.keys)} "
        f"retries={message.reconsume_times} {body!r}{'…' if body != message.body else ''}"
    )


def _listed(lines: Iterable[str]) -> str:
    every = list(lines)
    left = len(every) - _MOST_LISTED
    return "".join(
        [f"  {line}\n" for line in every[:_MOST_LISTED]] + [f"  … and {left} more\n"] * (left > 0)
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
