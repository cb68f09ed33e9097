"""Explains why brokers refuse messages of a topic, or why producers do not send them any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.admin.brokers.room import Brokers
from cometmq.admin.explain.disk import away
from cometmq.admin.explain.inquiry import Inquiry, Place, Told, number, plural, shortened
from cometmq.admin.explain.records import Cause, Evidence, Reason, Unasked, WriteExplanation
from cometmq.admin.servers import Servers
from cometmq.model.finding import Severity
from cometmq.model.names import AUTO_CREATE_TOPIC, CLOSED_TOPICS
from cometmq.model.route import QueueData, TopicRouteData
from cometmq.model.sysflag import PERM_INHERIT, PERM_WRITE
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import GetRouteInfoRequestHeader, GetTopicConfigRequestHeader
from cometmq.protocol.limits import check_route

_REFUSED: Final = "refused_"
# Java: DefaultMessageStore, where the ratio is a system property.
_WARNING_RATIO: Final = "90"
_MAX_MESSAGE_SIZE: Final = "4194304"


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Holds what one broker tells; None stands for what it did not tell.

    `topic` has None if the broker has no such topic, `model` the topic that new ones are made of.
    """

    place: Place
    info: Told[Mapping[str, str]] | None
    settings: Told[Mapping[str, str]] | None
    topic: Told[TopicConfig | None] | None
    model: Told[TopicConfig | None] | None

    @property
    def away(self) -> bool:
        return self.info is None and self.settings is None and self.topic is None

    def setting(self, key: str, default: str) -> str:
        return default if self.settings is None else self.settings.value.get(key, default)


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """Holds what is told of writes to a topic; `size` is that of the message in question."""

    topic: str
    size: int | None
    brokers: tuple[BrokerFacts, ...]
    route: Told[TopicRouteData | None] | None

    def queue_data(self, broker_name: str) -> QueueData | None:
        if self.route is None or self.route.value is None:
            return None
        return next((d for d in self.route.value.queue_datas if d.broker_name == broker_name), None)


async def explain_write(
    inquiry: Inquiry,
    topic: str,
    *,
    size: int | None,
    cluster: str | None,
    broker: str | None,
) -> WriteExplanation:
    """Ask name servers and brokers, and judge. See Explanations.write."""
    inquiry.step("asking the name servers for the brokers and the route")
    places = await inquiry.masters(cluster=cluster, broker=broker)
    route = await _route(inquiry, topic)
    inquiry.step(f"asking {plural(len(places), 'broker')}")
    brokers = await asyncio.gather(*(_of_broker(inquiry, place, topic) for place in places))
    facts = WriteFacts(topic, size, tuple(brokers), route)
    by_broker = judge_each(facts, inquiry.unasked)
    return WriteExplanation(
        question=f"why are messages of topic {topic} refused?",
        reasons=tuple(_in_order(by_broker)),
        unasked=inquiry.unasked,
        at_ms=inquiry.now_ms(),
        refusals={
            address: tuple(dict.fromkeys(reason.cause for reason in reasons if reason.severity))
            for address, reasons in by_broker.items()
        },
    )


async def _route(inquiry: Inquiry, topic: str) -> Told[TopicRouteData | None] | None:
    servers = inquiry.servers
    if not servers.has_name_servers:
        return None
    asked = ""

    async def route() -> TopicRouteData | None:
        nonlocal asked
        asked, answer = await servers.ask_name_server(
            requests.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True),
            what=f"the route of topic {topic}",
            also=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        return None if answer.code == ResponseCode.TOPIC_NOT_EXIST else check_route(answer.body)

    told = await inquiry.ask(requests.GET_ROUTEINFO_BY_TOPIC, ";".join(servers.name_servers), route)
    return None if told is None else Told(told.value, told.request, asked, told.at_ms)


async def _of_broker(inquiry: Inquiry, place: Place, topic: str) -> BrokerFacts:
    servers, address = inquiry.servers, place.address

    async def info() -> Mapping[str, str]:
        return (await Brokers(servers).runtime_info(broker=address))[address]

    async def settings() -> Mapping[str, str]:
        return (await Brokers(servers).config(broker=address))[address]

    info_told, settings_told, config, model = await asyncio.gather(
        inquiry.ask(requests.GET_BROKER_RUNTIME_INFO, address, info),
        inquiry.ask(requests.GET_BROKER_CONFIG, address, settings),
        inquiry.ask(
            requests.GET_TOPIC_CONFIG, address, lambda: topic_config(servers, address, topic)
        ),
        inquiry.ask(
            requests.GET_TOPIC_CONFIG,
            address,
            lambda: topic_config(servers, address, AUTO_CREATE_TOPIC),
        ),
    )
    return BrokerFacts(place, info_told, settings_told, config, model)


async def topic_config(servers: Servers, address: str, topic: str) -> TopicConfig | None:
    """Return a topic's configuration at a broker, None if it has no such topic."""
    answer = await servers.ask(
        address,
        requests.GET_TOPIC_CONFIG,
        GetTopicConfigRequestHeader(topic=topic),
        what=f"the configuration of topic {topic}",
        also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST),
    )
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code == ResponseCode.SUCCESS:
        return answer.body
    # A broker of 4.x tells of all topics or none.
    every = await servers.ask(
        address, requests.GET_ALL_TOPIC_CONFIG, NoHeader(), what="the configurations of topics"
    )
    return every.body.topic_config_table.get(topic)


