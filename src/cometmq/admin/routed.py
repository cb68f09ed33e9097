"""Choose the brokers of a topic's route that are asked."""

from __future__ import annotations

import msgspec

from cometmq.errors import RouteNotFoundError
from cometmq.model.route import TopicRouteData
from cometmq.runtime.spelling import did_you_mean


def master_of(route: TopicRouteData, topic: str, broker_name: str) -> str:
    """Return the address of a broker's master.

    Raises RouteNotFoundError when the route names no master.
    """
    broker = route.broker(broker_name)
    master = broker.master() if broker is not None else None
    if master is None:
        raise RouteNotFoundError(
            f"the route of topic {topic} names no master of broker {broker_name}; start it, or check "
            "the broker's name"
        )
    return master


def reader_of(route: TopicRouteData, topic: str, broker_name: str) -> str:
    """Return where a queue is read: at the broker's master, or at a slave if there is no master.

    Raises RouteNotFoundError when the route names neither.
    """
    broker = route.broker(broker_name)
    address = broker.any_address() if broker is not None else None
    return address or master_of(route, topic, broker_name)


def masters_of(route: TopicRouteData, topic: str) -> dict[str, str]:
    """Return the masters of a topic by broker name."""
    names = sorted({data.broker_name for data in route.queue_datas})
    return {name: master_of(route, topic, name) for name in names}


def readable_of(route: TopicRouteData) -> dict[str, str]:
    """Return an address by broker name, as Java's tools choose it: the master's, or a slave's."""
    found = {data.broker_name: data.any_address() for data in route.broker_datas}
    return {name: address for name, address in sorted(found.items()) if address is not None}


def masterless(broker_name: str) -> RouteNotFoundError:
    """Return why a broker that has no registered master cannot be asked."""
    return RouteNotFoundError(
        f"no master of {broker_name} is registered at the name servers, so its part is missing; start "
        "it, or ask a slave by its address"
    )


def in_cluster(route: TopicRouteData, topic: str, cluster: str) -> TopicRouteData:
    """Return the part of a route that lies in a cluster. Raise RouteNotFoundError if none does."""
    brokers = [data for data in route.broker_datas if data.cluster == cluster]
    if not brokers:
        clusters = sorted({data.cluster for data in route.broker_datas})
        raise RouteNotFoundError(
            f"no broker of cluster {cluster!r:.80} has topic {topic}; the topic is in "
            f"{', '.join(clusters)}{did_you_mean(cluster, clusters)}"
        )
    names = {data.broker_name for data in brokers}
    return msgspec.structs.replace(
        route,
        broker_datas=brokers,
        queue_datas=[data for data in route.queue_datas if data.broker_name in names],
        lost_brokers=msgspec.UNSET
        if isinstance(route.lost_brokers, msgspec.UnsetType)
        else [lost for lost in route.lost_brokers if lost.cluster == cluster],
    )
