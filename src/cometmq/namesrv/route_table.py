"""Know which brokers are alive at which addresses, and which queues of which topics they hold.

The rules are those of Java's RouteInfoManager, without its locks, sockets and log lines: every
method is one step on plain tables, reports by its result what happened, and takes time from its clock
only. Two states that Java can get into do not arise here: a broker name without any address (Java
creates one when it refuses a first registration of a single topic), and a live entry that no scan
removes (Java keeps such an entry when another broker takes over the id).

Longer than 500 lines: every method keeps several of the tables in step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from cometmq.errors import LimitError
from cometmq.model.route import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    LostBroker,
    QueueData,
    TopicRouteData,
)
from cometmq.model.sysflag import PERM_RW, PERM_WRITE
from cometmq.model.topic import DataVersion
from cometmq.namesrv.config import NamesrvConfig
from cometmq.protocol.bodies.cluster import BrokerMemberGroup
from cometmq.protocol.bodies.registration import StaticTopicMapping, TopicQueues
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
# A step forgets so many topics of a broker that is gone.
_TOPICS_AT_ONCE: Final = 256
_encoder: Final = msgspec.json.Encoder()
# How many lost brokers are remembered, the latest ones, with how many topics together, and for how
# long.
MAX_LOST_BROKERS: Final = 100
MAX_LOST_ROUTES: Final = 200_000
LOST_KEPT_MS: Final = 24 * 60 * 60 * 1000


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
    """Holds what a broker reports of itself (header and body of request code 103).

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
    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicQueues] = field(default_factory=dict)
    mappings: dict[str, StaticTopicMapping] = field(default_factory=dict)
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


@dataclass(slots=True)
class _Served:
    """The queues that one broker name serves, by topic. Mappings are kept as JSON, which takes a third
    of the memory and which Python's garbage collector does not go through.
    """

    queues: dict[str, TopicQueues] = field(default_factory=dict)
    mappings: dict[str, bytes] = field(default_factory=dict)
    # For how many queue data the mappings count.
    weight: int = 0


@dataclass(slots=True)
class _Changes:
    """Lists the topics of a broker name that a registration changes."""

    queues: dict[str, TopicQueues] = field(default_factory=dict)
    # How many of these are no replacements.
    new_count: int = 0
    # The topics that are gone because they did not come.
    missing: set[str] = field(default_factory=set)
    mappings: dict[str, bytes] = field(default_factory=dict)
    weight: int = 0


