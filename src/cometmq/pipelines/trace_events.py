"""The events of message traces as a DataFrame, decoded in Spark's workers.

One row per message of an event, of the columns below. Which of them count depends on `kind`, as
`cometmq.client.trace_codec` says; times and costs are ms. A trace message whose text is none of
traces gives one row of the kind `malformed`, whose `msg_id` is the trace message's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from cometmq.client.trace_codec import ContextCode, TraceContext, TraceType, decode_traces
from cometmq.errors import ProtocolError
from cometmq.pipelines.small_tables import arrow_schema_of, arrow_table

MALFORMED: Final = "malformed"
EVENT_SCHEMA: Final = (
    "kind string, topic string, grp string, msg_id string, time_ms bigint, cost_ms bigint, "
    "success boolean, code string, request_id string, retry_times int, store_host string, "
    "transaction_state string"
)
# What a frame of trace messages has to have.
TRACE_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "msg_id", "body")

Row = tuple[Any, ...]


def trace_events(messages: Any) -> Any:
    """The events in the bodies of `messages`, a DataFrame with columns `msg_id` and `body`."""
    return messages.select("msg_id", "body").mapInArrow(_decoded, EVENT_SCHEMA)


def event_rows(msg_id: str, body: bytes) -> Iterator[Row]:
    """The rows of one trace message, in the order of EVENT_SCHEMA."""
    try:
        contexts = decode_traces(body.decode())
    except (ProtocolError, UnicodeDecodeError):
        yield (MALFORMED, None, None, msg_id, *(None,) * 8)
        return
    for context in contexts:
        yield from _rows(context)


def _rows(context: TraceContext) -> Iterator[Row]:
    code = None
    if context.type is TraceType.SUB_AFTER:
        known = {int(code): code.name for code in ContextCode}
        code = known.get(context.context_code, str(context.context_code))
    for bean in context.beans:
        # One event of a batch names all its messages.
        for msg_id in (bean.msg_id or "").split(","):
            yield (
                context.type.value,
                bean.topic or None,
                context.group or None,
                msg_id or None,
                context.timestamp_ms or None,
                context.cost_ms,
                context.success,
                code,
                context.request_id or None,
                bean.retry_times,
                bean.store_host or None,
                bean.transaction_state or None,
            )


def _decoded(batches: Iterable[Any]) -> Iterator[Any]:
    schema = arrow_schema_of(EVENT_SCHEMA)
    for batch in batches:
        ids, bodies = batch.column("msg_id").to_pylist(), batch.column("body").to_pylist()
        rows = [row for at, body in zip(ids, bodies, strict=True) for row in event_rows(at, body)]
        yield from arrow_table(rows, schema).to_batches()
