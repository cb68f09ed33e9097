"""Make a clock to set by hand, links without sockets, and short ways to register."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.route_table import Registration, RouteTable
from cometmq.protocol.bodies.cluster import TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import TopicQueues


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


class FakeLink:
    def __init__(self, peer_ip: str = "10.0.0.1") -> None:
        self.closed = False
        self.peer_ip = peer_ip

    def close(self) -> None:
        self.closed = True


def new_table(clock: FakeClock | None = None, **flags: bool) -> RouteTable:
    return RouteTable(NamesrvConfig(**flags), clock or FakeClock())  # type: ignore[arg-type]  # a dict of settings of several types


def wrapper(
    topics: Mapping[str, TopicConfig] | list[str], *, counter: int = 1, state_version: int = 0
) -> TopicConfigSerializeWrapper:
    if isinstance(topics, list):
        topics = {name: TopicConfig(name) for name in topics}
    return TopicConfigSerializeWrapper(
        DataVersion(counter, state_version, 0), topic_config_table=dict(topics)
    )


def queues_of(config: TopicConfig) -> TopicQueues:
    return TopicQueues(
        config.perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums
    )


def registration(
    topics: Mapping[str, TopicConfig] | list[str] | None = None,
    *,
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    cluster: str = "C",
    counter: int = 1,
    state_version: int = 0,
    timeout_ms: int | None = None,
    acting: bool | None = None,
    filter_servers: list[str] | None = None,
) -> Registration:
    table = wrapper(
        ["t1", "t2"] if topics is None else topics, counter=counter, state_version=state_version
    )
    return Registration(
        cluster,
        name,
        address,
        broker_id,
        ha_address=f"{address}-ha",
        timeout_ms=timeout_ms,
        enable_acting_master=acting,
        data_version=table.data_version,
        topics={name: queues_of(config) for name, config in table.topic_config_table.items()},
        filter_servers=filter_servers or [],
    )
