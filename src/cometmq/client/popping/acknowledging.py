"""Acknowledge popped messages: those of one turn of the loop go to their broker in one request."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from cometmq.client.consuming.listeners.send_back import Returns
from cometmq.client.instance import ClientInstance
from cometmq.client.popping.received import Receipt
from cometmq.errors import CometMQError, RemoteError
from cometmq.model.message import MessageExt
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.protocol.pop.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
)

# Messages of one request. A broker of ours takes more; an answer to a pop has 32 at most.
MOST_AT_ONCE: Final = 256

_Waiting = tuple[Receipt, asyncio.Future[None]]


class Acknowledgements:
    """Reports to brokers how the members of `group` at one instance settle popped messages. For the loop's thread only.

    `dead_letter` needs `returns`.
    """

    def __init__(
        self, instance: ClientInstance, group: str, returns: Returns | None = None
    ) -> None:
        self._instance = instance
        self._group = group
        self._returns = returns
        self._waiting: list[_Waiting] = []
        # Brokers, by address, that do not know batches (Java's before 5.1).
        self._without_batches: set[str] = set()

    async def ack(self, receipt: Receipt) -> None:
        """Say that a message is done. Raises RemotingError, RemoteError, RouteNotFoundError."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._begin)
        self._waiting.append((receipt, done))
        await done

    async def hide(
        self, receipt: Receipt, invisible_ms: int, *, keeps_handle: bool = False
    ) -> bool:
        """Hide a message for a time from now on, and note its new handle. Return whether it was in flight. If it was
        not, brokers refuse the call, except for a message that was popped in order.

        With `keeps_handle` a CometMQ broker accepts the old handle, too.
        Raises RemotingError, RemoteError, RouteNotFoundError.
        """
        handle = receipt.handle
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._group,
            topic=receipt.real_topic(self._group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=receipt.offset,
            invisible_time=invisible_ms,
            keep_handle=keeps_handle or None,
        )
        try:
            answer = await self._instance.brokers.change_invisible_time(
                self._address(receipt), header
            )
        except CometMQError as error:
            self._instance.report_failure(error, receipt.topic, error.address)
            raise
        if not answer.pop_time:
            return False
        receipt.handle = handle._replace(
            pop_time=answer.pop_time,
            invisible_time=answer.invisible_time,
            revive_qid=answer.revive_qid,
        )
        return True

    async def dead_letter(
        self, message: MessageExt, receipt: Receipt, reason: str | BaseException
    ) -> None:
        """Make a message a dead letter of the group, with `reason`, then acknowledge it.

        Raises CometMQError. If only the acknowledgement failed, the message comes again although it is a dead letter.
        """
        assert self._returns is not None, "the caller gave it to this object"
        await self._returns.send_back(message, -1, reason)
        await self.ack(receipt)

    # Inside

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        by_broker: defaultdict[str, list[_Waiting]] = defaultdict(list)
        for each in waiting:
            by_broker[each[0].broker_name].append(each)
        for broker_name, of_broker in by_broker.items():
            for begin in range(0, len(of_broker), MOST_AT_ONCE):
                part = of_broker[begin : begin + MOST_AT_ONCE]
                self._instance.tasks.spawn(self._send(part), f"acknowledge at {broker_name}")

    async def _send(self, waiting: list[_Waiting]) -> None:
        try:
            address = self._address(waiting[0][0])
            if len(waiting) == 1 or address in self._without_batches:
                await self._send_each(address, waiting)
                return
            try:
                await self._instance.brokers.batch_ack(address, self._batch(waiting))
            except RemoteError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._without_batches.add(address)
                await self._send_each(address, waiting)
                return
        except CometMQError as error:
            self._fail(waiting, error)
        else:
            for _, done in waiting:
                if not done.done():
                    done.set_result(None)

    async def _send_each(self, address: str, waiting: list[_Waiting]) -> None:
        for each in waiting:
            receipt, done = each
            handle = receipt.handle
            header = AckMessageRequestHeader(
                consumer_group=self._group,
                topic=receipt.real_topic(self._group),
                queue_id=handle.queue_id,
                extra_info=handle.encode(),
                offset=receipt.offset,
            )
            try:
                await self._instance.brokers.ack(address, header)
            except CometMQError as error:
                self._fail([each], error)
            else:
                if not done.done():
                    done.set_result(None)

    def _fail(self, waiting: list[_Waiting], error: CometMQError) -> None:
        for receipt, done in waiting:
            self._instance.report_failure(error, receipt.topic, error.address)
            if not done.done():
                done.set_exception(error)

    def _batch(self, waiting: list[_Waiting]) -> BatchAckMessageRequestBody:
        """Return the body for messages of one broker: an entry for all that one pop took of one queue."""
        entries: defaultdict[tuple[object, ...], list[Receipt]] = defaultdict(list)
        for receipt, _ in waiting:
            handle = receipt.handle
            of_pop = handle._replace(offset=-1, commit_log_offset=-1)
            entries[receipt.topic, of_pop].append(receipt)
        acks = [self._entry(receipts) for receipts in entries.values()]
        return BatchAckMessageRequestBody(waiting[0][0].broker_name, acks)

    def _entry(self, receipts: list[Receipt]) -> BatchAck:
        handle = receipts[0].handle
        start = min(receipt.offset for receipt in receipts)
        return BatchAck(
            consumer_group=self._group,
            topic=receipts[0].topic,
            retry=handle.mark,
            start_offset=start,
            queue_id=handle.queue_id,
            revive_queue_id=handle.revive_qid,
            pop_time=handle.pop_time,
            invisible_time=handle.invisible_time,
            bits=encode_bits(start, (receipt.offset for receipt in receipts)),
        )

    def _address(self, receipt: Receipt) -> str:
        return self._instance.need_master(receipt.broker_name, receipt.topic)
