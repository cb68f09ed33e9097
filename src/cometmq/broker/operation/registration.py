"""Register the broker with name servers, and unregister it: codes 103 and 104.

Java: BrokerOuterAPI, BrokerController.registerBrokerAll.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable

import msgspec

from cometmq.broker.config import BrokerConfig
from cometmq.broker.replication.known_master import KnownMaster
from cometmq.broker.topics.topics import TopicManager
from cometmq.errors import CometMQError, ProtocolError
from cometmq.logs.loggers import get_logger
from cometmq.model.route import QueueData, TopicRouteData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import body_crc, encode_register_body
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.header import header_from_ext
from cometmq.protocol.headers import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from cometmq.protocol.limits import check_route
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connection import Connection
from cometmq.remoting.credentials import Credentials, is_denied
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

_UNREGISTER_TIMEOUT_S = 3.0
_RETRY_PERIOD_S = 1.0
# A client that asks for its share of a topic waits for three seconds.
_ROUTE_TIMEOUT_S = 1.0
# Until a server that does not speak the protocol is tried again; it may be replaced.
_STRANGER_RETRY_PERIOD_S = 30.0
_FIRST_REGISTRATION_WAIT_S = 3.0
# A slave that does not know its master registers this often.
_NO_MASTER_PERIOD_S = 5.0
# Java's broker waits for up to registerBrokerTimeoutMills, 24 s. Clients give up long before that.
_ANNOUNCEMENT_WAIT_S = 1.0
# Topics of one registration, as Java's splitRegistrationSize. A large table goes in several
# registrations, none of which holds up this loop or the name server's.
MAX_TOPICS_AT_ONCE = 800


class Registration:
    """Registers with every name server at `start`, periodically, and at each topic change.

    The size of a periodic registration does not grow with the table. A table of MAX_TOPICS_AT_ONCE
    topics or fewer is sent as a whole. Of a larger table a name server gets the next part if it
    says that it has this version, and otherwise all topics. A slave passes its master's address, which
    the answers have, on to `master`.

    `address` is where clients reach the broker, `ha_address` where slaves do. With `credentials` each
    request is signed. `on_connect` is called
    with each connection to a name server. A name server that does not answer delays no other. For
    the loop's thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicManager,
        *,
        address: str,
        ha_address: str,
        tasks: TaskOwner,
        network: Network = TCP_NETWORK,
        credentials: Credentials | None = None,
        master: KnownMaster | None = None,
        on_connect: Callable[[Connection], None] = lambda _: None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._config = config
        self._topics = topics
        self._address = address
        self._ha_address = ha_address
        self._tasks = tasks
        self._master = master
        self._on_connect = on_connect
        self._client = RemotingClient(
            on_connect=self._connected, credentials=credentials, tls=tls, network=network
        )
        self._changed: dict[str, TopicConfig] = {}
        self._all_due = False
        self._announcing: asyncio.Task[None] | None = None
        self._registered: set[str] = set()
        self._coming_back: set[str] = set()
        # Name servers of which the log says that they do not answer.
        self._out: set[str] = set()
        # Name servers that answered a registration later than an announcement may wait, so no
        # change waits for them; and those of them that get the table because of a change, once they
        # answer.
        self._late: set[str] = set()
        self._behind: set[str] = set()
        # Why name servers refuse registrations, as the log has it already.
        self._refusals: dict[str, str | None] = {}
        # Name servers that do not speak the protocol.
        self._strangers: set[str] = set()
        self._closing = False
        # Index of the first topic that `remind` sends next.
        self._next_part = 0

    async def start(self) -> None:
        """Register, then repeat it periodically. Wait 3 s at most for silent servers."""
        first = self._tasks.spawn(self.register_all(), "register-first")
        await asyncio.wait([first], timeout=_FIRST_REGISTRATION_WAIT_S)
        # Java registers again after 10 s, whatever the period is.
        self._tasks.every(self._config.registration_period_s, self.remind, "register", first_s=10.0)
        if (master := self._master) is not None:
            self._tasks.every(
                _NO_MASTER_PERIOD_S,
                lambda: None if master.is_reported else self.remind(),
                "look-for-master",
            )

    async def close(self) -> None:
        """Unregister from the name servers, because the broker stops."""
        self._closing = True
        await self._leave(self._registered)
        await self._client.close()

    async def _leave_dropped(self, servers: set[str]) -> None:
        """Unregister from name servers that `namesrvAddr` no longer names.

        While the connection is open they would go on sending clients here.
        """
        await self._leave(servers)
        for server in servers:
            self._forget_master(server)
            self._client.close_connection(server)

    async def _leave(self, servers: Iterable[str]) -> None:
        header = UnRegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        await asyncio.gather(*(self._unregister(server, header) for server in sorted(servers)))

    async def register_all(self) -> None:
        """Send the whole topic table to every name server."""
        await self._register(list(self._topics.all()), self._config.name_servers())

    async def remind(self) -> None:
        """Register once more, of a large table only a part if possible."""
        topics = list(self._topics.all())
        servers = self._config.name_servers()
        if len(topics) <= MAX_TOPICS_AT_ONCE:
            await self._register(topics, servers)
            return
        if self._next_part >= len(topics):
            self._next_part = 0
        part = topics[self._next_part : self._next_part + MAX_TOPICS_AT_ONCE]
        self._next_part += MAX_TOPICS_AT_ONCE
        await asyncio.gather(*(self._remind_one(server, topics, part) for server in servers))

    async def _remind_one(
        self, server: str, topics: list[TopicConfig], part: list[TopicConfig]
    ) -> None:
        # A name server that gets a part with the present version believes that it has all of the
        # version. So it must have that already.
        knows = await self._knows_version(server)
        await self._register(part if knows else topics, [server])

    async def _knows_version(self, server: str) -> bool:
        header = QueryDataVersionRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        await self.announced()
        version = msgspec.structs.replace(self._topics.data_version)
        try:
            answer = await self._client.ask(
                server,
                requests.QUERY_DATA_VERSION,
                header,
                version,
                what="the question for the data version",
                timeout_s=self._config.register_broker_timeout_mills / 1000,
            )
            return bool(answer.command.body) and answer.body == version
        except CometMQError:  # the registration that follows logs it
            return False

    async def route_of(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic from the first name server that has it, else None."""
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        for server in self._config.name_servers():
            try:
                answer = await self._client.ask(
                    server,
                    requests.GET_ROUTEINFO_BY_TOPIC,
                    header,
                    what=f"the route of topic {topic}",
                    timeout_s=_ROUTE_TIMEOUT_S,
                )
            except CometMQError as error:
                log.debug("no route", name_server=server, topic=topic, reason=str(error))
            else:
                return check_route(answer.body)
        return None

    def topics_changed(self, topics: Iterable[TopicConfig]) -> None:
        """Send changed topics soon; if none is named, send the whole table."""
        if self._closing:
            return
        if not self._changed and not self._all_due:
            self._announcing = self._tasks.spawn(self._register_changes(), "register-changes")
        changed = {topic.topic_name: topic for topic in topics}
        self._changed.update(changed)
        self._all_due = self._all_due or not changed

    async def announced(self) -> None:
        """Return when name servers have answered all changes given to `topics_changed` so far.

        Waits at most a second for a silent one.
        """
        if self._announcing is not None:
            await asyncio.wait([self._announcing], timeout=_ANNOUNCEMENT_WAIT_S)

    async def _register_changes(self) -> None:
        # The task starts in the loop's next turn, so that all changes of this turn go together.
        changed, self._changed = self._changed, {}
        all_due, self._all_due = self._all_due, False
        topics = list(self._topics.all() if all_due else changed.values())
        servers = self._config.name_servers()
        if dropped := self._registered - set(servers):
            self._tasks.spawn(self._leave_dropped(dropped), "leave-name-servers")
        self._behind |= self._late
        servers = [server for server in servers if server not in self._late]
        few = not all_due and len(topics) <= MAX_TOPICS_AT_ONCE
        if self._config.enable_single_topic_register and few:
            await asyncio.gather(
                *(self._register_topic(server, topic) for topic in topics for server in servers)
            )
        else:
            await self._register(topics, servers)

    async def _register_topic(self, server: str, topic: TopicConfig) -> None:
        """Register one topic with a name server by code 217, which leaves the table's version as it is
        (Java: registerSingleTopicAll). The next periodic registration brings the version.
        """
        known = self._topics.registered(topic)
        data = QueueData(
            broker_name=self._config.broker_name,
            perm=known.perm,
            read_queue_nums=known.read_queue_nums,
            topic_sys_flag=known.topic_sys_flag,
            write_queue_nums=known.write_queue_nums,
        )
        command = requests.REGISTER_TOPIC_IN_NAMESRV.command(
            RegisterTopicRequestHeader(topic.topic_name), TopicRouteData(queue_datas=[data])
        )
        timeout_s = self._config.register_broker_timeout_mills / 1000
        try:
            answer = await self._client.call(server, command, timeout_s)
        except CometMQError as error:
            log.warning("topic not registered", name_server=server, reason=str(error))
            return
        if answer.code != ResponseCode.SUCCESS:
            log.warning("topic refused", name_server=server, reason=answer.remark)

    def _connected(self, server: str, connection: Connection) -> None:
        connection.on_close.append(lambda _: self._come_back(server))
        self._on_connect(connection)

    def _come_back(self, server: str) -> None:
        """Register until a name server knows us again: one that restarts has forgotten us."""
        self._registered.discard(server)
        if not self._closing and server not in self._coming_back:
            self._coming_back.add(server)
            self._tasks.spawn(self._register_again(server), f"register-again-{server}")

    async def _register_again(self, server: str) -> None:
        try:
            while server not in self._registered:
                is_stranger = server in self._strangers
                await asyncio.sleep(_STRANGER_RETRY_PERIOD_S if is_stranger else _RETRY_PERIOD_S)
                if server not in self._config.name_servers():  # taken out meanwhile
                    return
                await self._register(list(self._topics.all()), [server])
        finally:
            self._coming_back.discard(server)

    async def _register(self, topics: list[TopicConfig], servers: list[str]) -> None:
        """Send topics; send many in several registrations, one after the other."""
        if len(topics) <= MAX_TOPICS_AT_ONCE:
            await self._register_part(topics, servers, self._topics.data_version)
            return
        await asyncio.gather(*(self._register_parts(topics, server) for server in servers))

    async def _register_parts(self, topics: list[TopicConfig], server: str) -> None:
        # A name server accepts changes only with a version that it does not have. So each part has
        # a version of its own, and the last part has the table's. The table may change meanwhile,
        # but every change is announced by itself.
        for start in range(0, len(topics), MAX_TOPICS_AT_ONCE):
            left = len(topics) - start - MAX_TOPICS_AT_ONCE
            version = self._topics.data_version
            part_version = msgspec.structs.replace(
                version, timestamp=version.timestamp - max(left, 0)
            )
            part = topics[start : start + MAX_TOPICS_AT_ONCE]
            if not await self._register_part(part, [server], part_version):
                return

    async def _register_part(
        self, topics: Iterable[TopicConfig], servers: Iterable[str], version: DataVersion
    ) -> bool:
        """Register with each server; return whether all accepted it."""
        if self._closing:  # it would undo the unregistration in `close`
            return False
        body = RegisterBrokerBody(
            # Java's consumers pull with a class filter only from filter servers, so this broker
            # registers as one.
            [self._address] if self._config.filter_predicate_modules.strip() else [],
            topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
                data_version=version,
                topic_config_table={
                    topic.topic_name: self._topics.registered(topic) for topic in topics
                },
            ),
        )
        compressed = self._config.compressed_register
        data = encode_register_body(body, compressed=compressed)
        header = RegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=self._config.broker_id,
            # Java 5 brokers always say it. From a slave that says it, name servers that started
            # while the master was away take the topics, so that consumers find the slave.
            enable_acting_master=None if self._master is None else False,
            compressed=compressed,
            body_crc32=body_crc(data),
        )
        taken = await asyncio.gather(
            *(self._register_with(server, header, data) for server in servers)
        )
        return all(taken)

    async def _register_with(
        self, server: str, header: RegisterBrokerRequestHeader, body: bytes
    ) -> bool:
        mark = asyncio.get_running_loop().call_later(_ANNOUNCEMENT_WAIT_S, self._late.add, server)
        try:
            answer = await self._client.call(
                server,
                requests.REGISTER_BROKER.command(header, body),
                self._config.register_broker_timeout_mills / 1000,
            )
        except CometMQError as error:
            self._forget_master(server)
            if server not in self._out:  # one line for an outage, not one for each try
                self._out.add(server)
                log.warning("not registered", name_server=server, reason=str(error))
            if isinstance(error.__cause__, ProtocolError):
                self._strangers.add(server)
            self._come_back(server)
            return False
        finally:
            mark.cancel()
        self._strangers.discard(server)
        self._out.discard(server)
        self._late.discard(server)
        if server in self._behind:
            self._behind.discard(server)
            self._tasks.spawn(self._register(list(self._topics.all()), [server]), "catch-up")
        if answer.code != ResponseCode.SUCCESS:
            self._forget_master(server)
            self._report_refusal(server, _why_refused(answer))
        elif server not in self._registered:
            self._registered.add(server)
            self._refusals.pop(server, None)
            log.info("registered", name_server=server, broker=self._config.broker_name)
        if self._master is not None and answer.code == ResponseCode.SUCCESS:
            answered = header_from_ext(answer.ext, RegisterBrokerResponseHeader)
            self._master.reported(server, answered.master_addr, answered.ha_server_addr)
        return answer.code == ResponseCode.SUCCESS

    def _report_refusal(self, server: str, reason: str | None) -> None:
        """Log why a name server refuses this broker; once, since it is asked again and again."""
        if self._refusals.get(server, "") != reason:
            self._refusals[server] = reason
            log.warning("registration refused", name_server=server, reason=reason)

    def _forget_master(self, server: str) -> None:
        """Let other name servers report another master to a slave than this one did.

        A name server may be lost together with the master.
        """
        if self._master is not None:
            self._master.reported(server, None, None)

    async def _unregister(self, server: str, header: UnRegisterBrokerRequestHeader) -> None:
        try:
            await self._client.call(
                server, requests.UNREGISTER_BROKER.command(header), _UNREGISTER_TIMEOUT_S
            )
        except CometMQError as error:  # the server will see the closed connection
            log.warning("not unregistered", name_server=server, reason=str(error))


def _why_refused(answer: RemotingCommand) -> str | None:
    if is_denied(answer):
        return (
            f"{answer.remark}; set innerClientAuthenticationCredentials to an account that this name "
            "server knows: an administrator (ACL 1.0) or a Super user (ACL 2.0)"
        )
    if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return answer.remark
    return f"it is no name server ({answer.remark}); check namesrvAddr"
