"""Typed calls to brokers (Java: MQClientAPIImpl).

Every call raises RemotingError when the exchange fails, RemoteError when the broker refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cometmq.model.message import MessageExt
from cometmq.model.names import retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import PullStatus
from cometmq.model.subscription import SubscriptionData
from cometmq.model.sysflag import PULL_LITE
from cometmq.protocol.bodies import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueBean,
    UnlockBatchRequestBody,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.protocol.json_dialect import decode_body, encode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.credentials import refused

TIMEOUT_S: Final = 3.0
SEND_BACK_TIMEOUT_S: Final = 5.0
LOCK_TIMEOUT_S: Final = 1.0

_PULL_STATUS: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """A pull's answer with its records still encoded."""

    status: PullStatus
    header: PullMessageResponseHeader
    records: bytes


class BrokerApi:
    def __init__(self, remoting: RemotingClient) -> None:
        self._remoting = remoting

    async def pull(
        self, address: str, header: PullMessageRequestHeader, timeout_s: float
    ) -> PullAnswer:
        lite = header.sys_flag & PULL_LITE
        code = RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE
        command = request(code, header)
        answer = await self._remoting.call(address, command, timeout_s)
        status = _PULL_STATUS.get(answer.code)  # type: ignore[call-overload]  # an IntEnum's value
        if status is None:
            raise refused(answer, address, f"the pull from {header.topic}:{header.queue_id}")
        return PullAnswer(status, answer.header(PullMessageResponseHeader), bytes(answer.body))

    async def check_client(
        self, address: str, client_id: str, group: str, subscription: SubscriptionData
    ) -> None:
        """Have the broker say whether it serves the subscription (code 46)."""
        body = encode_body(CheckClientRequestBody(client_id, group, subscription))
        command = request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        await self._call(address, command, f"the subscription to {subscription.topic}")

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """The client ids of a group's members. RemoteError (code 1) when none is online."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=group)
        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        answer = await self._call(address, command, f"the member list of group {group}")
        body = decode_body(bytes(answer.body), GetConsumerListByGroupResponseBody)
        return body.consumer_id_list

    async def query_consumer_offset(
        self, address: str, group: str, queue: MessageQueue
    ) -> int | None:
        """The group's stored offset of a queue, None when there is none."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
        )
        command = request(RequestCode.QUERY_CONSUMER_OFFSET, header)
        answer = await self._remoting.call(address, command, TIMEOUT_S)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer, address, f"the offset of group {group} at {queue}")
        return answer.header(OffsetResponseHeader).offset

    async def update_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> None:
        """Store a group's offset and wait until the broker has it."""
        command = _offset_update(group, queue, offset)
        await self._call(address, command, f"the offset {offset} of group {group} at {queue}")

    async def update_consumer_offset_oneway(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> None:
        await self._remoting.send_oneway(address, _offset_update(group, queue, offset))

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """The offset the queue's next message will get."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        command = request(RequestCode.GET_MAX_OFFSET, header)
        answer = await self._call(address, command, f"the max offset of {queue}")
        return answer.header(OffsetResponseHeader).offset

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        """The lowest offset whose message the broker still has."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        command = request(RequestCode.GET_MIN_OFFSET, header)
        answer = await self._call(address, command, f"the min offset of {queue}")
        return answer.header(OffsetResponseHeader).offset

    async def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at or after `timestamp_ms`."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        command = request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        answer = await self._call(address, command, f"the offset of {queue} at {timestamp_ms}")
        return answer.header(OffsetResponseHeader).offset

    async def heartbeat(self, address: str, data: HeartbeatData) -> None:
        command = request(RequestCode.HEART_BEAT, body=encode_body(data))
        await self._call(address, command, "the heartbeat")

    async def unregister(
        self,
        address: str,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        header = UnregisterClientRequestHeader(
            client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        command = request(RequestCode.UNREGISTER_CLIENT, header)
        await self._call(address, command, "the request to unregister")

    async def send_back(
        self,
        address: str,
        group: str,
        message: MessageExt,
        max_reconsume_times: int,
        delay_level: int = 0,
        topic: str | None = None,
    ) -> None:
        """Have the broker deliver `message` to the group again later, or give it up (code 36).

        `topic` is the message's on the wire, where users see another one.
        """
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=topic or message.topic,
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
        )
        command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        answer = await self._remoting.call(address, command, SEND_BACK_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer, address, f"sending back to {retry_topic(group)}")

    async def recall(
        self, address: str, group: str, topic: str, handle: str, timeout_s: float
    ) -> str:
        """Have the broker not deliver a timed message (code 370); its unique id."""
        header = RecallMessageRequestHeader(topic=topic, recall_handle=handle, producer_group=group)
        command = request(RequestCode.RECALL_MESSAGE, header)
        answer = await self._call(address, command, f"the recall from {topic}", timeout_s)
        return answer.header(RecallMessageResponseHeader).msg_id

    async def lock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        """Ask for the locks of `queues`, or renew them; those that the client holds afterwards."""
        body = LockBatchRequestBody(client_id, group, [MessageQueueBean.of(q) for q in queues])
        command = request(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))
        answer = await self._call(address, command, "the queue locks", LOCK_TIMEOUT_S)
        held = decode_body(bytes(answer.body), LockBatchResponseBody)
        return {bean.queue() for bean in held.lock_ok_mq_set}

    async def unlock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> None:
        body = UnlockBatchRequestBody(client_id, group, [MessageQueueBean.of(q) for q in queues])
        command = request(RequestCode.UNLOCK_BATCH_MQ, body=encode_body(body))
        await self._call(address, command, "the release of queue locks", LOCK_TIMEOUT_S)

    async def _call(
        self, address: str, command: RemotingCommand, what: str, timeout_s: float = TIMEOUT_S
    ) -> RemotingCommand:
        answer = await self._remoting.call(address, command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer, address, what)
        return answer


def _offset_update(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
