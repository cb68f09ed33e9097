"""Collect what servers and members report of a consumer group, for the judgement of `group_causes`.

Longer than 500 lines: these are the questions of one explanation, a short one each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cometmq.admin.absent import Absent
from cometmq.admin.brokers.room import Brokers
from cometmq.admin.explain.inquiry import Inquiry, Place, Reported, plural, request_text
from cometmq.admin.explain.records import Unasked
from cometmq.admin.explain.selecting import Sample, selected
from cometmq.admin.groups.pops import POP, ask_pops
from cometmq.admin.groups.records import QueueProgress, RunningInfo, subscribes, waiting_offset
from cometmq.admin.groups.room import Groups
from cometmq.admin.messages.reading import MessageReader
from cometmq.admin.topics.queue_bodies import queue_table_and_rate
from cometmq.admin.topics.room import Topics
from cometmq.errors import CometMQError, RemoteError, RemotingError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import is_retry_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL, SubscriptionData
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.inspection import (
    BrokerStatsData,
    ConsumerConnection,
    OffsetWrapper,
    TopicOffset,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    UpdateGroupForbiddenRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from cometmq.protocol.pop.bodies import PopProgress
from cometmq.runtime.spelling import likely_meant

T = TypeVar("T")

Progress = tuple[QueueProgress, Reported[dict[MessageQueue, OffsetWrapper]]]

_FROM_LAST: Final = "CONSUME_FROM_LAST_OFFSET"
_MOST_MEMBERS: Final = 100
NOT_ASKED: Final = f"{_MOST_MEMBERS} members were asked before"
_MOST_TOPICS: Final = 20
_MOST_SAMPLES: Final = 8
_SAMPLED_MESSAGES: Final = 32


@dataclass
class GroupFacts:
    """Holds what was reported of a group. Tables by address, or by address and topic, lack what was not
    reported.
    """

    group: str
    at_ms: int
    places: Mapping[str, Place]
    # The topic in question, None for all topics of the group.
    topic: str | None = None
    progress: dict[str, Reported[dict[MessageQueue, OffsetWrapper]]] = field(default_factory=dict)
    consume_per_s: float = 0.0
    configs: dict[str, Reported[SubscriptionGroupConfig]] = field(default_factory=dict)
    settings: dict[str, Reported[Mapping[str, str]]] = field(default_factory=dict)
    online: dict[str, Reported[ConsumerConnection]] = field(default_factory=dict)
    # Brokers that said that no member is connected.
    offline: dict[str, Reported[None]] = field(default_factory=dict)
    members: dict[str, Reported[RunningInfo]] = field(default_factory=dict)
    # Members that brokers name and that reported nothing, with why.
    silent: dict[str, str] = field(default_factory=dict)
    topic_configs: dict[tuple[str, str], Reported[TopicConfig]] = field(default_factory=dict)
    # The lowest offset of each queue.
    beginnings: dict[MessageQueue, Reported[int]] = field(default_factory=dict)
    forbidden: dict[tuple[str, str], Reported[bool]] = field(default_factory=dict)
    sent_back: dict[tuple[str, str], Reported[BrokerStatsData]] = field(default_factory=dict)
    samples: dict[MessageQueue, Reported[Sample]] = field(default_factory=dict)
    # The group's messages in flight. Java's brokers do not report them.
    popped: dict[str, Reported[PopProgress]] = field(default_factory=dict)
    # The names of all groups that brokers have.
    known_groups: set[str] = field(default_factory=set)
    # The results of `queues` and `behind` once all answers are there.
    _queues: list[Progress] | None = None
    _behind: list[Progress] | None = None

    def settle(self) -> None:
        """Compute the progress once for all that judge it, as there may be 10,000 queues."""
        self._queues = self._behind = None
        self._queues, self._behind = self.queues(), self.behind()

    def queues(self) -> list[Progress]:
        """Return the progress in every queue, with the answer that reported it.

        A member commits every few seconds, so its own offset counts where it is ahead of the
        broker's, and so does what it holds.
        """
        if self._queues is not None:
            return self._queues
        own = {
            queue: info
            for reported in self.members.values()
            for queue, info in reported.value.queues.items()
            if not info.droped
        }
        found = []
        for reported in self.progress.values():
            for queue, at in reported.value.items():
                consumed, pulled = at.consumer_offset, at.pull_offset
                if (info := own.get(queue)) is not None:
                    if consumed < info.commit_offset:
                        consumed = max(consumed, min(info.commit_offset, at.broker_offset))
                    if info.cached_msg_count:  # Java 4.9 does not report what it has handed out
                        pulled = max(pulled, min(info.cached_msg_max_offset + 1, at.broker_offset))
                waiting = waiting_offset(at)
                if waiting is not None:
                    waiting = max(waiting, consumed)
                elif self.online:  # `_not_begun` has counted from where its members begin
                    waiting = consumed
                progress = QueueProgress(
                    queue,
                    at.broker_offset,
                    consumed,
                    max(pulled, consumed),
                    at.last_timestamp or None,
                    waiting,
                )
                found.append((progress, reported))
        return sorted(found, key=lambda item: item[0].queue)

    def behind(self) -> list[Progress]:
        """Return the queues in which messages wait, those with the most first."""
        if self._behind is not None:
            return self._behind
        waiting = [(lag, item) for item in self.queues() if (lag := item[0].lag or 0) > 0]
        return [item for _, item in sorted(waiting, key=lambda each: -each[0])]

    def owners(self) -> dict[MessageQueue, str]:
        """Return the member that has each queue."""
        return {
            queue: client_id
            for client_id, reported in self.members.items()
            for queue, info in reported.value.queues.items()
            if not info.droped
        }

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what the group selects of a topic, as a broker knows it."""
        for reported in self.online.values():
            if (data := reported.value.subscription_table.get(topic)) is not None:
                return data
        return None

    def subscribes(self, topic: str) -> bool | None:
        """Say whether the group subscribes to a topic, as brokers and members report; None if
        unknown.
        """
        if any(
            data.topic == topic for at in self.members.values() for data in at.value.subscriptions
        ):
            return True
        known = [
            subscribes(reported.value.consume_type, reported.value.subscription_table, topic)
            for reported in self.online.values()
        ]
        return True if True in known else False if False in known else None

    def silent_brokers(self) -> list[str]:
        """Return the names of the brokers that did not report the group's progress."""
        return [place.name for at, place in self.places.items() if at not in self.progress]

    @property
    def is_unknown(self) -> bool:
        """Whether brokers listed their groups, and none of them knows this one."""
        if not self.known_groups or self.configs or self.online:
            return False
        # If a topic is named, they list its queues for any group.
        return not any(p.consumer_offset or p.pulled_offset for p, _ in self.queues())

    @property
    def broadcasting(self) -> Reported[ConsumerConnection] | None:
        """The answer that says that the group consumes by broadcasting, None if none does."""
        online = self.online.values()
        return next(
            (reported for reported in online if reported.value.message_model == "BROADCASTING"),
            None,
        )

    @property
    def pops(self) -> bool:
        """Whether members pop, as they or their brokers report. If so, they share the queues, and no queue has an owner."""
        return (
            any(at.value.popped for at in self.members.values())
            or any(at.value.consume_type == "CONSUME_POP" for at in self.online.values())
            or any(
                of.mode == POP or of.in_flight
                for at in self.popped.values()
                for of in at.value.topics
            )
        )

    @property
    def orderly(self) -> bool:
        return any(
            reported.value.properties.get("PROP_CONSUMEORDERLY") == "true"
            for reported in self.members.values()
        )


