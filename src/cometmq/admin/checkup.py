"""Judge a running cluster as its clients meet it: name servers, routes, brokers, clocks, clients.

It asks and changes nothing, so it may be run against a cluster in production, ours or Java's. Each
question has a deadline. Many brokers and groups are asked in part only, and the findings say so.

Longer than 500 lines: these are the questions of one check-up, a short one each.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.admin.checkup_texts import Checked, Found, Reached, Repair
from cometmq.admin.groups.pops import PoppedTopic, popped_topics
from cometmq.admin.messages.reading import settings_of
from cometmq.errors import (
    AccessDeniedError,
    CometMQError,
    ConnectError,
    RemoteError,
    RequestTimeoutError,
)
from cometmq.model.names import TRACE_TOPIC, is_system_group
from cometmq.model.reports.finding import Finding, error, ok, warning
from cometmq.model.reports.keyed_text import text_of
from cometmq.model.route import MASTER_ID, ClusterInfo
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode, version_name
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetRouteInfoRequestHeader,
)
from cometmq.protocol.pop.headers import PopProgressRequestHeader
from cometmq.remoting.client import Answer, RemotingClient, split_address
from cometmq.remoting.credentials import Credentials, is_protected
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.daemon_threads import DaemonThreads
from cometmq.runtime.sockets.addresses import Reach, is_loopback, join_address, look_up, reach_of
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.tls.contexts import Tls, tls_of

T = TypeVar("T")

_MOST_NAME_SERVERS: Final = 16
_MOST_BROKERS: Final = 200
_MOST_GROUPS: Final = 50
# A broker delivers again within a second. A few failed messages are usual.
_LATE_REVIVAL_MS: Final = 10_000
_MANY_AGAIN: Final = 10
_AT_ONCE: Final = 8

# The broker says how long it has run in whole seconds.
_RESOLUTION_MS: Final = 500
_SKEW_WARNING_MS: Final = 1_000
_SKEW_ERROR_MS: Final = 30_000
_RUNTIME: Final = re.compile(r"([\d.,]+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


class _Broker(NamedTuple):
    name: str
    id: int
    address: str

    @property
    def label(self) -> str:
        if self.id == MASTER_ID:
            return Checked.BROKER(name=self.name)
        return Checked.SLAVE(id=self.id, name=self.name)


class ClusterCheckup:
    """Asks the name servers, and the brokers that they name. Use it as an asynchronous context
    manager, on one loop. `timeout_s` bounds each question. With `credentials` requests are signed,
    with `tls` connections are encrypted. Without `clients` no group is asked for its members.
    """

    def __init__(
        self,
        namesrv: Sequence[str],
        *,
        timeout_s: float = 3.0,
        credentials: Credentials | None = None,
        tls: bool | Tls | None = None,
        network: Network = TCP_NETWORK,
        clock: Clock = SYSTEM_CLOCK,
        address_of: Callable[[str], str | None] = look_up,
        clients: bool = True,
    ) -> None:
        self._namesrv = list(dict.fromkeys(namesrv))
        self._timeout_s = timeout_s
        self._clock = clock
        self._address_of = address_of
        self._counts_clients = clients
        self._remoting = RemotingClient(
            network=network, connect_timeout_s=timeout_s, credentials=credentials, tls=tls_of(tls)
        )
        self._encrypted = bool(tls)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # A look-up may wait for long, and must not hold up the end of the process.
        self._look_ups = DaemonThreads(_AT_ONCE, "doctor-look-up")

    async def __aenter__(self) -> ClusterCheckup:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._look_ups.close()
        await self._remoting.close()

    async def check(self) -> list[Finding]:
        """Return what was found, name servers first."""
        asked = self._namesrv[:_MOST_NAME_SERVERS]
        answers = await asyncio.gather(*(self._name_server(address) for address in asked))
        findings = [finding for finding, _ in answers]
        known = {
            address: info
            for address, (_, info) in zip(asked, answers, strict=True)
            if info is not None
        }
        if not known:
            return findings
        findings += _differences(known)
        brokers = _brokers(known.values())
        if not brokers:
            findings.append(error(Checked.BROKERS(), Found.NO_BROKER(), Repair.START_BROKER()))
        findings += _without_master(brokers)
        clusters = {name for info in known.values() for name in info.cluster_addr_table}
        findings += await self._optional(self._lost(next(iter(known)), clusters)) or []
        local = all(self._is_local(address) for address in known)
        shown = brokers[:_MOST_BROKERS]
        for found in await asyncio.gather(*(self._broker(broker, local) for broker in shown)):
            findings += found
        if len(brokers) > len(shown):
            findings.append(
                ok(Checked.BROKERS(), Found.ASKED_IN_PART(asked=len(shown), all=len(brokers)))
            )
        if brokers:
            findings += await self._optional(self._traces(next(iter(known)))) or []
        return findings

    # Name servers

    async def _name_server(self, address: str) -> tuple[Finding, ClusterInfo | None]:
        label = Checked.NAME_SERVER(address=address)

        remedy = Repair.START_NAME_SERVER()

        async def ask() -> tuple[Finding, ClusterInfo | None]:
            target = await self._connected(address)
            began = self._clock.monotonic()
            answer = await self._ask(target, requests.GET_BROKER_CLUSTER_INFO)
            info: ClusterInfo = answer.body
            return ok(label, self._answered(began, answer)), info

        try:
            split_address(address)
        except ConnectError as fault:
            return error(label, text_of(fault), Repair.WRITE_ADDRESSES()), None
        try:
            return await asyncio.wait_for(ask(), self._timeout_s)
        except AccessDeniedError as refusal:
            return self._denied(label, refusal), None
        except RemoteError as refusal:
            fault_text = Found.NO_NAME_SERVER(refusal=refusal.remark or text_of(refusal))
            return error(label, fault_text, Repair.GIVE_NAME_SERVERS()), None
        except (CometMQError, TimeoutError) as fault:
            return error(label, self._fault(fault), remedy), None

    # Brokers

    async def _lost(self, address: str, clusters: Iterable[str]) -> list[Finding]:
        """Find brokers that a name server lost; no other answer names them. Java's remembers none."""
        findings = []
        target = await self._connected(address)
        for cluster in sorted(clusters):
            # Every broker has a topic of its cluster's name.
            answer = await self._ask(
                target,
                requests.GET_ROUTEINFO_BY_TOPIC,
                GetRouteInfoRequestHeader(
                    topic=cluster, accept_standard_json_only=True, with_lost=True
                ),
                also=(ResponseCode.TOPIC_NOT_EXIST,),
            )
            if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.body.lost_brokers:
                continue
            for lost in answer.body.lost_brokers:
                ago_s = max(0, self._clock.now_ms() - lost.lost_millis) // 1000
                findings.append(
                    error(
                        Checked.BROKER(name=lost.broker_name),
                        Found.LOST(seconds=ago_s, address=lost.address),
                        Repair.START_AGAIN(),
                    )
                )
        return findings

    async def _traces(self, address: str) -> list[Finding]:
        """Report that traces of clients cannot be stored; only the clients know whether they send
        any.
        """
        answer = await self._ask(
            await self._connected(address),
            requests.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoRequestHeader(topic=TRACE_TOPIC),
            also=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return [ok(Checked.TRACES(), Found.NO_TRACE_TOPIC(topic=TRACE_TOPIC))]
        if answer.body.publish_queues(TRACE_TOPIC):
            return []
        fault = Found.TRACES_REFUSED(topic=TRACE_TOPIC)
        return [warning(Checked.TRACES(), fault, Repair.LET_WRITE())]

    async def _broker(self, broker: _Broker, local: bool) -> list[Finding]:
        async with self._slots:
            try:
                return await self._reached(broker, local)
            except AccessDeniedError as refusal:
                return [self._denied(broker.label, refusal)]
            except (CometMQError, TimeoutError) as fault:
                return [
                    error(
                        broker.label,
                        Found.NOT_REACHED(address=broker.address, error=self._fault(fault)),
                        Repair.REACH_BROKER(),
                    ),
                    *await self._advertised(broker, local, bound=""),
                ]

    @staticmethod
    def _denied(label: str, refusal: AccessDeniedError) -> Finding:
        if is_protected(refusal.remark):
            return error(label, Found.PROTECTED(refusal=refusal.remark), Repair.OPEN())
        return error(label, text_of(refusal), Repair.SIGN())

    async def _reached(self, broker: _Broker, local: bool) -> list[Finding]:
        target = await asyncio.wait_for(self._connected(broker.address), self._timeout_s)
        began, sent_ms = self._clock.monotonic(), self._clock.now_ms()
        answer = await self._ask(target, requests.GET_BROKER_RUNTIME_INFO)
        took_ms = int((self._clock.monotonic() - began) * 1000)
        info: Mapping[str, str] = answer.body.table
        version, release = info.get("brokerVersionDesc", ""), info.get("cometmqVersion", "")
        findings = [
            ok(
                broker.label,
                Found.ADDRESS_ANSWERED(
                    address=broker.address, answer=self._answered(began, answer, version, release)
                ),
            ),
            *_skew(broker.label, info, sent_ms, took_ms),
        ]
        settings = await self._optional(self._settings(target))
        if settings is not None:
            findings += _identity(broker, settings)
        bound = (settings or {}).get("bindAddress", "")
        findings += await self._advertised(broker, local, bound)
        findings += _state(broker.label, info, settings or {})
        if broker.id == MASTER_ID and self._counts_clients:
            clients = await self._optional(self._clients(broker, target))
            findings += [clients] if clients is not None else []
            findings += await self._optional(self._pops(broker, target)) or []
        return findings

    async def _advertised(self, broker: _Broker, local: bool, bound: str) -> list[Finding]:
        check = Checked.ADDRESS(server=broker.label)
        try:
            host, _ = split_address(broker.address)
        except ConnectError as fault:
            return [error(check, text_of(fault), Repair.SET_ADDRESS())]
        address = await self._optional(self._look_ups.run(self._address_of, host))
        if address is None:
            return [error(check, Found.NO_IP_ADDRESS(host=host), Repair.SET_KNOWN_NAME())]
        reach = reach_of(address)
        if reach is Reach.ANYBODY:
            return [ok(check, Found.REACHED_BY_OTHERS(host=host))]
        if reach is Reach.THIS_MACHINE and bound and is_loopback(bound):
            return [ok(check, Found.REACHED_AS_IT_LISTENS(host=host))]
        judged = warning if local and reach is Reach.THIS_MACHINE else error
        if reach is Reach.CONTAINERS:
            judged = warning
        return [
            judged(
                check,
                Found.REACHED_BY(host=host, reach=Reached[reach.name]()),
                Repair.SET_REACHED_ADDRESS(),
            )
        ]

    async def _settings(self, target: str) -> dict[str, str]:
        answer = await self._ask(target, requests.GET_BROKER_CONFIG)
        return settings_of(answer.body, target)

    async def _clients(self, broker: _Broker, target: str) -> Finding | None:
        """Count the versions of consumers; the protocol does not list producers without groups."""
        answer = await self._ask(target, requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = answer.body.subscription_group_table
        groups = sorted(group for group in table if not is_system_group(group))
        counts: Counter[str] = Counter()
        for group in groups[:_MOST_GROUPS]:
            asked = await self._ask(
                target,
                requests.GET_CONSUMER_CONNECTION_LIST,
                GetConsumerConnectionListRequestHeader(consumer_group=group),
                also=(ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR),
            )
            if asked.code == ResponseCode.SUCCESS:
                for client in asked.body.connection_set:
                    counts[f"{client.language} {version_name(client.version)}"] += 1
        check = Checked.CONSUMERS(server=broker.label)
        part = ""
        if len(groups) > _MOST_GROUPS:
            part = Found.GROUPS_IN_PART(asked=_MOST_GROUPS, all=len(groups))
        if not counts:
            return ok(check, Found.NO_CONSUMER(part=part))
        shown = ", ".join(f"{count} {name}" for name, count in counts.most_common(5))
        return ok(check, Found.CONSUMERS(consumers=shown, part=part))

    async def _pops(self, broker: _Broker, target: str) -> list[Finding]:
        """Judge what groups have popped. Java's brokers do not know the request."""
        answer = await self._ask(target, requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = answer.body.subscription_group_table
        groups = sorted(group for group in table if not is_system_group(group))
        findings: list[Finding] = []
        for group in groups[:_MOST_GROUPS]:
            asked = await self._ask(
                target,
                requests.GET_POP_PROGRESS,
                PopProgressRequestHeader(consumer_group=group),
                also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
            )
            if asked.code != ResponseCode.SUCCESS:
                return []
            check = Checked.POPS(group=group, server=broker.label)
            for each in popped_topics([asked.body]):
                findings += judge_pops(check, each)
        return findings

    # Asking

    async def _connected(self, address: str) -> str:
        """Connect to a server, and return the address with its name replaced by the IP address.

        With TLS the name stays.
        """
        host, port = split_address(address)
        found = await self._look_ups.run(self._address_of, host)
        if found is None:
            raise ConnectError(f"the name {host} has no IP address here", address=address)
        target = join_address(found, port)
        if self._encrypted:  # the certificate has to name the host
            target = address
        await self._remoting.connection(target)
        return target

    async def _ask(
        self, target: str, row: Any, header: Any = None, also: tuple[int, ...] = ()
    ) -> Answer[Any, Any]:
        return await self._remoting.ask(
            target, row, header or NoHeader(), what="it", timeout_s=self._timeout_s, also=also
        )

    async def _optional(self, question: Awaitable[T]) -> T | None:
        """Return the answer, None if there is none: another finding says what is wrong."""
        try:
            return await asyncio.wait_for(question, self._timeout_s)
        except (CometMQError, TimeoutError, UnicodeDecodeError):
            return None

    def _answered(
        self, began: float, answer: Answer[Any, Any], version: str = "", release: str = ""
    ) -> str:
        took_ms = (self._clock.monotonic() - began) * 1000
        language = str(answer.command.language)
        kind = f"CometMQ {release}".rstrip() if language == "PYTHON" else language.title()
        version = version or version_name(answer.command.version)
        return Found.ANSWERED(ms=took_ms, kind=kind, version=version)

    def _fault(self, fault: Exception) -> str:
        if isinstance(fault, TimeoutError) and not isinstance(fault, CometMQError):
            return Found.NO_ANSWER(seconds=self._timeout_s)
        return text_of(fault)

    def _is_local(self, address: str) -> bool:
        host, _ = split_address(address)
        return is_loopback(host)


async def probe(
    kind: str,
    address: str,
    *,
    ready: bool = False,
    timeout_s: float = 3.0,
    credentials: Credentials | None = None,
    tls: bool | Tls | None = None,
    network: Network = TCP_NETWORK,
) -> str:
    """Ask a `broker` or `namesrv` whether it serves, and return why not, an empty text if it does.

    A live server answers. A broker is ready if it takes messages, too.
    """
    remoting = RemotingClient(
        network=network, connect_timeout_s=timeout_s, credentials=credentials, tls=tls_of(tls)
    )
    try:
        if kind == "namesrv":
            row: Any = requests.GET_NAMESRV_CONFIG
        else:
            row = requests.GET_BROKER_RUNTIME_INFO if ready else requests.GET_BROKER_CONFIG
        answer = await asyncio.wait_for(
            remoting.ask(address, row, NoHeader(), what="the probe", timeout_s=timeout_s), timeout_s
        )
        if kind == "broker" and ready:
            return str(answer.body.table.get("refusing", ""))
    except RequestTimeoutError as fault:
        return str(fault)
    except TimeoutError:
        return f"{address} did not answer within {timeout_s:g} s"
    except RemoteError as refusal:
        if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return f"{address} answers, but is no {kind}"
        # A server that refuses a client's account is alive, but `ready` asks for more. A server that
        # serves its own machine only does not serve this one.
        return str(refusal) if ready or is_protected(refusal.remark) else ""
    except CometMQError as fault:
        return str(fault)
    finally:
        await remoting.close()
    return ""


def judge_pops(check: str, at: PoppedTopic) -> list[Finding]:
    """Judge what a group has popped of a topic at one broker."""
    facts = {"topic": at.topic}
    found = []
    if at.late_ms > _LATE_REVIVAL_MS:
        found.append(
            warning(
                check,
                Found.REVIVED_LATE(seconds=at.late_ms // 1000, **facts),
                Repair.REVIVED_LATE(),
            )
        )
    if at.again_count >= _MANY_AGAIN and at.again_count * 2 > at.in_flight:
        found.append(
            warning(
                check,
                Found.AGAIN_AND_AGAIN(count=at.again_count, all=at.in_flight, **facts),
                Repair.AGAIN_AND_AGAIN(),
            )
        )
    if at.retry_count and not at.in_flight:
        said = Found.RETRIES_UNPOPPED if at.pops else Found.RETRIES_UNREAD
        found.append(warning(check, said(count=at.retry_count, **facts), Repair.RETRIES_UNREAD()))
    return found


def _brokers(infos: Any) -> list[_Broker]:
    found = {
        _Broker(name, broker_id, address)
        for info in infos
        for name, data in info.broker_addr_table.items()
        for broker_id, address in data.broker_addrs.items()
    }
    return sorted(found)


def _without_master(brokers: Sequence[_Broker]) -> list[Finding]:
    """Find broker names without a registered master: each of their slaves answers and is well."""
    slaves: dict[str, list[_Broker]] = {}
    for broker in brokers:
        slaves.setdefault(broker.name, []).append(broker)
    findings = []
    for name, there in slaves.items():
        if any(slave.id == MASTER_ID for slave in there):
            continue
        shown = tuple(Found.SLAVE_AT(id=slave.id, address=slave.address) for slave in there)
        findings.append(
            error(
                Checked.BROKER(name=name),
                Found.NO_MASTER(slaves=shown),
                Repair.START_MASTER(),
            )
        )
    return findings


def _differences(known: Mapping[str, ClusterInfo]) -> list[Finding]:
    """Find brokers that some of the name servers do not know."""
    everywhere = {broker for info in known.values() for broker in _brokers([info])}
    findings = []
    for address, info in known.items():
        missing = sorted({broker.label for broker in everywhere - set(_brokers([info]))})
        if missing:
            findings.append(
                warning(
                    Checked.ROUTES(server=Checked.NAME_SERVER(address=address)),
                    Found.ROUTES_MISSING(
                        brokers=tuple(missing[:5]), more=", …" if len(missing) > 5 else ""
                    ),
                    Repair.REGISTER_EVERYWHERE(),
                )
            )
    return findings


def _identity(broker: _Broker, settings: Mapping[str, str]) -> list[Finding]:
    name = settings.get("brokerName", broker.name)
    if name == broker.name:
        return []
    return [
        error(
            Checked.IDENTITY(server=broker.label),
            Found.OTHER_BROKER(address=broker.address, name=name),
            Repair.ONE_ADDRESS_EACH(),
        )
    ]


def _skew(label: str, info: Mapping[str, str], sent_ms: int, took_ms: int) -> list[Finding]:
    """Compare the broker's clock with ours: it says when it started and for how long it has run."""
    match = _RUNTIME.search(info.get("runtime", ""))
    boot = info.get("bootTimestamp", "")
    if match is None or not boot.isdecimal():
        return []
    days = int(re.sub(r"\D", "", match[1]))
    hours, minutes, seconds = (int(match[group]) for group in (2, 3, 4))
    runtime_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    skew_ms = int(boot) + runtime_ms + _RESOLUTION_MS - (sent_ms + took_ms // 2)
    unsure_ms = _RESOLUTION_MS + took_ms // 2
    check = Checked.CLOCK(server=label)
    limit = Found.SECONDS(seconds=_SKEW_WARNING_MS / 1000)
    sure_ms = abs(skew_ms) - unsure_ms
    if sure_ms <= 0:
        return [ok(check, Found.SAME_TIME(unsure=unsure_ms / 1000), limit)]
    skewed = Found.AHEAD if skew_ms > 0 else Found.BEHIND
    value = skewed(skew=abs(skew_ms) / 1000, unsure=unsure_ms / 1000)
    if sure_ms < _SKEW_WARNING_MS:
        return [ok(check, value, limit)]
    judged = warning if sure_ms < _SKEW_ERROR_MS else error
    return [judged(check, value, Repair.RUN_NTP(), limit)]


def _state(label: str, info: Mapping[str, str], settings: Mapping[str, str]) -> list[Finding]:
    findings = []
    if refusing := info.get("refusing"):
        findings.append(
            error(
                Checked.MESSAGES(server=label),
                Found.REFUSED(refusal=refusing),
                Repair.FREE_DISK(),
            )
        )
    try:
        ratio = float(info["commitLogDiskRatio"])
        limits = [
            float(settings.get(key, default)) / 100
            for key, default in (
                ("diskMaxUsedSpaceRatio", "75"),
                ("diskSpaceWarningLevelRatio", "90"),
            )
        ]
    except (KeyError, ValueError):
        return findings
    check, value = Checked.DISK(server=label), Found.USED(ratio=ratio)
    limit = Found.USED_LIMIT(limit=limits[0] * 100)
    if ratio < limits[0]:
        return [*findings, ok(check, value, limit)]
    judged = warning if ratio < limits[1] else error
    return [*findings, judged(check, value, Repair.ADD_SPACE(), limit)]
