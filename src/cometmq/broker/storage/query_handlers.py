"""Find messages by key and by offset: codes 12 and 33 (Java: QueryMessageProcessor)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cometmq.broker.found_messages import check_found, may_see
from cometmq.broker.long_answer import LongAnswers
from cometmq.broker.refusal import Refused
from cometmq.broker.storage.indexing import Indexing
from cometmq.model import names
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
# Java 5.5: MessageConst.INDEX_TAG_TYPE.
_BY_TAG: Final = "T"
# Room that a frame keeps for all but the records.
_HEADER_ROOM: Final = 64 * 1024
# How many messages are checked in one piece when some of them are hidden.
_LOOKS_AT_ONCE: Final = 32


class QueryHandlers:
    """Serves the queries of one broker; an answer has `max_frame_length` bytes at most.

    One query by key is served at a time, and connections take turns: the answers to a thousand of
    them would otherwise be put together in one turn of the loop.
    For the loop's thread only.
    """

    def __init__(self, store: MessageStore, indexing: Indexing, max_frame_length: int) -> None:
        self._store = store
        # The requests that `register` gives; none check anything before.
        self._handlers = Handlers()
        self._indexing = indexing
        self._max_body_length = max_frame_length - _HEADER_ROOM
        self._turns = LongAnswers()

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.QUERY_MESSAGE, self.query)
        handlers.register(requests.VIEW_MESSAGE_BY_ID, self.view)

    async def query(
        self, connection: Connection, request: Request[QueryMessageRequestHeader]
    ) -> RemotingCommand:
        """Serve `_query` when it is the connection's turn. Raises Refused if too many wait."""
        async with self._turns.turn(connection):
            return await self._query(connection, request)

    async def _query(
        self, connection: Connection, request: Request[QueryMessageRequestHeader]
    ) -> RemotingCommand:
        """Return records of messages with a key, oldest first; the remark says if a limit ended the
        search.

        Java also returns and counts messages of other keys and topics with the same hash.
        """
        header = request.header
        if header.index_type == _BY_TAG:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"indexType={_BY_TAG} asks for messages by their tag, but this broker indexes only keys and "
                "unique ids; to read the messages of a tag, use printMsg -t TOPIC -s TAG",
            )
        config = self._store.config
        limit = header.max_num
        if ext_of(request).get(_UNIQUE_KEY_QUERY) == "true":
            limit = config.default_query_max_num
        limit = min(limit, config.max_msgs_num_batch)
        # The waiting messages in an internal topic belong to many topics, and the sender may see
        # only some: hidden ones do not count.
        hides = self._handlers.checks_resources and header.topic in names.WAITING_TOPICS
        answer = await self._indexing.query(
            header.topic,
            header.key,
            self._store.index.max_records_looked_at if hides else limit,
            header.begin_timestamp,
            header.end_timestamp,
        )
        offsets = answer.offsets
        if hides:
            offsets = await self._visible(offsets, limit, connection, request)
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
        return response(ResponseCode.SUCCESS, answer.ended_by or None, header=found, body=body)

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

    async def _visible(
        self, offsets: list[int], limit: int, connection: Connection, request: Request[Any]
    ) -> list[int]:
        """Return the newest of these messages that the sender may see, at most `limit`."""
        visible: list[int] = []
        for number, offset in enumerate(reversed(offsets), 1):
            if len(visible) >= limit:
                break
            record = self._store.message_at(offset)
            if record is not None and may_see(
                self._handlers, requests.QUERY_MESSAGE, connection, request, record
            ):
                visible.append(offset)
            if number % _LOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return visible[::-1]

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