# Judgement, by the facts alone


def judge_each(facts: WriteFacts, unasked: tuple[Unasked, ...] = ()) -> dict[str, list[Reason]]:
    """Return for each broker, by address, why it refuses; or that it accepts."""
    found: dict[str, list[Reason]] = {}
    for broker in facts.brokers:
        address = broker.place.address
        if broker.away:
            found[address] = [away(broker.place, unasked)]
            continue
        found[address] = [
            *_of_topic(facts, broker),
            *_of_store(broker),
            *_of_size(facts, broker),
            *_of_permission(broker),
            *_of_route(facts, broker),
        ] or [_accepted(facts, broker)]
    return found


def _in_order(by_broker: Mapping[str, list[Reason]]) -> list[Reason]:
    """Return the reasons of all brokers, the worst first."""
    reasons = [reason for reasons in by_broker.values() for reason in reasons]
    if not reasons:
        return [
            Reason(
                Cause.NOT_IN_ROUTE,
                Severity.ERROR,
                "no master is registered at the name servers, so nothing takes messages",
                remedy="start a broker with the name servers in namesrvAddr; a slave takes messages "
                "when it is made the master (docs/replication.md)",
            )
        ]
    return sorted(reasons, key=lambda reason: -reason.severity)


def _accepted(facts: WriteFacts, broker: BrokerFacts) -> Reason:
    evidence = []
    if broker.topic is not None and broker.topic.value is not None:
        evidence.append(broker.topic.shows(f"perm of {facts.topic}", broker.topic.value.perm))
    if broker.info is not None and "commitLogDiskRatio" in broker.info.value:
        ratio = broker.info.value["commitLogDiskRatio"]
        evidence.append(broker.info.shows("commitLogDiskRatio", ratio))
    if broker.settings is not None:
        most = broker.settings.value.get("maxMessageSize", _MAX_MESSAGE_SIZE)
        evidence.append(broker.settings.shows("maxMessageSize", most))
    evidence += _counts(broker)
    return Reason(
        Cause.ACCEPTED,
        Severity.OK,
        f"broker {broker.place.name} takes messages of topic {facts.topic}: nothing speaks against it",
        tuple(evidence),
    )


def _counts(broker: BrokerFacts) -> list[Evidence]:
    """Return how many messages the store has refused since its start, by cause."""
    if broker.info is None:
        return []
    return [
        broker.info.shows(key, count)
        for key, count in broker.info.value.items()
        if key.startswith(_REFUSED) and count != "0"
    ]


def _of_topic(facts: WriteFacts, broker: BrokerFacts) -> Iterator[Reason]:
    topic, name = facts.topic, broker.place.name
    if topic in CLOSED_TOPICS:
        yield Reason(
            Cause.TOPIC_RESERVED,
            Severity.ERROR,
            f"topic {topic} belongs to the brokers: no client may send to it",
            remedy="send to a topic of your own",
        )
        return
    if broker.topic is None:
        return
    config = broker.topic.value
    if config is None:
        yield _unknown(facts, broker)
        return
    if not config.writable:
        yield Reason(
            Cause.TOPIC_UNWRITABLE,
            Severity.ERROR,
            f"topic {topic} may not be written at broker {name} (perm={config.perm}), so producers do "
            "not choose it",
            (broker.topic.shows(f"perm of {topic}", config.perm),),
            f"give it the permission to write: topics.update({topic!r}, permission=6)",
        )
    elif config.write_queue_nums < 1:
        yield Reason(
            Cause.NO_WRITE_QUEUES,
            Severity.ERROR,
            f"topic {topic} has no queues to write to at broker {name}",
            (broker.topic.shows(f"writeQueueNums of {topic}", config.write_queue_nums),),
            f"give it some: topics.update({topic!r}, write_queues=4)",
        )


def _unknown(facts: WriteFacts, broker: BrokerFacts) -> Reason:
    """Judge a topic that the broker does not have."""
    topic, name = facts.topic, broker.place.name
    assert broker.topic is not None, "checked by the caller"
    evidence = [broker.topic.shows(f"topic {topic}", "not there")]
    may = broker.setting("autoCreateTopicEnable", "true") == "true"
    model = broker.model.value if broker.model is not None else None
    if broker.settings is not None:
        evidence.append(broker.settings.shows("autoCreateTopicEnable", str(may).lower()))
    if broker.model is not None:
        told = "not there" if model is None else f"perm={model.perm}"
        evidence.append(broker.model.shows(f"topic {AUTO_CREATE_TOPIC}", told))
    if may and (broker.model is None or (model is not None and model.perm & PERM_INHERIT)):
        return Reason(
            Cause.TOPIC_CREATED_BY_FIRST_SEND,
            Severity.OK,
            f"broker {name} does not have topic {topic}, but makes it when a producer first sends",
            tuple(evidence),
        )
    return Reason(
        Cause.TOPIC_UNKNOWN,
        Severity.ERROR,
        f"broker {name} does not have topic {topic}, and does not make topics by itself",
        tuple(evidence),
        f"make it: topics.create({topic!r}); or check the topic's name (topics.names() has all)",
    )


