"""Give messages back that were not consumed (Java: DefaultMQPushConsumerImpl.sendMessageBack)."""

from __future__ import annotations

from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES
from cometmq.client.namespaces import NO_NAMESPACE, Namespace
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.client.pulling.received import DamagedRecord
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.failure import Failure, note_failure
from cometmq.model.message import Message, MessageExt
from cometmq.model.names import retry_topic
from cometmq.protocol.messages.fitting import cut, drop_spare
from cometmq.protocol.messages.properties import MAX_PROPERTIES_LENGTH

log = get_logger(__name__)

# The group under which a consumer sends (Java: MixAll.CLIENT_INNER_PRODUCER_GROUP).
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SEND_TIMEOUT_S: Final = 3.0
_INT32_MAX: Final = 2**31 - 1
_JAVAS_TIMES: Final = 16
# Bytes that brokers add to a message that waits for its retry, without the topic's name: cluster,
# region, trace switch, unique id, place.
_BROKERS_LENGTH: Final = 512
_NOT_SENT: Final = (
    p.TRANSACTION_PREPARED,
    p.MIN_OFFSET,
    p.MAX_OFFSET,
    p.CONSUME_START_TIMESTAMP,
    p.POP_CK,
)


class Returns:
    """Gives a group member's messages back to brokers.

    Without `max_reconsume_times` the group's number (retryMaxTimes) counts. Each way raises
    CometMQError when no broker took the message.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        max_reconsume_times: int | None,
        namespace: Namespace = NO_NAMESPACE,
        *,
        note_failures: bool = True,
    ) -> None:
        self._note_failures = note_failures
        self._namespace = namespace
        self._instance = instance
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._encoder = MessageEncoder(
            INNER_PRODUCER_GROUP, instance.unique_ids, clock=instance.clock
        )
        # The retry topic of a new group may have no route yet, but it has its first queue.
        self._sender = Sender(instance, SendLimits(default_topic_queue_nums=1))

    async def send_back(
        self, message: MessageExt, delay_level: int, cause: BaseException | str | None = None
    ) -> None:
        """Send a message back with code 36. If that fails, send it to the retry topic.

        `cause` is the exception, or the name of a result, that is noted on the message.
        """
        failure = self._failure(cause)
        try:
            address = self._instance.need_master(message.broker_name, message.topic)
            await self._instance.brokers.send_back(
                address,
                self._group,
                message,
                self._max_reconsume_times,
                delay_level,
                self._namespace.wrap(message.topic),
                failure,
            )
        except CometMQError as error:
            log.info(
                "not sent back, sending to the retry topic",
                group=self._group,
                msg_id=message.msg_id,
                reason=str(error),
            )
            await self.send_to_retry_topic(message, cause, final=delay_level < 0)

    async def send_damaged(self, damaged: DamagedRecord) -> None:
        """Put the bytes that came instead of a message among the dead letters, as they came.

        The bytes are sent as a message that has had all its chances. Properties say where they
        come from. No RETRY_TOPIC property names their topic, so that a redrive does not send them
        there.
        """
        queue, size = damaged.queue, len(damaged.data)
        properties = {
            "DAMAGED_TOPIC": self._namespace.unwrap(queue.topic),
            "DAMAGED_BROKER": queue.broker_name,
            "DAMAGED_QUEUE_ID": str(queue.queue_id),
            "DAMAGED_QUEUE_OFFSET": str(damaged.queue_offset),
            "DAMAGED_COMMIT_LOG_OFFSET": str(damaged.commit_log_offset),
            "DAMAGED_SIZE": str(size),
            "DAMAGED_REASON": damaged.reason,
        }
        body = damaged.data[:MAX_MESSAGE_SIZE_BYTES]
        letter = Message(retry_topic(self._group), body, properties=properties)
        outgoing = await self._encoder.encode(letter, self._no_more(0))
        await self._sender.send(outgoing, SEND_TIMEOUT_S)

    async def send_to_retry_topic(
        self, message: MessageExt, cause: BaseException | str | None = None, final: bool = False
    ) -> None:
        """Send a message to the retry topic. The broker makes it a dead letter if it has used up
        its retries, if `final`, or if its properties leave no room for those of a retry.
        """
        times = message.reconsume_times
        retried = Message(
            retry_topic(self._group), message.body, flag=message.flag, properties=message.properties
        )
        properties = retried.properties
        for name in _NOT_SENT:
            properties.pop(name, None)
        properties.setdefault(p.RETRY_TOPIC, self._namespace.wrap(message.topic))
        properties.setdefault(p.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[p.DELAY_TIME_LEVEL] = str(3 + times)
        note_failure(properties, self._failure(cause))
        # The counts travel in the header; Java keeps them in properties until the producer sends.
        counts = self._no_more(times) if final else {"j": str(times + 1)}
        if not final and self._max_reconsume_times is not None:
            counts["l"] = str(self._max_reconsume_times)
        room = MAX_PROPERTIES_LENGTH - _BROKERS_LENGTH - 2 * len(retried.topic)
        if not drop_spare(properties, room):
            log.warning(
                "a message cannot be retried and becomes a dead letter: its properties are too long",
                group=self._group,
                msg_id=message.msg_id,
                left_out=cut(properties, room),
                limit=f"MAX_PROPERTIES_LENGTH={MAX_PROPERTIES_LENGTH}",
            )
            counts = self._no_more(times)
        outgoing = await self._encoder.encode(retried, counts)
        await self._sender.send(outgoing, SEND_TIMEOUT_S)

    def _failure(self, cause: BaseException | str | None) -> Failure | None:
        if cause is None or not self._note_failures:
            return None
        if isinstance(cause, str):
            return Failure(cause, "", self._instance.client_id)
        return Failure.of(cause, self._instance.client_id)

    def _no_more(self, times: int) -> dict[str, str]:
        """Return the counts with which a broker makes a message a dead letter."""
        times = min(max(times, self._max_reconsume_times or _JAVAS_TIMES), _INT32_MAX - 1)
        return {"j": str(times + 1), "l": str(times)}
