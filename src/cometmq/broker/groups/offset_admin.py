"""Show, compare and clone the offsets of whole groups: codes 43, 308 and 314.

Java: AdminBrokerProcessor. Its code 308 deletes the offsets of the very groups that the request asks to
leave out, and its code 314 without a topic clones nothing; here they do what they say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final

from cometmq.broker.groups.offset_handlers import too_many
from cometmq.broker.groups.offsets import check_clients_may_commit
from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.logs.loggers import get_logger
from cometmq.model.names import is_retry_topic
from cometmq.model.topic import DataVersion
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import CloneGroupOffsetRequestHeader, QueryCorrectionOffsetHeader
from cometmq.protocol.request_type import ResourceKind
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.slices import run_slices

log = get_logger(__name__)

_GROUP_SEPARATOR: Final = ","
# Java's Long.MAX_VALUE.
_NO_CORRECTION: Final = 2**63 - 1
# So many queues are looked at in a step: a topic may have 262,144.
_QUEUES_AT_ONCE: Final = 256


class OffsetAdmin:
    """Serves requests about all offsets of a group, a topic or the broker. For the loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._offsets = parts.offsets
        self._clients = parts.clients
        self._long_answers = parts.long_answers
        self._handlers = parts.handlers

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.GET_ALL_CONSUMER_OFFSET, self.all_offsets)
        handlers.register(requests.QUERY_CORRECTION_OFFSET, self.correction)
        handlers.register(requests.CLONE_GROUP_OFFSET, self.clone)

    async def all_offsets(self, connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return every stored offset, in the form of the file consumerOffset.json."""
        table = self._offsets.table
        async with self._long_answers.turn(connection):
            remedy = "ask for the offsets group by group, code 208"
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            for key in list(table.offset_table):
                queues = table.offset_table.get(key)
                if queues is not None:  # removed meanwhile
                    await answer.add_offsets(key, queues)
            # Java 5.3's slaves keep no offsets without one: they fail over a null.
            version = encode_body(table.data_version or DataVersion())
            resets = encode_body(
                {key: dict(queues) for key, queues in self._offsets.resets.items()}
            )
            end = b',"resetOffsetTable":%b}' % resets if self._offsets.resets else b"}"
            body = await answer.body(b'{"dataVersion":%b,"offsetTable":{' % version, b"}" + end)
        return response(ResponseCode.SUCCESS, body=body)

    async def correction(
        self, connection: Connection, call: Request[QueryCorrectionOffsetHeader]
    ) -> RemotingCommand:
        """Return the lowest offset of any group in each queue, without the groups to be left out.

        Where the group to compare with has a lower offset, the queue gets the largest number.
        With access control, only groups that the sender may read count; Java counts all groups.
        """
        header = call.header
        left_out = set((header.filter_groups or "").split(_GROUP_SEPARATOR))
        lowest: dict[int, int] = {}
        async with self._long_answers.turn(connection):
            may_see = functools.partial(
                self._handlers.permits,
                self._handlers.sender_of(requests.QUERY_CORRECTION_OFFSET, connection, call),
                connection,
                requests.QUERY_CORRECTION_OFFSET,
                ResourceKind.GROUP,
            )
            await run_slices(self._lower(header.topic, left_out, may_see, lowest))
            compared = self._offsets.queues(header.compare_group, header.topic)
            await run_slices(_compare(lowest, compared))
            remedy = "there are too many queues for one answer"
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            await answer.add_offsets("correctionOffsets", lowest)
            body = await answer.body(b"{", b"}")
        return response(ResponseCode.SUCCESS, body=body)

    def _lower(
        self,
        topic: str,
        left_out: set[str],
        may_see: Callable[[str], bool],
        lowest: dict[int, int],
    ) -> Iterator[None]:
        """Collect the lowest offsets by queue, in steps; those of deleted messages do not count."""
        for group in sorted(self._offsets.groups_of(topic) - left_out):
            if not may_see(group):
                yield
                continue
            offsets = self._offsets.queues(group, topic)
            for number, (queue_id, offset) in enumerate(offsets.items()):
                if number % _QUEUES_AT_ONCE == 0:
                    yield
                if offset >= self._store.min_offset(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))

    async def clone(
        self, connection: Connection, call: Request[CloneGroupOffsetRequestHeader]
    ) -> RemotingCommand:
        """Have a group go on where another one is: in one topic, or in all that it consumes."""
        header = call.header
        check_clients_may_commit(header.dest_group)
        # In turn like a long answer, because a client may ask for a thousand clones at once.
        async with self._long_answers.turn(connection):
            topics = self._topics_to_clone(header)
            for topic in topics:
                # The request may name none, and the one that it names may have white space around it.
                self._handlers.check_resource(
                    requests.CLONE_GROUP_OFFSET, connection, call, ResourceKind.TOPIC, topic
                )
            await run_slices(self._clone(header, topics))
        log.info(
            "offsets cloned on request",
            source=header.src_group,
            group=header.dest_group,
            topics=len(topics),
            peer=connection.peer,
        )
        return response(ResponseCode.SUCCESS)

    def _topics_to_clone(self, header: CloneGroupOffsetRequestHeader) -> list[str]:
        if self._groups.find(header.dest_group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._groups.unknown(header.dest_group)
            )
        topic = (header.topic or "").strip()
        if not topic:
            # The retry topic is the group's own: no other group reads it.
            return [
                t
                for t in sorted(self._offsets.topics_of(header.src_group))
                if not is_retry_topic(t)
            ]
        if self._topics.get(topic) is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        return [topic]

    def _clone(self, header: CloneGroupOffsetRequestHeader, topics: list[str]) -> Iterator[None]:
        online = None if header.offline else self._clients.consumer_group(header.src_group)
        subscribed = online.subscriptions if online is not None else None
        for done, topic in enumerate(topics):
            if self._groups.get(header.dest_group) is None:  # since the last slice
                raise Refused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"subscription group [{header.dest_group}] was deleted when the offsets of {done} "
                    f"of {len(topics)} topics were cloned",
                )
            # A group that is online may have left a topic, whose offsets are old then.
            if not (subscribed and topic not in subscribed) and not self._offsets.clone(
                header.src_group, header.dest_group, topic
            ):
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{too_many(self._offsets)}; {done} of {len(topics)} topics were cloned before",
                    limit="maxConsumerOffsets",
                )
            yield


def _compare(lowest: dict[int, int], compared: dict[int, int]) -> Iterator[None]:
    """Correct nothing where the group to compare with is lower, in steps."""
    for number, (queue_id, offset) in enumerate(compared.items()):
        if number % _QUEUES_AT_ONCE == 0:
            yield
        if lowest.get(queue_id, offset) > offset:
            lowest[queue_id] = _NO_CORRECTION
