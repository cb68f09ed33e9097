"""Random lives of brokers, compared with a model that keeps three flat sets of facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.namesrv.route_table_fixtures import FakeClock, FakeLink, new_table, registration

from cometmq.namesrv.kept_routes import KeptRoutes
from cometmq.namesrv.route_json import route_json
from cometmq.namesrv.route_table import BrokerKey, RouteTable

NAMES = ("a", "b")
ADDRESSES = ("h1:1", "h2:1", "h3:1")
CLUSTERS = ("C", "D")
TOPICS = ("t1", "t2", "t3")
LINKS = 3
TIMEOUT_S = 10


class Register(NamedTuple):
    name: str
    broker_id: int
    address: str
    cluster: str
    topics: tuple[str, ...]
    counter: int
    state_version: int
    link: int


class Unregister(NamedTuple):
    name: str
    address: str
    cluster: str


class Close(NamedTuple):
    link: int


class Pass(NamedTuple):
    seconds: int


names = st.sampled_from(NAMES)
addresses = st.sampled_from(ADDRESSES)
clusters = st.sampled_from(CLUSTERS)
links = st.integers(0, LINKS - 1)
topics = st.lists(st.sampled_from(TOPICS), unique=True).map(tuple)
versions = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.builds(
            Register,
            names,
            st.integers(0, 2),
            addresses,
            clusters,
            topics,
            versions,
            versions,
            links,
        ),
        st.builds(Unregister, names, addresses, clusters),
        st.builds(Close, links),
        st.builds(Pass, st.integers(1, TIMEOUT_S + 1)),
    ),
    max_size=30,
)


class Live(NamedTuple):
    cluster: str
    address: str
    name: str
    link: int
    deadline_s: float
    state_version: int


@dataclass
class Model:
    """Facts: `name` has `address` as `id`; `name` serves `topic`; an address is live."""

    now_s: float = 0
    members: set[tuple[str, int, str]] = field(default_factory=set)
    serving: set[tuple[str, str]] = field(default_factory=set)
    live: set[Live] = field(default_factory=set)

    def register(self, step: Register) -> None:
        place = (step.name, step.broker_id)
        if len(step.topics) == 1 and not any(m[:2] == place for m in self.members):
            return
        here = {live for live in self.live if live.address == step.address}
        self.drop(
            {live for live in here if (live.cluster == step.cluster) != (live.name == step.name)}
        )
        mine = {m for m in self.members if m[0] == step.name and m[2] == step.address}
        self.members -= {m for m in mine if m[1] != step.broker_id}
        here = {
            live
            for live in self.live
            if (live.cluster, live.address) == (step.cluster, step.address)
        }
        holder = next((m[2] for m in self.members if m[:2] == place), step.address)
        if holder != step.address:
            held = [
                live for live in self.live if (live.cluster, live.address) == (step.cluster, holder)
            ]
            if held and held[0].state_version > step.state_version:
                self.live -= here
                return
        self.members -= {(*place, holder)}
        self.members.add((*place, step.address))
        if step.broker_id == 0:
            self.serving |= {(step.name, topic) for topic in step.topics}
        self.live -= here
        self.live.add(
            Live(
                step.cluster,
                step.address,
                step.name,
                step.link,
                self.now_s + TIMEOUT_S,
                step.state_version,
            )
        )

    def unregister(self, step: Unregister) -> None:
        self.drop({x for x in self.live if (x.cluster, x.address) == (step.cluster, step.address)})
        self.leave(step.name, step.address)

    def drop(self, gone: set[Live]) -> None:
        self.live -= gone
        for live in gone:
            self.leave(live.name, live.address)

    def leave(self, name: str, address: str) -> None:
        self.members = {m for m in self.members if (m[0], m[2]) != (name, address)}
        if not any(m[0] == name for m in self.members):
            self.serving = {s for s in self.serving if s[0] != name}

    def routes(self) -> dict[str, dict[str, dict[int, str]]]:
        """Return the addresses by id, by broker name, by topic."""
        return {
            topic: {
                name: {m[1]: m[2] for m in self.members if m[0] == name}
                for name, served in self.serving
                if served == topic
            }
            for _, topic in self.serving
        }


def routes(table: RouteTable) -> dict[str, dict[str, dict[int, str]]]:
    result = {}
    for topic in table.topics():
        route = table.route(topic)
        assert route is not None
        assert [b.broker_name for b in route.broker_datas] == [
            q.broker_name for q in route.queue_datas
        ]
        result[topic] = {b.broker_name: b.broker_addrs for b in route.broker_datas}
    return result


@given(steps)
def test_routes_are_those_of_the_model_and_end_empty(
    history: list[Register | Unregister | Close | Pass],
) -> None:
    clock = FakeClock()
    table = new_table(clock)
    handles = [FakeLink() for _ in range(LINKS)]
    model = Model(now_s=clock.now_s)
    kept = KeptRoutes()
    for step in history:
        if isinstance(step, Register):
            table.register(
                registration(
                    list(step.topics),
                    name=step.name,
                    broker_id=step.broker_id,
                    address=step.address,
                    cluster=step.cluster,
                    counter=step.counter,
                    state_version=step.state_version,
                    timeout_ms=TIMEOUT_S * 1000,
                ),
                handles[step.link],
            )
            model.register(step)
        elif isinstance(step, Unregister):
            table.unregister(step.name, BrokerKey(step.cluster, step.address))
            model.unregister(step)
        elif isinstance(step, Close):
            table.link_closed(handles[step.link])
            model.drop({live for live in model.live if live.link == step.link})
        else:
            clock.now_s += step.seconds
            model.now_s += step.seconds
            list(table.expire())
            model.drop({live for live in model.live if live.deadline_s < model.now_s})
        assert routes(table) == model.routes()
        # A route that was kept in an earlier step is the one that would be encoded now.
        for topic in table.topics():
            route = table.route(topic)
            assert route is not None
            body = route_json(route)
            assert kept.of(table.changes).setdefault(topic, body) == body
        info = table.cluster_info()
        assert info.broker_addr_table.keys() == {m[0] for m in model.members}
        assert {n for cluster in info.cluster_addr_table.values() for n in cluster} == {
            m[0] for m in model.members
        }
    clock.now_s += TIMEOUT_S + 1
    list(table.expire())
    info = table.cluster_info()
    assert (table.topics(), info.broker_addr_table, info.cluster_addr_table) == ([], {}, {})
