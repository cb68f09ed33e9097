"""Ask name servers and brokers for the rooms of `AdminClient`, one or many at once.

Java: MQClientAPIImpl, CommandUtil.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from cometmq.admin.absent import Absent
from cometmq.admin.routed import in_cluster, masterless
from cometmq.admin.silence import Silences
from cometmq.client.cluster.name_server_choice import NameServerChoice
from cometmq.errors import (
    AccessDeniedError,
    CometMQError,
    ConnectError,
    ConnectionLostError,
    IllegalArgumentError,
    RemoteError,
    RequestTimeoutError,
    RouteNotFoundError,
    ServersFailedError,
    SilentServerError,
)
from cometmq.model.route import MASTER_ID, ClusterInfo, LostBroker, TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode, version_text
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.header import HeaderT, NoHeader
from cometmq.protocol.headers import GetRouteInfoRequestHeader
from cometmq.protocol.limits import check_route
from cometmq.protocol.request_type import AnswerBodyT, AnswerT, BodyT, RequestType
from cometmq.remoting.client import Answer, RemotingClient
from cometmq.remoting.credentials import refused
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.spelling import did_you_mean

T = TypeVar("T")

# A call to more servers than this asks them in turns.
_AT_ONCE: Final = 32
_REMEDIES: Final[Mapping[int, str]] = {
    ResponseCode.TOPIC_NOT_EXIST: (
        "check the topic's name (topics.names() has all), or make it with topics.create()"
    ),
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "check the group's name (groups.names() has all), or make it with groups.create()"
    ),
    ResponseCode.CONSUMER_NOT_ONLINE: (
        "no member of the group is connected to this broker: start one, or check the group's name"
    ),
}
_AWAY: Final = (ConnectError, ConnectionLostError)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Says where a broker is; the master of a broker name has the id 0.

    Cluster and name are empty if the caller gave nothing but the address.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class Servers:
    """Asks servers by address, and finds out which to ask.

    Every call raises RemotingError when a server does not answer and RemoteError when it refuses;
    the text says what to do. `check` is called first; it raises if the client does not run.
    """

    def __init__(
        self,
        name_servers: list[str],
        remoting: RemotingClient,
        timeout_s: float,
        check: Callable[[], object],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name_servers = name_servers
        self._choice: NameServerChoice | None = None
        self._remoting = remoting
        self.timeout_s = timeout_s
        self._check = check
        self._silences = Silences(clock)
        self._clock = clock

    async def close(self) -> None:
        await self._remoting.close()

    # One server

    async def ask(
        self,
        address: str,
        request_type: RequestType[HeaderT, BodyT, AnswerT, AnswerBodyT],
        header: HeaderT,
        body: BodyT | None = None,
        *,
        what: str,
        timeout_s: float | None = None,
        also: Container[int] = (),
        language: str | None = None,
        passed_on: bool = False,
    ) -> Answer[AnswerT, AnswerBodyT]:
        """Send a request of the table and return its answer; see RemotingClient.ask.

        `language` is the asking client's, for requests that are answered in its form. `passed_on`
        says that the server asks one of its clients, and answers once the client has.
        """
        self._check()
        self._silences.check(address, what)
        command = request_type.command(header, body)
        command.language = language or command.language
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            answer = await self._silences.listen(
                address,
                what,
                self._remoting.call(address, command, wait_s),
                passed_on=passed_on,
            )
        except SilentServerError:
            raise
        except _AWAY as error:
            raise again(
                error,
                f"{what} could not be asked of {address}: {error}; check that the server runs there "
                "and can be reached from here",
            ) from error
        except RequestTimeoutError as error:
            raise again(
                error,
                f"{what} was not answered: {error}; the server hangs or is busy, see its log, or "
                "give it longer by timeout_ms",
            ) from error
        if answer.code != ResponseCode.SUCCESS and answer.code not in also:
            raise _refusal(answer, address, request_type.name, request_type.code, what)
        return Answer(request_type, answer)

    # Several servers

    async def each(
        self,
        addresses: Iterable[str],
        ask: Callable[[str], Awaitable[T]],
        what: str,
        *,
        missing: Mapping[str, CometMQError] = MappingProxyType({}),
    ) -> dict[str, T]:
        """Return what `ask` returns for each address.

        Raises the error of the only address to be asked; if there were several, a
        ServersFailedError with the results of the others. Brokers that are `missing` fail unasked.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def outcome(address: str) -> T | CometMQError:
            async with turns:
                try:
                    return await ask(address)
                except CometMQError as error:
                    return error

        asked = list(dict.fromkeys(addresses))
        outcomes = dict(zip(asked, await asyncio.gather(*map(outcome, asked)), strict=True))
        errors = {a: error for a, error in outcomes.items() if isinstance(error, CometMQError)}
        errors |= missing
        results = {a: it for a, it in outcomes.items() if not isinstance(it, CometMQError)}
        if not errors:
            return results
        raise failure(what, errors, results)

    async def ask_each(
        self,
        addresses: Iterable[str],
        request_type: RequestType[HeaderT, BodyT, AnswerT, AnswerBodyT],
        header: HeaderT,
        body: BodyT | None = None,
        *,
        what: str,
        read: Callable[[Answer[AnswerT, AnswerBodyT]], T],
        missing: Mapping[str, CometMQError] = MappingProxyType({}),
        timeout_s: float | None = None,
        also: Container[int] = (),
    ) -> dict[str, T]:
        """Send one request to each address, and return what `read` makes of the answers.

        `ask` and `each` explain the other arguments.
        """

        async def ask(address: str) -> T:
            return read(
                await self.ask(
                    address, request_type, header, body, what=what, timeout_s=timeout_s, also=also
                )
            )

        return await self.each(addresses, ask, what, missing=missing)

    async def change_each(
        self,
        addresses: Iterable[str],
        request_type: RequestType[HeaderT, BodyT, Any, Any],
        header: HeaderT,
        body: BodyT | None = None,
        *,
        what: str,
        timeout_s: float | None = None,
    ) -> list[str]:
        """Send one request to each address; its answer says only that it was done."""
        return list(
            await self.ask_each(
                addresses, request_type, header, body, what=what, read=_done, timeout_s=timeout_s
            )
        )

    def missing_of(self, route: TopicRouteData) -> dict[str, CometMQError]:
        """Return why the lost brokers of a topic cannot be asked, by broker name. Java's name servers
        report no lost brokers.
        """
        if isinstance(route.lost_brokers, msgspec.UnsetType):
            return {}
        return {at.broker_name: self._lost_error(at) for at in route.lost_brokers}

    def masters_and_missing(
        self, route: TopicRouteData
    ) -> tuple[dict[str, str], dict[str, CometMQError]]:
        """Return the masters of a topic, and why its other brokers cannot be asked, both by broker
        name.
        """
        brokers = {data.broker_name: data for data in route.broker_datas}
        masters: dict[str, str] = {}
        missing = self.missing_of(route)
        for name in sorted({data.broker_name for data in route.queue_datas}):
            master = brokers[name].master() if name in brokers else None
            if master is None:
                missing[name] = masterless(name)
            else:
                masters[name] = master
        return masters, missing

    def _lost_error(self, broker: LostBroker) -> ConnectError:
        ago_s = max(0, self._clock.now_ms() - broker.lost_millis) / 1000
        return ConnectError(
            f"{broker.broker_name} at {broker.address} was lost {ago_s:.0f} s ago, so its part is "
            "missing; start it again",
            address=broker.address,
        )

    # Name servers

    @property
    def has_name_servers(self) -> bool:
        return bool(self._name_servers)

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers. Raises IllegalArgumentError if there are none."""
        if not self._name_servers:
            raise IllegalArgumentError(
                "this call asks a name server, and the client was given none; pass "
                "namesrv='host:9876'"
            )
        return self._name_servers

    async def ask_name_server(
        self,
        request_type: RequestType[HeaderT, BodyT, AnswerT, AnswerBodyT],
        header: HeaderT,
        *,
        what: str,
        also: Container[int] = (),
    ) -> tuple[str, Answer[AnswerT, AnswerBodyT]]:
        """Return the answer of the first name server that answers, and its address.

        A server that fails is asked again only when the others fail, too.
        """
        if self._choice is None:
            self._choice = NameServerChoice(self.name_servers)

        async def question(address: str) -> Answer[AnswerT, AnswerBodyT]:
            return await self.ask(address, request_type, header, what=what, also=also)

        return await self._choice.ask(question)

    async def route(self, topic: str, *, cluster: str | None = None) -> TopicRouteData:
        """Return the route of the topic from the first name server that answers, as far as it lies in
        `cluster`.

        Raises RouteNotFoundError if that one knows no such topic, or none in that cluster.
        """
        address, answer = await self.ask_name_server(
            requests.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True, with_lost=True),
            what=f"the route of topic {topic}",
            also=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            _, _, lost = (answer.command.remark or "").partition("; ")
            raise RouteNotFoundError(
                Absent.ROUTE_LOST(address=address, topic=topic, lost=lost)
                if lost
                else Absent.ROUTE(address=address, topic=topic),
                code=answer.code,
                remark=answer.command.remark,
                address=address,
            )
        route = check_route(answer.body)
        return route if cluster is None else in_cluster(route, topic, cluster)

    async def cluster_info(self) -> ClusterInfo:
        _, answer = await self.ask_name_server(
            requests.GET_BROKER_CLUSTER_INFO, NoHeader(), what="the list of brokers"
        )
        return answer.body

    # Brokers

    async def brokers(
        self, *, cluster: str | None = None, broker: str | None = None, slaves: bool = False
    ) -> list[BrokerAddress]:
        """Return the brokers that the caller chose, sorted: masters, and slaves if wanted.

        `broker` is an address `host:port` or a broker name. Without `broker` and `cluster` the only
        cluster is meant. Raises IllegalArgumentError if both are given, or none and there are
        several clusters, RouteNotFoundError if the name servers know no such broker or cluster.
        """
        if broker is not None and cluster is not None:
            raise IllegalArgumentError(
                f"broker is {broker!r:.80} and cluster {cluster!r:.80}; give one of them"
            )
        if broker is not None and ":" in broker:
            return [BrokerAddress("", "", MASTER_ID, broker)]
        info = await self.cluster_info()
        if broker is not None:
            names = {broker}
            if broker not in info.broker_addr_table:
                if (lost := (await self.missing()).get(broker)) is not None:
                    raise lost
                raise _unknown(f"broker {broker!r:.80}", broker, info.broker_addr_table)
        else:
            names = set(info.cluster_addr_table[_meant(cluster, info.cluster_addr_table)])
        found = [
            BrokerAddress(data.cluster, name, broker_id, address)
            for name, data in info.broker_addr_table.items()
            if name in names
            for broker_id, address in data.broker_addrs.items()
            if slaves or broker_id == MASTER_ID
        ]
        if not found:
            raise RouteNotFoundError(
                f"no master of {', '.join(sorted(names))} is registered at the name servers; start "
                "it, or ask a slave by its address"
            )
        return sorted(found, key=lambda at: (at.cluster, at.broker_name, at.broker_id))

    async def addresses(
        self, *, cluster: str | None, broker: str | None, slaves: bool = False
    ) -> list[str]:
        return [
            at.address for at in await self.brokers(cluster=cluster, broker=broker, slaves=slaves)
        ]

    async def addresses_and_missing(
        self, *, cluster: str | None, broker: str | None, slaves: bool = False
    ) -> tuple[list[str], dict[str, CometMQError]]:
        """Return what `addresses` does, and why other brokers of the cluster cannot be asked: an
        answer without their part must name them.
        """
        if broker is not None:
            return await self.addresses(cluster=cluster, broker=broker), {}
        addresses = await self.addresses(cluster=cluster, broker=None, slaves=slaves)
        return addresses, await self.missing(cluster=cluster)

    async def missing(
        self,
        *,
        cluster: str | None = None,
        on_denied: Callable[[str, CometMQError], object] = lambda _cluster, _error: None,
    ) -> dict[str, CometMQError]:
        """Return, by broker name, why expected brokers of a cluster, or of all, cannot be asked: a
        name server lost the broker, or only slaves of the name are registered.

        An account that may not ask for lost brokers gets the others; `on_denied` is called with the cluster.
        """
        info = await self.cluster_info()
        clusters = [cluster] if cluster is not None else sorted(info.cluster_addr_table)
        missing: dict[str, CometMQError] = {
            name: masterless(name)
            for name, data in sorted(info.broker_addr_table.items())
            if data.master() is None and data.cluster in clusters
        }
        for name in clusters:
            # Every broker has a topic of its cluster's name; an account need not have a right to it.
            try:
                missing |= self.missing_of(await self.route(name))
            except RouteNotFoundError:
                continue
            except AccessDeniedError as error:
                on_denied(name, error)
        return missing

    async def all_readable(self) -> list[str]:
        """Return an address of every broker that the name servers know: its master's, or a slave's."""
        table = (await self.cluster_info()).broker_addr_table
        found = (table[name].any_address() for name in sorted(table))
        return [address for address in found if address is not None]

    async def readable_and_missing(self) -> tuple[list[str], dict[str, CometMQError]]:
        """Return what `all_readable` does, and why lost brokers cannot be asked."""
        return await self.all_readable(), {
            name: error
            for name, error in (await self.missing()).items()
            if isinstance(error, ConnectError)
        }


def _done(_answer: Answer[Any, Any]) -> None:
    """Read nothing of an answer."""


def failure(
    what: str, errors: Mapping[str, CometMQError], results: Mapping[str, object]
) -> CometMQError:
    """Return the error of the only server that was asked; if there were several, a
    ServersFailedError with the errors and results of all. At least one has failed.
    """
    count = len(errors) + len(results)
    if count == 1:
        return next(iter(errors.values()))
    reasons = "; ".join(f"{address}: {error}" for address, error in errors.items())
    return ServersFailedError(
        f"{what} failed at {len(errors)} of {count} servers: {reasons}",
        results=results,
        errors=errors,
    )


def _meant(cluster: str | None, clusters: Mapping[str, list[str]]) -> str:
    if cluster is None:
        if len(clusters) > 1:
            raise IllegalArgumentError(
                f"there are the clusters {', '.join(sorted(clusters))}; say by cluster or broker "
                "which one is meant"
            )
        if not clusters:
            raise RouteNotFoundError("no broker is registered at the name servers; start one")
        return next(iter(clusters))
    if cluster not in clusters:
        raise _unknown(f"cluster {cluster!r:.80}", cluster, clusters)
    return cluster


def _unknown(what: str, name: str, known: Iterable[str]) -> RouteNotFoundError:
    names = sorted(known)
    return RouteNotFoundError(
        f"the name servers know no {what}; they know {', '.join(names) or 'none'}"
        f"{did_you_mean(name, names)}"
    )


def _refusal(answer: RemotingCommand, address: str, name: str, code: int, what: str) -> RemoteError:
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        text = (
            f"{what} cannot be asked of {address}: it speaks RocketMQ "
            f"{version_text(answer.version)} and does not know the request {name} ({code}): "
            f"{answer.remark}"
        )
        return RemoteError(text, code=answer.code, remark=answer.remark, address=address)
    error = refused(answer, address, what)
    if (remedy := _REMEDIES.get(answer.code)) is None:
        return error
    return again(error, f"{str(error).rstrip('.')}; {remedy}")


ErrorT = TypeVar("ErrorT", bound=CometMQError)


def again(error: ErrorT, text: str) -> ErrorT:
    """Return an error like `error` with another text."""
    return type(error)(text, code=error.code, remark=error.remark, address=error.address)