async def collect(
    inquiry: Inquiry, group: str, topic: str | None, cluster: str | None
) -> GroupFacts:
    """Ask the brokers and the members of a group. Leave out what they do not report."""
    inquiry.step("asking the name servers for the brokers")
    places = {place.address: place for place in await inquiry.readers(cluster=cluster)}
    facts = GroupFacts(group, inquiry.now_ms(), places, topic)
    inquiry.step(f"asking {plural(len(places), 'broker')} for the group's progress")
    await asyncio.gather(*(_of_broker(inquiry, facts, address, topic) for address in places))
    clients = _clients(facts)
    for client in clients[_MOST_MEMBERS:]:
        facts.silent[client] = NOT_ASKED
    clients = clients[:_MOST_MEMBERS]
    inquiry.step(f"asking {plural(len(clients), 'member')} of the group")
    await asyncio.gather(*(_of_member(inquiry, facts, client) for client in clients))
    topics = _topics_in_question(facts, topic)
    inquiry.step(f"asking for the state of {plural(len(topics), 'topic')}")
    await asyncio.gather(
        *(
            _of_topic(inquiry, facts, address, name)
            for name in topics
            for address in _holders(facts, name)
        ),
        _samples(inquiry, facts),
    )
    return facts


async def _of_broker(inquiry: Inquiry, facts: GroupFacts, address: str, topic: str | None) -> None:
    servers = inquiry.servers

    async def online() -> ConsumerConnection | None:
        answer = await servers.ask(
            address,
            requests.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionListRequestHeader(consumer_group=facts.group),
            what=f"the members of group {facts.group}",
            also=(ResponseCode.CONSUMER_NOT_ONLINE,),
        )
        return None if answer.code == ResponseCode.CONSUMER_NOT_ONLINE else answer.body

    reported_progress, reported_online, configs, settings, popped = await asyncio.gather(
        _progress(inquiry, facts.group, address, topic),
        inquiry.ask(requests.GET_CONSUMER_CONNECTION_LIST, address, online),
        inquiry.ask(
            requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            address,
            lambda: Groups(servers).configs(broker=address),
        ),
        inquiry.ask(
            requests.GET_BROKER_CONFIG, address, lambda: Brokers(servers).config(broker=address)
        ),
        inquiry.ask(
            requests.GET_POP_PROGRESS, address, lambda: ask_pops(servers, address, facts.group)
        ),
    )
    if popped is not None and popped.value is not None:
        facts.popped[address] = _with(popped, popped.value)
    if reported_progress is not None:
        table, per_s = reported_progress.value
        table = {queue: at for queue, at in table.items() if topic in (None, queue.topic)}
        facts.progress[address] = _with(reported_progress, table)
        facts.consume_per_s += per_s
    if reported_online is not None and reported_online.value is not None:
        facts.online[address] = _with(reported_online, reported_online.value)
        await _not_begun(inquiry, facts, address, reported_online.value, topic)
    elif reported_online is not None:
        facts.offline[address] = _with(reported_online, None)
    if configs is not None:
        facts.known_groups |= configs.value[address].keys()
    if configs is not None and facts.group in configs.value[address]:
        facts.configs[address] = _with(configs, configs.value[address][facts.group])
    if settings is not None:
        facts.settings[address] = _with(settings, settings.value[address])


