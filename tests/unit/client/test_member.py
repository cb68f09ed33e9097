"""A whole membership over a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.client.fakes import FakeInstance, refuse, route, send_ok
from tests.unit.client.test_pulling import answer, record
from tests.waits import until

from cometmq.client.consuming.push_member import ConsumerOptions, GroupMember
from cometmq.client.membership.membership import MemberOptions
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere, ConsumeResult, DamagedMessage
from cometmq.model.subscription import MessageSelector
from cometmq.protocol.bodies.cluster import (
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.protocol.messages.properties import decode_properties

QUEUE = MessageQueue("t", "a", 0)
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET


class Box:
    """One broker with one queue whose pulls are answered from `pulls`, then find nothing new."""

    def __init__(self, fake: FakeInstance, *, orderly: bool = False) -> None:
        self.fake = fake
        self.taken = False  # the queue's lock is another member's
        self.pulls: list[RemotingCommand] = []
        self.stored_offset: int | None = 0
        self.result = ConsumeResult.SUCCESS
        self.heard: list[MessageExt] = []
        fake.remoting.routes["t"] = route("a", queues=1)
        ids = encode_body({"consumerIdList": [fake.instance.client_id]})
        fake.remoting.answers |= {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda *_: response(0, body=ids),
            RequestCode.QUERY_CONSUMER_OFFSET: lambda *_: response(
                0, ext={"offset": str(self.stored_offset)}
            ),
            UPDATE: self._update,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: lambda *_: response(0),
        }
        options = ConsumerOptions(
            member=MemberOptions(
                consume_from=ConsumeFromWhere.FIRST_OFFSET,
                on_damaged=DamagedMessage.DEAD_LETTER,
            ),
            max_reconsume_times=7,
            local_retry_s=0.01,
            orderly=orderly,
        )
        self.member = GroupMember(
            fake.instance, "g", {"t": MessageSelector("x || y")}, self._listen, options
        )

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        self.heard += messages
        return self.result

    def _update(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        self.stored_offset = command.header(UpdateConsumerOffsetRequestHeader).commit_offset
        return response(0)

    def _lock(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        body = decode_body(bytes(command.body), LockBatchRequestBody)
        held = [] if self.taken else body.mq_set
        return response(0, body=encode_body(LockBatchResponseBody(held)))

    def _pull(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        if self.pulls:
            return self.pulls.pop(0)
        self.fake.remoting.delay_s = 0.005  # a long poll in small
        return answer(19, command.header(PullMessageRequestHeader).queue_offset)


@pytest.fixture
async def box(fake: FakeInstance) -> AsyncIterator[Box]:
    box = Box(fake)
    yield box
    fake.remoting.down.clear()
    await box.member.close(1)


def heartbeat(fake: FakeInstance) -> HeartbeatData:
    return decode_body(fake.remoting.sent(RequestCode.HEART_BEAT)[-1].body, HeartbeatData)  # type: ignore[arg-type]  # a heartbeat has a body


async def test_a_start_joins_the_group_and_takes_its_queues(box: Box, fake: FakeInstance) -> None:
    await box.member.start()
    assert set(box.member.assigned()) == {QUEUE}
    (data,) = heartbeat(fake).consumer_data_set
    assert (data.group_name, data.consume_type, data.message_model) == (
        "g",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
    )
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    by_topic = {s.topic: s for s in data.subscription_data_set}
    assert set(by_topic) == {"t", "%RETRY%g"}
    assert set(by_topic["t"].tags_set) == {"x", "y"}
    assert by_topic["%RETRY%g"].sub_string == "*"


async def test_close_commits_what_was_consumed_and_unregisters(fake: FakeInstance) -> None:
    box = Box(fake)
    box.pulls = [answer(0, 2, record(0, TAGS="x"), record(1, TAGS="y"))]
    await box.member.start()
    await until(lambda: len(box.heard) == 2)
    await box.member.close(1)
    assert box.stored_offset == 2
    (left,) = fake.remoting.sent(RequestCode.UNREGISTER_CLIENT)
    assert left.ext == {"clientID": fake.instance.client_id, "consumerGroup": "g"}


async def test_a_refused_message_goes_back_to_its_broker(box: Box, fake: FakeInstance) -> None:
    fake.remoting.answers[SEND_BACK] = lambda *_: response(0)
    box.result = ConsumeResult.RECONSUME_LATER
    box.pulls = [answer(0, 1, record(0, TAGS="x", UNIQ_KEY="ID"))]
    await box.member.start()
    await until(lambda: fake.remoting.sent(SEND_BACK))
    header = fake.remoting.sent(SEND_BACK)[0].header(ConsumerSendMsgBackRequestHeader)
    assert (header.group, header.offset, header.origin_msg_id) == ("g", 0, "ID")
    assert (header.origin_topic, header.delay_level, header.max_reconsume_times) == ("t", 0, 7)


async def test_a_refused_message_is_sent_to_the_retry_topic_when_it_cannot_go_back(
    box: Box, fake: FakeInstance
) -> None:
    fake.remoting.routes["%RETRY%g"] = route("a", queues=1)
    fake.remoting.answers[SEND_BACK] = refuse(3)
    fake.remoting.answers[RequestCode.SEND_MESSAGE_V2] = send_ok
    box.result = ConsumeResult.RECONSUME_LATER
    box.pulls = [answer(0, 1, record(0, TAGS="x", UNIQ_KEY="ID", TRAN_MSG="true"))]
    await box.member.start()
    await until(lambda: fake.remoting.sent(RequestCode.SEND_MESSAGE_V2))
    (sent,) = fake.remoting.sent(RequestCode.SEND_MESSAGE_V2)
    header = sent.header(SendMessageRequestHeaderV2)
    assert (header.topic, header.producer_group) == ("%RETRY%g", "CLIENT_INNER_PRODUCER")
    assert (header.reconsume_times, header.max_reconsume_times) == (1, 7)
    properties = decode_properties(header.properties or "")
    assert properties["RETRY_TOPIC"] == "t"
    assert (properties["UNIQ_KEY"], properties["DELAY"], properties["TAGS"]) == ("ID", "3", "x")
    assert properties["ORIGIN_MESSAGE_ID"] == "ID"
    assert "TRAN_MSG" not in properties
    assert "MIN_OFFSET" not in properties


async def test_a_moved_offset_is_stored_and_the_queue_begun_there(
    box: Box, fake: FakeInstance
) -> None:
    box.pulls = [answer(21, 50), answer(0, 51, record(50, TAGS="x"))]
    await box.member.start()
    await until(lambda: box.heard)
    assert box.stored_offset in (50, 51)
    pulls = [
        c.header(PullMessageRequestHeader) for c in fake.remoting.sent(RequestCode.PULL_MESSAGE)
    ]
    assert [h.queue_offset for h in pulls if h.topic == "t"][:2] == [0, 50]


async def test_members_that_come_and_go_are_noticed_when_told(box: Box, fake: FakeInstance) -> None:
    await box.member.start()
    ids = encode_body({"consumerIdList": ["0-before-us", fake.instance.client_id]})
    fake.remoting.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda *_: response(0, body=ids)
    box.member.membership.rebalance_soon()
    await until(lambda: not box.member.assigned())


async def test_a_new_subscription_is_told_and_consumed(box: Box, fake: FakeInstance) -> None:
    fake.remoting.routes["u"] = route("a", queues=1)
    await box.member.start()
    box.member.membership.subscribe("u", MessageSelector())
    await until(lambda: MessageQueue("u", "a", 0) in box.member.assigned())
    topics = {s.topic for s in heartbeat(fake).consumer_data_set[0].subscription_data_set}
    assert topics == {"t", "u", "%RETRY%g"}
    box.member.membership.unsubscribe("u")
    await until(lambda: MessageQueue("u", "a", 0) not in box.member.assigned())
    box.member.membership.unsubscribe("never-subscribed")


async def test_a_selection_changed_after_the_clock_was_set_back_is_the_newer_one(
    box: Box, fake: FakeInstance
) -> None:
    """A broker keeps the selection with the higher version."""

    def reported() -> tuple[set[str], int]:
        data = heartbeat(fake).consumer_data_set[0].subscription_data_set
        (found,) = [s for s in data if s.topic == "t"]
        return set(found.tags_set), found.sub_version

    await box.member.start()
    _, first = reported()
    fake.clock.behind_ms = 3 * 3600 * 1000
    box.member.membership.subscribe("t", MessageSelector("z"))
    await until(lambda: reported()[0] == {"z"})
    assert reported()[1] > first


async def test_a_queue_that_another_member_locked_is_not_consumed(fake: FakeInstance) -> None:
    box = Box(fake, orderly=True)
    box.taken = True
    box.pulls = [answer(0, 1, record(0, TAGS="x"))]
    await box.member.start()
    assert not box.member.assigned()
    box.taken = False
    await until(lambda: len(box.heard) == 1)
    await box.member.close(1)


async def test_a_queue_whose_lock_was_lost_is_begun_where_the_other_member_stopped(
    fake: FakeInstance,
) -> None:
    box = Box(fake, orderly=True)
    box.pulls = [answer(0, 2, record(0, TAGS="x"), record(1, TAGS="y"))]
    await box.member.start()
    await until(lambda: len(box.heard) == 2)
    box.taken = True
    box.member.membership.rebalance_soon()  # renews the locks too
    await until(lambda: not box.member.assigned())
    box.stored_offset = 40
    box.taken = False
    await until(box.member.assigned)
    pulled = [
        c.header(PullMessageRequestHeader) for c in fake.remoting.sent(RequestCode.PULL_MESSAGE)
    ]
    await until(lambda: box.member.known_offsets("t") == {QUEUE: 40})
    assert 40 not in [header.queue_offset for header in pulled if header.topic == "t"][:2]
    await box.member.close(1)
    assert box.stored_offset == 40


async def test_what_is_closed_is_committed_before_it_is_unlocked(fake: FakeInstance) -> None:
    box = Box(fake, orderly=True)
    box.pulls = [answer(0, 2, record(0, TAGS="x"), record(1, TAGS="y"))]
    await box.member.start()
    await until(lambda: len(box.heard) == 2)
    await box.member.close(1)
    codes = [command.code for _, command in fake.remoting.calls]
    last_update = len(codes) - 1 - codes[::-1].index(UPDATE)
    unlock = codes.index(RequestCode.UNLOCK_BATCH_MQ)
    assert last_update < unlock < codes.index(RequestCode.UNREGISTER_CLIENT)
    assert box.stored_offset == 2


@pytest.mark.parametrize("how", ["closed", "given up", "reset"])
async def test_a_pull_that_is_served_late_does_not_replace_the_last_commit(
    fake: FakeInstance, how: str
) -> None:
    """A Java broker may serve a pull like this, in another thread than the commit that was sent
    after it.
    """
    box = Box(fake, orderly=True)
    box.stored_offset = 1
    first = [answer(0, 3, record(1, TAGS="x"), record(2, TAGS="x"))]

    def pull(_address: str, command: RemotingCommand) -> RemotingCommand:
        header = command.header(PullMessageRequestHeader)
        if first:
            fake.remoting.late_s[RequestCode.PULL_MESSAGE] = 0.1
            return first.pop()
        box.stored_offset = header.commit_offset
        return answer(19, header.queue_offset)

    fake.remoting.answers[RequestCode.PULL_MESSAGE] = pull
    await box.member.start()
    await until(lambda: len(box.heard) == 2)
    if how == "reset":
        await box.member.reset_offsets({QUEUE: 2})
    elif how == "given up":
        # A queue that is lost while another is given up is passed over.
        await box.member.give_up([MessageQueue("t", "a", 1), QUEUE])
    else:
        await box.member.close(1)
    await asyncio.sleep(0.15)  # until the pull was served, if it was not waited for
    assert box.stored_offset == (2 if how == "reset" else 3)
    if how != "closed":
        await box.member.close(1)


async def test_a_cluster_that_is_down_is_joined_when_it_comes(fake: FakeInstance) -> None:
    box = Box(fake)
    fake.remoting.down |= {"127.0.0.1:9876", "a:1"}
    await box.member.start()
    assert not box.member.assigned()
    fake.remoting.down.clear()
    await until(box.member.assigned)
    await box.member.close(1)


async def test_a_cancelled_start_leaves_nothing_behind(fake: FakeInstance) -> None:
    box = Box(fake)
    fake.remoting.delay_s = 60
    starting = asyncio.get_running_loop().create_task(box.member.start())
    await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.wait([starting])
    fake.remoting.delay_s = 0
    fake.instance.add_consumer(box.member.membership)  # the group is free again
    await fake.instance.remove_consumer("g")
