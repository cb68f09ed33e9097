"""Say what a cluster wants of its servers, in real time and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cometmq.broker.server import Broker
from cometmq.model.route import MASTER_ID
from cometmq.namesrv.server import NameServer
from cometmq.replication.config import MASTER_ROLES
from cometmq.testing.accounts import Account

# From the port for clients to the one for slaves.
HA_PORT_DISTANCE: Final = 1
_REGISTERED_WITHIN_S: Final = 60.0


class ClusterPlan(NamedTuple):
    """Says which servers a cluster has, and with which settings.

    `properties` are for every broker, `node_properties` for the broker of the node that is named,
    `namesrv_properties` for every name server. With `accounts` every broker has access control, with
    `tls` servers talk TLS, and nothing else.
    """

    name_servers: int = 1
    brokers: int = 1
    slaves: int = 0
    master_role: str = "ASYNC_MASTER"
    properties: Mapping[str, str] = {}
    node_properties: Mapping[str, Mapping[str, str]] = {}
    accounts: tuple[Account, ...] = ()
    namesrv_properties: Mapping[str, str] = {}
    tls: bool = False

    def name_server_names(self) -> list[str]:
        return [name_server_name(index) for index in range(self.name_servers)]

    def master_names(self) -> list[str]:
        return [broker_name(index) for index in range(self.brokers)]

    def slave_names(self) -> list[str]:
        """Return the names of the slaves' nodes, those of one master together."""
        return [
            slave_name(master, broker_id)
            for master in self.master_names()
            for broker_id in range(1, self.slaves + 1)
        ]

    def check(self) -> None:
        """Raise ValueError if there can be no such cluster."""
        if self.name_servers < 1 or self.brokers < 0:
            raise ValueError(
                f"a cluster needs a name server, got {self.name_servers} and {self.brokers} brokers"
            )
        if self.slaves < 0:
            raise ValueError(f"slaves={self.slaves} does not fit, each master has 0 or more")
        if self.master_role not in MASTER_ROLES:
            raise ValueError(
                f"master_role={self.master_role!r} does not fit, it is {' or '.join(MASTER_ROLES)}"
            )
        known = [*self.master_names(), *self.slave_names()]
        if unknown := [name for name in self.node_properties if name not in known]:
            raise ValueError(
                f"node_properties has {unknown[0]!r}, which is no broker of this cluster; its "
                f"brokers are {', '.join(known)}"
            )


@dataclass
class BrokerPlace:
    """Says of one broker's node which part it has now; `promote` and `demote` change it.

    `role_properties` are the entries that say so; a master that has never been anything else has
    none, so that the properties of its cluster decide.
    """

    node: str
    group: str
    role_properties: dict[str, str] = field(default_factory=dict)

    @property
    def broker_id(self) -> int:
        return int(self.role_properties.get("brokerId", MASTER_ID))

    def become_master(self, role: str) -> None:
        self.role_properties = {"brokerRole": role, "brokerId": str(MASTER_ID)}

    def become_slave(self, broker_id: int) -> None:
        self.role_properties = {"brokerRole": "SLAVE", "brokerId": str(broker_id)}


class BrokerPlaces:
    """Knows the role of each broker's node, and the settings with which its broker starts."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._places = {name: BrokerPlace(name, name) for name in plan.master_names()}
        for master in plan.master_names():
            for broker_id in range(1, plan.slaves + 1):
                place = BrokerPlace(slave_name(master, broker_id), master)
                place.become_slave(broker_id)
                self._places[place.node] = place

    def names(self) -> list[str]:
        """Return the nodes' names, those of masters first."""
        return list(self._places)

    def properties(self, node: str, defaults: Mapping[str, str]) -> dict[str, str]:
        """Return the settings with which a node's broker starts; the cluster's and the node's own
        override `defaults`.
        """
        place = self._places[node]
        return {
            "brokerName": place.group,
            "brokerRole": self._plan.master_role,
            **defaults,
            **self._plan.properties,
            **place.role_properties,
            **self._plan.node_properties.get(node, {}),
        }

    def promote(self, node: str) -> None:
        """Have the node's broker start as its group's master from now on."""
        properties = self._plan.properties
        self._places[node].become_master(properties.get("brokerRole", self._plan.master_role))

    def demote(self, node: str) -> None:
        """Have the node's broker start as a slave from now on, with the lowest id that is free."""
        place = self._places[node]
        if place.broker_id != MASTER_ID:
            return
        taken = {each.broker_id for each in self._places.values() if each.group == place.group}
        place.become_slave(next(i for i in range(1, len(taken) + 2) if i not in taken))


def name_server_name(index: int) -> str:
    return f"namesrv-{index}"


def broker_name(index: int) -> str:
    """Return `broker-a`, …, `broker-z`, then `broker-26` and so on."""
    return f"broker-{chr(ord('a') + index) if index < 26 else index}"


def slave_name(master: str, broker_id: int) -> str:
    """Return the name of the node on which the slave with that id starts: `broker-a-slave-1`."""
    return f"{master}-slave-{broker_id}"


async def all_registered(servers: Servers) -> None:
    """Wait until every name server knows every broker. A broker's start waits for 3 s at most."""
    name_servers = [each for each in servers.servers.values() if isinstance(each, NameServer)]
    brokers = len(servers.servers) - len(name_servers)
    async with asyncio.timeout(_REGISTERED_WITHIN_S):
        while any(  # noqa: ASYNC110 - a name server sends no event for a registration
            len(each.table.live()) < brokers for each in name_servers
        ):
            await asyncio.sleep(0.01)


class Servers(Protocol):
    """Starts and stops the name servers and brokers of a cluster, each by the name of its node.

    `servers` has what was started last on each node, also when it was stopped since then.
    """

    servers: dict[str, Broker | NameServer]
    places: BrokerPlaces

    @property
    def namesrv(self) -> str:
        """Return the name servers' addresses in one text, as clients take it."""

    @property
    def directory(self) -> Path:
        """Return where the stores lie."""

    async def start(self) -> None:
        """Start the name servers, then the brokers; return when all are registered."""

    async def stop(self) -> None:
        """Stop all servers. Idempotent."""

    async def stop_server(self, name: str) -> None:
        """Stop the server of a node cleanly."""

    async def start_server(self, name: str) -> None:
        """Start a stopped server, under its address. A broker has its store, a name server nothing."""