def _of_store(broker: BrokerFacts) -> Iterator[Reason]:
    if broker.info is None:
        return
    info, name = broker.info, broker.place.name
    refusing = info.value.get("refusing", "")
    try:
        ratio = max(
            float(info.value.get(key, "0"))
            for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")
        )
        limit = float(broker.setting("diskSpaceWarningLevelRatio", _WARNING_RATIO))
    except ValueError:
        ratio, limit = 0.0, 100.0
    limit = limit / 100 if limit > 1 else limit
    disk = info.shows(
        "commitLogDiskRatio, consumeQueueDiskRatio", f"{ratio:.2f} (limit {limit:.2f})"
    )
    evidence = (*([info.shows("refusing", refusing)] if refusing else ()), disk, *_counts(broker))
    if "PCBUSY" in refusing:
        yield Reason(
            Cause.PAGE_CACHE_BUSY,
            Severity.ERROR,
            f"the disk of broker {name} is behind, so it refuses messages for a moment: {refusing}",
            evidence,
            "send again, as producers do by themselves; if it lasts, the disk is too slow for the "
            "load: spread it over more brokers, or raise osPageCacheBusyTimeOutMills",
        )
    elif "full" in refusing or (not refusing and "refusing" not in info.value and ratio > limit):
        yield Reason(
            Cause.DISK_FULL,
            Severity.ERROR,
            f"the disk of broker {name} is full, so it takes no messages: "
            f"{refusing or f'{ratio:.0%} used, the limit is {limit:.0%}'}",
            evidence,
            "free or add space, or lower fileReservedTime and call brokers.delete_expired_files(); "
            "`cometmq explain disk` says which file goes next",
        )
    elif refusing:
        yield Reason(
            Cause.STORE_REFUSES,
            Severity.ERROR,
            f"the store of broker {name} takes no messages: {refusing}",
            evidence,
            "do as the text says, and look at the broker's log",
        )


def _of_size(facts: WriteFacts, broker: BrokerFacts) -> Iterator[Reason]:
    text = broker.setting("maxMessageSize", _MAX_MESSAGE_SIZE)
    if facts.size is None or facts.size <= number(text, facts.size):
        return
    evidence = () if broker.settings is None else (broker.settings.shows("maxMessageSize", text),)
    yield Reason(
        Cause.MESSAGE_TOO_LARGE,
        Severity.ERROR,
        f"a body of {facts.size} bytes is too large for broker {broker.place.name}, whose limit is "
        f"{text}",
        evidence,
        "compress or split it, or raise maxMessageSize at every broker and max_message_size_bytes of "
        "the producer",
    )


def _of_permission(broker: BrokerFacts) -> Iterator[Reason]:
    text = broker.setting("brokerPermission", "6")
    if broker.settings is None or number(text, PERM_WRITE) & PERM_WRITE:
        return
    yield Reason(
        Cause.BROKER_UNWRITABLE,
        Severity.ERROR,
        f"broker {broker.place.name} may not be written (brokerPermission={text}): producers do not "
        "choose it",
        (broker.settings.shows("brokerPermission", text),),
        "set brokerPermission=6 by brokers.update_config()",
    )


def _of_route(facts: WriteFacts, broker: BrokerFacts) -> Iterator[Reason]:
    """Compare the route with what the broker itself says."""
    if facts.route is None or broker.topic is None or broker.topic.value is None:
        return
    config, name = broker.topic.value, broker.place.name
    text = broker.setting("brokerPermission", "6")
    writable = config.writable and number(text, PERM_WRITE) & PERM_WRITE
    data = facts.queue_data(name)
    if data is None and ":" not in name:
        yield Reason(
            Cause.NOT_IN_ROUTE,
            Severity.ERROR,
            f"broker {name} has topic {facts.topic}, but the route at the name server has no queues of "
            "it, so producers do not find them",
            (facts.route.shows(f"brokers in the route of {facts.topic}", _route_names(facts)),),
            "wait for the broker's next registration (30 s); if that does not help, see that the "
            "broker has all name servers in namesrvAddr",
        )
    elif data is not None and writable and not data.perm & PERM_WRITE:
        yield Reason(
            Cause.WRITE_PERMISSION_WIPED,
            Severity.ERROR,
            f"the name server lets no producer choose broker {name}: its write permission was wiped",
            (
                facts.route.shows(f"perm of {name} in the route", data.perm),
                broker.topic.shows(f"perm of {facts.topic} at the broker", config.perm),
            ),
            f"give it back: brokers.add_write_permission({name!r})",
        )


def _route_names(facts: WriteFacts) -> str:
    route = facts.route.value if facts.route is not None else None
    names = [] if route is None else sorted({data.broker_name for data in route.queue_datas})
    return shortened(names) or "none"
