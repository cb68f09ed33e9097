"""Let a deletion fail at one server, and repeat it."""

from __future__ import annotations

import pytest
from tests.unit.admin.fake_cluster import (
    NAMESRV,
    OTHER_NAMESRV,
    A,
    B,
    FakeCluster,
    answer,
    cluster_info,
    route,
)

from cometmq.admin.groups.room import Groups
from cometmq.admin.topics.room import Topics
from cometmq.errors import RemoteError, RequestTimeoutError, RouteNotFoundError, ServersFailedError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import dlq_topic, retry_topic
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.cluster import SubscriptionGroupWrapper
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand

OF_GROUP = (retry_topic("g"), dlq_topic("g"))
TOPICS = ("t", *OF_GROUP)


class DeletingCluster(FakeCluster):
    """Has group `g` and TOPICS at two brokers and two name servers. `failing` is an address and a
    code: that server does not answer requests of this code.
    """

    def __init__(self) -> None:
        self.failing: tuple[str, int] | None = None
        self.topics = {at: set(TOPICS) for at in (A, B, NAMESRV, OTHER_NAMESRV)}
        self.groups = {A: {"g"}, B: {"g"}}
        super().__init__(
            {
                RequestCode.GET_BROKER_CLUSTER_INFO: lambda *_: cluster_info(),
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_TOPIC_CONFIG: self._config,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._groups,
                RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
                RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
                RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            },
            name_servers=2,
        )

    def _may_fail(self, address: str, request: RemotingCommand) -> None:
        if self.failing == (address, request.code):
            raise RequestTimeoutError("no answer within 3 s", address=address)

    def _route(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if request.ext["topic"] not in self.topics[address]:
            return answer(ResponseCode.TOPIC_NOT_EXIST)
        return route({"broker-a": 1, "broker-b": 1})

    def _config(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if request.ext["topic"] not in self.topics[address]:
            return answer(ResponseCode.TOPIC_NOT_EXIST)
        return answer(body=TopicConfig(topic_name=str(request.ext["topic"])))

    def _groups(self, address: str, _: RemotingCommand) -> RemotingCommand:
        table = {name: SubscriptionGroupConfig(group_name=name) for name in self.groups[address]}
        return answer(body=SubscriptionGroupWrapper(subscription_group_table=table))

    def _delete_group(self, address: str, request: RemotingCommand) -> RemotingCommand:
        self._may_fail(address, request)
        self.groups[address].discard(str(request.ext["groupName"]))
        return answer()

    def _delete_topic(self, address: str, request: RemotingCommand) -> RemotingCommand:
        self._may_fail(address, request)
        self.topics[address].discard(str(request.ext["topic"]))
        return answer()


@pytest.mark.parametrize(
    "failing",
    [
        (B, RequestCode.DELETE_TOPIC_IN_BROKER),
        (OTHER_NAMESRV, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        (B, RequestCode.DELETE_SUBSCRIPTIONGROUP),
    ],
)
async def test_the_deletion_of_a_group_is_finished_by_repeating_it(
    failing: tuple[str, int],
) -> None:
    cluster = DeletingCluster()
    cluster.failing = failing
    groups = Groups(cluster.servers)
    with pytest.raises(ServersFailedError):
        await groups.delete("g")
    cluster.failing = None
    assert await groups.delete("g") == [A, B]
    assert set(cluster.groups[A] | cluster.groups[B]) == set()
    assert all(held == {"t"} for held in cluster.topics.values())
    with pytest.raises(RemoteError, match="no broker that was asked has the group"):
        await groups.delete("g")


@pytest.mark.parametrize(
    "failing",
    [
        (B, RequestCode.DELETE_TOPIC_IN_BROKER),
        (OTHER_NAMESRV, RequestCode.DELETE_TOPIC_IN_NAMESRV),
    ],
)
async def test_the_deletion_of_a_topic_is_finished_by_repeating_it(
    failing: tuple[str, int],
) -> None:
    cluster = DeletingCluster()
    cluster.failing = failing
    topics = Topics(cluster.servers)
    with pytest.raises(ServersFailedError):
        await topics.delete("t")
    cluster.failing = None
    assert await topics.delete("t") == [A, B]
    assert all(held == set(OF_GROUP) for held in cluster.topics.values())
    with pytest.raises(RouteNotFoundError, match="no route of topic t"):
        await topics.delete("t")


async def test_a_topic_that_a_broker_has_and_no_name_server_knows_can_be_deleted() -> None:
    cluster = DeletingCluster()
    for address in (A, NAMESRV, OTHER_NAMESRV):
        cluster.topics[address].discard("t")
    assert await Topics(cluster.servers).delete("t") == [A, B]
    assert "t" not in cluster.topics[B]
