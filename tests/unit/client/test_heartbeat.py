"""Heartbeats: which brokers get them, and how a lost broker is reached again."""

from __future__ import annotations

import asyncio

from tests.unit.client.fakes import FakeInstance, refuse, route
from tests.waits import until

from cometmq.client.cluster.heartbeat import HEARTBEAT_INTERVAL_S, TOGETHER_S
from cometmq.model.subscription import ConsumerData
from cometmq.protocol.bodies.cluster import HeartbeatData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.fastjson.dialect import decode_body

BEAT = RequestCode.HEART_BEAT


class Member:
    group = "g"

    def __init__(self) -> None:
        self.asked = 0

    def consumer_data(self) -> ConsumerData:
        return ConsumerData("g")

    def rebalance_soon(self) -> None:
        self.asked += 1


async def with_slave(fake: FakeInstance) -> None:
    known = route("a")
    known.broker_datas[0].broker_addrs = {0: "a:1", 1: "slave:1"}
    fake.remoting.routes["t"] = known
    await fake.instance.routes.refresh("t")


async def test_without_groups_there_is_nothing_to_tell(fake: FakeInstance) -> None:
    await with_slave(fake)
    await fake.instance.heartbeats.beat_all()
    assert fake.remoting.called(BEAT) == []


async def test_producers_tell_masters_only(fake: FakeInstance) -> None:
    fake.instance.add_producer("p")
    await with_slave(fake)
    await fake.instance.heartbeats.beat_all()
    assert set(fake.remoting.called(BEAT)) == {"a:1"}
    body = fake.remoting.sent(BEAT)[-1].body
    data = decode_body(bytes(body), HeartbeatData)
    assert data.client_id == "127.0.0.1@test"
    assert [p.group_name for p in data.producer_data_set] == ["p"]


async def test_consumers_tell_every_broker(fake: FakeInstance) -> None:
    fake.instance.add_consumer(Member())
    await with_slave(fake)
    await fake.instance.heartbeats.beat_all()
    assert set(fake.remoting.called(BEAT)) == {"a:1", "slave:1"}


async def test_a_new_route_is_told_at_once_and_asks_for_a_rebalance(fake: FakeInstance) -> None:
    member = Member()
    fake.instance.add_consumer(member)
    await with_slave(fake)
    await until(lambda: set(fake.remoting.called(BEAT)) == {"a:1", "slave:1"})
    await until(lambda: member.asked >= 3)  # for the route, and for each broker reached
    fake.instance.heartbeats.beat_new()
    assert len(fake.remoting.called(BEAT)) == 2


async def test_a_broker_that_is_down_is_tried_until_it_answers(fake: FakeInstance) -> None:
    member = Member()
    fake.instance.add_consumer(member)
    fake.remoting.down.add("a:1")
    await with_slave(fake)
    await until(lambda: fake.remoting.called(BEAT).count("a:1") >= 3)
    reached = member.asked
    fake.remoting.down.clear()
    await until(lambda: member.asked > reached)
    tried = fake.remoting.called(BEAT).count("a:1")
    await asyncio.sleep(0.25)
    assert fake.remoting.called(BEAT).count("a:1") == tried


async def test_a_broker_that_left_the_routes_is_not_tried_any_more(fake: FakeInstance) -> None:
    fake.instance.add_consumer(Member())
    fake.remoting.down.add("a:1")
    await with_slave(fake)
    await until(lambda: fake.remoting.called(BEAT).count("a:1") >= 1)
    fake.remoting.routes["t"] = route("b")
    await fake.instance.routes.refresh("t")
    await until(lambda: "b:1" in fake.remoting.called(BEAT))
    tried = fake.remoting.called(BEAT).count("a:1")
    await fake.instance.heartbeats.beat_all()
    assert fake.remoting.called(BEAT).count("a:1") <= tried + 1


def producers_named(fake: FakeInstance) -> list[list[str]]:
    bodies = (decode_body(bytes(beat.body), HeartbeatData) for beat in fake.remoting.sent(BEAT))
    return [[producer.group_name for producer in body.producer_data_set] for body in bodies]


async def test_a_group_beside_another_of_its_client_waited_for_the_next_period(
    fake: FakeInstance,
) -> None:
    fake.instance.add_producer("a")
    await with_slave(fake)
    await until(lambda: producers_named(fake) == [["a"]])
    begun = asyncio.get_running_loop().time()
    fake.instance.add_producer("b")
    await until(lambda: producers_named(fake) == [["a"], ["a", "b"]])
    assert asyncio.get_running_loop().time() - begun < HEARTBEAT_INTERVAL_S / 10


