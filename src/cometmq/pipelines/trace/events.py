"""The events of message traces as a DataFrame, decoded in Spark's workers.

One row per message of an event, of the columns below. Which of them count depends on `kind`, as
`cometmq.client.tracing.codec` says; times and costs are ms. A trace message whose text is none of
traces gives one row of the kind `malformed`, whose `msg_id` is the trace message's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from cometmq.client.tracing.codec import ContextCode, TraceContext, TraceType, decode_traces
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
    from pyspark.sql import functions as f

    functions: Any = f  # PySpark's stubs forget arrow_udf
    # Not mapInArrow, which wants pandas.
    # Spark tells kinds of functions by annotations, of which it takes its own only.
    decoded = functions.arrow_udf(
        lambda ids, bodies: _decoded(ids, bodies),  # noqa: PLW0108 - Spark refuses _decoded's annotations
        f"array<struct<{EVENT_SCHEMA}>>",
    )
    return messages.select(f.inline(decoded("msg_id", "body")))


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


def _decoded(ids: Any, bodies: Any) -> Any:
    """Of each trace message the list of its events; Arrow arrays."""
    import pyarrow as pa

    events = [
        list(event_rows(at.as_py(), body.as_py())) for at, body in zip(ids, bodies, strict=True)
    ]
    lengths = [0, *map(len, events)]
    table = arrow_table(itertools.chain(*events), arrow_schema_of(EVENT_SCHEMA))
    structs = pa.StructArray.from_arrays(
        [column.combine_chunks() for column in table.columns], fields=list(table.schema)
    )
    return pa.ListArray.from_arrays(pa.array(itertools.accumulate(lengths), pa.int32()), structs)
