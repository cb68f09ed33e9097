"""Queue locks of orderly consumers: codes 41 and 42 (Java: AdminBrokerProcessor)."""

from __future__ import annotations

from cometmq.broker.queue_locks import QueueLocks
from cometmq.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueBean,
    UnlockBatchRequestBody,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.header import NoHeader
from cometmq.protocol.json_dialect import decode_request, encode_body
from cometmq.protocol.limits import MAX_LOCK_LENGTH, check_locks
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


class LockHandlers:
    """For the loop's thread only."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def register(self, handlers: Handlers) -> None:
        handlers.register(
            RequestCode.LOCK_BATCH_MQ, NoHeader, self.lock, max_body_length=MAX_LOCK_LENGTH
        )
        handlers.register(
            RequestCode.UNLOCK_BATCH_MQ, NoHeader, self.unlock, max_body_length=MAX_LOCK_LENGTH
        )

    def lock(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Answers with those of the named queues that the client holds from now on."""
        body = decode_request(call.body, LockBatchRequestBody)
        check_locks(body)
        queues = (bean.queue() for bean in body.mq_set)
        held = self._locks.lock(body.consumer_group, body.client_id, queues)
        beans = [MessageQueueBean.of(queue) for queue in sorted(held)]
        return response(ResponseCode.SUCCESS, body=encode_body(LockBatchResponseBody(beans)))

    def unlock(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        body = decode_request(call.body, UnlockBatchRequestBody)
        check_locks(body)
        queues = (bean.queue() for bean in body.mq_set)
        self._locks.unlock(body.consumer_group, body.client_id, queues)
        return response(ResponseCode.SUCCESS)
