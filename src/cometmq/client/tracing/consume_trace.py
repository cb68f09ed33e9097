"""Trace the messages that consumers get, and their outcomes (Java: ConsumeMessageTraceHookImpl).

A message is not traced if its properties say TRACE_ON=false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cometmq.client.acknowledged import AcknowledgedMessage
from cometmq.client.hooks import ConsumeContext, ConsumeMessageHook
from cometmq.client.tracing.codec import (
    DEFAULT_REGION,
    ContextCode,
    TraceBean,
    TraceContext,
    TraceType,
)
from cometmq.client.tracing.dispatcher import TraceDispatcher
from cometmq.model import properties as p
from cometmq.model.message import MessageExt

_BEGAN_S: Final = "cometmq.trace.began_s"
_BEFORE: Final = "cometmq.trace.before"
# The most messages of one call in one event: the ids of an event become keys of a trace message.
_EVENT_MESSAGES: Final = 64


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
