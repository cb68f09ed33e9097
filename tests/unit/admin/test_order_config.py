"""Change ordered topics, and look at the order configuration that name servers then have."""

from __future__ import annotations

import pytest
from tests.unit.admin.fake_cluster import A, B, FakeCluster, answer, cluster_info, route

from cometmq.admin.topics.room import Topics
from cometmq.errors import IllegalArgumentError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand


class OrderedTopics(FakeCluster):
    """Has topic `t` with 4 queues at broker-a and 8 at broker-b, and keeps its order
    configuration in `order_config`.
    """

    def __init__(self, order_config: str | None, *, ordered: bool) -> None:
        self.order_config = order_config
        queues = {A: 4, B: 8}

        def config(address: str, _: RemotingCommand) -> RemotingCommand:
            count = queues[address]
            return answer(
                body=TopicConfig(
                    topic_name="t", read_queue_nums=count, write_queue_nums=count, order=ordered
                )
            )

        def get(*_: object) -> RemotingCommand:
            if self.order_config is None:
                return answer(ResponseCode.QUERY_NOT_FOUND)
            return answer(value=self.order_config)

        def put(_: str, request: RemotingCommand) -> RemotingCommand:
            self.order_config = str(request.ext["value"])
            return answer()

        def delete(*_: object) -> RemotingCommand:
            self.order_config = None
            return answer()

        super().__init__(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route(
                    {"broker-a": 4, "broker-b": 8}
                ),
                RequestCode.GET_BROKER_CLUSTER_INFO: lambda *_: cluster_info(),
                RequestCode.GET_TOPIC_CONFIG: config,
                RequestCode.UPDATE_AND_CREATE_TOPIC: lambda *_: answer(),
                RequestCode.GET_KV_CONFIG: get,
                RequestCode.PUT_KV_CONFIG: put,
                RequestCode.DELETE_KV_CONFIG: delete,
            }
        )
        self.topics = Topics(self.servers)


async def test_each_broker_gets_its_own_queue_count_when_a_topic_becomes_ordered() -> None:
    cluster = OrderedTopics("other:3", ordered=False)
    await cluster.topics.update("t", order=True)
    assert cluster.order_config == "broker-a:4;broker-b:8;other:3"


async def test_the_queue_count_of_an_ordered_topic_follows_its_change() -> None:
    cluster = OrderedTopics("broker-a:4;broker-b:8", ordered=True)
    await cluster.topics.update("t", write_queues=6)
    assert cluster.order_config == "broker-a:6;broker-b:6"


async def test_a_change_of_an_unordered_topic_asks_for_no_order_configuration() -> None:
    cluster = OrderedTopics(None, ordered=False)
    await cluster.topics.update("t", write_queues=6)
    assert cluster.asked(RequestCode.GET_KV_CONFIG) == []
    assert cluster.order_config is None


@pytest.mark.parametrize(
    ("before", "after"), [("broker-a:4;broker-b:8", None), ("broker-a:4;other:3", "other:3")]
)
async def test_producers_no_longer_follow_the_order_of_a_topic_that_lost_it(
    before: str, after: str | None
) -> None:
    cluster = OrderedTopics(before, ordered=True)
    await cluster.topics.update("t", order=False)
    assert cluster.order_config == after


async def test_a_single_broker_that_loses_its_order_leaves_that_of_the_others() -> None:
    cluster = OrderedTopics("broker-a:4;broker-b:8", ordered=True)
    await cluster.topics.update("t", order=False, broker="broker-a")
    assert cluster.order_config == "broker-b:8"


async def test_no_topic_is_made_at_a_broker_that_the_order_configuration_cannot_name() -> None:
    cluster = OrderedTopics(None, ordered=False)
    with pytest.raises(IllegalArgumentError, match="no name server knows a broker at alias:10911"):
        await cluster.topics.create("t", order=True, broker="alias:10911")
    assert cluster.asked(RequestCode.UPDATE_AND_CREATE_TOPIC) == []
