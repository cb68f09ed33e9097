"""Messages that nobody consumes: dead letters and half messages that were given up.

Java: MQAdminExt.resumeCheckHalfMessage; for dead letters its console only.
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
# A broker answers after a second, but then it may be busy sending.
_REDRIVE_TIMEOUT_S: Final = 15.0
_NOTHING_FOUND: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive has sent at one broker, calls before this one with the same id included.

    `skipped_count` letters were selected but come from a topic that no longer exists.
    """

    broker_name: str
    sent_count: int
    skipped_count: int


class MessagesAdmin(AdminClient):
    """For the loop that enters it. An asynchronous context manager.

    Calls raise RouteNotFoundError when there is no such topic (a group without dead letters has no
    dead-letter topic), RemotingError when a server does not answer, RemoteError when it refuses.
    """

    async def dead_letters(
        self, group: str, *, begin_ms: int = 0, end_ms: int = NO_END_MS
    ) -> AsyncIterator[MessageExt]:
        """The dead letters of `group` that were stored in this time (ms, both included), one queue
        after the other, oldest first; those that come meanwhile are left out.
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
        """Send dead letters of `group` again, to the topics they came from, and wait until the
        brokers' disks have them. What each broker that has dead letters did.

        Letters count that fulfil all conditions given: `ids`, unique or offset ids; `keys`; the time
        at which they became dead letters (ms since the epoch, both included). Without any condition
        all of them. `only_group` sends them to the group's retry topic, where no other group sees
        them.

        `redrive_id` is of the caller's choice. Under one id no letter is sent twice: after a failure
        call again with the same arguments; the same id with others is refused (INVALID_PARAMETER).
        A Java broker refuses always (REQUEST_CODE_NOT_SUPPORTED).
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
        """The half messages that no producer decided on, given up within this time (ms, both
        included), one queue after the other, oldest first.

        PGROUP, REAL_TOPIC and TRANSACTION_CHECK_TIMES among the properties tell whose each is, where
        it was meant for, and how often its producers were asked. One that was resumed stays listed.
        """
        async for message in self._stored(TRANS_CHECK_MAX_TIME_TOPIC, begin_ms, end_ms):
            yield message

    async def resume_half(self, offset_msg_id: str) -> None:
        """Have the broker ask a producer once more what became of a half message: one that was given
        up (the `offset_msg_id` of `given_up_halves`), or one that is still asked for, which begins
        anew.

        Raises IllegalArgumentError for a text that is no such id, RemoteError when no such message
        lies there or its transaction has ended. One that was given up begins a new transaction each
        time: resumed twice and committed, it comes twice. Java: resumeCheckHalfMessage.
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
        """None from a broker without dead letters of the group."""
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
        """Messages from `offset` on, and where to go on: behind it, or the queue has no more."""
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
        # Retention took what was there, or nothing between here and there is left.
        if answer.header.next_begin_offset <= offset:
            raise refused(answer.command, address, what)
        return [], answer.header.next_begin_offset


def _records(body: bytes, queue: MessageQueue) -> list[StoredRecord]:
    """The records of an answer; bytes among them that are none are told of and left out."""
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
    """A body that does not decompress stays as it is stored, its flag set."""
    message = record.to_message(broker_name)
    if message.sys_flag & COMPRESSED:
        try:
            message.body = decompress(message.body, message.sys_flag, max_length=_MAX_BODY_BYTES)
        except ProtocolError:
            return message
        message.sys_flag &= ~COMPRESSED
    return message
