"""Send in bulk, for tools that encode messages themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from cometmq.bulk.sending import BulkSending, Parcel
from cometmq.client.blocking.client import BlockingClient
from cometmq.client.instance import ClientInstance
from cometmq.client.lifecycle import AsyncClient, ClientOptions
from cometmq.client.limits import check_range
from cometmq.client.options import takes
from cometmq.client.producing.encoding import MessageEncoder, Outgoing
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import CometMQError, RemotingError, RouteNotFoundError
from cometmq.model import properties as p
from cometmq.model.queue import MessageQueue

IN_FLIGHT: Final = 32
PATIENCE_MS: Final = 60_000
# A request of many messages may wait for a disk.
_SEND_TIMEOUT_S: Final = 15.0
# How many parcels go to the loop's thread together.
_AT_ONCE: Final = 16


@dataclass(repr=False, kw_only=True)
class BulkProducerOptions(ClientOptions):
    """Holds the options of a bulk producer; BulkProducer explains them."""

    in_flight: int = IN_FLIGHT
    patience_ms: int = PATIENCE_MS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("in_flight", self.in_flight, 1, 10_000)
        check_range("patience_ms", self.patience_ms, 0, 24 * 3600 * 1000)


class BulkProducer(AsyncClient):
    """Sends parcels (see `cometmq.bulk.sending`) as a member of the producer group `group`.

    At most `in_flight` parcels of one `sending` are under way. A parcel that fails is sent again
    for `patience_ms`. Topics are not created on demand. Hooks do not see parcels.
    """

    @takes(BulkProducerOptions)
    def __init__(self, options: BulkProducerOptions) -> None:
        super().__init__(options)
        self._in_flight = options.in_flight
        self._patience_s = options.patience_ms / 1000
        self._sender: Sender | None = None
        self._encoder: MessageEncoder | None = None

    async def write_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic among which keys choose, in their order.

        Raises RouteNotFoundError when no name server knows the topic, or when none of its queues
        may be written to; RemotingError when no name server answers.
        """
        instance = self._running()
        wire = self._namespace.wrap(topic)
        await instance.routes.refresh(wire)
        if instance.routes.publish_route(wire) is None:
            raise RouteNotFoundError(
                f"topic {topic} has no queue that may be written to: every broker lacks its master "
                "or the topic lacks write permission"
            )
        return [self._namespace.unwrap_queue(q) for q in instance.routes.keyed_queues(wire)]

    async def join(self) -> None:
        """Make this producer known to the brokers of the topics that it has asked for.

        Brokers that do not answer are reached later, in the background. Raises AccessDeniedError
        when a broker does not let the producer in.
        """
        await self._running().heartbeats.join()

    async def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return, for each queue, its lowest offset and the offset that its next message will get.

        Asks the queue's master, which has all acknowledged messages. Raises RouteNotFoundError,
        RemotingError, RemoteError.
        """
        instance = self._running()
        brokers = instance.brokers
        found = {}
        for queue in queues:
            wire = self._namespace.wrap_queue(queue)
            address = await self._master(wire)
            try:
                low = await brokers.min_offset(address, wire)
                found[queue] = low, await brokers.max_offset(address, wire)
            except RemotingError as error:
                instance.report_failure(error, wire.topic, address)
                raise
        return found

    def common_properties(self) -> dict[str, str]:
        """Return the properties that each message needs beside its own and its unique id."""
        common = {p.WAIT_STORE_MSG_OK: "true"}
        return common | {p.INSTANCE_ID: self._namespace.name} if self._namespace else common

    def new_ids(self, count: int) -> list[str]:
        """Return unique ids for `count` messages."""
        following = self._running().unique_ids.next
        return [following() for _ in range(count)]

    def sending(self, *, once: bool = False) -> BulkSending:
        """Return a BulkSending to put parcels into. With `once` it never repeats a parcel that may
        have been stored, nor sends it to another queue.
        """
        return BulkSending(
            self._once if once else self._somewhere,
            in_flight=self._in_flight,
            patience_s=self._patience_s,
            once=once,
        )

    # Inside

    async def _master(self, wire: MessageQueue) -> str:
        """Return the address of the queue's master. Fetches the route if the address is unknown."""
        instance = self._running()
        if instance.routes.master_address(wire.broker_name) is None:
            await instance.routes.refresh(wire.topic)
        return instance.need_master(wire.broker_name, wire.topic)

    async def _somewhere(self, parcel: Parcel, attempt: int) -> None:
        queue = parcel.queue
        if attempt and not parcel.ordered:
            queue = await self._other_than(queue)
        await self._send_parcel(parcel, queue)

    async def _once(self, parcel: Parcel, _attempt: int) -> None:
        await self._send_parcel(parcel, parcel.queue)

    async def _other_than(self, queue: MessageQueue) -> MessageQueue:
        route = self._running().routes.publish_route(self._namespace.wrap(queue.topic))
        if route is None:
            return queue
        return self._namespace.unwrap_queue(route.choose(queue.broker_name))

    async def _send_parcel(self, parcel: Parcel, queue: MessageQueue) -> None:
        self._running()
        assert self._sender is not None, "set by start"
        deadline = asyncio.get_running_loop().time() + _SEND_TIMEOUT_S
        outgoing = self._encoded(parcel, queue.topic)
        await self._sender.send_to(outgoing, self._namespace.wrap_queue(queue), deadline)

    def _encoded(self, parcel: Parcel, topic: str) -> Outgoing:
        assert self._encoder is not None, "set by start"
        if parcel.properties is None:
            return self._encoder.encode_packed(topic, parcel.body)
        return self._encoder.encode_ready(
            topic, parcel.body, parcel.properties, parcel.flag, parcel.sys_flag
        )

    async def _open(self, instance: ClientInstance) -> None:
        instance.add_producer(self._group)
        self._sender = Sender(instance, SendLimits(), group=self.group, namespace=self._namespace)
        self._encoder = MessageEncoder(
            self._group, instance.unique_ids, namespace=self._namespace, clock=instance.clock
        )

    async def _shut(self, instance: ClientInstance) -> None:
        await instance.remove_producer(self._group)


