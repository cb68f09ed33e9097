"""Follow a message through its topic, delays, transactions, retries and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cometmq.admin.absent import Absent
from cometmq.admin.brokers.room import Brokers
from cometmq.admin.explain.groups.group_facts import GroupFacts, ask_retries, collect, unknown_group
from cometmq.admin.explain.inquiry import Inquiry, Place, Reported
from cometmq.admin.groups.pops import ask_pops
from cometmq.admin.messages.reading import address_of, records_of
from cometmq.errors import IllegalArgumentError, ProtocolError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    dlq_topic,
    is_system_group,
    retry_topic,
)
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    QueryMessageRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.messages.record import decode_record
from cometmq.protocol.pop.bodies import PopProgress
from cometmq.protocol.pop.handle import pop_retry_topic, pop_retry_topic_v2
from cometmq.protocol.redrive import NO_END_MS

_MOST_GROUPS: Final = 20
_MOST_NAMED: Final = 5
_MOST_COPIES: Final = 64
_INNER_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC)


@dataclass
class MessageFacts:
    """Holds what was found of a message.

    `copies` are those in the topic, oldest first; the other lists are copies that wait elsewhere.
    `groups` has the facts of each group that is asked about.
    """

    message_id: str
    topic: str
    at_ms: int
    places: Mapping[str, Place]
    infos: dict[str, Reported[Mapping[str, str]]] = field(default_factory=dict)
    # The commit-log offset of an offset id, and the broker that is named there.
    offset: int | None = None
    address: str = ""
    copies: list[Reported[MessageExt]] = field(default_factory=list)
    # The copy that an index has, None while none has one.
    indexed: Reported[MessageExt] | None = None
    delayed: list[Reported[MessageExt]] = field(default_factory=list)
    halves: list[Reported[MessageExt]] = field(default_factory=list)
    retried: dict[str, list[Reported[MessageExt]]] = field(default_factory=dict)
    dead: dict[str, list[Reported[MessageExt]]] = field(default_factory=dict)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    # The answer about a group's newest copy; None if its broker does not know the request.
    popped: dict[str, Reported[PopProgress | None]] = field(default_factory=dict)
    known_groups: int = 0
    settings: dict[str, Reported[Mapping[str, str]]] = field(default_factory=dict)


async def follow(
    inquiry: Inquiry, message_id: str, topic: str | None, group: str | None
) -> MessageFacts:
    """Look for a message wherever it can be, and ask about the groups of its topic."""
    inquiry.step("asking the name servers for the brokers")
    places = {place.address: place for place in await inquiry.readers()}
    facts = MessageFacts(message_id, topic or "", inquiry.now_ms(), places)
    await asyncio.gather(*(_of_broker(inquiry, facts, address) for address in places))
    await _by_offset_id(inquiry, facts, topic)
    unique_id = _unique_id(facts)
    if not facts.topic and facts.offset is not None:
        return facts  # there is no more to follow
    if not facts.topic:
        raise IllegalArgumentError(Absent.OFFSET_ID(message=message_id))
    inquiry.step("looking for the message in the brokers' indexes")
    await _by_unique_id(inquiry, facts, unique_id)
    _refuse_batch(facts)
    inquiry.step("asking for the groups of the topic")
    groups = [group] if group is not None else await _groups(inquiry, facts)
    facts.known_groups = len(groups)
    for name in groups[:_MOST_GROUPS]:
        inquiry.step(f"asking about group {name}")
        found = facts.groups[name] = await collect(inquiry, name, facts.topic, None)
        if group is not None and found.is_unknown:
            raise unknown_group(found, inquiry.unasked)
        facts.retried[name] = await _sent_back(inquiry, facts, retry_topic(name), unique_id)
        await ask_retries(inquiry, found, {reported.address for reported in facts.retried[name]})
        for of_retries in (pop_retry_topic, pop_retry_topic_v2):
            topic_of_retries = of_retries(name, facts.topic)
            facts.retried[name] = _merged(
                facts.retried[name],
                await _sent_back(inquiry, facts, topic_of_retries, unique_id),
            )
        facts.dead[name] = await _sent_back(inquiry, facts, dlq_topic(name), unique_id)
        await _popped(inquiry, facts, name)
    return facts


def newest_copy(facts: MessageFacts, group: str) -> Reported[MessageExt]:
    """Return the copy that a group gets last: the one in a retry topic, unless the message was sent again since."""
    copies = (*facts.retried.get(group, ())[-1:], facts.copies[-1])
    return max(copies, key=lambda reported: reported.value.store_timestamp_ms)


async def _popped(inquiry: Inquiry, facts: MessageFacts, group: str) -> None:
    """Ask what became of the newest copy in a group that pops."""
    if not facts.copies:
        return
    copy = newest_copy(facts, group)
    message = copy.value
    reported = await inquiry.ask(
        requests.GET_POP_PROGRESS,
        copy.address,
        lambda: ask_pops(
            inquiry.servers,
            copy.address,
            group,
            topic=message.topic,
            queue_id=message.queue_id,
            offset=message.queue_offset,
        ),
    )
    if reported is not None:
        facts.popped[group] = reported


async def _of_broker(inquiry: Inquiry, facts: MessageFacts, address: str) -> None:
    brokers = Brokers(inquiry.servers)

    async def info() -> Mapping[str, str]:
        return (await brokers.runtime_info(broker=address))[address]

    async def settings() -> Mapping[str, str]:
        return (await brokers.config(broker=address))[address]

    reported_info, reported_settings = await asyncio.gather(
        inquiry.ask(requests.GET_BROKER_RUNTIME_INFO, address, info),
        inquiry.ask(requests.GET_BROKER_CONFIG, address, settings),
    )
    if reported_info is not None:
        facts.infos[address] = reported_info
    if reported_settings is not None:
        facts.settings[address] = reported_settings


async def _by_offset_id(inquiry: Inquiry, facts: MessageFacts, topic: str | None) -> None:
    """Read the message if the id names a broker of this cluster."""
    try:
        place = parse_offset_id(facts.message_id)
        address = address_of(facts.message_id)
    except (ProtocolError, IllegalArgumentError):
        return
    if address not in facts.places:
        return
    facts.offset, facts.address = place.commit_log_offset, address

    async def view() -> MessageExt | None:
        answer = await inquiry.servers.ask(
            address,
            requests.VIEW_MESSAGE_BY_ID,
            ViewMessageRequestHeader(offset=place.commit_log_offset, topic=topic),
            what=f"the message {facts.message_id}",
            also=(ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND),
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        return decode_record(answer.body).to_message(facts.places[address].name)

    reported = await inquiry.ask(requests.VIEW_MESSAGE_BY_ID, address, view)
    if reported is None or reported.value is None:
        return
    message = reported.value
    found = Reported(message, reported.request, reported.address, reported.at_ms)
    real = message.properties.get(p.REAL_TOPIC)
    if message.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        facts.delayed.append(found)
    elif message.topic == TRANS_HALF_TOPIC:
        facts.halves.append(found)
    else:
        real = None
        facts.copies.append(found)
    if not facts.topic:
        facts.topic = real or message.topic


def _unique_id(facts: MessageFacts) -> str:
    for reported in (*facts.copies, *facts.delayed, *facts.halves):
        if (unique_id := reported.value.unique_id) is not None:
            return unique_id
    return facts.message_id


async def _by_unique_id(inquiry: Inquiry, facts: MessageFacts, unique_id: str) -> None:
    copies = await _everywhere(inquiry, facts, facts.topic, unique_id)
    facts.indexed = copies[0] if copies else None
    facts.copies = _merged(facts.copies, copies)
    inner = await asyncio.gather(
        *(_sent_back(inquiry, facts, topic, unique_id) for topic in _INNER_TOPICS)
    )
    scheduled, timed, halves = inner
    facts.delayed = _merged(facts.delayed, [*scheduled, *timed])
    facts.halves = _merged(facts.halves, halves)


def _refuse_batch(facts: MessageFacts) -> None:
    """Raise IllegalArgumentError if the id is that of a batch, which has several messages."""
    # By their offset ids: a Java broker, which alone writes such batches, indexes no other of their own.
    own = {reported.value.msg_id: reported.value.offset_msg_id for reported in facts.copies}
    if len(own) > 1:
        ids = list(own.values())
        some = ", ".join(ids[:_MOST_NAMED]) + (" …" if len(ids) > _MOST_NAMED else "")
        raise IllegalArgumentError(
            f"{facts.message_id} is the id of a batch of {len(own)} messages or more; ask about one "
            f"of them by its offset id: {some}"
        )


async def _sent_back(
    inquiry: Inquiry, facts: MessageFacts, topic: str, unique_id: str
) -> list[Reported[MessageExt]]:
    """Return the copies of the message in a retry topic, among dead letters, or waiting for a retry.

    If a Java broker stored the batch's id with the message, the copies have only that id. The offset
    id of their origin shows which message of the batch each copy is of.
    """
    found = await _everywhere(inquiry, facts, topic, unique_id)
    origins = {reported.value.offset_msg_id for reported in facts.copies}
    batch_ids = {reported.value.batch_msg_id for reported in facts.copies}
    for batch_id in sorted(each for each in batch_ids if each is not None):
        of_batch = await _everywhere(inquiry, facts, topic, batch_id)
        found = _merged(
            found,
            [t for t in of_batch if t.value.properties.get(p.ORIGIN_MESSAGE_ID) in origins],
        )
    return found


def _merged(
    known: list[Reported[MessageExt]], found: list[Reported[MessageExt]]
) -> list[Reported[MessageExt]]:
    by_id = {reported.value.offset_msg_id: reported for reported in (*found, *known)}
    return sorted(by_id.values(), key=lambda reported: reported.value.store_timestamp_ms)


async def _everywhere(
    inquiry: Inquiry, facts: MessageFacts, topic: str, unique_id: str
) -> list[Reported[MessageExt]]:
    """Return the messages of a topic with a unique id, as the indexes of all brokers have them."""
    header = QueryMessageRequestHeader(
        topic=topic,
        key=unique_id,
        max_num=_MOST_COPIES,
        begin_timestamp=0,
        end_timestamp=NO_END_MS,
        unique_key_query="true",
    )
    what = f"the messages of topic {topic} with {unique_id}"

    async def query(address: str) -> list[MessageExt]:
        answer = await inquiry.servers.ask(
            address,
            requests.QUERY_MESSAGE,
            header,
            what=what,
            also=(ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST),
        )
        if answer.code != ResponseCode.SUCCESS:
            return []
        messages = [r.to_message(facts.places[address].name) for r in records_of(answer.body, what)]
        return [
            m for m in messages if m.topic == topic and unique_id in (m.unique_id, m.batch_msg_id)
        ]

    async def at(address: str) -> list[Reported[MessageExt]]:
        reported = await inquiry.ask(requests.QUERY_MESSAGE, address, lambda: query(address))
        if reported is None:
            return []
        return [
            Reported(m, reported.request, reported.address, reported.at_ms) for m in reported.value
        ]

    answers = await asyncio.gather(*map(at, facts.places))
    found = [reported for answer in answers for reported in answer]
    return sorted(found, key=lambda reported: reported.value.store_timestamp_ms)


async def _groups(inquiry: Inquiry, facts: MessageFacts) -> list[str]:
    """Return the groups that consume the topic."""
    if facts.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return [facts.topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)]

    async def ask(address: str) -> list[str]:
        answer = await inquiry.servers.ask(
            address,
            requests.QUERY_TOPIC_CONSUME_BY_WHO,
            QueryTopicConsumeByWhoRequestHeader(topic=facts.topic),
            what=f"the groups of topic {facts.topic}",
            also=(ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR),
        )
        return answer.body.group_list if answer.code == ResponseCode.SUCCESS else []

    async def at(address: str) -> list[str]:
        reported = await inquiry.ask(
            requests.QUERY_TOPIC_CONSUME_BY_WHO, address, lambda: ask(address)
        )
        return [] if reported is None else reported.value

    found = await asyncio.gather(*map(at, facts.places))
    return sorted({g for groups in found for g in groups if not is_system_group(g)})
