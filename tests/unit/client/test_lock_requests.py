"""A client divides the queues that it locks among requests that a broker takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cometmq.client.cluster.broker_api import BrokerApi
from cometmq.model.queue import MessageQueue
from cometmq.protocol.limits import MAX_LOCKS_AT_ONCE
from cometmq.remoting.client import RemotingClient


class Broker:
    """Grants the locks that it is asked for, and notes how many each request named."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    async def ask(self, *asked: Any, **_: object) -> Any:
        body = asked[3]
        self.counts.append(len(body.mq_set))
        return SimpleNamespace(body=SimpleNamespace(lock_ok_mq_set=body.mq_set))


async def test_an_orderly_consumer_of_very_many_queues_gets_all_its_locks() -> None:
    broker = Broker()
    api = BrokerApi(cast("RemotingClient", broker))
    queues = {MessageQueue("t", "b", number) for number in range(2 * MAX_LOCKS_AT_ONCE + 5)}
    assert await api.lock_queues("127.0.0.1:1", "g", "c", queues) == queues
    await api.unlock_queues("127.0.0.1:1", "g", "c", queues)
    assert broker.counts == 2 * [MAX_LOCKS_AT_ONCE, MAX_LOCKS_AT_ONCE, 5]
