"""Provide the blocking producer of transactions. It has a module of its own, so that no other producer imports it."""

from __future__ import annotations

from typing import Any

from cometmq.client.blocking.client import BlockingClient
from cometmq.client.blocking.producers import Producer
from cometmq.client.options import takes
from cometmq.client.producing.transaction_producer import (
    TransactionProducer as AsyncTransactionProducer,
)
from cometmq.model.durations import Duration
from cometmq.model.message import Message
from cometmq.model.results import TransactionSendResult


class TransactionProducer(Producer, of=AsyncTransactionProducer):
    """Sends messages like `cometmq.aio.TransactionProducer`, whose text follows in `help`, but
    blocks.

    Use `with` for `async with`, and no `await`. Any thread may call the methods. Listeners that are
    functions run in threads of the producer's own.
    """

    @takes(AsyncTransactionProducer)
    def __init__(self, asynchronous: AsyncTransactionProducer) -> None:
        self._async = self._transactional = asynchronous
        BlockingClient.__init__(self, asynchronous)

    def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: Duration | None = None
    ) -> TransactionSendResult:
        return self._call(
            self._transactional.send_in_transaction(message, arg, timeout_ms=timeout_ms)
        )
