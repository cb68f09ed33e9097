"""Explain why brokers refuse messages of a topic, or why producers do not send them any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.admin.brokers.room import Brokers
from cometmq.admin.explain.disk import away
from cometmq.admin.explain.inquiry import Inquiry, Place, Reported, number, plural, shortened
from cometmq.admin.explain.records import Cause, Evidence, Reason, Unasked, WriteExplanation
from cometmq.admin.explain.texts import Remedy, Said, Shown
from cometmq.admin.servers import Servers
from cometmq.model.names import AUTO_CREATE_TOPIC, CLOSED_TOPICS
from cometmq.model.reports.finding import Severity
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
    """Holds what one broker reports; None stands for facts that it did not report.

    `topic` has None if the broker has no such topic, `model` the topic that new ones are made of.
    """

    place: Place
    info: Reported[Mapping[str, str]] | None
    settings: Reported[Mapping[str, str]] | None
    topic: Reported[TopicConfig | None] | None
    model: Reported[TopicConfig | None] | None

    @property
    def away(self) -> bool:
        return self.info is None and self.settings is None and self.topic is None

    def setting(self, key: str, default: str) -> str:
        return default if self.settings is None else self.settings.value.get(key, default)


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """Holds what servers report of writes to a topic; `size` is that of the message in question."""

    topic: str
    size: int | None
    brokers: tuple[BrokerFacts, ...]
    route: Reported[TopicRouteData | None] | None

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
        question=Said.WHY_WRITE_REFUSED(topic=topic),
        reasons=tuple(_in_order(by_broker)),
        unasked=inquiry.unasked,
        at_ms=inquiry.now_ms(),
        refusals={
            address: tuple(dict.fromkeys(reason.cause for reason in reasons if reason.severity))
            for address, reasons in by_broker.items()
        },
    )


async def _route(inquiry: Inquiry, topic: str) -> Reported[TopicRouteData | None] | None:
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

    reported = await inquiry.ask(
        requests.GET_ROUTEINFO_BY_TOPIC, ";".join(servers.name_servers), route
    )
    return (
        None
        if reported is None
        else Reported(reported.value, reported.request, asked, reported.at_ms)
    )


async def _of_broker(inquiry: Inquiry, place: Place, topic: str) -> BrokerFacts:
    servers, address = inquiry.servers, place.address

    async def info() -> Mapping[str, str]:
        return (await Brokers(servers).runtime_info(broker=address))[address]

    async def settings() -> Mapping[str, str]:
        return (await Brokers(servers).config(broker=address))[address]

    info_reported, settings_reported, config, model = await asyncio.gather(
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
    return BrokerFacts(place, info_reported, settings_reported, config, model)


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
    # A broker of 4.x reports all topics or none.
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
                Said.NOTHING_TAKES_MESSAGES(),
                remedy=Remedy.NOTHING_TAKES_MESSAGES(),
            )
        ]
    return sorted(reasons, key=lambda reason: -reason.severity)


def _accepted(facts: WriteFacts, broker: BrokerFacts) -> Reason:
    evidence = []
    if broker.topic is not None and broker.topic.value is not None:
        evidence.append(
            broker.topic.shows(Shown.OF(figure="perm", of=facts.topic), broker.topic.value.perm)
        )
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
        Said.ACCEPTED(broker=broker.place.name, topic=facts.topic),
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
            Said.TOPIC_RESERVED(topic=topic),
            remedy=Remedy.TOPIC_RESERVED(),
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
            Said.TOPIC_UNWRITABLE(topic=topic, broker=name, perm=config.perm),
            (broker.topic.shows(Shown.OF(figure="perm", of=topic), config.perm),),
            Remedy.TOPIC_UNWRITABLE(topic=topic),
        )
    elif config.write_queue_nums < 1:
        yield Reason(
            Cause.NO_WRITE_QUEUES,
            Severity.ERROR,
            Said.NO_WRITE_QUEUES(topic=topic, broker=name),
            (
                broker.topic.shows(
                    Shown.OF(figure="writeQueueNums", of=topic), config.write_queue_nums
                ),
            ),
            Remedy.NO_WRITE_QUEUES(topic=topic),
        )


def _unknown(facts: WriteFacts, broker: BrokerFacts) -> Reason:
    """Judge a topic that the broker does not have."""
    topic, name = facts.topic, broker.place.name
    assert broker.topic is not None, "checked by the caller"
    evidence = [broker.topic.shows(Shown.TOPIC(topic=topic), Shown.NOT_THERE())]
    may = broker.setting("autoCreateTopicEnable", "true") == "true"
    model = broker.model.value if broker.model is not None else None
    if broker.settings is not None:
        evidence.append(broker.settings.shows("autoCreateTopicEnable", str(may).lower()))
    if broker.model is not None:
        perm = Shown.NOT_THERE() if model is None else f"perm={model.perm}"
        evidence.append(broker.model.shows(Shown.TOPIC(topic=AUTO_CREATE_TOPIC), perm))
    if may and (broker.model is None or (model is not None and model.perm & PERM_INHERIT)):
        return Reason(
            Cause.TOPIC_CREATED_BY_FIRST_SEND,
            Severity.OK,
            Said.TOPIC_CREATED_BY_FIRST_SEND(broker=name, topic=topic),
            tuple(evidence),
        )
    return Reason(
        Cause.TOPIC_UNKNOWN,
        Severity.ERROR,
        Said.TOPIC_UNKNOWN(broker=name, topic=topic),
        tuple(evidence),
        Remedy.TOPIC_UNKNOWN(topic=topic),
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
        "commitLogDiskRatio, consumeQueueDiskRatio",
        Shown.RATIO_AND_LIMIT(ratio=ratio, limit=limit),
    )
    evidence = (*([info.shows("refusing", refusing)] if refusing else ()), disk, *_counts(broker))
    if "PCBUSY" in refusing:
        yield Reason(
            Cause.PAGE_CACHE_BUSY,
            Severity.ERROR,
            Said.PAGE_CACHE_BUSY(broker=name, refusal=refusing),
            evidence,
            Remedy.PAGE_CACHE_BUSY(),
        )
    elif "full" in refusing or (not refusing and "refusing" not in info.value and ratio > limit):
        yield Reason(
            Cause.DISK_FULL,
            Severity.ERROR,
            Said.STORE_FULL(broker=name, refusal=refusing or Said.USED(ratio=ratio, limit=limit)),
            evidence,
            Remedy.STORE_FULL(),
        )
    elif refusing:
        yield Reason(
            Cause.STORE_REFUSES,
            Severity.ERROR,
            Said.STORE_REFUSES(broker=name, refusal=refusing),
            evidence,
            Remedy.STORE_REFUSES(),
        )


def _of_size(facts: WriteFacts, broker: BrokerFacts) -> Iterator[Reason]:
    text = broker.setting("maxMessageSize", _MAX_MESSAGE_SIZE)
    if facts.size is None or facts.size <= number(text, facts.size):
        return
    evidence = () if broker.settings is None else (broker.settings.shows("maxMessageSize", text),)
    yield Reason(
        Cause.MESSAGE_TOO_LARGE,
        Severity.ERROR,
        Said.MESSAGE_TOO_LARGE(size=facts.size, broker=broker.place.name, limit=text),
        evidence,
        Remedy.MESSAGE_TOO_LARGE(),
    )


def _of_permission(broker: BrokerFacts) -> Iterator[Reason]:
    text = broker.setting("brokerPermission", "6")
    if broker.settings is None or number(text, PERM_WRITE) & PERM_WRITE:
        return
    yield Reason(
        Cause.BROKER_UNWRITABLE,
        Severity.ERROR,
        Said.BROKER_UNWRITABLE(broker=broker.place.name, permission=text),
        (broker.settings.shows("brokerPermission", text),),
        Remedy.SET_BROKER_PERMISSION(),
    )


def _of_route(facts: WriteFacts, broker: BrokerFacts) -> Iterator[Reason]:
    """Compare the route with the broker's own report."""
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
            Said.NOT_IN_ROUTE(broker=name, topic=facts.topic),
            (facts.route.shows(Shown.BROKERS_IN_ROUTE(topic=facts.topic), _route_names(facts)),),
            Remedy.NOT_IN_ROUTE(),
        )
    elif data is not None and writable and not data.perm & PERM_WRITE:
        yield Reason(
            Cause.WRITE_PERMISSION_WIPED,
            Severity.ERROR,
            Said.WRITE_PERMISSION_WIPED(broker=name),
            (
                facts.route.shows(Shown.PERM_IN_ROUTE(broker=name), data.perm),
                broker.topic.shows(Shown.PERM_AT_BROKER(topic=facts.topic), config.perm),
            ),
            Remedy.WRITE_PERMISSION_WIPED(broker=name),
        )


def _route_names(facts: WriteFacts) -> str:
    route = facts.route.value if facts.route is not None else None
    names = [] if route is None else sorted({data.broker_name for data in route.queue_datas})
    return shortened(names) or Shown.NONE()
