"""Answer what clients and brokers ask all the time: routes, registrations, heartbeats.

Java: ClientRequestProcessor, DefaultRequestProcessor. Each change that RouteTable reports is logged
here in one line; heartbeats that change nothing are not logged.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.errors import RemotingError
from cometmq.logs.loggers import get_logger
from cometmq.model.route import TopicRouteData
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.kept_routes import KeptRoutes
from cometmq.namesrv.kv_config import ORDER_TOPIC_NAMESPACE, KvConfig
from cometmq.namesrv.route_json import member_group_json, route_json
from cometmq.namesrv.route_table import BrokerKey, LiveBroker, Registration, RouteTable
from cometmq.protocol import headers, limits, requests
from cometmq.protocol.bodies.cluster import KVTable
from cometmq.protocol.bodies.registration import Registered, check_body_crc, decode_register_body
from cometmq.protocol.codes import MQVersion, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, response
from cometmq.protocol.fastjson.dialect import encode_body, encode_strict_sorted
from cometmq.protocol.header import NoHeader
from cometmq.remoting.access import Access
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock
from cometmq.runtime.garbage import resting
from cometmq.runtime.sockets.addresses import bare_host, is_loopback

log = get_logger(__name__)

_ZONE_NAME: Final = "__ZONE_NAME"
_ZLIB_MAGIC: Final = b"\x78"
# How long a broker has to show that it is alive when another one wants its place.
_ANSWERS_WITHIN_S: Final = 2.0


async def _answers(link: Connection) -> bool:
    """Say whether a broker answers a request; an error for an unknown request counts as an answer."""
    question = requests.GET_BROKER_CONFIG.command(NoHeader())
    try:
        await link.call(question, _ANSWERS_WITHIN_S)
    except RemotingError:
        return False
    return True


def success(body: bytes = b"") -> RemotingCommand:
    return response(ResponseCode.SUCCESS, body=body)


class RouteHandlers:
    """Serves codes 103 to 105, 217, 322, 901 and 904."""

    def __init__(
        self,
        config: NamesrvConfig,
        table: RouteTable,
        kv_config: KvConfig,
        access: Access,
        clock: Clock,
    ) -> None:
        self._config = config
        self._table = table
        self._kv_config = kv_config
        self._access = access
        self._clock = clock
        self._started_s = clock.monotonic()
        self._kept = KeptRoutes()

    def register(self, handlers: Handlers) -> None:
        """Take the codes of this class in `handlers`."""
        handlers.register(requests.GET_ROUTEINFO_BY_TOPIC, self._route)
        handlers.register(requests.REGISTER_BROKER, self._register_broker)
        handlers.register(requests.UNREGISTER_BROKER, self._unregister_broker)
        handlers.register(requests.QUERY_DATA_VERSION, self._query_data_version)
        handlers.register(requests.BROKER_HEARTBEAT, self._broker_heartbeat)
        handlers.register(requests.REGISTER_TOPIC_IN_NAMESRV, self._register_topic)
        handlers.register(requests.GET_BROKER_MEMBER_GROUP, self._member_group)

    def _route(
        self, _connection: Connection, request: Request[headers.GetRouteInfoRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        limits.check_namespace(ext_of(request))
        if self._is_waiting():
            return response(ResponseCode.SYSTEM_ERROR, "name server not ready")
        strict = request.version >= MQVersion.V4_9_4 or bool(header.accept_standard_json_only)
        order = None
        if self._config.order_message_enable:
            order = self._kv_config.get(ORDER_TOPIC_NAMESPACE, header.topic)
        lost = tuple(self._table.lost(header.topic)) if header.with_lost else ()
        kept = self._kept.of(self._table.changes)
        key = (header.topic, strict, order, self._config.support_acting_master)
        body = None if lost else kept.get(key)
        if body is None:
            route = self._table.route(header.topic)
            if route is None:
                remark = f"No topic route info in name server for the topic: {header.topic}"
                if lost:
                    names = ", ".join(f"{at.broker_name} at {at.address}" for at in lost)
                    remark += f"; lost brokers had it: {names}"
                return response(ResponseCode.TOPIC_NOT_EXIST, remark)
            route.order_topic_conf = order
            if lost:
                route.lost_brokers = list(lost)
            body = encode_strict_sorted(route) if strict else route_json(route)
            if not lost:
                self._kept.keep(key, body)
        return success(body)

    def _is_waiting(self) -> bool:
        if not self._config.need_wait_for_service:
            return False
        up_s = self._clock.monotonic() - self._started_s
        return up_s < self._config.wait_seconds_for_service

    def _register_broker(
        self, connection: Connection, request: Request[headers.RegisterBrokerRequestHeader]
    ) -> RemotingCommand | None:
        _check_names(request)
        if rivals := self._rivals(connection, request.header):
            connection.reply_when(request, self._register_beside(connection, request, rivals))
            return None
        return self._registered(connection, request)

    def _rivals(
        self, connection: Connection, header: headers.RegisterBrokerRequestHeader
    ) -> list[Connection]:
        """Return the connections of other brokers that have the name and id of one that registers."""
        found = self._table.holders(header.broker_name, header.broker_id, header.broker_addr)
        return [
            live.link
            for live in found
            if isinstance(live.link, Connection)
            and live.link is not connection
            and not live.link.closed
            and live.key.address != header.broker_addr
        ]

    async def _register_beside(
        self,
        connection: Connection,
        request: Request[headers.RegisterBrokerRequestHeader],
        rivals: list[Connection],
    ) -> RemotingCommand | None:
        """Register a broker in the place of another one if that does not answer any more.

        A host that lost its power closes no connection. Its broker would keep its place until it
        was silent for two minutes, and clients would send to a dead address.
        """
        answers = await asyncio.gather(*map(_answers, rivals))
        for link, does_answer in zip(rivals, answers, strict=True):
            if not does_answer and not link.closed:
                log.warning(
                    "a broker does not answer, and another one takes its place", peer=link.peer
                )
                link.close()
        return None if connection.closed else self._registered(connection, request)

    def _registered(
        self, connection: Connection, request: Request[headers.RegisterBrokerRequestHeader]
    ) -> RemotingCommand:
        """Take in a broker in one piece, whatever number of topics it has.

        It costs some tens of milliseconds for 50,000 topics, and brokers register seldom.
        """
        header, body = request.header, Registered()
        check_body_crc(request.body, header.body_crc32)
        # Nearly all that is made here stays, so the collector would look at it again for nothing.
        with resting():
            if request.body:
                body = decode_register_body(
                    request.body, compressed=_is_compressed(request), version=request.version
                )
            registration = _registration(request, body)
            self._check_place(connection, registration)
            result = self._table.register(registration, connection)
        about = {
            "broker": header.broker_name,
            "broker_id": header.broker_id,
            "address": header.broker_addr,
            "cluster": header.cluster_name,
        }
        if result is None:
            log.warning("a single topic came before its broker was registered", **about)
            return response(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if not result.accepted:
            log.warning("registration ignored: the id is held by a later state version", **about)
        elif result.is_new:
            log.info("broker registered", topics=result.changed_topics, **about)
            self._warn_of_loopback(connection, header.broker_addr)
        elif result.changed_topics:
            log.info("topics changed", topics=result.changed_topics, **about)
        answer = headers.RegisterBrokerResponseHeader(
            ha_server_addr=result.ha_address, master_addr=result.master_address
        )
        return response(ResponseCode.SUCCESS, header=answer, body=self._order_topics())

    def _warn_of_loopback(self, connection: Connection, address: str) -> None:
        """Warn of a broker elsewhere at whose address clients would reach themselves."""
        host = bare_host(address.rpartition(":")[0])
        if not is_loopback(connection.peer_ip) and is_loopback(host):
            log.warning(
                "a broker elsewhere registered a loopback address",
                address=address,
                peer=connection.peer,
                remedy="set its brokerIP1 to the address at which clients reach it; it is right as it "
                "is only if broker and clients are on this machine",
            )

    def _check_place(self, connection: Connection, registration: Registration) -> None:
        """Raise if another broker is alive in the place that a registration takes.

        Java lets any sender take the routes of a living broker. Here that broker has to go first:
        by its own request, when its connection closes, or when it was silent for too long. A broker
        that was elected master of its group shows that by its state version. It need not wait for
        the old master if an administrator's address vouches for it.
        """
        name, broker_id = registration.broker_name, registration.broker_id
        for live in self._table.holders(name, broker_id, registration.address):
            if live.link is connection or live.link.closed:
                continue
            state_version = registration.data_version.state_version
            moves = live.key.address != registration.address
            if self._speaks_for(live, connection) and (
                not moves or state_version > live.data_version.state_version
            ):
                continue
            raise self._access.refusal(
                connection,
                requests.REGISTER_BROKER,
                f"{live.broker_name} (brokerId {live.broker_id}) is alive at {live.key.address} and "
                f"registers from {live.link.peer_ip}",
                f"Stop it, wait until it has been silent for {live.timeout_ms} ms, or set another "
                f"brokerName; an elected master takes its place if {connection.peer_ip} is in adminFrom",
            )

    def _speaks_for(self, live: LiveBroker, connection: Connection) -> bool:
        """Say whether the peer may speak for a broker, from its host or as an administrator."""
        link = live.link
        return (
            link is connection
            or link.peer_ip == connection.peer_ip
            or self._access.admits(connection)
        )

    def _touch(self, connection: Connection, key: BrokerKey) -> None:
        """Count a request as a sign of life, if the broker can have sent it."""
        for live in self._table.live():
            if live.key == key and self._speaks_for(live, connection):
                self._table.touch(key)

    def _order_topics(self) -> bytes:
        if not self._config.return_order_topic_config_to_broker:
            return b""
        entries = self._kv_config.namespace(ORDER_TOPIC_NAMESPACE)
        return b"" if entries is None else encode_body(KVTable(entries))

    def _unregister_broker(
        self, connection: Connection, request: Request[headers.UnRegisterBrokerRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        for live in self._table.live():
            if live.key.address == header.broker_addr and not self._speaks_for(live, connection):
                raise self._access.refusal(
                    connection,
                    requests.UNREGISTER_BROKER,
                    f"{live.broker_name} at {live.key.address} registers from {live.link.peer_ip}",
                )
        key = BrokerKey(header.cluster_name, header.broker_addr)
        if self._table.unregister(header.broker_name, key):
            log.info("broker unregistered", broker=header.broker_name, address=header.broker_addr)
        return success()

    def _register_topic(
        self, connection: Connection, request: Request[headers.RegisterTopicRequestHeader]
    ) -> RemotingCommand:
        topic = request.header.topic
        limits.check_name("the topic name", topic)
        route = TopicRouteData()
        if request.body:
            route = requests.REGISTER_TOPIC_IN_NAMESRV.typed_body(request)
        limits.check_route_queues(route)
        self._check_queues(connection, {data.broker_name for data in route.queue_datas})
        stranger = self._table.register_topic(topic, route.queue_datas)
        if stranger is not None:
            # Success all the same, as Java answers.
            log.warning("topic not set: unknown broker", topic=topic, broker=stranger)
        elif route.queue_datas:
            log.info("topic set", topic=topic, by=connection.peer)
        return success()

    def _check_queues(self, connection: Connection, broker_names: set[str]) -> None:
        """Raise unless the peer may speak for every living broker of these names."""
        others: dict[str, str] = {}
        own = set()
        for live in self._table.live():
            if self._speaks_for(live, connection):
                own.add(live.broker_name)
            else:
                others[live.broker_name] = live.link.peer_ip
        for name in sorted(broker_names & others.keys() - own):
            raise self._access.refusal(
                connection,
                requests.REGISTER_TOPIC_IN_NAMESRV,
                f"{name} registers from {others[name]}",
            )

    def _query_data_version(
        self, connection: Connection, request: Request[headers.QueryDataVersionRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        key = BrokerKey(header.cluster_name, header.broker_addr)
        theirs = requests.QUERY_DATA_VERSION.typed_body(request) if request.body else None
        ours = self._table.data_version(key)
        self._touch(connection, key)
        return response(
            ResponseCode.SUCCESS,
            header=headers.QueryDataVersionResponseHeader(changed=ours != theirs),
            body=b"" if ours is None else encode_body(ours),
        )

    def _broker_heartbeat(
        self, connection: Connection, request: Request[headers.BrokerHeartbeatRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        self._touch(connection, BrokerKey(header.cluster_name, header.broker_addr))
        return success()

    def _member_group(
        self, _connection: Connection, request: Request[headers.GetBrokerMemberGroupRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        group = self._table.member_group(header.cluster_name, header.broker_name)
        return success(member_group_json(group))


def _check_names(request: Request[headers.RegisterBrokerRequestHeader]) -> None:
    """Raise ProtocolError for a name or an address that is too long to be kept."""
    header = request.header
    limits.check_name("brokerName", header.broker_name)
    limits.check_name("brokerAddr", header.broker_addr)
    limits.check_name("clusterName", header.cluster_name)
    limits.check_name("haServerAddr", header.ha_server_addr)
    limits.check_name(_ZONE_NAME, ext_of(request).get(_ZONE_NAME, ""))


def _is_compressed(request: Request[headers.RegisterBrokerRequestHeader]) -> bool:
    # Java brokers of 5.3 with compressedRegister=true send a compressed body and yet say
    # compressed=false, which their own name server then refuses. No JSON begins like zlib.
    return request.header.compressed or request.body.startswith(_ZLIB_MAGIC)


def _registration(
    request: Request[headers.RegisterBrokerRequestHeader], body: Registered
) -> Registration:
    header, wrapper = request.header, body.topic_config_serialize_wrapper
    return Registration(
        header.cluster_name,
        header.broker_name,
        header.broker_addr,
        header.broker_id,
        header.ha_server_addr,
        ext_of(request).get(_ZONE_NAME),
        header.heartbeat_timeout_millis,
        header.enable_acting_master,
        wrapper.data_version,
        wrapper.topic_config_table,
        wrapper.topic_queue_mapping_info_map,
        body.filter_server_list,
    )