class RouteTable:
    """Keeps the table that the module describes. For one thread.

    Every method reads the flags of `config` again.
    """

    def __init__(self, config: NamesrvConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config = config
        self._clock = clock
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        # By broker name: so many topics of a broker come, change and go at once.
        self._served: dict[str, _Served] = {}
        # How many queue data these are, and for how many more the mappings count.
        self._route_count = 0
        # The names of topics in order, None until they are listed again after one came or went.
        self._names: list[str] | None = None
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, list[str]] = {}
        # Brokers that were lost without unregistering, by name, with the queues of their topics.
        self._lost: dict[str, tuple[LostBroker, dict[str, TopicQueues]]] = {}
        # Counts the changes of facts that a route contains.
        self.changes = 0
        # Routes of brokers that are gone, and the function that is called when `release` has something
        # to do.
        self._gone: list[dict[str, Any]] = []
        self.on_gone: Callable[[], None] | None = None

    # Brokers come

    def _check_room(self, registration: Registration, changes: _Changes) -> None:
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
        self._check_routes(changes.new_count + max(0, changes.weight))

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
        """Take in a full or incremental registration. Raise LimitError where there is no room for it.

        None means that a single topic came before its broker was known: the broker has to send all
        its topics first. A result that is not `accepted` means that a broker with a later state
        version holds the id; the answer to the sender does not say so (Java answers with success).
        """
        name = registration.broker_name
        known = self._brokers.get(name)
        said = self._said_of(registration)
        changes = self._changes(registration)
        self._check_room(registration, changes)
        if len(registration.topics) == 1 and (
            known is None or registration.broker_id not in known.broker_addrs
        ):
            return None
        if former := self._former(registration):
            self._remove(former)
            changes = self._changes(registration)
        broker = self._brokers.setdefault(name, BrokerData(name, registration.cluster, {}))
        broker.enable_acting_master = bool(registration.enable_acting_master)
        broker.zone_name = registration.zone_name
        addresses = broker.broker_addrs
        for other_id in [i for i, a in addresses.items() if a == registration.address]:
            if other_id != registration.broker_id:
                del addresses[other_id]
        if self._held_by_later_state(registration, addresses):
            self.changes += 1
            self._forget_live(registration.key)
            return RegisterResult(accepted=False)
        self._clusters.setdefault(registration.cluster, set()).add(name)
        self._forget_lost(name)
        addresses[registration.broker_id] = registration.address
        changed = 0
        if _gives_topics(registration, broker):
            self._take(name, changes)
            changed = len(changes.queues)
        is_new = registration.key not in self._live
        self._set_live(registration, link)
        if changed or self._said_of(registration) != said:
            self.changes += 1
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
        return len(self._union(self._served) if self._names is None else self._names)

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
        self._forget_lost(broker_name)
        live = self._forget_live(key)
        if live is not None and live.broker_name != broker_name:
            # Whatever name the request gives, no address may stay without a live entry.
            self._remove_address(live.broker_name, key.address)
        return self._remove_address(broker_name, key.address) or live is not None

    def expire(self) -> Iterator[LiveBroker]:
        """Remove the brokers that were silent for longer than their timeout; yield each once it is gone.

        Between two of them others may use the table.
        """
        now_ms = self._now_ms()
        silent = [live for live in self._live.values() if live.seen_ms + live.timeout_ms < now_ms]
        for live in silent:
            # Unless it has spoken meanwhile, or another one has its place.
            if self._live.get(live.key) is live and live.seen_ms + live.timeout_ms < now_ms:
                yield from self._remove([live], lost=True)

    def release(self) -> Iterator[None]:
        """Forget in steps what brokers that are gone have served: a hundred with 10,000 topics each held
        everybody up for 40 ms.
        """
        while self._gone:
            table = self._gone[-1]
            for _ in range(min(_TOPICS_AT_ONCE, len(table))):
                table.popitem()
            if not table:
                self._gone.pop()
            yield

    def link_closed(self, link: Link) -> list[LiveBroker]:
        """Remove and return the brokers whose last registration came over `link`."""
        return self._remove((at for at in self._live.values() if at.link is link), lost=True)

    # Questions

    def lost(self, topic: str) -> list[LostBroker]:
        """Return the brokers of the topic that were lost without unregistering and did not come
        back.
        """
        since_ms = self._clock.now_ms() - LOST_KEPT_MS
        return [
            lost
            for lost, queues in self._lost.values()
            if topic in queues and lost.lost_millis >= since_ms
        ]

    def route(self, topic: str) -> TopicRouteData | None:
        """Return a copy of the topic's route, which the caller may complete, or None.

        None means that no broker serves the topic.
        """
        queues = self._queues(topic)
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
            queue_datas=[_queue_data(at.broker_name, queues[at.broker_name]) for at in brokers],
            filter_server_table=filter_servers,
            topic_queue_mapping_by_broker={
                name: msgspec.json.decode(served.mappings[topic])
                for name, served in self._served.items()
                if topic in served.mappings
            }
            or None,
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
            self._names = sorted(self._union(self._served))
        return self._names

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        here = self._union(names)
        return [topic for topic in self.topics() if topic in here]

    def topics_by_flag(self, *, required: int, excluded: int = 0) -> list[str]:
        """Return topics with all `required` and no `excluded` FLAG_* bits on their first broker."""
        flags = {
            topic: data.topic_sys_flag
            for served in reversed(self._served.values())
            for topic, data in served.queues.items()
        }
        return [
            topic
            for topic in self.topics()
            if flags[topic] & required == required and not flags[topic] & excluded
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
        by_name = {
            data.broker_name: TopicQueues(
                data.perm, data.read_queue_nums, data.topic_sys_flag, data.write_queue_nums
            )
            for data in datas
        }
        self._check_routes(len(by_name.keys() - self._queues(topic).keys()))
        for name, queues in by_name.items():
            self._put(name, {topic: queues})
        return None

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Drop the topic's queues, on the brokers of `cluster` only if one is given.

        Returns whether there were any.
        """
        names = set(self._queues(topic))
        if cluster:
            names &= self._clusters.get(cluster, set())
        for name in names:
            self._drop(name, {topic})
        for lost, queues in self._lost.values():
            if not cluster or lost.cluster == cluster:
                queues.pop(topic, None)
        return bool(names)

    # Inside

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _former(self, registration: Registration) -> list[LiveBroker]:
        """Return the former entry of a broker that restarted under another name or in another
        cluster.

        Java keeps that entry, and loses the broker when the entry expires.
        """
        key, name = registration.key, registration.broker_name
        return [
            live
            for live in self._live.values()
            if live.key.address == key.address and (live.key == key) != (live.broker_name == name)
        ]

    def _held_by_later_state(self, registration: Registration, addresses: dict[int, str]) -> bool:
        held = addresses.get(registration.broker_id)
        if held is None or held == registration.address:
            return False
        live = self._live.get(BrokerKey(registration.cluster, held))
        version = registration.data_version.state_version
        return live is not None and live.data_version.state_version > version

    def _said_of(self, registration: Registration) -> object:
        """Return what routes say about a broker apart from its queues, for a comparison."""
        broker = self._brokers.get(registration.broker_name)
        said = None if broker is None else (broker.zone_name, dict(broker.broker_addrs))
        acting = broker is not None and broker.enable_acting_master
        return said, acting, self._filter_servers.get(registration.key)

    def _dropped_perm(self, registration: Registration) -> int:
        """Return what topics do not permit at this broker: an acting master serves reads only."""
        is_slave = registration.broker_id != MASTER_ID
        return PERM_WRITE if is_slave and registration.enable_acting_master else 0

    def _changes(self, registration: Registration) -> _Changes:
        """Compare a registration with the topics that its broker name serves.

        A known topic changes only under a version that the broker did not register before.
        """
        name, given = registration.broker_name, registration.topics
        broker, served = self._brokers.get(name), self._served.get(name) or _Served()
        is_newer = (
            broker is None
            or not broker.broker_addrs.get(registration.broker_id)
            or self.data_version(registration.key) != registration.data_version
        )
        changes, known = _Changes(), served.queues
        if drop_perm := self._dropped_perm(registration):
            given = _with_perm(given, keep=~drop_perm)
        if not known:
            changes.queues = given
        elif is_newer:
            changes.queues = {
                topic: each for topic, each in given.items() if known.get(topic) != each
            }
        else:
            changes.queues = {topic: each for topic, each in given.items() if topic not in known}
        changes.new_count = len(changes.queues) - sum(map(known.__contains__, changes.queues))
        has_mappings = False
        for topic, mapping in registration.mappings.items():
            # Java's brokers send their own; others would stay in the table when their broker goes.
            if mapping.bname in (None, name):
                has_mappings = True
                data, former = _encoder.encode(mapping), served.mappings.get(topic)
                if is_newer and former != data:
                    changes.mappings[topic] = data
                    changes.weight += _weight(topic, data)
                    changes.weight -= _weight(topic, former) if former else 0
        if self._config.delete_topic_with_broker_registration and not has_mappings:
            changes.missing = known.keys() - given.keys()
        return changes

    def _take(self, name: str, changes: _Changes) -> None:
        """Take over what a registration changes."""
        if changes.missing:
            self._drop(name, changes.missing)
        self._put(name, changes.queues)
        if changes.mappings:
            served = self._served_by(name)
            served.mappings |= changes.mappings
            self.changes += 1
            served.weight += changes.weight
            self._route_count += changes.weight

    def _put(self, name: str, queues: dict[str, TopicQueues]) -> None:
        """Add these queues, or replace those of the same topics."""
        if not queues:
            return
        served = self._served_by(name)
        new = -len(served.queues)
        served.queues |= queues
        new += len(served.queues)
        self.changes += 1
        self._route_count += new
        if new:
            self._names = None

    def _set_live(self, registration: Registration, link: Link) -> None:
        key = registration.key
        timeout_ms = registration.timeout_ms
        self._live[key] = LiveBroker(
            key,
            registration.broker_name,
            registration.broker_id,
            registration.ha_address,
            registration.data_version,
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

    def _remove(self, gone: Iterable[LiveBroker], *, lost: bool = False) -> list[LiveBroker]:
        """Remove brokers, and remember those that were `lost`, where no other has their name."""
        removed = list(gone)
        for live in removed:
            self._forget_live(live.key)
            served = self._served.get(live.broker_name)
            self._remove_address(live.broker_name, live.key.address, lost=lost)
            if lost and served is not None and live.broker_name not in self._brokers:
                key, now_ms = live.key, self._clock.now_ms()
                broker = LostBroker(key.cluster, live.broker_name, key.address, now_ms)
                self._lost[live.broker_name] = (broker, served.queues)
                self._bound_lost()
        return removed

    def _bound_lost(self) -> None:
        while len(self._lost) > MAX_LOST_BROKERS or (
            sum(len(queues) for _, queues in self._lost.values()) > MAX_LOST_ROUTES
        ):
            self._forget_lost(next(iter(self._lost)))

    def _forget_lost(self, broker_name: str) -> None:
        found = self._lost.pop(broker_name, None)
        if found is not None:
            self._release_later([found[1]])

    def _forget_live(self, key: BrokerKey) -> LiveBroker | None:
        self.changes += 1
        self._filter_servers.pop(key, None)
        return self._live.pop(key, None)

    def _remove_address(self, broker_name: str, address: str, *, lost: bool = False) -> bool:
        broker = self._brokers.get(broker_name)
        if broker is None:
            return False
        self.changes += 1
        ids = [broker_id for broker_id, a in broker.broker_addrs.items() if a == address]
        for broker_id in ids:
            del broker.broker_addrs[broker_id]
        if not broker.broker_addrs:
            self._remove_broker(broker_name, lost=lost)
        elif broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
            # The slaves that are left serve reads only.
            self._set_perm(broker_name, keep=~PERM_WRITE, add=0)
        return bool(ids)

    def _remove_broker(self, broker_name: str, *, lost: bool) -> None:
        del self._brokers[broker_name]
        for cluster in [c for c, names in self._clusters.items() if broker_name in names]:
            self._clusters[cluster].discard(broker_name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        served = self._served.pop(broker_name, None)
        if served is not None:
            self._route_count -= len(served.queues) + served.weight
            self._names = None
            self._release_later([served.mappings] if lost else [served.queues, served.mappings])

    def _release_later(self, tables: list[dict[str, Any]]) -> None:
        """Forget large tables in steps."""
        if self.on_gone is not None and any(len(table) > _TOPICS_AT_ONCE for table in tables):
            self._gone += tables
            self.on_gone()

    def _served_by(self, name: str) -> _Served:
        served = self._served.get(name)
        if served is None:
            served = self._served[name] = _Served()
        return served

    def _queues(self, topic: str) -> dict[str, TopicQueues]:
        """Return the queues of a topic by broker name."""
        return {
            name: served.queues[topic]
            for name, served in self._served.items()
            if topic in served.queues
        }

    def _union(self, names: Collection[str]) -> Collection[str]:
        """Return the topics that brokers of these names serve."""
        tables = [self._served[name].queues for name in names if name in self._served]
        return tables[0] if len(tables) == 1 else set().union(*tables)

    def _drop(self, name: str, topics: Collection[str]) -> None:
        served = self._served[name]
        for topic in topics:
            del served.queues[topic]
        self.changes += 1
        self._route_count -= len(topics)
        self._names = None

    def _set_perm(self, broker_name: str, *, keep: int, add: int) -> int:
        served = self._served.get(broker_name)
        if served is None:
            return 0
        served.queues = _with_perm(served.queues, keep=keep, add=add)
        self.changes += 1
        return len(served.queues)


def _gives_topics(registration: Registration, broker: BrokerData) -> bool:
    """Say whether the topics of a broker name come from this of its brokers: from the master or, where
    it knows acting masters, from the lowest id.
    """
    if registration.broker_id == MASTER_ID:
        return True
    return (
        registration.enable_acting_master is not None
        # Some brokers register with the id -1 until they have one.
        and MASTER_ID not in broker.broker_addrs
        and registration.broker_id == min(broker.broker_addrs)
    )


def _weight(topic: str, mapping: bytes) -> int:
    """Return for how many queue data a mapping counts, which has an entry for each of its queues."""
    return 1 + (len(topic) + len(mapping)) // _BYTES_OF_ROUTE


def _queue_data(broker_name: str, queues: TopicQueues) -> QueueData:
    return QueueData(
        broker_name,
        queues.read_queue_nums,
        queues.write_queue_nums,
        queues.perm,
        queues.topic_sys_flag,
    )


def _with_perm(table: dict[str, TopicQueues], *, keep: int, add: int = 0) -> dict[str, TopicQueues]:
    """Return the table with other permissions; its topics have few different ones."""
    made: dict[TopicQueues, TopicQueues] = {}
    for queues in table.values():
        if queues not in made:
            made[queues] = msgspec.structs.replace(queues, perm=queues.perm & keep | add)
    return {topic: made[queues] for topic, queues in table.items()}


def _appoint_acting_master(broker: BrokerData, queues: TopicQueues) -> None:
    """Show the slave with the lowest id as the master of a broker without one, for reads."""
    addresses = broker.broker_addrs
    if not broker.enable_acting_master or MASTER_ID in addresses or queues.perm & PERM_WRITE:
        return
    addresses[MASTER_ID] = addresses.pop(min(addresses))