async def _progress(
    inquiry: Inquiry, group: str, address: str, topic: str | None
) -> Reported[tuple[dict[MessageQueue, OffsetWrapper], float]] | None:
    async def ask() -> tuple[dict[MessageQueue, OffsetWrapper], float]:
        answer = await inquiry.servers.ask(
            address,
            requests.GET_CONSUME_STATS,
            GetConsumeStatsRequestHeader(consumer_group=group, topic=topic),
            what=f"the progress of group {group}",
            also=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if answer.code != ResponseCode.SUCCESS:
            return {}, 0.0
        return queue_table_and_rate(answer.body, OffsetWrapper, "consumeTps")

    return await inquiry.ask(requests.GET_CONSUME_STATS, address, ask)


def unknown_group(facts: GroupFacts, unasked: Iterable[Unasked]) -> CometMQError:
    """Return the error to raise when no broker that answered knows the group: that there is no such
    group, or, if brokers in `unasked` did not answer, that this is not known.
    """
    listing = request_text(requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    silent = {each.address: each.error for each in unasked if each.request == listing}
    if silent:
        reasons = "; ".join(f"{address}: {error}" for address, error in silent.items())
        return RemotingError(Absent.GROUP_UNKNOWN(group=facts.group, reasons=reasons))
    name = likely_meant(facts.group, facts.known_groups)
    return RemoteError(
        Absent.GROUP_LIKE(group=facts.group, name=name)
        if name
        else Absent.GROUP_TO_EXPLAIN(group=facts.group),
        code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )


async def ask_retries(inquiry: Inquiry, facts: GroupFacts, addresses: Iterable[str]) -> None:
    """Add the progress in the group's retry topic, which an inquiry about one topic leaves out."""
    for address in addresses:
        known = facts.progress.get(address)
        reported = await _progress(inquiry, facts.group, address, retry_topic(facts.group))
        if reported is not None and known is not None:
            known.value.update(reported.value[0])


async def _not_begun(
    inquiry: Inquiry,
    facts: GroupFacts,
    address: str,
    online: ConsumerConnection,
    topic: str | None,
) -> None:
    """Ask about topics that the group subscribes to and where it has committed no offset yet.

    A broker reports nothing about them unless they are named, and then counts from the beginning.
    """
    known = facts.progress.get(address)
    if known is None:
        return
    reported = {queue.topic for queue in known.value}
    missing = [name for name in online.subscription_table if name not in reported]
    wanted = [name for name in missing if topic in (None, name)][:_MOST_TOPICS]
    answers = await asyncio.gather(
        *(_progress(inquiry, facts.group, address, name) for name in wanted)
    )
    for answer in answers:
        if answer is None:
            continue
        for queue, at in answer.value[0].items():
            if online.consume_from_where == _FROM_LAST and not is_retry_topic(queue.topic):
                # Messages that lay there before are not for the group, so only those that it was handed count.
                at.consumer_offset = max(
                    at.consumer_offset, 0 if at.pull_offset else at.broker_offset
                )
            known.value[queue] = at


def _with(reported: Reported[Any], value: T) -> Reported[T]:
    return Reported(value, reported.request, reported.address, reported.at_ms)


def _clients(facts: GroupFacts) -> list[str]:
    clients = {
        client.client_id: None
        for reported in facts.online.values()
        for client in reported.value.connection_set
    }
    return sorted(clients)


async def _of_member(inquiry: Inquiry, facts: GroupFacts, client: str) -> None:
    reported = await inquiry.ask(
        requests.GET_CONSUMER_RUNNING_INFO,
        client,
        lambda: Groups(inquiry.servers).running_info(facts.group, client),
        # The questions that follow need time, too, if a member hangs.
        share=0.5,
    )
    if reported is not None:
        facts.members[client] = reported
    else:
        facts.silent[client] = "it did not answer"


def _topics_in_question(facts: GroupFacts, topic: str | None) -> list[str]:
    """Return the topics to ask about: first those in which messages wait."""
    topics = dict.fromkeys(progress.queue.topic for progress, _ in facts.behind())
    topics.update(dict.fromkeys(progress.queue.topic for progress, _ in facts.queues()))
    if topic is not None:
        topics = dict.fromkeys([topic])
    return list(topics)[:_MOST_TOPICS]


def _holders(facts: GroupFacts, topic: str) -> Iterable[str]:
    return [
        address
        for address, reported in facts.progress.items()
        if any(queue.topic == topic for queue in reported.value)
    ]


async def _of_topic(inquiry: Inquiry, facts: GroupFacts, address: str, topic: str) -> None:
    servers = inquiry.servers
    key = (address, topic)

    async def readable() -> bool:
        answer = await servers.ask(
            address,
            requests.UPDATE_AND_GET_GROUP_FORBIDDEN,
            UpdateGroupForbiddenRequestHeader(facts.group, topic),
            what=f"whether group {facts.group} may read topic {topic}",
            also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
        )
        return answer.code != ResponseCode.SUCCESS or answer.body.readable

    async def sent_back() -> BrokerStatsData:
        answer = await servers.ask(
            address,
            requests.VIEW_BROKER_STATS_DATA,
            ViewBrokerStatsDataRequestHeader("SNDBCK_PUT_NUMS", f"{topic}@{facts.group}"),
            what=f"how many messages of topic {topic} group {facts.group} sent back",
            also=(ResponseCode.SYSTEM_ERROR,),
        )
        return answer.body if answer.code == ResponseCode.SUCCESS else BrokerStatsData()

    async def beginnings() -> dict[MessageQueue, int]:
        answer = await servers.ask(
            address,
            requests.GET_TOPIC_STATS_INFO,
            GetTopicStatsInfoRequestHeader(topic=topic),
            what=f"the statistics of topic {topic}",
        )
        table, _ = queue_table_and_rate(answer.body, TopicOffset, "topicPutTps")
        return {queue: at.min_offset for queue, at in table.items()}

    config, offsets, may_read, back = await asyncio.gather(
        inquiry.ask(
            requests.GET_TOPIC_CONFIG,
            address,
            lambda: Topics(servers).config(topic, broker=address),
        ),
        inquiry.ask(requests.GET_TOPIC_STATS_INFO, address, beginnings),
        inquiry.ask(requests.UPDATE_AND_GET_GROUP_FORBIDDEN, address, readable),
        _if(_has_failed(facts), inquiry, address, sent_back),
    )
    if config is not None:
        facts.topic_configs[key] = _with(config, config.value[address])
    if offsets is not None:
        for queue, beginning in offsets.value.items():
            facts.beginnings[queue] = _with(offsets, beginning)
    if may_read is not None:
        facts.forbidden[key] = _with(may_read, not may_read.value)
    if back is not None:
        facts.sent_back[key] = back


def _has_failed(facts: GroupFacts) -> bool:
    """Say whether a listener failed; without members nobody knows."""
    statuses = [s for reported in facts.members.values() for s in reported.value.topics.values()]
    return not statuses or any(s.consume_failed_msgs or s.consume_failed_tps for s in statuses)


async def _if(
    wanted: bool,
    inquiry: Inquiry,
    address: str,
    question: Callable[[], Awaitable[BrokerStatsData]],
) -> Reported[BrokerStatsData] | None:
    if not wanted:
        return None
    return await inquiry.ask(requests.VIEW_BROKER_STATS_DATA, address, question)


async def _samples(inquiry: Inquiry, facts: GroupFacts) -> None:
    """Look at messages that wait where the group does not select all."""
    reader = MessageReader(inquiry.servers)
    chosen = [
        (progress, reported.address, data)
        for progress, reported in facts.behind()
        if not is_retry_topic(progress.queue.topic)
        and (data := facts.subscription(progress.queue.topic)) is not None
        and data.sub_string != SUB_ALL
    ]

    async def look(progress: QueueProgress, address: str, data: SubscriptionData) -> None:
        begin = progress.waiting_offset or 0

        async def sample() -> Sample:
            found = await reader.some(address, progress.queue, begin, _SAMPLED_MESSAGES)
            return selected(data, found)

        reported = await inquiry.ask(requests.PULL_MESSAGE, address, sample)
        if reported is not None:
            facts.samples[progress.queue] = reported

    await asyncio.gather(*(look(*each) for each in chosen[:_MOST_SAMPLES]))
