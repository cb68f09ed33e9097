"""Lists and revives messages that nobody consumes: dead letters and abandoned half messages.

Java: MQAdminExt.resumeCheckHalfMessage. For dead letters Java has only its console.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from cometmq.admin.servers import AdminClient, master_of
from cometmq.errors import IllegalArgumentError, ProtocolError
from cometmq.model.message import MessageExt
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC, check_group, dlq_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.sysflag import COMPRESSED, PULL_SUBSCRIPTION
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.compression import decompress
from cometmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    PullMessageRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
    SearchOffsetRequestHeader,
)
from cometmq.protocol.ids import parse_offset_id
from cometmq.protocol.record import StoredRecord, read_records
from cometmq.protocol.redrive import (
    NO_END_MS,
    LetterSelection,
    RedriveDeadLettersRequestHeader,
    RedriveReport,
)
from cometmq.remoting.credentials import refused

log = structlog.get_logger(__name__)

# The group of Java's tools, which every broker knows from its start.
_TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_MESSAGES_AT_ONCE: Final = 32
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
# A broker answers a redrive after a second, or later while it is busy with sends.
_REDRIVE_TIMEOUT_S: Final = 15.0
_NOTHING_FOUND: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


@dataclass(frozen=True, slots=True)
class Redriven:
    """Counts the dead letters that a redrive has sent at one broker.

    Earlier calls with the same redrive id are included. `skipped_count` letters were selected but
    not sent, because their topic no longer exists.
    """

    broker_name: str
    sent_count: int
    skipped_count: int


class MessagesAdmin(AdminClient):
    """Lists and redrives dead letters, lists and resumes half messages.

    Use it as an asynchronous context manager, on one loop. A call raises RouteNotFoundError when
    the topic does not exist (a group without dead letters has no dead-letter topic), RemotingError
    when a server does not answer, RemoteError when a server refuses.
    """

    async def dead_letters(
        self, group: str, *, begin_ms: int = 0, end_ms: int = NO_END_MS
    ) -> AsyncIterator[MessageExt]:
        """Yield the dead letters of `group` that were stored from `begin_ms` to `end_ms`.

        Both times are included, in ms since the epoch. Queues follow each other, and each begins
        with its oldest letter. Letters that are stored during the call are left out.
        """
        check_group(group)
        async for message in self._stored(dlq_topic(group), begin_ms, end_ms):
            yield message

    async def redrive(
        self,
        redrive_id: str,
        group: str,
        *,
        ids: Iterable[str] = (),
        keys: Iterable[str] = (),
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
        only_group: bool = False,
    ) -> list[Redriven]:
        """Send dead letters of `group` to their original topics again.

        Wait until the brokers have the messages on disk, and return one entry for each broker that
        holds dead letters of the group.

        A letter is selected if it fulfils all conditions that are given: `ids` (unique or offset
        ids), `keys`, and the time at which it became a dead letter (`begin_ms` to `end_ms`, in ms
        since the epoch, both included). Without a condition all letters are selected. With
        `only_group` they go to the retry topic of the group, where no other group sees them.

        The caller chooses `redrive_id`. Under one id no letter is sent twice, so after a failure
        repeat the call with the same arguments. The broker refuses the same id with other
        arguments (INVALID_PARAMETER). A Java broker refuses every redrive
        (REQUEST_CODE_NOT_SUPPORTED).
        """
        check_group(group)
        topic = dlq_topic(group)
        route = await self._route(topic)
        masters = {
            data.broker_name: master_of(route, topic, data.broker_name)
            for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        }
        header = RedriveDeadLettersRequestHeader(redrive_id, group, only_group)
        selection = LetterSelection(tuple(ids), tuple(keys), begin_ms, end_ms)
        reports = await asyncio.gather(
            *(self._redrive_at(address, header, selection) for address in masters.values())
        )
        return [
            Redriven(name, report.sent_count, report.skipped_count)
            for name, report in zip(masters, reports, strict=True)
            if report is not None
        ]

    async def given_up_halves(
        self, *, begin_ms: int = 0, end_ms: int = NO_END_MS
    ) -> AsyncIterator[MessageExt]:
        """Yield the half messages that the brokers gave up from `begin_ms` to `end_ms`.

        A broker gives a half message up when no producer decides on it. Both times are included,
        in ms since the epoch. Queues follow each other, and each begins with its oldest message.

        The properties of a message tell its producer group (PGROUP), its topic (REAL_TOPIC) and
        how often the broker asked its producers (TRANSACTION_CHECK_TIMES). A message that was
        resumed stays in the list.
        """
        async for message in self._stored(TRANS_CHECK_MAX_TIME_TOPIC, begin_ms, end_ms):
            yield message

    async def resume_half(self, offset_msg_id: str) -> None:
        """Have the broker ask the producers again about a half message.

        `offset_msg_id` is that of a message that the broker gave up (see `given_up_halves`), or of
        one that the broker still asks about; the count of its checks then starts again.

        A message that was given up begins a new transaction with each call: if it is resumed twice
        and both are committed, consumers get it twice. Raises IllegalArgumentError if the text is
        not an offset id, RemoteError if no such message is stored there or its transaction has
        ended. Java: resumeCheckHalfMessage.
        """
        try:
            place = parse_offset_id(offset_msg_id)
        except ProtocolError as error:
            raise IllegalArgumentError(str(error)) from error
        header = ResumeCheckHalfMessageRequestHeader(
            msg_id=offset_msg_id, topic=TRANS_CHECK_MAX_TIME_TOPIC
        )
        await self._remoting.ask(
            f"{place.host}:{place.port}",
            requests.RESUME_CHECK_HALF_MESSAGE,
            header,
            what=f"resuming the half message {offset_msg_id}",
        )

    # Inside

    async def _redrive_at(
        self, address: str, header: RedriveDeadLettersRequestHeader, selection: LetterSelection
    ) -> RedriveReport | None:
        """Repeat the redrive until the broker has finished it, and return the last report.

        Return None if the broker has no dead letters of the group.
        """
        while True:
            answer = await self._remoting.ask(
                address,
                requests.REDRIVE_DEAD_LETTERS,
                header,
                selection,
                what=f"redrive {header.redrive_id} of group {header.group}",
                timeout_s=_REDRIVE_TIMEOUT_S,
                also=(ResponseCode.QUERY_NOT_FOUND,),
            )
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            report = answer.body
            if report.finished:
                return report

    async def _stored(self, topic: str, begin_ms: int, end_ms: int) -> AsyncIterator[MessageExt]:
        route = await self._route(topic)
        for queue in route.subscribe_queues(topic):
            address = master_of(route, topic, queue.broker_name)
            async for message in self._of_queue(address, queue, begin_ms, end_ms):
                yield message

    async def _of_queue(
        self, address: str, queue: MessageQueue, begin_ms: int, end_ms: int
    ) -> AsyncIterator[MessageExt]:
        search = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=begin_ms
        )
        found = await self._remoting.ask(
            address,
            requests.SEARCH_OFFSET_BY_TIMESTAMP,
            search,
            what=f"the offset of {queue} at {begin_ms}",
        )
        highest = await self._remoting.ask(
            address,
            requests.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the max offset of {queue}",
        )
        offset, end = found.header.offset, highest.header.offset
        while offset < end:
            records, offset = await self._pull(address, queue, offset)
            for record in records:
                if record.queue_offset >= end or record.store_timestamp > end_ms:
                    return
                if record.store_timestamp >= begin_ms:
                    yield _message(record, queue.broker_name)

    async def _pull(
        self, address: str, queue: MessageQueue, offset: int
    ) -> tuple[list[StoredRecord], int]:
        """Return the records from `offset` on, and the offset to continue at.

        That offset is always beyond `offset`, and beyond every queue if this queue has no more.
        """
        header = PullMessageRequestHeader(
            consumer_group=_TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=_MESSAGES_AT_ONCE,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
        what = f"the messages of {queue} from {offset} on"
        answer = await self._remoting.ask(
            address, requests.PULL_MESSAGE, header, what=what, also=_NOTHING_FOUND
        )
        if answer.code == ResponseCode.SUCCESS:
            return _records(answer.body, queue), answer.header.next_begin_offset
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return [], 2**63 - 1
        # Retention has deleted the records at `offset`, or no record is left before the next one.
        if answer.header.next_begin_offset <= offset:
            raise refused(answer.command, address, what)
        return [], answer.header.next_begin_offset


def _records(body: bytes, queue: MessageQueue) -> list[StoredRecord]:
    """Return the records of an answer. Log and leave out bytes that are not a record."""
    records = []
    for found in read_records(body):
        if isinstance(found, StoredRecord):
            records.append(found)
        else:
            log.error(
                "bytes that are no record are left out", queue=str(queue), reason=found.reason
            )
    return records


def _message(record: StoredRecord, broker_name: str) -> MessageExt:
    """Return the message of a record.

    A body that cannot be decompressed stays as it is stored and keeps its flag.
    """
    message = record.to_message(broker_name)
    if message.sys_flag & COMPRESSED:
        try:
            message.body = decompress(message.body, message.sys_flag, max_length=_MAX_BODY_BYTES)
        except ProtocolError:
            return message
        message.sys_flag &= ~COMPRESSED
    return message
