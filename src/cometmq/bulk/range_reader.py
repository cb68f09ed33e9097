"""Read queues in bulk, as the bytes that brokers send, for tools that decode them themselves."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from dataclasses import KW_ONLY, dataclass
from typing import Final, TypeVar

from cometmq.bulk.range_pulls import Chunk, RangePulls, address_of
from cometmq.bulk.window_pulls import WindowConnections, WindowPulls
from cometmq.client.blocking.client import BlockingClient
from cometmq.client.instance import ClientInstance
from cometmq.client.lifecycle import AsyncClient, ClientOptions
from cometmq.client.limits import check_range
from cometmq.client.membership.expressions import check_expression
from cometmq.client.membership.first_commits import FirstCommits
from cometmq.client.membership.subscribing import message_selector
from cometmq.client.namespaces import Namespace
from cometmq.client.options import takes
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.filtering.tags import build_subscription, selects_all
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL, SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.record_columns import field, read_columns
from cometmq.runtime.back_off import BackOff

T = TypeVar("T")

# Every broker has this group, so that tools can read.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
PATIENCE_MS: Final = 60_000
# How many questions are asked at the same time.
_AT_ONCE: Final = 64


def is_unknown_group(error: CometMQError) -> bool:
    """Say whether a broker refused because it does not have the group."""
    return error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@dataclass(repr=False)
class RangeReaderOptions(ClientOptions):
    """Holds the options of a range reader; RangeReader explains them."""

    group: str = TOOLS_GROUP
    _: KW_ONLY
    patience_ms: int = PATIENCE_MS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("patience_ms", self.patience_ms, 0, 24 * 3600 * 1000)


class RangeReader(AsyncClient):
    """Reads ranges of queues, without regard to the groups that consume them.

        async with RangeReader(namesrv="127.0.0.1:9876") as reader:
            for queue in await reader.queues("orders"):
                low, high = (await reader.offsets([queue]))[queue]
                async for chunk in reader.read(queue, low, high): ...

    `group` is the consumer group in whose name the brokers are read. A question or pull that fails
    is repeated for `patience_ms`. Only `commit` commits offsets.
    """

    @takes(RangeReaderOptions)
    def __init__(self, options: RangeReaderOptions) -> None:
        super().__init__(options)
        self._patience_s = options.patience_ms / 1000
        self._windows = WindowConnections()

    @property
    def namespace(self) -> Namespace:
        """The namespace of topics and groups, for code that needs their names on the wire."""
        return self._namespace

    async def topics(self) -> list[str]:
        """Return all topics that a name server knows, brokers' own too. Raises RemotingError."""
        names = await self._running().routes.topic_names()
        return sorted(map(self._namespace.unwrap, names))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of `topic`. Raises RouteNotFoundError, RemotingError."""
        routes = self._running().routes
        wire = self._namespace.wrap(topic)
        await routes.refresh(wire)
        route = routes.route(wire)
        queues = route.subscribe_queues(wire) if route is not None else []
        return [self._namespace.unwrap_queue(queue) for queue in queues]

    async def writable_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of `topic` that may be written to, sorted. There may be none.

        Raises RouteNotFoundError when no name server knows the topic, RemotingError.
        """
        routes = self._running().routes
        wire = self._namespace.wrap(topic)
        await routes.refresh(wire)
        found = routes.publish_route(wire)
        queues = found.queues if found is not None else []
        return sorted(self._namespace.unwrap_queue(queue) for queue in queues)

    async def check_selection(
        self, topic: str, tags: str = SUB_ALL, *, sql: str | None = None
    ) -> None:
        """Ask a broker of `topic` whether it serves this selection.

        Raises IllegalArgumentError for `tags` or `sql` that are no legal selection, and RemoteError
        when the broker refuses the selection.
        """
        selector = message_selector(topic, tags, sql)
        subscription = build_subscription(self._namespace.wrap(topic), *selector)
        await check_expression(self._running(), self._group, subscription)

    async def offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return, for each queue, the lowest offset that the broker still has, and the offset that
        the next message will get. Raises RemotingError, RemoteError, RouteNotFoundError.
        """
        return await self._of_each(queues, self._bounds)

    async def offsets_or_failures(
        self, queues: Iterable[MessageQueue], known: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, tuple[int, int] | CometMQError]:
        """Return what `offsets` returns, but ask only once. For a queue whose broker cannot be
        reached now, or is too busy, return the failure. That is also returned for a queue that ends
        at a slave before its `known` offset: only its master can say that messages are gone.
        """

        at_once = asyncio.Semaphore(_AT_ONCE)
        routes = self._running().routes

        async def one(queue: MessageQueue) -> tuple[int, int] | CometMQError:
            async def ask(address: str, wire: MessageQueue) -> tuple[int, int]:
                bounds = await self._bounds(address, wire)
                if bounds[1] < known.get(queue, 0) and address != routes.master_address(
                    wire.broker_name
                ):
                    raise RouteNotFoundError(
                        f"the slave {address} has {queue} up to {bounds[1]} only, and the master "
                        f"of {wire.broker_name} cannot be asked",
                        address=address,
                    )
                return bounds

            try:
                return await self._of_one(queue, ask, at_once, patience_s=0)
            except CometMQError as error:
                if not error.retriable:
                    raise
                return error

        wanted = list(queues)
        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    async def offsets_for_timestamp(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """Return, for each queue, the first offset whose message was stored at or after
        `timestamp_ms`.
        """
        brokers = self._running().brokers

        async def found(address: str, queue: MessageQueue) -> int:
            return await brokers.search_offset(address, queue, timestamp_ms)

        return await self._of_each(queues, found)

    async def store_times(
        self, places: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int | None]:
        """Return when the broker stored the message at one offset of each queue, in ms since the
        epoch, asking only once; None if it has no such message or does not answer.
        """
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(queue: MessageQueue, offset: int) -> int | None:
            asked = self._asked(queue, offset, offset + 1, SUB_ALL, None)
            async with at_once:
                pulls = RangePulls(self._running(), *asked, 0)
                try:
                    chunk = await pulls.next_chunk()
                except CometMQError:
                    return None
                finally:
                    await pulls.close()
            if chunk is None:
                return None
            columns = read_columns(chunk.records, 0, len(chunk.records), None)
            offsets = field(chunk.records, "queue_offset", columns.starts[:1])
            return int(columns.store_timestamps[0]) if list(offsets) == [offset] else None

        asked = (one(queue, offset) for queue, offset in places.items())
        return dict(zip(places, await asyncio.gather(*asked), strict=True))

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store `offsets` of `group` at the queues' masters, or at slaves while a master is away.

        Raises what `offsets` raises.
        """
        instance = self._running()
        name = self._namespace.wrap(group)
        firsts = FirstCommits()

        async def store(address: str, queue: MessageQueue) -> None:
            offset = offsets[self._namespace.unwrap_queue(queue)]
            update = instance.brokers.update_consumer_offset
            await firsts.commit(name, queue, lambda: update(address, name, queue, offset))

        await self._of_each(offsets, store)

    async def committed(
        self, group: str, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        """Return the stored offsets of `group`, with None for a queue that has none.

        A broker before 5.0 returns 0 instead of none while the queue's first message is in memory.
        """
        brokers = self._running().brokers
        name = self._namespace.wrap(group)

        async def stored(address: str, queue: MessageQueue) -> int | None:
            return await brokers.query_consumer_offset(address, name, queue, is_stored=True)

        return await self._of_each(queues, stored)

    async def read(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        tags: str = SUB_ALL,
        *,
        sql: str | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the broker's messages at the queue offsets from `start` to below `end`.

        `tags` select by their hashes, as brokers do it; `sql` selects by properties. Raises what
        RangePulls.next_chunk raises.
        """
        pulls = self.pulls(queue, start, end, tags, sql=sql)
        try:
            while (chunk := await pulls.next_chunk()) is not None:
                yield chunk
        finally:
            await pulls.close()

    def pulls(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        tags: str = SUB_ALL,
        *,
        sql: str | None = None,
    ) -> RangePulls:
        """Return the RangePulls behind `read`, which the caller asks for each chunk and closes."""
        asked = self._asked(queue, start, end, tags, sql)
        return RangePulls(self._running(), *asked, self._patience_s)

    def fast_pulls(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        tags: str = SUB_ALL,
        *,
        sql: str | None = None,
    ) -> RangePulls | WindowPulls:
        """Return the reader that takes the least processor time for a large range: WindowPulls,
        over a connection beside the client's own, or RangePulls where messages are selected.
        """
        asked = self._asked(queue, start, end, tags, sql)
        instance = self._running()
        if not selects_all(asked[-1]):
            return RangePulls(instance, *asked, self._patience_s)
        return WindowPulls(instance, self._windows, *asked, self._patience_s)

    def _asked(
        self, queue: MessageQueue, start: int, end: int, tags: str, sql: str | None
    ) -> tuple[str, MessageQueue, int, int, SubscriptionData]:
        check_range("start", start, 0, 2**63 - 1)
        check_range("end", end, 0, 2**63 - 1)
        selector = message_selector(queue.topic, tags, sql)
        wire = self._namespace.wrap_queue(queue)
        subscription = build_subscription(wire.topic, *selector)
        return self._group, wire, start, end, subscription

    async def _bounds(self, address: str, queue: MessageQueue) -> tuple[int, int]:
        brokers = self._running().brokers
        # The lowest offset first: if retention removes messages between the two questions, the
        # lowest offset must not end above the other one.
        low = await brokers.min_offset(address, queue)
        return low, await brokers.max_offset(address, queue)

    async def _of_each(
        self,
        queues: Iterable[MessageQueue],
        ask: Callable[[str, MessageQueue], Awaitable[T]],
    ) -> dict[MessageQueue, T]:
        """Return what `ask` returns for each queue, given a broker's address and the queue named as
        on the wire.
        """
        at_once = asyncio.Semaphore(_AT_ONCE)
        wanted = list(queues)
        asked = (self._of_one(queue, ask, at_once, self._patience_s) for queue in wanted)
        return dict(zip(wanted, await asyncio.gather(*asked), strict=True))

    async def _of_one(
        self,
        queue: MessageQueue,
        ask: Callable[[str, MessageQueue], Awaitable[T]],
        at_once: asyncio.Semaphore,
        patience_s: float,
    ) -> T:
        instance = self._running()
        deadline = instance.clock.monotonic() + patience_s
        wire = self._namespace.wrap_queue(queue)
        back_off = BackOff()
        failed_at: str | None = None
        while True:
            try:
                async with at_once:
                    address = await address_of(instance, wire, not_at=failed_at)
                    return await ask(address, wire)
            except CometMQError as error:
                if not error.retriable:
                    raise
                instance.report_failure(error, wire.topic, error.address)
                if instance.clock.monotonic() >= deadline:
                    raise
                failed_at = error.address
            await back_off.wait()

    async def _open(self, instance: ClientInstance) -> None:
        """Do nothing: a reader needs only the instance."""

    async def _shut(self, _instance: ClientInstance) -> None:
        """Close the rest: callers close the pulls that they began."""
        self._windows.close()


class BlockingRangeReader(BlockingClient, of=RangeReader):
    """Reads like RangeReader, for threads without a loop."""

    @takes(RangeReader)
    def __init__(self, asynchronous: RangeReader) -> None:
        self._async = asynchronous
        super().__init__(asynchronous)

    def topics(self) -> list[str]:
        return self._call(self._async.topics())

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._call(self._async.queues(topic))

    @property
    def namespace(self) -> Namespace:
        return self._async.namespace

    def writable_queues(self, topic: str) -> list[MessageQueue]:
        return self._call(self._async.writable_queues(topic))

    def check_selection(self, topic: str, tags: str = SUB_ALL, *, sql: str | None = None) -> None:
        self._call(self._async.check_selection(topic, tags, sql=sql))

    def offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        return self._call(self._async.offsets(queues))

    def offsets_or_failures(
        self, queues: Iterable[MessageQueue], known: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, tuple[int, int] | CometMQError]:
        return self._call(self._async.offsets_or_failures(queues, known))

    def offsets_for_timestamp(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        return self._call(self._async.offsets_for_timestamp(queues, timestamp_ms))

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        return self._call(self._async.store_times(places))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        self._call(self._async.commit(group, offsets))

    def committed(
        self, group: str, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        return self._call(self._async.committed(group, queues))

    def read(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        tags: str = SUB_ALL,
        *,
        sql: str | None = None,
    ) -> Generator[Chunk, None, None]:
        """Yield chunks. Reads the next chunk while the caller works on the one before."""
        pulls = self._apply(self._async.fast_pulls, queue, start, end, tags, sql=sql)
        coming = self._submit(pulls.next_chunk())
        try:
            while (chunk := coming.result()) is not None:
                coming = self._submit(pulls.next_chunk())
                yield chunk
        finally:
            coming.cancel()
            self._call(pulls.close())
