"""Pulling one queue: what each answer and each failure leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.client.fakes import FakeInstance, refuse, route
from tests.waits import until

from cometmq.client.membership.offset_store import LocalOffsetStore, OffsetStore, RemoteOffsetStore
from cometmq.client.pulling import puller as pulling
from cometmq.client.pulling.damage import DamageControl
from cometmq.client.pulling.process_queue import FlowLimits, ProcessQueue
from cometmq.client.pulling.puller import PullOptions, QueuePuller
from cometmq.filtering.tags import build_subscription
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from cometmq.protocol.messages.compression import CompressionType, compress
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.properties import encode_properties
from cometmq.protocol.messages.record import encode_record

QUEUE = MessageQueue("t", "a", 0)
HOST = pack_host("127.0.0.1", 10911)
PULL = RequestCode.PULL_MESSAGE


def record(
    offset: int, body: bytes = b"x", topic: str = "t", sys_flag: int = 0, **properties: str
) -> bytes:
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=encode_properties(properties).encode(),
        queue_id=0,
        queue_offset=offset,
        physical_offset=offset * 100,
        sys_flag=sys_flag,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=2,
        store_host=HOST,
    )


def answer(code: int, next_offset: int, *records: bytes, broker_id: int = 0) -> RemotingCommand:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=broker_id,
        next_begin_offset=next_offset,
        min_offset=0,
        max_offset=99,
    )
    return response(code, header=header, body=b"".join(records))


class Member:
    """The rest of a consumer for one puller. It returns `answers` one after the other, then holds
    the pull for ever.
    """

    def __init__(self, fake: FakeInstance, *answers: RemotingCommand, tags: str = "*") -> None:
        fake.remoting.routes["t"] = route("a")
        self.group = "g"
        self._fake = fake
        self._answers = list(answers)
        self.offsets: OffsetStore = RemoteOffsetStore(fake.instance, "g")
        self.process_queue = ProcessQueue(QUEUE)
        self.delivered: list[MessageExt] = []
        self.moved: list[tuple[MessageQueue, int]] = []
        self.subscription: SubscriptionData | None = build_subscription("t", tags, sub_version=7)
        self._task: asyncio.Task[None] | None = None
        fake.remoting.answers[PULL] = self._answer
        fake.instance.add_consumer(self)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData("g")

    def rebalance_soon(self) -> None:
        pass

    async def start(
        self,
        next_offset: int = 0,
        flow: FlowLimits | None = None,
        gate: asyncio.Event | None = None,
        damage: DamageControl | None = None,
    ) -> None:
        await self._fake.instance.routes.refresh("t")
        puller = QueuePuller(
            self._fake.instance,
            "g",
            self.process_queue,
            next_offset,
            options=PullOptions(flow=flow or FlowLimits()),
            offsets=self.offsets,
            subscription=lambda _: self.subscription,
            deliver=lambda _, messages: self.delivered.extend(messages),
            on_offset_moved=self._on_moved,
            gate=gate,
            damage=damage,
        )
        self._task = asyncio.get_running_loop().create_task(puller.run())

    async def commit(self, offset: int) -> None:
        """Have a commit stored, because pulls carry offsets only once a broker has one."""
        self._fake.remoting.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda *_: response(0)
        await self._fake.instance.routes.refresh("t")
        self.offsets.update(QUEUE, offset, increase_only=False)
        await self.offsets.persist([QUEUE])

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
        self._fake.remoting.delay_s = 0.0
        await self._fake.instance.remove_consumer("g")

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    def asked(self) -> list[PullMessageRequestHeader]:
        return [c.header(PullMessageRequestHeader) for c in self._fake.remoting.sent(PULL)]

    def _on_moved(self, queue: MessageQueue, offset: int) -> None:
        self.process_queue.dropped = True
        self.moved.append((queue, offset))

    def _answer(self, _address: str, _command: RemotingCommand) -> RemotingCommand:
        if not self._answers:
            self._fake.remoting.delay_s = 3600  # from the next call on
            return answer(19, self.asked()[-1].queue_offset)
        return self._answers.pop(0)


async def test_found_messages_are_kept_delivered_and_pulled_past(fake: FakeInstance) -> None:
    member = Member(fake, answer(0, 12, record(10, TAGS="x", UNIQ_KEY="ID"), record(11)))
    await member.start(10)
    await until(lambda: len(member.asked()) >= 2)
    assert [h.queue_offset for h in member.asked()[:2]] == [10, 12]
    first = member.asked()[0]
    assert (first.consumer_group, first.topic, first.queue_id) == ("g", "t", 0)
    assert (first.max_msg_nums, first.suspend_timeout_millis, first.sub_version) == (32, 15000, 7)
    assert (first.sys_flag, first.commit_offset, first.subscription) == (2, 0, None)
    assert [m.queue_offset for m in member.delivered] == [10, 11]
    message = member.delivered[0]
    assert (message.msg_id, message.tags, message.broker_name) == ("ID", "x", "a")
    assert (message.properties["MIN_OFFSET"], message.properties["MAX_OFFSET"]) == ("0", "99")
    assert len(member.process_queue) == 2
    await member.stop()


async def test_the_committed_offset_rides_on_the_pull(fake: FakeInstance) -> None:
    member = Member(fake)
    await member.commit(5)
    await member.start(9)
    await until(member.asked)
    assert (member.asked()[0].sys_flag, member.asked()[0].commit_offset) == (3, 5)
    await member.stop()


async def test_a_slave_is_not_asked_to_commit(fake: FakeInstance) -> None:
    member = Member(fake, answer(19, 9, broker_id=1))
    fake.remoting.routes["t"].broker_datas[0].broker_addrs = {0: "a:1", 1: "slave:1"}
    await member.commit(5)
    await member.start(9)
    await until(lambda: len(member.asked()) >= 2)
    assert fake.remoting.called(PULL)[:2] == ["a:1", "slave:1"]
    assert [h.sys_flag for h in member.asked()[:2]] == [3, 2]
    await member.stop()


async def test_tags_that_only_share_a_code_are_left_out(fake: FakeInstance) -> None:
    records = [record(0, TAGS="AaAa"), record(1, TAGS="BBBB"), record(2)]
    member = Member(fake, answer(0, 3, *records), answer(0, 5, record(4, TAGS="BBBB")), tags="AaAa")
    await member.start()
    await until(lambda: len(member.asked()) >= 3)
    assert [m.queue_offset for m in member.delivered] == [0]
    assert member.asked()[2].queue_offset == 5
    await member.stop()


@pytest.mark.parametrize("code", [19, 20])
async def test_offsets_move_past_what_does_not_match(fake: FakeInstance, code: int) -> None:
    member = Member(fake, answer(code, 40))
    await member.start(10)
    await until(lambda: len(member.asked()) >= 2)
    assert member.asked()[1].queue_offset == 40
    assert member.offsets.get(QUEUE) == 40
    await member.stop()


async def test_offsets_do_not_move_past_what_is_held(fake: FakeInstance) -> None:
    member = Member(fake, answer(0, 11, record(10)), answer(20, 40))
    await member.start(10)
    await until(lambda: len(member.asked()) >= 3)
    assert member.offsets.get(QUEUE) is None
    await member.stop()


async def test_a_moved_offset_ends_the_puller(fake: FakeInstance) -> None:
    member = Member(fake, answer(21, 70))
    await member.start(10)
    await until(lambda: member.ended)
    assert member.moved == [(QUEUE, 70)]
    assert len(member.asked()) == 1
    await member.stop()


@pytest.mark.parametrize("code", [24, 25, 26])
async def test_a_broker_that_forgot_the_group_hears_of_it_at_once(
    fake: FakeInstance, code: int
) -> None:
    member = Member(fake, response(code, "who are you"), answer(0, 1, record(0)))
    await member.start()
    await until(lambda: member.delivered)
    beats = fake.remoting.called(RequestCode.HEART_BEAT)
    assert "a:1" in beats
    await member.stop()


async def test_a_lost_broker_is_pulled_again_when_it_is_back(fake: FakeInstance) -> None:
    member = Member(fake, answer(0, 1, record(0)))
    fake.remoting.down.add("a:1")
    await member.start()
    await until(lambda: len(fake.remoting.called(PULL)) >= 2)
    assert member.delivered == []
    fake.remoting.down.clear()
    await until(lambda: member.delivered)
    assert len(fake.remoting.called(RequestCode.GET_ROUTEINFO_BY_TOPIC)) > 1
    await member.stop()


async def test_an_answer_that_does_not_decode_is_asked_for_again(fake: FakeInstance) -> None:
    member = Member(fake, answer(0, 1, b"no record" * 20), answer(0, 1, record(0)))
    await member.start()
    await until(lambda: member.delivered)
    assert [h.queue_offset for h in member.asked()[:2]] == [0, 0]
    await member.stop()


async def test_any_other_refusal_is_tried_again(fake: FakeInstance) -> None:
    member = Member(fake, response(1, "?"), response(215, "slow"), answer(0, 1, record(0)))
    await member.start()
    await until(lambda: member.delivered)
    await member.stop()


async def test_a_slave_that_refuses_is_left_for_its_master(fake: FakeInstance) -> None:
    refusal = response(14, "this slave serves no reads now")
    member = Member(fake, answer(0, 1, record(0), broker_id=1), refusal, answer(0, 2, record(1)))
    fake.remoting.routes["t"].broker_datas[0].broker_addrs[1] = "s:1"
    await member.start()
    await until(lambda: len(member.delivered) == 2)
    assert fake.remoting.called(PULL)[:3] == ["a:1", "s:1", "a:1"]
    await member.stop()


@pytest.mark.parametrize("kind", list(CompressionType))
async def test_bodies_are_decompressed(fake: FakeInstance, kind: CompressionType) -> None:
    packed = compress(b"body" * 1000, kind)
    flag = kind.sys_flag
    records = [record(0, packed, sys_flag=flag), record(1, b"damaged", sys_flag=flag)]
    member = Member(fake, answer(0, 2, *records))
    await member.start()
    await until(lambda: member.delivered)
    whole, damaged = member.delivered
    assert (whole.body, whole.sys_flag & 1) == (b"body" * 1000, 0)
    # Delivered as stored, so that it does not block its queue.
    assert (damaged.body, damaged.sys_flag & 1) == (b"damaged", 1)
    await member.stop()


async def test_a_retried_message_shows_its_own_topic(fake: FakeInstance) -> None:
    member = Member(
        fake,
        answer(
            0,
            2,
            record(0, topic="%RETRY%g", RETRY_TOPIC="orders"),
            record(1, topic="%RETRY%other", RETRY_TOPIC="orders"),
        ),
    )
    await member.start()
    await until(lambda: member.delivered)
    assert [m.topic for m in member.delivered] == ["orders", "%RETRY%other"]
    await member.stop()


async def test_a_full_process_queue_is_not_pulled(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "FLOW_CONTROL_PAUSE_S", 0.005)
    member = Member(fake, answer(0, 3, record(0), record(1), record(2)), answer(0, 4, record(3)))
    await member.start(flow=FlowLimits(messages=2))
    await until(lambda: member.delivered)
    await asyncio.sleep(0.05)
    assert len(member.asked()) == 1
    member.process_queue.remove([0])
    await until(lambda: len(member.delivered) == 4)
    await member.stop()


@pytest.mark.parametrize(
    "end",
    [
        lambda member: setattr(member, "subscription", None),
        lambda member: setattr(member.process_queue, "dropped", True),
    ],
)
async def test_the_puller_ends_with_subscription_or_assignment(
    fake: FakeInstance, end: Callable[[Member], None]
) -> None:
    member = Member(fake)
    fake.remoting.answers[PULL] = refuse(1)
    await member.start()
    await until(lambda: len(member.asked()) >= 1)
    end(member)
    await until(lambda: member.ended)
    await member.stop()


def test_a_topics_limits_are_divided_among_its_queues() -> None:
    options = PullOptions(messages_for_topic=100, size_bytes_for_topic=1000)
    assert options.flow_for(1) == FlowLimits(100, 1000)
    assert options.flow_for(3) == FlowLimits(33, 333)
    assert options.flow_for(2000) == FlowLimits(1, 1)
    assert PullOptions().flow_for(7) == FlowLimits()


async def test_a_closed_gate_holds_the_next_pull(fake: FakeInstance) -> None:
    member = Member(fake, answer(0, 1, record(0)), answer(0, 2, record(1)))
    gate = asyncio.Event()
    await member.start(gate=gate)
    await asyncio.sleep(0.05)
    assert member.asked() == []
    gate.set()
    await until(lambda: len(member.delivered) == 2)
    await member.stop()


async def test_broadcasting_commits_nothing_by_its_pulls(
    fake: FakeInstance, tmp_path: Path
) -> None:
    member = Member(fake, answer(0, 1, record(0)))
    member.offsets = LocalOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "g")
    member.offsets.update(QUEUE, 1, increase_only=True)
    await member.start(1)
    await until(member.asked)
    header = member.asked()[0]
    assert (header.commit_offset, header.sys_flag & 1) == (0, 0)
    await member.stop()


async def test_a_slave_that_lacks_the_offset_is_not_asked_without_pause(fake: FakeInstance) -> None:
    member = Member(fake, *(answer(20, 10) for _ in range(1000)))
    await member.start(10)
    await until(lambda: len(member.asked()) >= 3)
    await asyncio.sleep(0.2)
    asked = member.asked()
    assert {header.queue_offset for header in asked} == {10}
    assert len(asked) < 20
    await member.stop()
