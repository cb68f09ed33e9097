"""Make typed calls to brokers (Java: MQClientAPIImpl).

Every call raises RemotingError when the exchange fails, RemoteError when the broker refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cometmq.model.failure import Failure
from cometmq.model.message import MessageExt
from cometmq.model.names import retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import PullStatus
from cometmq.model.subscription import SubscriptionData
from cometmq.model.sysflag import PULL_LITE
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import (
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueueBean,
    QueryAssignmentRequestBody,
    UnlockBatchRequestBody,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Ext, RemotingCommand
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    RecallMessageRequestHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.protocol.limits import MAX_LOCKS_AT_ONCE
from cometmq.protocol.pop.bodies import BatchAckMessageRequestBody, PoppedMessage
from cometmq.protocol.pop.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    PopProgressRequestHeader,
)
from cometmq.remoting.client import RemotingClient

SEND_BACK_TIMEOUT_S: Final = 5.0
LOCK_TIMEOUT_S: Final = 1.0

_PULL_STATUS: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


# A pop that found nothing, and one that could not wait because too many do, answer with an empty body.
_NOTHING_POPPED: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
)


@dataclass(frozen=True, slots=True)
class PopAnswer:
    """Holds a pop's answer, with its records still encoded; `is_full` says that too many pops wait
    there.
    """

    header: PopMessageResponseHeader
    records: bytes
    is_full: bool


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """Holds a pull's answer, with its records still encoded."""

    status: PullStatus
    header: PullMessageResponseHeader
    records: bytes


def answer_in(command: RemotingCommand) -> PullAnswer | None:
    """Return what a broker answered to a pull, or None if it refused the pull."""
    status = _PULL_STATUS.get(command.code)  # type: ignore[call-overload]  # a member equals its number
    if status is None:
        return None
    header = command.header(requests.LITE_PULL_MESSAGE.answer)
    return PullAnswer(status, header, bytes(command.body))


