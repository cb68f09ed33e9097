"""Hold attempts to send, and read brokers' answers to them (Java: MQClientAPIImpl.processSendResponse)."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.errors import ProtocolError
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.credentials import refused

_STATUS: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class Attempt:
    """Holds an attempt whose request is on its way. `began_at` is in seconds of the loop's clock."""

    __slots__ = ("address", "answer", "began_at", "queue", "timeout_s")

    def __init__(
        self,
        queue: MessageQueue,
        address: str,
        began_at: float,
        timeout_s: float,
        answer: asyncio.Future[RemotingCommand],
    ) -> None:
        self.queue = queue
        self.address = address
        self.began_at = began_at
        self.timeout_s = timeout_s
        self.answer = answer


def result_of(
    answer: RemotingCommand, queue: MessageQueue, unique_id: str, address: str
) -> SendResult:
    """Return the result of a send to `queue`, named as on the wire. Raises RemoteError if the broker refused
    the message, ProtocolError if the answer lacks a field.
    """
    status = _STATUS.get(answer.code)
    if status is None:
        raise refused(answer, address, f"a message to {queue}")
    ext = answer.ext
    try:
        return SendResult(
            status,
            unique_id,
            ext["msgId"],
            MessageQueue(queue.topic, queue.broker_name, int(ext["queueId"])),
            int(ext["queueOffset"]),
            ext.get("transactionId"),
            ext.get("MSG_REGION") or "DefaultRegion",
            ext.get("TRACE_ON") != "false",
            ext.get("recallHandle"),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(
            f"the answer to a send lacks a field or has a wrong one: {error}", address=address
        ) from error
