"""Serve the queue locks of orderly consumers: codes 41 and 42 (Java: AdminBrokerProcessor)."""

from __future__ import annotations

from cometmq.broker.groups.queue_locks import QueueLocks
from cometmq.model.queue import MessageQueue
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueBean,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.limits import nothing_named
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


class LockHandlers:
    """Serves locks and unlocks. For the loop's thread only."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.LOCK_BATCH_MQ, self.lock)
        handlers.register(requests.UNLOCK_BATCH_MQ, self.unlock)

    def lock(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Answer with those of the named queues that the client holds from now on."""
        body = requests.LOCK_BATCH_MQ.typed_body(call)
        held = self._locks.lock(body.consumer_group, body.client_id, _queues(body))
        beans = [MessageQueueBean.of(queue) for queue in sorted(held)]
        return response(ResponseCode.SUCCESS, body=encode_body(LockBatchResponseBody(beans)))

    def unlock(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        body = requests.UNLOCK_BATCH_MQ.typed_body(call)
        self._locks.unlock(body.consumer_group, body.client_id, _queues(body))
        return response(ResponseCode.SUCCESS)


def _queues(body: LockBatchRequestBody) -> list[MessageQueue]:
    if not body.mq_set:
        raise nothing_named("queues", "mqSet")
    return [bean.queue() for bean in body.mq_set]