class BrokerApi:
    def __init__(self, remoting: RemotingClient) -> None:
        self._remoting = remoting

    async def pull(
        self, address: str, header: PullMessageRequestHeader, timeout_s: float
    ) -> PullAnswer:
        lite = header.sys_flag & PULL_LITE
        answer = await self._remoting.ask(
            address,
            requests.LITE_PULL_MESSAGE if lite else requests.PULL_MESSAGE,
            header,
            what=f"the pull from {header.topic}:{header.queue_id}",
            timeout_s=timeout_s,
            also=_PULL_STATUS,
        )
        return PullAnswer(_PULL_STATUS[ResponseCode(answer.code)], answer.header, answer.body)

    def begin_pull(
        self, address: str, ext: Ext, timeout_s: float
    ) -> asyncio.Future[RemotingCommand] | None:
        """Send a lite pull with the header fields `ext`, and return a future of its answer, which
        `answer_in` reads. Return None where `pull` would have to wait before it sends.
        """
        command = RemotingCommand(requests.LITE_PULL_MESSAGE.code, ext=ext)
        return self._remoting.begin_call(address, command, timeout_s)

    async def pop(
        self, address: str, header: PopMessageRequestHeader, timeout_s: float
    ) -> PopAnswer:
        """Take messages, and hide them for a time (code 200050)."""
        answer = await self._remoting.ask(
            address,
            requests.POP_MESSAGE,
            header,
            what=f"the pop from {header.topic}",
            timeout_s=timeout_s,
            also=_NOTHING_POPPED,
        )
        if answer.code in _NOTHING_POPPED:
            is_full = answer.code == ResponseCode.POLLING_FULL
            return PopAnswer(PopMessageResponseHeader(), b"", is_full)
        return PopAnswer(answer.header, answer.body, is_full=False)

    async def notification(
        self, address: str, header: NotificationRequestHeader, timeout_s: float
    ) -> NotificationResponseHeader:
        """Wait until there is something to pop, or the header's time is over (code 200054)."""
        answer = await self._remoting.ask(
            address,
            requests.NOTIFICATION,
            header,
            what=f"the wait for messages of {header.topic}",
            timeout_s=timeout_s,
        )
        return answer.header

    async def ack(self, address: str, header: AckMessageRequestHeader) -> None:
        """Acknowledge a popped message (code 200051)."""
        await self._remoting.ask(
            address,
            requests.ACK_MESSAGE,
            header,
            what=f"the acknowledgement of offset {header.offset} of {header.topic}",
        )

    async def batch_ack(self, address: str, body: BatchAckMessageRequestBody) -> None:
        """Acknowledge many popped messages (code 200151)."""
        await self._remoting.ask(
            address,
            requests.BATCH_ACK_MESSAGE,
            NoHeader(),
            body,
            what=f"a batch of {len(body.acks)} acknowledgements",
        )

    async def change_invisible_time(
        self, address: str, header: ChangeInvisibleTimeRequestHeader
    ) -> ChangeInvisibleTimeResponseHeader:
        """Hide a popped message for a time from now on (code 200053)."""
        answer = await self._remoting.ask(
            address,
            requests.CHANGE_MESSAGE_INVISIBLETIME,
            header,
            what=f"the change of how long offset {header.offset} of {header.topic} is hidden",
        )
        return answer.header

    async def popped_message(
        self, address: str, header: PopProgressRequestHeader
    ) -> PoppedMessage | None:
        """Return the state of a message in a group (code 30005, which only CometMQ's brokers know); None if the
        group does not pop the topic.
        """
        answer = await self._remoting.ask(
            address,
            requests.GET_POP_PROGRESS,
            header,
            what=f"what became of offset {header.offset} of {header.topic}",
        )
        return answer.body.message

    async def check_client(
        self, address: str, client_id: str, group: str, subscription: SubscriptionData
    ) -> None:
        """Have the broker say whether it serves the subscription (code 46)."""
        await self._remoting.ask(
            address,
            requests.CHECK_CLIENT_CONFIG,
            NoHeader(),
            CheckClientRequestBody(client_id, group, subscription),
            what=f"the subscription to {subscription.topic}",
        )

    async def query_assignment(
        self, address: str, topic: str, group: str, client_id: str
    ) -> list[tuple[MessageQueue, str]] | None:
        """Return the queues that a member is to consume, each with PULL or POP, or None if the broker
        has no opinion (code 400).
        """
        answer = await self._remoting.ask(
            address,
            requests.QUERY_ASSIGNMENT,
            NoHeader(),
            QueryAssignmentRequestBody(topic, group, client_id),
            what=f"the question which queues of {topic} to consume",
        )
        body = answer.body
        if body.message_queue_assignments is None:
            return None
        return [(each.message_queue.queue(), each.mode) for each in body.message_queue_assignments]

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """Return the client ids of a group's members. Raises RemoteError (code 1) if it has
        none.
        """
        answer = await self._remoting.ask(
            address,
            requests.GET_CONSUMER_LIST_BY_GROUP,
            GetConsumerListByGroupRequestHeader(consumer_group=group),
            what=f"the member list of group {group}",
        )
        return answer.body.consumer_id_list

    async def query_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, *, is_stored: bool = False
    ) -> int | None:
        """Return the group's offset of a queue, or None if there is none.

        For a group without an offset, brokers answer 0 while the queue's first message is in
        memory: a new member begins there. With `is_stored` only a stored offset counts; brokers before
        5.0 ignore it.
        """
        answer = await self._remoting.ask(
            address,
            requests.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                set_zero_if_not_found=False if is_stored else None,
            ),
            what=f"the offset of group {group} at {queue}",
            also=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return None if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.header.offset

    async def update_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> None:
        """Store a group's offset and wait until the broker has it."""
        await self._remoting.ask(
            address,
            requests.UPDATE_CONSUMER_OFFSET,
            _offset_update(group, queue, offset),
            what=f"the offset {offset} of group {group} at {queue}",
        )

    async def update_consumer_offset_oneway(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> None:
        header = _offset_update(group, queue, offset)
        await self._remoting.send_oneway(address, requests.UPDATE_CONSUMER_OFFSET.command(header))

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        answer = await self._remoting.ask(
            address,
            requests.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the max offset of {queue}",
        )
        return answer.header.offset

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the lowest offset whose message the broker still has."""
        answer = await self._remoting.ask(
            address,
            requests.GET_MIN_OFFSET,
            GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the min offset of {queue}",
        )
        return answer.header.offset

    async def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset whose message was stored at or after `timestamp_ms`."""
        answer = await self._remoting.ask(
            address,
            requests.SEARCH_OFFSET_BY_TIMESTAMP,
            SearchOffsetRequestHeader(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
            ),
            what=f"the offset of {queue} at {timestamp_ms}",
        )
        return answer.header.offset

    async def heartbeat(self, address: str, data: HeartbeatData) -> None:
        await self._remoting.ask(
            address, requests.HEART_BEAT, NoHeader(), data, what="the heartbeat"
        )

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
        await self._remoting.ask(
            address, requests.UNREGISTER_CLIENT, header, what="the request to unregister"
        )

    async def send_back(
        self,
        address: str,
        group: str,
        message: MessageExt,
        max_reconsume_times: int | None,
        delay_level: int = 0,
        topic: str | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Have the broker deliver `message` to the group again later, or give it up (code 36).

        `topic` is the name of the message's topic on the wire, if users see another name. `failure` says
        why; Java's brokers do not keep it.
        """
        kind, text, member = (None, None, None) if failure is None else failure.fitted()
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=topic or message.topic,
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            failure_type=kind,
            failure_text=text,
            failure_member=member,
        )
        await self._remoting.ask(
            address,
            requests.CONSUMER_SEND_MSG_BACK,
            header,
            what=f"sending back to {retry_topic(group)}",
            timeout_s=SEND_BACK_TIMEOUT_S,
        )

    async def recall(
        self, address: str, group: str, topic: str, handle: str, timeout_s: float
    ) -> str:
        """Keep the broker from delivering a timed message (code 370). Return its unique id."""
        answer = await self._remoting.ask(
            address,
            requests.RECALL_MESSAGE,
            RecallMessageRequestHeader(topic=topic, recall_handle=handle, producer_group=group),
            what=f"the recall from {topic}",
            timeout_s=timeout_s,
        )
        return answer.header.msg_id

    async def lock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        """Take or renew the locks of `queues`. Return those that the client then holds."""
        held: set[MessageQueue] = set()
        for beans in _lockable(queues):
            answer = await self._remoting.ask(
                address,
                requests.LOCK_BATCH_MQ,
                NoHeader(),
                LockBatchRequestBody(client_id, group, beans),
                what="the queue locks",
                timeout_s=LOCK_TIMEOUT_S,
            )
            held.update(bean.queue() for bean in answer.body.lock_ok_mq_set)
        return held

    async def unlock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> None:
        for beans in _lockable(queues):
            await self._remoting.ask(
                address,
                requests.UNLOCK_BATCH_MQ,
                NoHeader(),
                UnlockBatchRequestBody(client_id, group, beans),
                what="the release of queue locks",
                timeout_s=LOCK_TIMEOUT_S,
            )


def _lockable(queues: Iterable[MessageQueue]) -> list[list[MessageQueueBean]]:
    """Divide queues among requests, none of which names more than a broker of ours takes."""
    beans = [MessageQueueBean.of(queue) for queue in queues]
    return [beans[at : at + MAX_LOCKS_AT_ONCE] for at in range(0, len(beans), MAX_LOCKS_AT_ONCE)]


def _offset_update(
    group: str, queue: MessageQueue, offset: int
) -> UpdateConsumerOffsetRequestHeader:
    return UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
