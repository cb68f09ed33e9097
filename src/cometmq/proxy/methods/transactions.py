"""Serve transactions: EndTransaction, and the questions of brokers about unfinished ones.

Java's proxy remembers half messages for 30 s, and another proxy cannot end them. Here the transaction id that a
client gets and sends back contains the place of the half message, so any proxy can end it at any time
(Java: EndTransactionActivity, TransactionDataManager).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.client.instance import ClientInstance
from cometmq.client.pulling.received import decompress_body
from cometmq.logs.loggers import get_logger
from cometmq.model.sysflag import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.protocol import requests
from cometmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from cometmq.protocol.messages.record import StoredRecord
from cometmq.proxy.calls import Caller
from cometmq.proxy.clients.clients import Clients
from cometmq.proxy.configuration.config import MAX_REMEMBERED
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.messages import to_wire
from cometmq.proxy.wire.names import topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok
from cometmq.remoting.connection import Connection

log = get_logger(__name__)

_VERDICTS: Final = {wire.COMMIT: TRANSACTION_COMMIT, wire.ROLLBACK: TRANSACTION_ROLLBACK}
_LONGEST_ID: Final = 1024


class Half(NamedTuple):
    """Holds the place of a half message. Its text is the transaction id that clients see."""

    transaction_id: str
    broker_name: str
    queue_offset: int
    commit_log_offset: int

    def encode(self) -> str:
        return "@".join(map(str, (self.queue_offset, self.commit_log_offset, *self[1::-1])))

    @classmethod
    def decode(cls, text: str) -> Half:
        """Return the content of a transaction id. Raises RefusedError if `text` is not one."""
        parts = text.split("@", 3) if len(text) <= _LONGEST_ID else []
        numbers = [part for part in parts[:2] if part.isdecimal() and len(part) < 19]
        if len(parts) != 4 or len(numbers) != 2 or not all(parts):
            raise RefusedError(
                wire.INVALID_TRANSACTION_ID,
                f"{text[:80]!r} is no transaction id; use the one that the send returned",
            )
        return cls(parts[3], parts[2], int(parts[0]), int(parts[1]))


class Transactions:
    """Ends transactions, and passes brokers' questions on. `clients` is set later: each object needs the other."""

    clients: Clients

    def __init__(self, instance: ClientInstance, metadata: Metadata) -> None:
        self._instance = instance
        self._metadata = metadata
        # Each topic is a producer group at brokers, as in Java's proxy.
        self._topics: set[str] = set()

    def add_producer(self, topic: str) -> None:
        """Have brokers ask this proxy about unfinished transactions of `topic`."""
        if topic in self._topics:
            return
        if len(self._topics) >= MAX_REMEMBERED:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                f"{len(self._topics)} topics have transactions here, the limit MAX_REMEMBERED is "
                f"{MAX_REMEMBERED}; start another proxy",
                "MAX_REMEMBERED",
            )
        self._topics.add(topic)
        self._instance.add_producer(topic, self._on_check)

    async def end(
        self, _caller: Caller, request: wire.EndTransactionRequest
    ) -> wire.EndTransactionResponse:
        topic = topic_of(request.topic)
        half = Half.decode(request.transaction_id)
        address = await self._metadata.broker_named(half.broker_name, topic)
        header = EndTransactionRequestHeader(
            producer_group=topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            commit_or_rollback=_VERDICTS.get(request.resolution, 0),
            msg_id=request.message_id,
            from_transaction_check=request.source == wire.SOURCE_SERVER_CHECK,
            topic=topic,
            transaction_id=half.transaction_id,
            broker_name=half.broker_name,
        )
        command = requests.END_TRANSACTION.command(header)
        # One-way, as in Java: a broker sends no answer to a verdict that is not known yet.
        await self._instance.remoting.send_oneway(address, command)
        return wire.EndTransactionResponse(status=ok())

    # Inside

    def _on_check(
        self,
        connection: Connection,
        header: CheckTransactionStateRequestHeader,
        record: StoredRecord,
    ) -> None:
        """Ask a client that publishes to the topic. If there is none, the broker asks again later."""
        broker_name = header.broker_name or self._broker_at(connection.peer)
        message = record.to_message(broker_name or "")
        topic = message.topic  # the header names the topic of half messages
        stream = self.clients.publisher(topic)
        if stream is None or broker_name is None:
            log.info("no client can be asked about a transaction", topic=topic)
            return
        if message.sys_flag & COMPRESSED:
            decompress_body(message)
        half = Half(
            header.transaction_id or message.msg_id,
            broker_name,
            header.tran_state_table_offset,
            header.commit_log_offset,
        )
        command = wire.RecoverOrphanedTransactionCommand(
            message=to_wire(message, wire.Resource(name=topic), None),
            transaction_id=half.encode(),
        )
        command.message.system_properties.message_type = wire.TRANSACTION
        sent = wire.TelemetryCommand(status=ok(), recover_orphaned_transaction_command=command)
        if not stream.send(sent):
            self.clients.limit_hits.hit("MAX_WAITING_COMMANDS")
            log.warning(
                "a client does not read its commands: a question about a transaction is dropped",
                topic=topic,
            )

    def _broker_at(self, address: str) -> str | None:
        routes = self._instance.routes
        for topic in routes.topics_at(address):
            route = routes.route(topic)
            for data in route.broker_datas if route is not None else ():
                if address in data.broker_addrs.values():
                    return data.broker_name
        return None
