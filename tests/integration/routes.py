"""Wait until name servers know the brokers of a topic: a broker that makes a topic may answer before that."""

from __future__ import annotations

import json

from tests.integration.raw_client import RawClient
from tests.waits import eventually, until

from cometmq.testing import Cluster

_GET_ROUTE = 105


async def until_routed(cluster: Cluster, topic: str, *brokers: str) -> None:
    """Wait until each name server of a cluster has the topic at these brokers and no others."""

    def known() -> list[set[str]]:
        routes = [each.table.route(topic) for each in cluster.name_servers]
        return [{each.broker_name for each in route.queue_datas} for route in routes if route]

    wanted = [set(brokers)] * len(cluster.name_servers)
    await until(known, lambda seen: seen == wanted, pause_s=0.1)


def wait_until_routed(namesrv: str, topic: str, *brokers: str) -> None:
    """Wait until the first name server of `namesrv` has the topic at these brokers."""
    # A producer of ours would not do: for a topic that does not exist it returns the queues that a send would make.
    with RawClient(namesrv.split(";", maxsplit=1)[0]) as client:

        def known() -> bool:
            answer = client.ask(_GET_ROUTE, {"topic": topic})
            found = json.loads(answer.body)["brokerDatas"] if answer.body else []
            return {data["brokerName"] for data in found} >= set(brokers)

        eventually(known)
