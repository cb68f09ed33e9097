"""A broker whose answers to pulls come in any way that the protocol allows."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from cometmq.bulk.range_pulls import Chunk
from cometmq.client.cluster.broker_api import PullAnswer
from cometmq.errors import ConnectError, ConnectionLostError, RemoteError
from cometmq.model.queue import MessageQueue
from cometmq.model.results import PullStatus
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.header import header_from_ext
from cometmq.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from cometmq.runtime.clock import SYSTEM_CLOCK

QUEUE = MessageQueue("orders", "broker-a", 0)
RECORD_BYTES = 8
CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_MATCHED_MSG: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_ILLEGAL: ResponseCode.PULL_OFFSET_MOVED,
}


class FakeBroker:
    """A queue from `low` to `high` without messages at `holes`, as an instance, its routes and its
    broker calls in one. Answers come in any order, hold any number of messages, and may fail.
    """

    def __init__(self, low: int, high: int, holes: set[int], rng: random.Random) -> None:
        self._low = low
        self._high = high
        self._holes = holes
        self._rng = rng
        self.fails = 0.0
        self.most_at_once = 0
        self._at_once = 0
        self.routes = self.brokers = self
        self.addresses = ["127.0.0.1:10911"]
        self.has_master = True
        # Messages behind this offset are not at the slaves, which are all but the first address.
        self.slaves_end = high
        self.down: set[str] = set()
        self.clock = SYSTEM_CLOCK

    def master_address(self, _broker: str) -> str | None:
        return self.addresses[0] if self.has_master else None

    def read_addresses(self, _broker: str) -> list[str]:
        return self.addresses

    def report_failure(self, *_: Any) -> None:
        """Keep the routes as they are."""

    async def pull(self, address: str, header: PullMessageRequestHeader, _: float) -> PullAnswer:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            for _turn in range(self._rng.randrange(4)):
                await asyncio.sleep(0)
            if address in self.down:
                raise ConnectError("down", address=address)
            if address != self.addresses[0] and header.queue_offset >= self.slaves_end:
                return self._said(PullStatus.NO_MATCHED_MSG, header.queue_offset)
            if self._rng.random() < self.fails:
                if self._rng.random() < 0.5:
                    raise ConnectionLostError("gone", address=address)
                raise RemoteError("busy", code=ResponseCode.SYSTEM_BUSY, address=address)
            return self.answer(header.queue_offset, header.max_msg_nums)
        finally:
            self._at_once -= 1

    def begin_pull(
        self, address: str, ext: dict[str, str], timeout_s: float
    ) -> asyncio.Future[RemotingCommand] | None:
        """Some pulls cannot be sent at once."""
        if self._rng.random() < 0.3:
            return None
        header = header_from_ext(ext, PullMessageRequestHeader)
        return asyncio.ensure_future(self._as_command(address, header, timeout_s))

    async def _as_command(
        self, address: str, header: PullMessageRequestHeader, timeout_s: float
    ) -> RemotingCommand:
        try:
            answer = await self.pull(address, header, timeout_s)
        except RemoteError as error:
            return response(error.code or 0, "busy")
        return response(CODES[answer.status], header=answer.header, body=answer.records)

    def answer(self, offset: int, wanted: int) -> PullAnswer:
        if offset < self._low:
            return self._said(PullStatus.OFFSET_ILLEGAL, self._low)
        if offset >= self._high:
            return self._said(PullStatus.OFFSET_ILLEGAL, self._high)
        found: list[int] = []
        count = self._rng.randint(1, min(wanted, 32))
        while offset < self._high and len(found) < count:
            if offset not in self._holes:
                found.append(offset)
            offset += 1
        if not found:
            return self._said(PullStatus.NO_MATCHED_MSG, offset)
        records = b"".join(at.to_bytes(RECORD_BYTES, "big") for at in found)
        return self._said(PullStatus.FOUND, offset, records)

    def _said(self, status: PullStatus, next_offset: int, records: bytes = b"") -> PullAnswer:
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=next_offset,
            min_offset=self._low,
            max_offset=self._high,
        )
        return PullAnswer(status, header, records)


def offsets_in(chunks: list[Chunk]) -> list[int]:
    records = b"".join(chunk.records for chunk in chunks)
    return [
        int.from_bytes(records[at : at + RECORD_BYTES], "big")
        for at in range(0, len(records), RECORD_BYTES)
    ]
