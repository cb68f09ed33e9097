"""Queue locks as their holder sees them: granted, renewed, expired, lost, doubtful."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fakes import FakeInstance, route

from cometmq.client.membership.queue_locks import VALIDITY_S, QueueLocks
from cometmq.errors import CometMQError, RemoteError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.cluster import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueBean,
    UnlockBatchRequestBody,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.fastjson.dialect import decode_body, encode_body

Q0, Q1 = (MessageQueue("t", "a", i) for i in range(2))


class Box:
    """Brokers that grant locks of queues outside `taken`, and the locks of one member."""

    def __init__(self, fake: FakeInstance) -> None:
        self.fake = fake
        self.now_s = 1000.0
        self.taken: set[MessageQueue] = set()
        self.lost: list[MessageQueue] = []
        self.current = True
        self.answered: list[int] = []
        self.checked: list[MessageQueue] = []
        fake.remoting.answers |= {
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }
        self.locks = QueueLocks(
            fake.instance, "g", self.lost.append, self._still_current, lambda: self.now_s
        )

    async def _still_current(self, queue: MessageQueue) -> bool:
        self.checked.append(queue)
        return self.current

    def _unlock(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        self.answered.append(command.code)
        return response(0)

    def _lock(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        self.answered.append(command.code)
        body = decode_body(bytes(command.body), LockBatchRequestBody)
        assert (body.client_id, body.consumer_group) == (self.fake.instance.client_id, "g")
        held = [bean for bean in body.mq_set if bean.queue() not in self.taken]
        return response(0, body=encode_body(LockBatchResponseBody(held)))

    def unlocked(self) -> list[MessageQueue]:
        sent = self.fake.remoting.sent(RequestCode.UNLOCK_BATCH_MQ)
        bodies = (decode_body(bytes(command.body), UnlockBatchRequestBody) for command in sent)
        return [bean.queue() for body in bodies for bean in body.mq_set]


@pytest.fixture
async def box(fake: FakeInstance) -> Box:
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    return Box(fake)


async def test_a_lock_is_valid_for_30_s_after_it_was_asked_for(box: Box) -> None:
    lock = await box.locks.lock(Q0)
    valid = []
    for seconds in (VALIDITY_S - 0.1, 0.2):
        box.now_s += seconds
        valid.append(lock.valid)
    assert valid == [True, False]


async def test_a_queue_of_another_member_is_refused(box: Box) -> None:
    box.taken = {Q0}
    with pytest.raises(RemoteError, match="another member of group g"):
        await box.locks.lock(Q0)
    assert not box.locks.held()


async def test_a_renewal_prolongs_every_lock(box: Box) -> None:
    locks = [await box.locks.lock(Q0), await box.locks.lock(Q1)]
    box.now_s += 20
    assert await box.locks.renew_all()
    box.now_s += 20
    assert all(lock.valid for lock in locks)
    assert box.checked == []


async def test_a_lock_that_went_to_another_member_is_told_and_not_released(box: Box) -> None:
    await box.locks.lock(Q0)
    kept = await box.locks.lock(Q1)
    box.taken = {Q0}
    await box.locks.renew_all()
    assert box.lost == [Q0]
    assert kept.valid
    await box.locks.unlock([Q0, Q1])
    assert box.unlocked() == [Q1]


async def test_a_lock_is_worth_nothing_once_its_connection_is_lost(box: Box) -> None:
    lock = await box.locks.lock(Q0)
    box.fake.remoting.lose("a:1")
    valid = [lock.valid]
    await box.locks.renew_all()
    valid.append(lock.valid)
    assert valid == [False, True]
    assert box.checked == [Q0]


async def test_a_lock_in_doubt_is_lost_when_somebody_else_consumed(box: Box) -> None:
    lock = await box.locks.lock(Q0)
    box.now_s += VALIDITY_S + 1
    box.current = False
    await box.locks.renew_all()
    assert not lock.valid
    assert box.lost == [Q0]


async def test_a_broker_that_does_not_answer_changes_nothing_at_once(box: Box) -> None:
    lock = await box.locks.lock(Q0)
    box.now_s += 20
    box.fake.remoting.down.add("a:1")
    assert not await box.locks.renew_all()
    assert box.lost == []
    assert box.locks.held() == {Q0}
    box.fake.remoting.down.clear()
    assert await box.locks.renew_all()
    assert lock.valid


async def test_what_was_asked_for_without_an_answer_is_released_after_it(box: Box) -> None:
    box.fake.remoting.delay_s = 0.05
    asking = asyncio.get_running_loop().create_task(box.locks.lock(Q0))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait([asking])
    await box.locks.unlock(list(box.locks.held()))
    assert box.unlocked() == [Q0]
    assert not box.locks.held()
    assert box.answered == [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ]


async def test_a_release_waits_for_the_renewal_before_it(box: Box) -> None:
    await box.locks.lock(Q0)
    await box.locks.lock(Q1)
    box.answered.clear()
    box.fake.remoting.delay_s = 0.05
    renewing = asyncio.get_running_loop().create_task(box.locks.renew_all())
    await asyncio.sleep(0.01)
    releasing = asyncio.get_running_loop().create_task(box.locks.unlock([Q0]))
    await asyncio.sleep(0.01)
    renewing.cancel()
    await releasing
    # A broker that serves both at the same time would otherwise lock the queue again.
    assert box.answered == [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ]
    sent = box.fake.remoting.sent(RequestCode.UNLOCK_BATCH_MQ)
    assert len(sent) == 1
    assert box.lost == []
    await box.locks.renew_all()
    body = decode_body(
        bytes(box.fake.remoting.sent(RequestCode.LOCK_BATCH_MQ)[-1].body), LockBatchRequestBody
    )
    assert [bean.queue() for bean in body.mq_set] == [Q1]


async def test_a_release_that_was_cancelled_before_it_began_is_done_in_the_end(box: Box) -> None:
    await box.locks.lock(Q0)
    releasing = asyncio.get_running_loop().create_task(box.locks.unlock([Q0]))
    await asyncio.sleep(0)  # its request is not sent yet
    releasing.cancel()
    await asyncio.wait([releasing])
    await box.locks.unlock(list(box.locks.held()))
    assert Q0 in box.unlocked()
    assert not box.locks.held()


async def test_a_release_that_fails_is_left_to_the_brokers_clock(box: Box) -> None:
    await box.locks.lock(Q0)
    box.fake.remoting.down.add("a:1")
    await box.locks.unlock([Q0])
    assert not box.locks.held()
    with pytest.raises(CometMQError):
        await box.locks.lock(Q0)


def test_the_bodies_are_javas() -> None:
    body = encode_body(LockBatchRequestBody("c", "g", [MessageQueueBean.of(Q0)]))
    assert body == (
        b'{"clientId":"c","consumerGroup":"g","mqSet":'
        b'[{"brokerName":"a","queueId":0,"topic":"t"}],"onlyThisBroker":false}'
    )
