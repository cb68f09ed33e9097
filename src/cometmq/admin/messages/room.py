"""Find messages, say who has consumed them, and send or consume them again.

Commands of mqadmin: queryMsgById, queryMsgByUniqueKey, queryMsgByKey, queryMsgTraceById.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from cometmq.admin.groups.room import Groups
from cometmq.admin.messages.letters import UnconsumedMessages
from cometmq.admin.messages.pages import PagedMessages
from cometmq.admin.messages.reading import (
    MAX_BODY_BYTES,
    address_of,
    message_of,
    messages_of,
    records_of,
)
from cometmq.admin.messages.redriving import LetterOutcome, redrive_each
from cometmq.admin.messages.sending import SentMessages
from cometmq.admin.messages.waiting import WaitingMessages
from cometmq.admin.routed import readable_of
from cometmq.admin.servers import Servers
from cometmq.admin.topics.queue_contents import QueueContents
from cometmq.client.tracing.codec import (
    RECORD_END,
    ContextCode,
    TraceContext,
    TraceType,
    decode_traces,
    ids_of,
)
from cometmq.errors import (
    CometMQError,
    IllegalArgumentError,
    ProtocolError,
    RemoteError,
    ServersFailedError,
)
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import TRACE_TOPIC, check_group
from cometmq.model.reports.keyed_text import TextKey, text_of
from cometmq.model.results import SendResult
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.protocol.messages.record import decode_record
from cometmq.protocol.redrive import NO_END_MS

log = get_logger(__name__)

# As in Java's tools.
_MAX_MESSAGES: Final = 64
_TRACKS_AT_ONCE: Final = 8
_CONSUME_TIMEOUT_S: Final = 15.0


class NotYet(TextKey):
    """Lists why a message that is not consumed yet may never be."""

    NOT_SUBSCRIBED = "group {group} does not subscribe to topic {topic}"


class TrackKind(Enum):
    """Says what became of a message in a group (Java: TrackType)."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    # The group pulls: only its own program knows.
    PULL = "PULL"
    NOT_CONSUMED_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    # Every member has offsets of its own, which no broker knows.
    BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """Says what became of a message in one group; `reason` says why it is not known."""

    group: str
    kind: TrackKind
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DirectConsumption:
    """Says how a member's listener consumed a message that it was handed.

    `result` is a name of Java's CMResult: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, ….
    """

    result: str
    orderly: bool
    auto_commit: bool
    spent_ms: int
    remark: str | None


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Records a message's sending, consumption or transaction, as its client noted it.

    Times are in ms. A consumption has two events, SUB_BEFORE and SUB_AFTER, with the same
    `request_id`; the first has the time and group, the second the cost and outcome (from older
    clients, no group).
    """

    kind: TraceType
    msg_id: str
    topic: str
    group: str
    client: str
    timestamp_ms: int
    cost_ms: int
    success: bool
    request_id: str
    retry_times: int
    context: ContextCode | None


class FoundMessages(list[MessageExt]):
    """Lists the messages that a search has found, oldest first.

    `ended_by` has, by address, the remark of each broker where a limit ended the search early: a
    search with a narrower time finds the other messages.
    """

    def __init__(
        self, messages: Iterable[MessageExt] = (), ended_by: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(messages)
        self.ended_by: Mapping[str, str] = dict(ended_by or {})

    @classmethod
    def joined(cls, found: Mapping[str, FoundMessages]) -> Self:
        """Join what several brokers found."""
        return cls(
            sorted(
                (message for messages in found.values() for message in messages),
                key=lambda message: message.store_timestamp_ms,
            ),
            {at: text for messages in found.values() for at, text in messages.ended_by.items()},
        )


class Messages(QueueContents, PagedMessages, SentMessages, UnconsumedMessages, WaitingMessages):
    """Finds and tracks messages, sends or consumes them again, and lists those that nobody consumes.

    Bodies that one broker finds are decompressed as long as all of them together take at most
    `max_bodies_bytes`; the others stay as they are stored, with their flag.
    """

    def __init__(self, servers: Servers, max_bodies_bytes: int = MAX_BODY_BYTES) -> None:
        super().__init__(servers)
        self._max_bodies_bytes = max_bodies_bytes

    async def by_id(self, offset_msg_id: str, topic: str | None = None) -> MessageExt:
        """Return the message of an offset id, from the broker whose address the id holds.

        Brokers with access control want the topic, too. Raises RemoteError if no message is there.
        """
        address = address_of(offset_msg_id)
        answer = await self._servers.ask(
            address,
            requests.VIEW_MESSAGE_BY_ID,
            ViewMessageRequestHeader(offset=int(offset_msg_id[-16:], 16), topic=topic),
            what=f"the message {offset_msg_id}",
        )
        record, name = decode_record(answer.body), await self._name_of(address)
        return message_of(record, name, max_body_bytes=self._max_bodies_bytes)

    async def by_unique_id(
        self,
        topic: str,
        unique_id: str,
        *,
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Return the messages with this unique id, oldest first; a retried send may store several.

        The id of a batch, which Java's consumers may show (`batch_msg_id`), gives its messages.
        Only messages that were stored from `begin_ms` to `end_ms` are looked for, and with `cluster`
        only those at its brokers.
        """
        return await self._query(
            topic,
            unique_id,
            _MAX_MESSAGES,
            begin_ms,
            end_ms,
            lambda message: unique_id in _ids_of(message),
            unique=True,
            cluster=cluster,
        )

    async def find(
        self, msg_id: str, topic: str, *, cluster: str | None = None
    ) -> list[MessageExt]:
        """Return the messages of a topic with this offset id or unique id, oldest first.

        The two kinds of ids may look alike. An offset id is looked up at its broker, if that is one
        of the topic's; every other id in the brokers' indexes.
        """
        try:
            address = address_of(msg_id)
        except IllegalArgumentError:
            address = ""
        route = await self._servers.route(topic)
        if address in {at for data in route.broker_datas for at in data.broker_addrs.values()}:
            try:
                message = await self.by_id(msg_id, topic)
            except RemoteError:
                pass  # A unique id may happen to name a broker, or the message is not there any more.
            else:
                return [message] if message.topic == topic else []
        return await self.by_unique_id(topic, msg_id, cluster=cluster)

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = _MAX_MESSAGES,
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Return messages with this key, oldest first, up to `max_messages` of each broker.

        Only messages that were stored from `begin_ms` to `end_ms` are looked for, and with `cluster`
        only those at its brokers. `ended_by` of the result says if a limit ended the search. The
        results of a ServersFailedError are what each of the other brokers found;
        `FoundMessages.joined` joins them.
        """
        return await self._query(
            topic,
            key,
            max_messages,
            begin_ms,
            end_ms,
            lambda message: key in message.keys,
            cluster=cluster,
        )

    # The fate of a message

    async def tracks(
        self, message: MessageExt, *, groups: Iterable[str] | None = None
    ) -> list[MessageTrack]:
        """Return for each group of the message's topic whether it has consumed the message.

        The offset decides: a group has consumed the messages below its offset in their queue.
        `groups` limits the answer to these groups, None means all.
        """
        asked = await Groups(self._servers).of_topic(message.topic) if groups is None else [*groups]
        tracks: list[MessageTrack] = []
        for begin in range(0, len(asked), _TRACKS_AT_ONCE):
            some = asked[begin : begin + _TRACKS_AT_ONCE]
            tracks += await asyncio.gather(*(self._track(message, group) for group in some))
        return tracks

    async def trace(
        self,
        msg_id: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        max_messages: int = _MAX_MESSAGES,
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
    ) -> list[TraceEvent]:
        """Return what the traces of clients say of a message (unique id or key), oldest first.

        At most `max_messages` trace messages of each broker are read; one may report many sends.
        Malformed records are logged and left out: every client that may send can write some.
        """
        try:
            found = await self._query(
                trace_topic, msg_id, max_messages, begin_ms, end_ms, lambda _: True
            )
        except ServersFailedError as error:
            reported = {at: _events(each, msg_id) for at, each in error.results.items()}
            raise ServersFailedError(str(error), results=reported, errors=error.errors) from error
        return _events(found, msg_id)

    # Sending and consuming again

    async def resend_letter(self, letter: MessageExt) -> SendResult:
        """Send a dead letter to its original topic again, at once, under its unique id.

        Each call sends it once more; `redrive` sends no letter twice, but Java brokers do not know
        it. Raises IllegalArgumentError if the message does not name its topic.
        """
        topic = letter.properties.get(p.RETRY_TOPIC)
        if not topic:
            raise IllegalArgumentError(
                f"message {letter.msg_id} does not name the topic that it came from ({p.RETRY_TOPIC})"
            )
        message = letter.copy()
        message.topic = topic
        del message.properties[p.RETRY_TOPIC]
        return await self.resend(message)

    async def redrive_letters(
        self,
        redrive_id: str,
        group: str,
        letters: Sequence[MessageExt],
        *,
        only_group: bool = False,
    ) -> list[LetterOutcome]:
        """Send chosen dead letters of a group again like `redrive`, and say what became of each.

        Brokers that know no redrive, Java's, get each letter by a send of its own; a repetition of
        the call sends it once more there, and `only_group` is impossible. At most 1,000 letters.
        """
        return await redrive_each(self, redrive_id, group, letters, only_group)

    async def consume_directly(
        self, group: str, client_id: str, offset_msg_id: str, topic: str | None = None
    ) -> DirectConsumption:
        """Have the listener of one member of a group consume a stored message, outside its queues.

        Brokers with access control want the topic, too.
        """
        check_group(group)
        answer = await self._servers.ask(
            address_of(offset_msg_id),
            requests.CONSUME_MESSAGE_DIRECTLY,
            ConsumeMessageDirectlyResultRequestHeader(
                consumer_group=group, client_id=client_id, msg_id=offset_msg_id, topic=topic
            ),
            what=f"consuming message {offset_msg_id} by {client_id} of group {group}",
            timeout_s=max(_CONSUME_TIMEOUT_S, self._servers.timeout_s),
            passed_on=True,
        )
        body = answer.body
        return DirectConsumption(
            body.consume_result, body.order, body.auto_commit, body.spent_time_mills, body.remark
        )

    # Inside

    async def _name_of(self, address: str) -> str:
        """Return the name of the broker at an address, empty if no name server knows it."""
        if not self._servers.has_name_servers:
            return ""
        table = (await self._servers.cluster_info()).broker_addr_table
        return next((n for n, data in table.items() if address in data.broker_addrs.values()), "")

    async def _query(
        self,
        topic: str,
        key: str,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
        fits: Callable[[MessageExt], bool],
        *,
        unique: bool = False,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Ask the brokers' indexes, which also know messages whose keys have the same hash."""
        if not key or key.split() != [key]:
            raise IllegalArgumentError(
                f"{key!r:.80} is no key or id: it is empty or has white space"
            )
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=max_messages,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query="true" if unique else None,
        )
        what = f"the messages of topic {topic} with {key}"
        route = await self._servers.route(topic, cluster=cluster)
        names = {address: name for name, address in readable_of(route).items()}

        async def ask(address: str) -> FoundMessages:
            answer = await self._servers.ask(
                address,
                requests.QUERY_MESSAGE,
                header,
                what=what,
                also=(ResponseCode.QUERY_NOT_FOUND,),
            )
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                return FoundMessages()
            records = [each for each in records_of(answer.body, what) if each.topic == topic]
            messages = messages_of(records, names[address], self._max_bodies_bytes)
            # A remark beside messages says which limit ended the search.
            ended = {address: answer.command.remark} if answer.command.remark else {}
            return FoundMessages((each for each in messages if fits(each)), ended)

        return FoundMessages.joined(
            await self._servers.each(names, ask, what, missing=self._servers.missing_of(route))
        )

    async def _track(self, message: MessageExt, group: str) -> MessageTrack:
        groups = Groups(self._servers)
        try:
            members = await groups.connections(group)
            if members.message_model == "BROADCASTING":
                return MessageTrack(group, TrackKind.BROADCASTING)
            if members.consume_type == "CONSUME_ACTIVELY":
                return MessageTrack(group, TrackKind.PULL)
            progress = await groups.progress(group, message.topic)
            is_subscribed = members.subscribes(message.topic)
        except CometMQError as error:  # a track that cannot be had does not hide the others
            kind = TrackKind.UNKNOWN
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                kind = TrackKind.NOT_ONLINE
            return MessageTrack(group, kind, text_of(error))
        beyond = any(
            (at.consumer_offset or 0) > message.queue_offset
            for at in progress.queues
            if at.queue.queue_id == message.queue_id and at.queue.broker_name == message.broker_name
        )
        if not beyond:
            # Java has no kind for it; the reason says that "not yet" may mean never.
            why = (
                NotYet.NOT_SUBSCRIBED(group=group, topic=message.topic)
                if is_subscribed is False
                else ""
            )
            return MessageTrack(group, TrackKind.NOT_CONSUMED_YET, why)
        for data in members.subscriptions:
            wanted = data.tags_set
            if data.topic == message.topic and wanted and not {message.tags, "*"} & {*wanted}:
                return MessageTrack(group, TrackKind.CONSUMED_BUT_FILTERED)
        return MessageTrack(group, TrackKind.CONSUMED)


