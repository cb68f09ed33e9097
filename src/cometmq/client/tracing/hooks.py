"""Traces by hooks (Java: SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl, …).

A message is not traced if its broker says TRACE_ON=false, in the answer or in the message's
properties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cometmq.client.acknowledged import AcknowledgedMessage
from cometmq.client.hooks import (
    ConsumeContext,
    ConsumeMessageHook,
    EndTransactionContext,
    EndTransactionHook,
    SendContext,
    SendMessageHook,
)
from cometmq.client.tracing.codec import (
    DEFAULT_REGION,
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
)
from cometmq.client.tracing.dispatcher import TraceDispatcher
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.results import SendStatus

_STARTED: Final = "cometmq.trace.started"
_BEGAN_S: Final = "cometmq.trace.began_s"
_BEFORE: Final = "cometmq.trace.before"
# The most messages of one call in one event: the ids of an event become keys of a trace message.
_EVENT_MESSAGES: Final = 64
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


class ConsumeTrace(ConsumeMessageHook):
    """Traces a consumer's messages, before its listener is called and after."""

    def __init__(self, dispatcher: TraceDispatcher) -> None:
        self._dispatcher = dispatcher
        self._now_ms = dispatcher.clock.now_ms
        self._monotonic = dispatcher.clock.monotonic

    def before_consume(self, context: ConsumeContext) -> None:
        if context.received:  # its poll was traced
            return
        traced = [m for m in context.messages if m.properties.get(p.TRACE_SWITCH) != "false"]
        if context.polled and isinstance(context.messages[0], AcknowledgedMessage):
            for message in traced:
                self._trace_until_settled(message, context.group)
            return
        request_id = self._request_id()
        context.state[_BEGAN_S] = self._monotonic()
        events = context.state[_BEFORE] = [
            self._before(part, context.group, request_id) for part in _parts(traced)
        ]
        for event in events:
            self._dispatcher.append(event)

    def after_consume(self, context: ConsumeContext) -> None:
        events: list[TraceContext] = context.state.get(_BEFORE, [])
        if not events:
            return
        took_ms = int((self._monotonic() - context.state[_BEGAN_S]) * 1000)
        code = ContextCode[context.status]
        for before in events:
            self._append_after(before, took_ms // len(context.messages), context.success, code)

    def _trace_until_settled(self, message: MessageExt, group: str) -> None:
        """Trace a message that a poll returned, and its outcome when its user says so."""
        assert isinstance(message, AcknowledgedMessage), "asked before"
        before, began_s = self._before([message], group, self._request_id()), self._monotonic()
        self._dispatcher.append(before)

        def trace_outcome(success: bool) -> None:
            took_ms = int((self._monotonic() - began_s) * 1000)
            code = ContextCode.SUCCESS if success else ContextCode.FAILED
            self._append_after(before, took_ms, success, code)

        message.when_settled(trace_outcome)

    def _request_id(self) -> str:
        return self._dispatcher.randomness.uuid4().hex.upper()

    def _before(self, messages: Sequence[MessageExt], group: str, request_id: str) -> TraceContext:
        return TraceContext(
            TraceType.SUB_BEFORE,
            [_consumed(message) for message in messages],
            self._now_ms(),
            messages[-1].properties.get(p.MSG_REGION) or DEFAULT_REGION,
            group,
            request_id=request_id,
        )

    def _append_after(
        self, before: TraceContext, took_ms: int, success: bool, code: ContextCode
    ) -> None:
        self._dispatcher.append(
            TraceContext(
                TraceType.SUB_AFTER,
                before.beans,
                self._now_ms(),
                before.region,
                before.group,
                took_ms,
                success,
                before.request_id,
                code,
            )
        )


def _parts(messages: Sequence[MessageExt]) -> Iterator[Sequence[MessageExt]]:
    for start in range(0, len(messages), _EVENT_MESSAGES):
        yield messages[start : start + _EVENT_MESSAGES]


def _consumed(message: MessageExt) -> TraceBean:
    return TraceBean(
        message.msg_id,
        message.topic,
        message.tags,
        message.properties.get(p.KEYS),
        retry_times=message.reconsume_times,
    )


def _message_type(context: SendContext) -> MessageType:
    if not context.message.properties.keys().isdisjoint(_DELAYS):
        return MessageType.DELAY
    return MessageType.TRANSACTION_HALF if context.half else MessageType.NORMAL
