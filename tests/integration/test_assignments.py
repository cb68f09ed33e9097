"""A broker shares the queues of a topic for members that ask it: code 400, in virtual time."""

from __future__ import annotations

from typing import Any

from tests.waits import until

from cometmq import ConsumeResult
from cometmq.aio import AdminClient, PushConsumer
from cometmq.broker.server import Broker
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import QueryAssignmentRequestBody, QueryAssignmentResponseBody
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.header import NoHeader
from cometmq.remoting.client import RemotingClient
from cometmq.runtime.surroundings import current
from cometmq.testing import Cluster


async def ask(broker: Broker, command: RemotingCommand) -> RemotingCommand:
    client = RemotingClient(network=current().network)
    try:
        return await client.call(broker.address, command, 3.0)
    finally:
        await client.close()


async def assigned(broker: Broker, client_id: str, **more: Any) -> list[tuple[str, int]] | None:
    body = QueryAssignmentRequestBody("t", "g", client_id, **more)
    answer = await ask(broker, requests.QUERY_ASSIGNMENT.command(NoHeader(), body))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    reported: QueryAssignmentResponseBody = requests.QUERY_ASSIGNMENT.answer_body.decode(
        answer.body
    )
    if reported.message_queue_assignments is None:
        return None
    assert {each.mode for each in reported.message_queue_assignments} <= {"PULL"}
    queues = [each.message_queue for each in reported.message_queue_assignments]
    assert {queue.topic for queue in queues} <= {"t"}
    return [(queue.broker_name, queue.queue_id) for queue in queues]


async def story(cluster: Cluster) -> None:
    def listen(_: list[Any]) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    everything = [(name, n) for name in ("broker-a", "broker-b") for n in range(4)]
    one, two = (
        PushConsumer("g", listen, namesrv=cluster.namesrv, instance_name=name)
        for name in ("one", "two")
    )
    broker = cluster.brokers[0]
    assert await assigned(broker, "x") is None  # neither a route nor a member
    # A producer that learns of the first broker's queues soon makes the topic at no other broker.
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        for name in ("broker-a", "broker-b"):
            await admin.topics.create("t", read_queues=4, write_queues=4, broker=name)
    assert await assigned(broker, "x") is None
    # A broker learns of another one's queues from the name servers.
    await until(
        lambda: assigned(broker, "x", message_model="BROADCASTING"), lambda all_: all_ == everything
    )
    for each in (one, two):
        each.subscribe("t")
    async with one, two:
        shares = [await assigned(broker, each.client_id) for each in (one, two)]
        assert [len(share or ()) for share in shares] == [4, 4]
        assert sorted((shares[0] or []) + (shares[1] or [])) == everything
        circle = await assigned(broker, one.client_id, strategy_name="AVG_BY_CIRCLE")
        assert circle in (everything[::2], everything[1::2])
        assert await assigned(broker, one.client_id, strategy_name="CONFIG") is None
        assert await assigned(broker, "stranger") == []


def test_a_member_without_client_rebalance_gets_its_share_of_all_brokers() -> None:
    with Cluster(
        brokers=2, clock="virtual", seed=3, properties={"defaultTopicQueueNums": "4"}
    ) as c:
        c.run(story(c))
