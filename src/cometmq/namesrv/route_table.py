"""Knows which brokers are alive at which addresses, and which queues of which topics they hold.

The rules are those of Java's RouteInfoManager, without its locks, sockets and log lines: every
method is one step on plain tables, tells by its result what happened, and takes time from its clock
only. Two states that Java can get into do not arise here: a broker name without any address (Java
creates one when it refuses a first registration of a single topic), and a live entry that no scan
removes (Java keeps such an entry when another broker takes over the id).

Longer than 500 lines: every method keeps several of the tables in step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from cometmq.errors import LimitError
from cometmq.model.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.model.sysflag import PERM_RW, PERM_WRITE
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.protocol.bodies import BrokerMemberGroup, TopicConfigSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock

DEFAULT_LIVE_TIMEOUT_MS: Final = 120_000

# Java: TopicSysFlag
FLAG_UNIT: Final = 0x1
FLAG_UNIT_SUB: Final = 0x2

# The route of a topic with this prefix shows the members of a broker group as they are, without an
# acting master.
_SYNC_MEMBERS_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


# A queue data takes about so many bytes.
_BYTES_OF_ROUTE: Final = 200
_NO_QUEUES: Final[dict[str, QueueData]] = {}


class Link(Protocol):
    """The connection that brought a registration. The table compares links by identity."""

    closed: bool
    peer_ip: str

    def close(self) -> None: ...


class BrokerKey(NamedTuple):
    """Identifies a live broker."""

    cluster: str
    address: str


@dataclass
class Registration:
    """What a broker reports of itself (header and body of request code 103).

    `enable_acting_master` is None from brokers that do not know of it (4.x).
    """

    cluster: str
    broker_name: str
    address: str
    broker_id: int
    ha_address: str = ""
    zone_name: str | None = None
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    topics: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_servers: list[str] = field(default_factory=list)

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)


class RegisterResult(NamedTuple):
    """The outcome of a registration. A slave gets the addresses of its master if that is live."""

    accepted: bool = True
    is_new: bool = False
    changed_topics: int = 0
    master_address: str | None = None
    ha_address: str | None = None


@dataclass
class LiveBroker:
    """One entry of the live table. `seen_ms` is a reading of the monotonic clock."""

    key: BrokerKey
    broker_name: str
    broker_id: int
    ha_address: str
    data_version: DataVersion
    timeout_ms: int
    seen_ms: float
    link: Link


class RouteTable:
    """Keeps the table that the module describes. For one thread.

    Every method reads the flags of `config` anew.
    """

    def __init__(self, config: NamesrvConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config = config
        self._clock = clock
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        # How many queue data these are, and for how many more the mappings count.
        self._route_count = 0
        # The names of topics in order, None until they are listed again after one came or went.
        self._names: list[str] | None = None
        self._mappings: dict[str, dict[str, dict[str, Any]]] = {}
        # By broker and topic, for how many queue data each of them counts.
        self._mapping_weights: dict[str, dict[str, int]] = {}
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, list[str]] = {}
        # How often queues of topics have changed.
        self.edits = 0

    # Brokers come

    def knows(self, registration: Registration) -> bool:
        """Say whether a registration renews that of a master as it is in the table.

        It may then leave out topics that are as they were (`has_as_registered`), as long as `edits`
        stays the same.
        """
        name, address = registration.broker_name, registration.address
        live = self._live.get(registration.key)
        return (
            registration.broker_id == MASTER_ID
            and not self._config.delete_topic_with_broker_registration
            and live is not None
            and live.broker_name == name
            and self._brokers[name].broker_addrs.get(MASTER_ID) == address
            and all(other is live for other in self._live.values() if other.key.address == address)
        )

    def has_as_registered(self, broker_name: str, topic: str, config: TopicConfig) -> bool:
        """Say whether a topic has the queues at a master that its configuration says."""
        known = self._topics.get(topic, _NO_QUEUES).get(broker_name)
        return known is not None and _is_as_registered(known, config, 0)

    def check_room(self, registration: Registration) -> None:
        """Raise LimitError if there would be too many brokers, or topics at brokers, with this one."""
        most = self._config.max_brokers
        count = len(self._live) + (registration.key not in self._live)
        if 0 < most < count:
            raise LimitError(
                "brokers would be registered",
                count,
                "maxBrokers",
                most,
                "stop those that nobody needs, or raise it",
                code=ResponseCode.SYSTEM_BUSY,
            )
        name, topics = registration.broker_name, registration.topics.topic_config_table
        mappings = sum(_weight(*each) for each in _own_mappings(registration).items())
        # Most registrations fit even if all their topics were new.
        if 0 < self._config.max_routes < self._route_count + len(topics) + mappings:
            known = sum(self._mapping_weights.get(name, {}).values())
            new = sum(name not in self._topics.get(topic, ()) for topic in topics)
            self._check_routes(new + max(0, mappings - known))

    def _check_routes(self, new: int) -> None:
        most = self._config.max_routes
        if new and 0 < most < self._route_count + new:
            raise LimitError(
                "topics would be registered, each counted at each of its brokers",
                self._route_count + new,
                "maxRoutes",
                most,
                "remove topics, or raise it",
                code=ResponseCode.SYSTEM_BUSY,
            )

    def register(self, registration: Registration, link: Link) -> RegisterResult | None:
        """Take in a full or incremental registration.

        None means that a single topic came before its broker was known: the broker has to send all
        its topics first. A result that is not `accepted` means that a broker with a later state
        version holds the id; the sender is not told so (Java answers with success).
        """
        name = registration.broker_name
        topics = registration.topics.topic_config_table
        known = self._brokers.get(name)
        if len(topics) == 1 and (known is None or registration.broker_id not in known.broker_addrs):
            return None
        self._leave_former_place(registration)
        broker = self._brokers.setdefault(name, BrokerData(name, registration.cluster, {}))
        broker.enable_acting_master = bool(registration.enable_acting_master)
        broker.zone_name = registration.zone_name
        addresses = broker.broker_addrs
        for other_id in [i for i, a in addresses.items() if a == registration.address]:
            if other_id != registration.broker_id:
                del addresses[other_id]
        if self._held_by_later_state(registration, addresses):
            self._forget_live(registration.key)
            return RegisterResult(accepted=False)
        self._clusters.setdefault(registration.cluster, set()).add(name)
        is_first = not addresses.get(registration.broker_id)
        addresses[registration.broker_id] = registration.address
        changed = self._take_topics(registration, broker, is_first)
        is_new = registration.key not in self._live
        self._set_live(registration, link)
        master_address, ha_address = self._master_for(registration, addresses)
        return RegisterResult(True, is_new, changed, master_address, ha_address)

    def holders(self, broker_name: str, broker_id: int, address: str) -> list[LiveBroker]:
        """Return the live brokers that have this name and id, or this address.

        A registration with them would take the place of these brokers.
        """
        return [
            live
            for live in self._live.values()
            if live.key.address == address
            or (live.broker_name == broker_name and live.broker_id == broker_id)
        ]

    def live(self) -> list[LiveBroker]:
        """Return all brokers that are alive, masters and slaves."""
        return list(self._live.values())

    def longest_silence_ms(self) -> float:
        """Return for how long the most silent of the live brokers has not been heard of."""
        now_ms = self._now_ms()
        return max((now_ms - live.seen_ms for live in self._live.values()), default=0.0)

    @property
    def topic_count(self) -> int:
        """How many topics there are."""
        return len(self._topics)

    def touch(self, key: BrokerKey) -> None:
        """Note a sign of life other than a registration (request codes 322 and 904)."""
        if (live := self._live.get(key)) is not None:
            live.seen_ms = self._now_ms()

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """Return the version of the topics that a live broker registered last, else None."""
        live = self._live.get(key)
        return live.data_version if live else None

    # Brokers go

    def unregister(self, broker_name: str, key: BrokerKey) -> bool:
        """Remove one address of a broker name, and with the last one the broker's queues.

        Returns whether there was anything to remove.
        """
        live = self._forget_live(key)
        if live is not None and live.broker_name != broker_name:
            # Whatever name the request gives, no address may stay without a live entry.
            self._remove_address(live.broker_name, key.address)
        return self._remove_address(broker_name, key.address) or live is not None

    def expire(self) -> list[LiveBroker]:
        """Remove and return the brokers that were silent for longer than their timeout."""
        now_ms = self._now_ms()
        return self._remove(
            live for live in self._live.values() if live.seen_ms + live.timeout_ms < now_ms
        )

    def link_closed(self, link: Link) -> list[LiveBroker]:
        """Remove and return the brokers whose last registration came over `link`."""
        return self._remove(live for live in self._live.values() if live.link is link)

    # Questions

    def route(self, topic: str) -> TopicRouteData | None:
        """Return a copy of the topic's route, which the caller may complete, or None.

        None means that no broker serves the topic.
        """
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [msgspec.structs.replace(self._brokers[name]) for name in sorted(queues)]
        for broker in brokers:
            broker.broker_addrs = dict(sorted(broker.broker_addrs.items()))
        filter_servers = {
            address: servers
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (servers := self._filter_servers.get(BrokerKey(broker.cluster, address)))
        }
        if self._config.support_acting_master and not topic.startswith(_SYNC_MEMBERS_PREFIX):
            for broker in brokers:
                _appoint_acting_master(broker, queues[broker.broker_name])
        return TopicRouteData(
            broker_datas=brokers,
            queue_datas=[queues[broker.broker_name] for broker in brokers],
            filter_server_table=filter_servers,
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            self._brokers, {cluster: sorted(names) for cluster, names in self._clusters.items()}
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        broker = self._brokers.get(broker_name)
        return BrokerMemberGroup(broker_name, cluster, broker.broker_addrs if broker else {})

    def topics(self) -> list[str]:
        """List all topics in order. The list is the table's own: do not change it."""
        if self._names is None:
            self._names = sorted(self._topics)
        return self._names

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return [topic for topic in self.topics() if names & self._topics[topic].keys()]

    def topics_by_flag(self, *, required: int, excluded: int = 0) -> list[str]:
        """Return topics with all `required` and no `excluded` FLAG_* bits on their first broker."""
        flags = (
            (topic, next(iter(self._topics[topic].values())).topic_sys_flag)
            for topic in self.topics()
        )
        return [
            topic for topic, flag in flags if flag & required == required and not flag & excluded
        ]

    def system_topics(self) -> list[str]:
        """Return the names of all clusters and brokers: brokers serve topics of these names."""
        return sorted({*self._clusters, *self._brokers})

    def some_address(self) -> str | None:
        """Return the address of any broker, or None if there is none."""
        return next((broker.any_address() for broker in self._brokers.values()), None)

    # Operators' orders

    def wipe_write_perm(self, broker_name: str) -> int:
        """Stop sends to a broker; return the number of topics that it serves."""
        return self._set_perm(broker_name, keep=~PERM_WRITE, add=0)

    def add_write_perm(self, broker_name: str) -> int:
        """Allow reads and sends again; return the number of topics that the broker serves."""
        return self._set_perm(broker_name, keep=0, add=PERM_RW)

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> str | None:
        """Set queues of a topic and return None.

        If one of the brokers is unknown, set nothing and return its name. Raises LimitError.
        """
        datas = list(queue_datas)
        for data in datas:
            if data.broker_name not in self._brokers:
                return data.broker_name
        if datas:
            queues = self._topics.get(topic, {})
            new = len({data.broker_name for data in datas} - queues.keys())
            self._check_routes(new)
            self.edits += 1
            self._queues_of(topic).update({data.broker_name: data for data in datas})
            self._route_count += new
        return None

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Drop the topic's queues, on the brokers of `cluster` only if one is given.

        Returns whether there were any.
        """
        queues = self._topics.get(topic, {})
        names = set(queues) if not cluster else queues.keys() & self._clusters.get(cluster, set())
        for name in names:
            self._drop_queues(topic, name)
        return bool(names)

    # Inside

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _leave_former_place(self, registration: Registration) -> None:
        """Remove the former entry of a broker that restarted under another name or in another
        cluster.

        Java keeps that entry, and loses the broker when the entry expires.
        """
        key, name = registration.key, registration.broker_name
        former = [
            live
            for live in self._live.values()
            if live.key.address == key.address and (live.key == key) != (live.broker_name == name)
        ]
        self._remove(former)

    def _held_by_later_state(self, registration: Registration, addresses: dict[int, str]) -> bool:
        held = addresses.get(registration.broker_id)
        if held is None or held == registration.address:
            return False
        live = self._live.get(BrokerKey(registration.cluster, held))
        version = registration.topics.data_version.state_version
        return live is not None and live.data_version.state_version > version

    def _take_topics(self, registration: Registration, broker: BrokerData, is_first: bool) -> int:
        """Take over a broker's topics and return how many changed.

        Topics come from the master or, where the broker knows acting masters, from the lowest id.
        """
        is_prime_slave = (
            registration.broker_id != MASTER_ID
            and registration.enable_acting_master is not None
            # Some brokers register with the id -1 until they have one.
            and MASTER_ID not in broker.broker_addrs
            and registration.broker_id == min(broker.broker_addrs)
        )
        if registration.broker_id != MASTER_ID and not is_prime_slave:
            return 0
        name = broker.broker_name
        wrapper = registration.topics
        mappings = _own_mappings(registration)
        if self._config.delete_topic_with_broker_registration and not mappings:
            gone = self._topics_of(name) - wrapper.topic_config_table.keys()
            for topic in gone:
                self._drop_queues(topic, name)
        is_newer = is_first or self.data_version(registration.key) != wrapper.data_version
        drop_perm = PERM_WRITE if is_prime_slave and broker.enable_acting_master else 0
        changed = 0
        for key, config in wrapper.topic_config_table.items():
            topic = config.topic_name or key
            queues = self._topics.get(topic)
            known = None if queues is None else queues.get(name)
            # Most topics are as they were; nothing is made for those, so the collector rests.
            if known is None or (is_newer and not _is_as_registered(known, config, drop_perm)):
                self._set_queues(topic, name, config, drop_perm)
                changed += 1
        if is_newer:
            for topic, mapping in mappings.items():
                self._mappings.setdefault(topic, {})[name] = mapping
                weights = self._mapping_weights.setdefault(name, {})
                weight = _weight(topic, mapping)
                self._route_count += weight - weights.get(topic, 0)
                weights[topic] = weight
        return changed

    def _set_queues(self, topic: str, name: str, config: TopicConfig, drop_perm: int) -> None:
        self.edits += 1
        queues = self._queues_of(topic)
        self._route_count += name not in queues
        queues[name] = QueueData(
            name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm & ~drop_perm,
            config.topic_sys_flag,
        )

    def _set_live(self, registration: Registration, link: Link) -> None:
        key = registration.key
        timeout_ms = registration.timeout_ms
        self._live[key] = LiveBroker(
            key,
            registration.broker_name,
            registration.broker_id,
            registration.ha_address,
            registration.topics.data_version,
            DEFAULT_LIVE_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            self._now_ms(),
            link,
        )
        if registration.filter_servers:
            self._filter_servers[key] = registration.filter_servers
        else:
            self._filter_servers.pop(key, None)

    def _master_for(
        self, registration: Registration, addresses: dict[int, str]
    ) -> tuple[str | None, str | None]:
        address = addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or address is None:
            return None, None
        live = self._live.get(BrokerKey(registration.cluster, address))
        return (address, live.ha_address) if live else (None, None)

    def _remove(self, gone: Iterable[LiveBroker]) -> list[LiveBroker]:
        removed = list(gone)
        for live in removed:
            self._forget_live(live.key)
            self._remove_address(live.broker_name, live.key.address)
        return removed

    def _forget_live(self, key: BrokerKey) -> LiveBroker | None:
        self._filter_servers.pop(key, None)
        return self._live.pop(key, None)

    def _remove_address(self, broker_name: str, address: str) -> bool:
        broker = self._brokers.get(broker_name)
        if broker is None:
            return False
        ids = [broker_id for broker_id, a in broker.broker_addrs.items() if a == address]
        for broker_id in ids:
            del broker.broker_addrs[broker_id]
        if not broker.broker_addrs:
            self._remove_broker(broker_name)
        elif broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
            # The slaves that are left serve reads only.
            self._set_perm(broker_name, keep=~PERM_WRITE, add=0)
        return bool(ids)

    def _remove_broker(self, broker_name: str) -> None:
        del self._brokers[broker_name]
        for cluster in [c for c, names in self._clusters.items() if broker_name in names]:
            self._clusters[cluster].discard(broker_name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in self._topics_of(broker_name):
            self._drop_queues(topic, broker_name)
        weights = self._mapping_weights.pop(broker_name, {})
        self._route_count -= sum(weights.values())
        for topic in weights:
            del self._mappings[topic][broker_name]
            if not self._mappings[topic]:
                del self._mappings[topic]

    def _queues_of(self, topic: str) -> dict[str, QueueData]:
        """Return the queues of a topic by broker; make the topic if it is not known."""
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = {}
            self._names = None
        return queues

    def _topics_of(self, broker_name: str) -> set[str]:
        return {topic for topic, queues in self._topics.items() if broker_name in queues}

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        self.edits += 1
        queues = self._topics[topic]
        del queues[broker_name]
        self._route_count -= 1
        if not queues:
            del self._topics[topic]
            self._names = None

    def _set_perm(self, broker_name: str, *, keep: int, add: int) -> int:
        topics = self._topics_of(broker_name)
        for topic in topics:
            self.edits += 1
            data = self._topics[topic][broker_name]
            data.perm = data.perm & keep | add
        return len(topics)


def _own_mappings(registration: Registration) -> dict[str, dict[str, Any]]:
    """Return the static-topic mappings that a broker has of itself, as Java's brokers do.

    Those of others would stay in the table when it goes.
    """
    mappings = registration.topics.topic_queue_mapping_info_map or {}
    name = registration.broker_name
    return {
        topic: mapping
        for topic, mapping in mappings.items()
        if str(mapping.get("bname", name)) == name
    }


def _weight(topic: str, mapping: dict[str, Any]) -> int:
    """Return for how many queue data a mapping counts, which has an entry for each of its queues."""
    return 1 + (len(topic) + len(msgspec.json.encode(mapping))) // _BYTES_OF_ROUTE


def _is_as_registered(known: QueueData, config: TopicConfig, drop_perm: int) -> bool:
    return (
        known.read_queue_nums == config.read_queue_nums
        and known.write_queue_nums == config.write_queue_nums
        and known.perm == config.perm & ~drop_perm
        and known.topic_sys_flag == config.topic_sys_flag
    )


def _appoint_acting_master(broker: BrokerData, queues: QueueData) -> None:
    """Show the slave with the lowest id as the master of a broker without one, for reads."""
    addresses = broker.broker_addrs
    if not broker.enable_acting_master or MASTER_ID in addresses or queues.perm & PERM_WRITE:
        return
    addresses[MASTER_ID] = addresses.pop(min(addresses))
