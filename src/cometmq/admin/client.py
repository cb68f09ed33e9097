"""Provide `AdminClient`, by which operators inspect and manage clusters (Java: DefaultMQAdminExt)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from cometmq.admin.servers import Servers
from cometmq.client.limits import check_range, namesrv_addresses
from cometmq.client.options import takes
from cometmq.client.running import Lifecycle
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.credentials import Credentials, check_credentials
from cometmq.runtime.clock import Clock
from cometmq.runtime.sockets.network import Network
from cometmq.tls.contexts import Tls, tls_of

if TYPE_CHECKING:
    from cometmq.admin.access.room import Access
    from cometmq.admin.brokers.room import Brokers
    from cometmq.admin.explain.room import Explanations
    from cometmq.admin.groups.offsets import Offsets
    from cometmq.admin.groups.producers import Producers
    from cometmq.admin.groups.room import Groups
    from cometmq.admin.health import Health
    from cometmq.admin.messages.room import Messages
    from cometmq.admin.name_servers import NameServers
    from cometmq.admin.topics.room import Topics

# As in Java's tools.
TIMEOUT_MS: Final = 5_000
_MAX_TIMEOUT_MS: Final = 24 * 60 * 60 * 1000


@dataclass(repr=False)
class AdminOptions:
    """Holds the options of the administration client; AdminClient explains them.

    Raises IllegalArgumentError for a value that breaks a rule.
    """

    namesrv: str | Sequence[str] | None = None
    _: KW_ONLY
    timeout_ms: int = TIMEOUT_MS
    credentials: Credentials | None = None
    tls: bool | Tls | None = None
    # These are no options, but simulations pass them by name. See `takes`.
    surroundings: ClassVar = frozenset({"clock", "network"})
    clock: ClassVar[Clock]
    network: ClassVar[Network]

    def __post_init__(self) -> None:
        check_range("timeout_ms", self.timeout_ms, 1, _MAX_TIMEOUT_MS)
        check_credentials(self.credentials)

    def addresses(self) -> list[str]:
        """Return the name servers. An empty list given stands for none: brokers are then named by
        their addresses.
        """
        if self.namesrv is not None and not isinstance(self.namesrv, str) and not self.namesrv:
            return []
        return namesrv_addresses(self.namesrv)


class AdminClient(Lifecycle[Servers]):
    """Inspects and manages clusters of CometMQ and of Apache RocketMQ 4.9 and 5.

    Each of its rooms has the calls for one kind of thing: `topics`, `groups`, `offsets`, `messages`,
    `brokers`, `producers`, `name_servers` and `access`; `explain` answers questions such as why a
    group is behind, `health` whether the servers are well. Connections are made when a call needs
    them.

    `namesrv` is `host:port`; give several addresses joined by `;` or in a list, an empty list to ask
    brokers by their addresses only. Without it the variable NAMESRV_ADDR counts. `timeout_ms` is the
    time that a server has for an answer, and also for its connection. `credentials` and `tls` are those of producers and
    consumers.

    Calls that several servers could serve take `cluster` or `broker`, a broker name or an address
    `host:port`; with neither, the only cluster is meant. Calls that ask several servers return a
    result for each, by address.

    Every call raises IllegalArgumentError for a value that cannot be meant, RouteNotFoundError if no
    name server knows the topic, broker or cluster, RemotingError if a server does not answer,
    RemoteError if it refuses (AccessDeniedError if the client's account lacks a right), and
    ServersFailedError, with the results of the others, if some of several servers failed. A request
    that a server of an older version does not know is a RemoteError that names the version.
    """

    @takes(AdminOptions)
    def __init__(self, options: AdminOptions) -> None:
        super().__init__()
        timeout_s = options.timeout_ms / 1000
        remoting = RemotingClient(
            connect_timeout_s=timeout_s,
            credentials=options.credentials,
            tls=tls_of(options.tls),
            network=options.network,
        )
        self._clock = options.clock
        self._servers = Servers(
            options.addresses(), remoting, timeout_s, self._running, options.clock
        )
        self._options = options

    # A room is imported when it is first used: `cometmq admin` uses one of them in a short process.

    @cached_property
    def topics(self) -> Topics:
        from cometmq.admin.topics.room import Topics

        return Topics(self._servers)

    @cached_property
    def groups(self) -> Groups:
        from cometmq.admin.groups.room import Groups

        return Groups(self._servers)

    @cached_property
    def offsets(self) -> Offsets:
        from cometmq.admin.groups.offsets import Offsets

        return Offsets(self._servers)

    @cached_property
    def messages(self) -> Messages:
        from cometmq.admin.messages.room import Messages

        return Messages(self._servers)

    @cached_property
    def brokers(self) -> Brokers:
        from cometmq.admin.brokers.room import Brokers

        return Brokers(self._servers)

    @cached_property
    def producers(self) -> Producers:
        from cometmq.admin.groups.producers import Producers

        return Producers(self._servers)

    @cached_property
    def name_servers(self) -> NameServers:
        from cometmq.admin.name_servers import NameServers

        return NameServers(self._servers)

    @cached_property
    def access(self) -> Access:
        from cometmq.admin.access.room import Access

        return Access(self._servers)

    @cached_property
    def explain(self) -> Explanations:
        from cometmq.admin.explain.room import Explanations

        return Explanations(self._servers, self._clock)

    @cached_property
    def health(self) -> Health:
        from cometmq.admin.checkup import ClusterCheckup
        from cometmq.admin.health import Health

        given = self._options

        def checkup() -> ClusterCheckup:
            return ClusterCheckup(
                self._servers.name_servers,
                credentials=given.credentials,
                tls=given.tls,
                network=given.network,
                clock=given.clock,
                clients=False,
            )

        return Health(self._servers, checkup)

    async def _enter(self) -> Servers:
        return self._servers

    async def _depart(self, servers: Servers) -> None:
        await servers.close()

    def _name(self) -> str:
        return type(self).__name__