def _events(messages: Iterable[MessageExt], msg_id: str) -> list[TraceEvent]:
    """Return what trace messages say about a message, oldest first."""
    events = [
        TraceEvent(
            context.type,
            one,
            bean.topic or "",
            context.group,
            bean.client_host or message.born_host.rpartition(":")[0],
            context.timestamp_ms,
            context.cost_ms,
            context.success,
            context.request_id,
            bean.retry_times,
            _context(context.context_code) if context.type is TraceType.SUB_AFTER else None,
        )
        for message in messages
        for context in _sound_traces(message)
        for bean in context.beans
        for one in ids_of(bean)
        if one and msg_id in (one, *(bean.keys or "").split())
    ]
    return sorted(events, key=lambda event: event.timestamp_ms)


def joined_events(found: Mapping[str, list[TraceEvent]]) -> list[TraceEvent]:
    """Join the events that traces at several brokers show, oldest first."""
    events = (event for each in found.values() for event in each)
    return sorted(events, key=lambda event: event.timestamp_ms)


def _sound_traces(message: MessageExt) -> Iterator[TraceContext]:
    for record in message.body.decode(errors="replace").split(RECORD_END):
        try:
            yield from decode_traces(record)
        except ProtocolError as error:
            log.warning(
                "a trace record is left out", message=message.offset_msg_id, reason=str(error)
            )


def _context(code: int) -> ContextCode | None:
    return ContextCode(code) if code in {each.value for each in ContextCode} else None


def _ids_of(message: MessageExt) -> tuple[str | None, ...]:
    return message.unique_id, message.offset_msg_id, message.batch_msg_id