async def test_groups_added_together_share_one_heartbeat(fake: FakeInstance) -> None:
    fake.instance.add_producer("first")
    await with_slave(fake)
    await until(lambda: len(fake.remoting.called(BEAT)) == 1)
    for number in range(50):
        fake.instance.add_producer(f"p{number}")
        await fake.instance.routes.refresh("t")
    await asyncio.sleep(HEARTBEAT_INTERVAL_S / 2)
    assert len(fake.remoting.called(BEAT)) == 2
    assert len(producers_named(fake)[-1]) == 51


async def test_a_broker_that_got_the_newest_groups_with_its_connection_gets_no_second_heartbeat(
    fake: FakeInstance,
) -> None:
    fake.instance.add_producer("p")
    await with_slave(fake)
    await asyncio.sleep(HEARTBEAT_INTERVAL_S / 2)
    assert fake.remoting.called(BEAT) == ["a:1"]


async def test_a_group_added_while_a_heartbeat_is_under_way_is_announced_soon(
    fake: FakeInstance,
) -> None:
    fake.remoting.delay_s = TOGETHER_S * 3
    fake.instance.add_producer("a")
    await with_slave(fake)
    await until(lambda: fake.remoting.called(BEAT) == ["a:1"])
    fake.instance.add_producer("b")  # the plan's time is over before the first heartbeat's answer
    await until(lambda: producers_named(fake)[-1] == ["a", "b"])
    await asyncio.sleep(HEARTBEAT_INTERVAL_S / 2)
    assert len(fake.remoting.called(BEAT)) == 2


async def test_a_farewell_waits_for_the_heartbeat_on_its_way(fake: FakeInstance) -> None:
    fake.instance.add_consumer(Member())
    await with_slave(fake)
    await until(lambda: len(fake.remoting.called(BEAT)) == 2)
    reported: list[int] = []

    def answer(_address: str, command: RemotingCommand) -> RemotingCommand:
        reported.append(command.code)
        return response(0)

    fake.remoting.answers |= {BEAT: answer, RequestCode.UNREGISTER_CLIENT: answer}
    fake.remoting.delay_s = 0.02
    beating = asyncio.get_running_loop().create_task(fake.instance.heartbeats.beat("a:1"))
    await asyncio.sleep(0)
    fake.remoting.delay_s = 0.0
    await fake.instance.remove_consumer("g")
    await beating
    # Served in another order, the heartbeat would have left a member behind.
    assert reported == [BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.UNREGISTER_CLIENT]


async def test_a_master_that_heartbeats_do_not_reach_is_read_at_its_slave(
    fake: FakeInstance,
) -> None:
    known = route("a")
    known.broker_datas[0].broker_addrs = {0: "a:1", 1: "s:1", 2: "s:2"}
    fake.remoting.routes["t"] = known
    await fake.instance.routes.refresh("t")
    fake.instance.add_consumer(Member())
    fake.remoting.down |= {"a:1", "s:1"}
    await fake.instance.heartbeats.beat_all()
    assert fake.instance.need_reader("a", "t") == "s:2"
    assert fake.instance.need_reader("a", "t", 1) == "s:2"
    assert fake.instance.need_master("a", "t") == "a:1"
    fake.remoting.down |= {"s:2"}
    await fake.instance.heartbeats.beat_all()
    assert fake.instance.need_reader("a", "t") == "a:1"
    fake.remoting.down.clear()
    await until(lambda: fake.instance.need_reader("a", "t", 2) == "s:2")
    await until(lambda: fake.instance.need_reader("a", "t") == "a:1")


async def test_a_master_that_refuses_heartbeats_is_reached_nevertheless(fake: FakeInstance) -> None:
    fake.instance.add_producer("p")
    await with_slave(fake)
    await fake.instance.heartbeats.beat_all()
    fake.remoting.answers[BEAT] = refuse(ResponseCode.NO_PERMISSION)
    fake.remoting.down.add("a:1")
    await fake.instance.heartbeats.beat_all()
    assert not fake.instance.reaches_master("a")
    fake.remoting.down.clear()
    # Nothing would ever take the mark away: each heartbeat is refused, and sends are not.
    await until(lambda: fake.instance.reaches_master("a"))