class BlockingBulkProducer(BlockingClient, of=BulkProducer):
    """Sends parcels like BulkProducer, for threads without a loop."""

    @takes(BulkProducer)
    def __init__(self, asynchronous: BulkProducer) -> None:
        self._async = asynchronous
        super().__init__(asynchronous)

    def write_queues(self, topic: str) -> list[MessageQueue]:
        return self._call(self._async.write_queues(topic))

    def join(self) -> None:
        self._call(self._async.join())

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        return self._call(self._async.bounds(queues))

    def common_properties(self) -> dict[str, str]:
        return self._async.common_properties()

    def new_ids(self, count: int) -> list[str]:
        return self._apply(self._async.new_ids, count)

    def sending(self, *, once: bool = False) -> BlockingBulkSending:
        return BlockingBulkSending(self, self._async.sending(once=once))

    def put(self, sending: BulkSending, parcels: Iterable[Parcel]) -> None:
        """See BulkSending.put. The iterable makes its parcels on the caller's thread."""
        coming = iter(parcels)
        while some := list(islice(coming, _AT_ONCE)):
            self._call(sending.put(some))

    def flush(self, sending: BulkSending) -> None:
        """See BulkSending.flush."""
        self._call(sending.flush())

    def give_up(self, sending: BulkSending) -> None:
        """See BulkSending.close."""
        self._call(sending.close())


class BlockingBulkSending:
    """Sends parcels like BulkSending, on the producer's thread. A `with` statement closes it."""

    def __init__(self, producer: BlockingBulkProducer, sending: BulkSending) -> None:
        self._producer = producer
        self._async = sending

    @property
    def doubt(self) -> CometMQError | None:
        return self._async.doubt

    def put(self, parcels: Iterable[Parcel]) -> None:
        self._producer.put(self._async, parcels)

    def flush(self) -> None:
        self._producer.flush(self._async)

    def __enter__(self) -> BlockingBulkSending:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._producer.give_up(self._async)
