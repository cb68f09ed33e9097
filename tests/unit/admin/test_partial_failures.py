"""Let some of several servers fail, and look at the error that the caller gets."""

from __future__ import annotations

import pytest
from tests.unit.admin.fake_cluster import A, B, FakeCluster, answer, route

from cometmq.admin.groups.offsets import Offsets
from cometmq.admin.groups.room import Groups
from cometmq.errors import CometMQError, RemoteError, RequestTimeoutError, ServersFailedError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand


def no_route(*_: object) -> RemotingCommand:
    return answer(ResponseCode.TOPIC_NOT_EXIST)


def hangs_at(hanging: str) -> CometMQError:
    return RequestTimeoutError("no answer within 3 s", address=hanging)


# The state of a member


async def test_the_broker_that_failed_to_reach_a_member_is_named_beside_those_without_it() -> None:
    def running_info(address: str, _: RemotingCommand) -> RemotingCommand:
        if address == A:
            raise hangs_at(A)
        return answer(ResponseCode.SYSTEM_ERROR)

    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route({"broker-a": 1, "broker-b": 1}),
            RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
        }
    )
    with pytest.raises(ServersFailedError, match="the state of client c of group g") as failed:
        await Groups(cluster.servers).running_info("g", "c")
    assert isinstance(failed.value.errors[A], RequestTimeoutError)
    assert failed.value.errors[B].code == ResponseCode.SYSTEM_ERROR


async def test_the_only_broker_that_has_no_such_member_says_so_itself() -> None:
    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route({"broker-a": 1}),
            RequestCode.GET_CONSUMER_RUNNING_INFO: lambda *_: answer(ResponseCode.SYSTEM_ERROR),
        }
    )
    with pytest.raises(RemoteError, match=f"was refused by {A}"):
        await Groups(cluster.servers).running_info("g", "c")


async def test_a_member_cannot_be_asked_when_no_broker_is_registered() -> None:
    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: no_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: lambda *_: answer(body=b"{}"),
        }
    )
    with pytest.raises(RemoteError, match="no broker is registered") as failed:
        await Groups(cluster.servers).running_info("g", "c")
    assert failed.value.code == ResponseCode.CONSUMER_NOT_ONLINE


# The offsets of a topic


async def test_offsets_of_very_many_queues_are_asked_for_in_turns() -> None:
    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route({"broker-a": 500, "broker-b": 3}),
            RequestCode.GET_MIN_OFFSET: lambda *_: answer(offset=1),
            RequestCode.GET_MAX_OFFSET: lambda *_: answer(offset=5),
            RequestCode.QUERY_CONSUMER_OFFSET: lambda *_: answer(offset=2),
        }
    )
    offsets = await Offsets(cluster.servers).of_topic("t", "g")
    places = [(at.queue.broker_name, at.queue.queue_id) for at in offsets]
    assert places == [("broker-a", n) for n in range(500)] + [("broker-b", n) for n in range(3)]
    assert {(at.min_offset, at.max_offset, at.committed_offset) for at in offsets} == {(1, 5, 2)}
    assert 1 < cluster.most_at_once[A] <= 16


async def test_offsets_that_a_broker_does_not_tell_name_it_and_end_with_all_requests() -> None:
    def min_offset(address: str, _: RemotingCommand) -> RemotingCommand:
        if address == A:
            raise hangs_at(A)
        return answer(offset=1)

    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route({"broker-a": 500, "broker-b": 40}),
            RequestCode.GET_MIN_OFFSET: min_offset,
            RequestCode.GET_MAX_OFFSET: lambda *_: answer(offset=5),
        }
    )
    with pytest.raises(ServersFailedError) as failed:
        await Offsets(cluster.servers).of_topic("t")
    assert list(failed.value.errors) == [A]
    assert len(failed.value.results[B]) == 40
    assert not +cluster.open, "requests went on after the call"
    # A broker that hangs is not waited for once more by each of its queues.
    assert cluster.asked(RequestCode.GET_MIN_OFFSET).count(A) <= 16


async def test_no_offset_moves_when_the_configuration_of_its_broker_cannot_be_had() -> None:
    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route({"broker-a": 1}),
            RequestCode.GET_BROKER_CONFIG: lambda *_: answer(ResponseCode.NO_PERMISSION),
            RequestCode.UPDATE_CONSUMER_OFFSET: lambda *_: answer(),
        }
    )
    with pytest.raises(RemoteError, match="the configuration was refused"):
        await Offsets(cluster.servers).reset_queue("g", MessageQueue("t", "broker-a", 0), 5)
    assert cluster.asked(RequestCode.UPDATE_CONSUMER_OFFSET) == []


async def test_members_that_no_broker_could_know_name_no_empty_list_of_brokers() -> None:
    """The error said "no member of it is connected to ; start one"."""
    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: no_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: lambda *_: answer(
                0, {"brokerAddrTable": {}, "clusterAddrTable": {}}
            ),
        }
    )
    with pytest.raises(RemoteError, match="a broker: the name servers know none; start one"):
        await Groups(cluster.servers).connections("g")
