"""Find messages by key and by offset: codes 12 and 33 (Java: QueryMessageProcessor)."""

from __future__ import annotations

from typing import Any, Final

from cometmq.broker.found_messages import check_found, may_see
from cometmq.broker.refusal import Refused
from cometmq.broker.storage.indexing import Indexing
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, response
from cometmq.protocol.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.store.store import MessageStore

# A client that looks for a unique id says so in a field that belongs to no header class.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
# Room that a frame keeps for all but the records.
_HEADER_ROOM: Final = 64 * 1024


class QueryHandlers:
    """Serves the queries of one broker; an answer has `max_frame_length` bytes at most.

    For the loop's thread only.
    """

    def __init__(self, store: MessageStore, indexing: Indexing, max_frame_length: int) -> None:
        self._store = store
        # Those that `register` gives; none check anything before.
        self._handlers = Handlers()
        self._indexing = indexing
        self._max_body_length = max_frame_length - _HEADER_ROOM

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.QUERY_MESSAGE, self.query)
        handlers.register(requests.VIEW_MESSAGE_BY_ID, self.view)

    async def query(
        self, connection: Connection, request: Request[QueryMessageRequestHeader]
    ) -> RemotingCommand:
        """Return records of messages with a key, or one with the same hash, oldest first."""
        header = request.header
        limit = header.max_num
        if ext_of(request).get(_UNIQUE_KEY_QUERY) == "true":
            limit = self._store.config.default_query_max_num
        answer = await self._indexing.query(
            header.topic, header.key, limit, header.begin_timestamp, header.end_timestamp
        )
        # If Java can read none of the messages that the index found, it asks the index up to three
        # times, always the same. Messages that cannot be read have left the log, and any others are
        # older still.
        offsets = answer.offsets
        if self._handlers.checks_resources:
            # The index finds keys by their hashes: messages of other topics may be among them.
            offsets = [at for at in offsets if self._is_visible(at, connection, request)]
        body = self._records(offsets)
        found = QueryMessageResponseHeader(
            index_last_update_timestamp=answer.last_timestamp,
            index_last_update_phyoffset=answer.last_offset,
        )
        if not body:
            return response(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                header=found,
            )
        return response(ResponseCode.SUCCESS, header=found, body=body)

    def _records(self, offsets: list[int]) -> bytes:
        """Return the records in the order of the log; if they are too long, only the newest."""
        records: list[memoryview] = []
        total = 0
        for offset in reversed(offsets):
            record = self._store.message_at(offset)
            if record is not None:
                total += len(record)
                if records and total > self._max_body_length:
                    break
                records.append(record)
        return b"".join(reversed(records))

    def _is_visible(self, offset: int, connection: Connection, request: Request[Any]) -> bool:
        record = self._store.message_at(offset)
        return record is None or may_see(
            self._handlers, requests.QUERY_MESSAGE, connection, request, record
        )

    def view(
        self, connection: Connection, request: Request[ViewMessageRequestHeader]
    ) -> RemotingCommand:
        """Return the record of the message at a commit-log offset."""
        header = request.header
        record = self._store.message_at(header.offset)
        if record is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {header.offset}: no message begins there",
            )
        check_found(self._handlers, requests.VIEW_MESSAGE_BY_ID, connection, request, record)
        return response(ResponseCode.SUCCESS, body=record)
