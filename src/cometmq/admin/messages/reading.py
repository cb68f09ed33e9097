"""Read stored messages as Java's tools do: by pulls of a group that every broker knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

from cometmq.admin.routed import readable_of, reader_of
from cometmq.admin.servers import Servers, failure
from cometmq.errors import ConfigError, IllegalArgumentError, ProtocolError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.route import TopicRouteData
from cometmq.model.subscription import SUB_ALL
from cometmq.model.sysflag import COMPRESSED, PULL_SUBSCRIPTION
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
)
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.messages.record import StoredRecord, read_records
from cometmq.remoting.client import Answer
from cometmq.remoting.credentials import refused
from cometmq.runtime.configuration.config import parse_properties
from cometmq.runtime.sockets.addresses import join_address

log = get_logger(__name__)

# The group of Java's tools, which every broker knows from its start.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_MESSAGES_AT_ONCE: Final = 32
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
BEYOND: Final = 2**63 - 1
_NOTHING_FOUND: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class MessageReader:
    """Reads the messages of queues without a trace in any group's offsets.

    Brokers check whether `group` may read.
    """

    def __init__(self, servers: Servers, group: str = TOOLS_GROUP) -> None:
        self._servers = servers
        self._group = group

    async def stored(
        self, topic: str, begin_ms: int, end_ms: int, tags: str = SUB_ALL
    ) -> AsyncIterator[MessageExt]:
        """Yield what a topic stored from `begin_ms` to `end_ms`, both included, queue by queue.

        `tags` selects by tag (`TagA || TagB`). If brokers of the topic were lost, raises an
        error that names them, after the messages of the other brokers.
        """
        route = await self._servers.route(topic)
        for queue in route.subscribe_queues(topic):
            address = reader_of(route, topic, queue.broker_name)
            async for message in self._of_queue(address, queue, 0, begin_ms, end_ms, tags):
                yield message
        if missing := self._servers.missing_of(route):
            read = dict.fromkeys(readable_of(route).values())
            raise failure(f"the messages of topic {topic}", missing, read)

    async def stored_in(
        self, queue: MessageQueue, begin_offset: int, begin_ms: int, end_ms: int, tags: str
    ) -> AsyncIterator[MessageExt]:
        """Yield what one queue stored like `stored`, from `begin_offset` on."""
        address = await self._address(queue)
        async for message in self._of_queue(address, queue, begin_offset, begin_ms, end_ms, tags):
            yield message

    async def at(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        """Return the message of a queue at an offset, or None if there is none."""
        address = await self._address(queue)
        answer = await self._ask(address, queue, offset, 1, SUB_ALL)
        if answer.code != ResponseCode.SUCCESS:
            return None
        for record in records_of(answer.body, str(queue)):
            if record.queue_offset == offset:
                return message_of(record, queue.broker_name)
        return None

    async def _address(self, queue: MessageQueue) -> str:
        """Return where a queue is read. Raises RouteNotFoundError if its topic has no such queue."""
        route = await self._servers.route(queue.topic)
        address = reader_of(route, queue.topic, queue.broker_name)
        check_queue(route, queue)
        return address

    async def some(
        self, address: str, queue: MessageQueue, offset: int, count: int
    ) -> list[MessageExt]:
        """Return up to `count` messages of a queue from `offset` on, as one pull brings them.

        Their bodies are as they are stored, compressed or not.
        """
        answer = await self._ask(address, queue, offset, count, SUB_ALL)
        if answer.code != ResponseCode.SUCCESS:
            return []
        return [r.to_message(queue.broker_name) for r in records_of(answer.body, str(queue))]

    async def _of_queue(
        self,
        address: str,
        queue: MessageQueue,
        begin_offset: int,
        begin_ms: int,
        end_ms: int,
        tags: str,
    ) -> AsyncIterator[MessageExt]:
        wanted = {tag.strip() for tag in tags.split("||")} - {""}
        if SUB_ALL in wanted:
            wanted.clear()
        # A broker of 4.x answers with any of several messages of one time; asked for a ms earlier, it
        # leaves none out.
        search = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=max(0, begin_ms - 1)
        )
        found = await self._servers.ask(
            address,
            requests.SEARCH_OFFSET_BY_TIMESTAMP,
            search,
            what=f"the offset of {queue} at {begin_ms}",
        )
        highest = await self._servers.ask(
            address,
            requests.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the max offset of {queue}",
        )
        offset, end = max(begin_offset, found.header.offset), highest.header.offset
        while offset < end:
            records, offset = await self.pull(address, queue, offset, tags)
            for record in records:
                if record.queue_offset >= end or record.store_timestamp > end_ms:
                    return
                if record.store_timestamp < begin_ms:
                    continue
                message = message_of(record, queue.broker_name)
                # A broker selects by the hash codes of tags.
                if not wanted or message.tags in wanted:
                    yield message

    async def pull(
        self,
        address: str,
        queue: MessageQueue,
        offset: int,
        tags: str,
        count: int = _MESSAGES_AT_ONCE,
    ) -> tuple[list[StoredRecord], int]:
        """Return the records from `offset` on, and the offset to continue at.

        That offset is always beyond `offset`, and beyond every queue if this queue has no more.
        """
        answer = await self._ask(address, queue, offset, count, tags)
        if answer.code == ResponseCode.SUCCESS:
            return records_of(answer.body, str(queue)), answer.header.next_begin_offset
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return [], BEYOND
        # Retention has deleted the records at `offset`, or no record is left before the next one.
        if answer.header.next_begin_offset <= offset:
            raise refused(answer.command, address, _what(queue, offset))
        return [], answer.header.next_begin_offset

    async def _ask(
        self, address: str, queue: MessageQueue, offset: int, count: int, tags: str
    ) -> Answer[PullMessageResponseHeader, bytes]:
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=tags,
            expression_type="TAG",
        )
        return await self._servers.ask(
            address,
            requests.PULL_MESSAGE,
            header,
            what=_what(queue, offset),
            also=_NOTHING_FOUND,
        )


def _what(queue: MessageQueue, offset: int) -> str:
    return f"the messages of {queue} from {offset} on"


def check_queue(route: TopicRouteData, queue: MessageQueue) -> None:
    """Raise RouteNotFoundError if the topic has no such queue at the broker."""
    count = max(
        (
            max(data.read_queue_nums, data.write_queue_nums)
            for data in route.queue_datas
            if data.broker_name == queue.broker_name
        ),
        default=0,
    )
    if not 0 <= queue.queue_id < count:
        has = f"its queues there are 0 to {count - 1}" if count else "it has none there"
        raise RouteNotFoundError(
            f"topic {queue.topic} has no queue {queue.queue_id} at broker {queue.broker_name}; {has}"
        )


def records_of(body: bytes, source: str) -> list[StoredRecord]:
    """Return the records of an answer. Log and leave out bytes that are not a record."""
    records = []
    for found in read_records(body):
        if isinstance(found, StoredRecord):
            records.append(found)
        else:
            log.error("bytes that are no record are left out", source=source, reason=found.reason)
    return records


def message_of(
    record: StoredRecord, broker_name: str, *, max_body_bytes: int = MAX_BODY_BYTES
) -> MessageExt:
    """Return the message of a record.

    A body that cannot be decompressed, or not within `max_body_bytes`, stays as it is stored and
    keeps its flag.
    """
    message = record.to_message(broker_name)
    decompress_body(message, max_body_bytes)
    return message


def decompress_body(message: MessageExt, max_body_bytes: int) -> bool:
    """Decompress a body in place. Return whether it is plain now: a damaged one, or one that would take
    more than `max_body_bytes`, stays as it is and keeps its flag.
    """
    if not message.sys_flag & COMPRESSED:
        return True
    if max_body_bytes <= 0:
        return False
    try:
        message.body = decompress(
            message.body, message.sys_flag, max_length=max_body_bytes, limit="max_body_bytes"
        )
    except ProtocolError:
        return False
    message.sys_flag &= ~COMPRESSED
    return True


def messages_of(
    records: Iterable[StoredRecord], broker_name: str, max_bodies_bytes: int
) -> list[MessageExt]:
    """Return the messages of records.

    Bodies are decompressed as long as all of them together take `max_bodies_bytes`; another one stays
    as it is stored and keeps its flag. A few kilobytes may inflate to 64 MiB each.
    """
    left = max_bodies_bytes
    messages = []
    for record in records:
        message = message_of(record, broker_name, max_body_bytes=left)
        if record.sys_flag & COMPRESSED and not message.sys_flag & COMPRESSED:
            left -= len(message.body)
        messages.append(message)
    return messages


def settings_of(body: bytes, address: str) -> dict[str, str]:
    """Return the settings in a server's answer. Raises ProtocolError for text that is none."""
    try:
        return parse_properties(bytes(body).decode(), f"the answer of {address}")
    except (UnicodeDecodeError, ConfigError) as error:
        raise ProtocolError(f"the settings of {address} cannot be read: {error}") from error


def address_of(offset_msg_id: str) -> str:
    """Return the address of the broker in an offset id. Raises IllegalArgumentError."""
    try:
        place = parse_offset_id(offset_msg_id)
    except ProtocolError as error:
        raise IllegalArgumentError(str(error)) from error
    return join_address(place.host, place.port)
