"""Serve the queue locks of orderly consumers: codes 41 and 42 (Java: AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from cometmq.broker.groups.queue_locks import QueueLocks
from cometmq.protocol import requests
from cometmq.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueBean,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.header import NoHeader
from cometmq.protocol.json_dialect import encode_body
from cometmq.protocol.limits import check_lock_names, check_locks, nothing_named
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.request_order import RequestOrder
from cometmq.runtime.slices import run_slices

# So many queues are locked within a millisecond or two. Of more others are served in between.
_AT_ONCE: Final = 256

_Steps = Callable[[LockBatchRequestBody, list[MessageQueueBean]], Iterator[None]]


class LockHandlers:
    """Serves locks and unlocks. For the loop's thread only."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks
        self._order = RequestOrder()

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.LOCK_BATCH_MQ, self.lock)
        handlers.register(requests.UNLOCK_BATCH_MQ, self.unlock)

    def lock(self, connection: Connection, call: Request[NoHeader]) -> RemotingCommand | None:
        """Answer with those of the named queues that the client holds from now on."""
        body = requests.LOCK_BATCH_MQ.body.decode(call.body)
        return self._serve(connection, call, body, self._lock, _held)

    def unlock(self, connection: Connection, call: Request[NoHeader]) -> RemotingCommand | None:
        body = requests.UNLOCK_BATCH_MQ.body.decode(call.body)
        return self._serve(connection, call, body, self._unlock, _done)

    def _serve(
        self,
        connection: Connection,
        call: Request[NoHeader],
        body: LockBatchRequestBody,
        take: _Steps,
        answer: Callable[[list[MessageQueueBean]], RemotingCommand],
    ) -> RemotingCommand | None:
        """Serve a request at once, or one with many queues in steps; what the client sends behind it
        waits for its end.
        """
        check_locks(body)
        if not body.mq_set:
            raise nothing_named("queues", "mqSet")
        held: list[MessageQueueBean] = []

        def at_once() -> RemotingCommand:
            for _ in self._steps(body, take, held):
                pass
            return answer(held)

        async def in_steps() -> RemotingCommand:
            await run_slices(self._steps(body, take, held))
            return answer(held)

        if len(body.mq_set) <= _AT_ONCE:
            return self._order.serve(connection, call, at_once)
        serve: Callable[[], Awaitable[RemotingCommand]] = in_steps
        self._order.serve_long(connection, call, serve)
        return None

    def _steps(
        self, body: LockBatchRequestBody, take: _Steps, held: list[MessageQueueBean]
    ) -> Iterator[None]:
        yield from check_lock_names(body)  # all of them before the first is locked
        yield from take(body, held)

    def _lock(self, body: LockBatchRequestBody, held: list[MessageQueueBean]) -> Iterator[None]:
        for part in _parts(body):
            queues = [bean.queue() for bean in part]
            locked = self._locks.lock(body.consumer_group, body.client_id, queues)
            held += [MessageQueueBean.of(queue) for queue in sorted(locked)]
            yield

    def _unlock(self, body: LockBatchRequestBody, _: list[MessageQueueBean]) -> Iterator[None]:
        for part in _parts(body):
            queues = [bean.queue() for bean in part]
            self._locks.unlock(body.consumer_group, body.client_id, queues)
            yield


def _parts(body: LockBatchRequestBody) -> Iterator[list[MessageQueueBean]]:
    for start in range(0, len(body.mq_set), _AT_ONCE):
        yield body.mq_set[start : start + _AT_ONCE]


def _held(held: list[MessageQueueBean]) -> RemotingCommand:
    return response(ResponseCode.SUCCESS, body=encode_body(LockBatchResponseBody(held)))


def _done(_: list[MessageQueueBean]) -> RemotingCommand:
    return response(ResponseCode.SUCCESS)
