"""Trace sends, verdicts on transactions and recalls (Java: SendMessageTraceHookImpl, …).

A message is not traced if its broker answers with TRACE_ON=false.
"""

from __future__ import annotations

from typing import Final

from cometmq.client.hooks import (
    EndTransactionContext,
    EndTransactionHook,
    SendContext,
    SendMessageHook,
)
from cometmq.client.tracing.codec import (
    DEFAULT_REGION,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
)
from cometmq.client.tracing.dispatcher import TraceDispatcher
from cometmq.model import properties as p
from cometmq.model.results import SendStatus

_STARTED: Final = "cometmq.trace.started"
# Messages with these properties are traced as delayed, as in Java.
_DELAYS: Final = (p.DELAY_TIME_LEVEL, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)


class SendTrace(SendMessageHook, EndTransactionHook):
    """Traces a producer's messages, and its verdicts on transactions."""

    def __init__(self, dispatcher: TraceDispatcher) -> None:
        self._dispatcher = dispatcher
        self._now_ms = dispatcher.clock.now_ms
        self._monotonic = dispatcher.clock.monotonic

    def before_send(self, context: SendContext) -> None:
        # The monotonic time measures the send's duration, which setting the clock must not change.
        context.state[_STARTED] = self._now_ms(), self._monotonic()

    def after_send(self, context: SendContext) -> None:
        result = context.result
        if result is None or not result.trace_on or self._is_trace(context.queue.topic):
            return
        started_ms, began_s = context.state[_STARTED]
        message = context.message
        batch = len(context.messages) > 1
        bean = TraceBean(
            result.msg_id,
            context.queue.topic,
            None if batch else message.tags,
            None if batch else message.properties.get(p.KEYS),
            result.offset_msg_id,
            context.address,
            body_length=context.body_length,
            message_type=_message_type(context),
        )
        event = TraceContext(
            TraceType.PUB,
            [bean],
            started_ms,
            result.region_id,
            context.group,
            int((self._monotonic() - began_s) * 1000),
        )
        event.success = result.status is SendStatus.SEND_OK
        self._dispatcher.append(event)

    def end_transaction(self, context: EndTransactionContext) -> None:
        message = context.message
        if self._is_trace(message.topic):
            return
        bean = TraceBean(
            context.msg_id,
            message.topic,
            message.tags,
            message.properties.get(p.KEYS),
            store_host=context.address,
            message_type=MessageType.TRANSACTION_COMMIT,
            transaction_id=context.transaction_id,
            transaction_state=context.state.value,
            from_check=context.from_check,
        )
        region = message.properties.get(p.MSG_REGION) or DEFAULT_REGION
        self._dispatcher.append(
            TraceContext(TraceType.END_TRANSACTION, [bean], self._now_ms(), region, context.group)
        )

    def recalled(self, group: str, topic: str, msg_id: str, *, success: bool) -> None:
        """Trace a recall that was answered (Java: DefaultRecallMessageTraceHook)."""
        event = TraceContext(
            TraceType.RECALL, [TraceBean(msg_id, topic)], self._now_ms(), DEFAULT_REGION, group
        )
        event.success = success
        self._dispatcher.append(event)

    def _is_trace(self, topic: str) -> bool:
        return topic.startswith(self._dispatcher.topic)


def _message_type(context: SendContext) -> MessageType:
    if not context.message.properties.keys().isdisjoint(_DELAYS):
        return MessageType.DELAY
    return MessageType.TRANSACTION_HALF if context.half else MessageType.NORMAL
