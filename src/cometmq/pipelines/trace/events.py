"""Decode the events of message traces into a DataFrame, in Spark's workers.

Each message of an event gives one row with the columns below. `kind` decides which columns have a
value, as `cometmq.client.tracing.codec` says. Times and costs are ms. A trace message whose text
cannot be decoded gives one row of the kind `malformed`, whose `msg_id` is the trace message's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from cometmq.client.tracing.codec import ContextCode, TraceContext, TraceType, decode_traces, ids_of
from cometmq.errors import ProtocolError
from cometmq.pipelines.small_tables import arrow_schema_of, arrow_table

MALFORMED: Final = "malformed"
EVENT_SCHEMA: Final = (
    "kind string, topic string, grp string, msg_id string, time_ms bigint, cost_ms bigint, "
    "success boolean, code string, request_id string, retry_times int, store_host string, "
    "transaction_state string"
)
# The columns that a frame of trace messages must have.
TRACE_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "msg_id", "body")

Row = tuple[Any, ...]


def trace_events(messages: Any) -> Any:
    """Return the events in the bodies of `messages`, a DataFrame with columns `msg_id` and
    `body`.
    """
    from pyspark.sql import functions as f

    functions: Any = f  # PySpark's stubs lack arrow_udf
    # mapInArrow would need pandas. Spark finds the kind of a function by its annotations, and accepts
    # only its own ones.
    decoded = functions.arrow_udf(
        lambda ids, bodies: _decoded(ids, bodies),  # noqa: PLW0108 - Spark refuses _decoded's annotations
        f"array<struct<{EVENT_SCHEMA}>>",
    )
    return messages.select(f.inline(decoded("msg_id", "body")))


def event_rows(msg_id: str, body: bytes) -> Iterator[Row]:
    """Yield the rows of one trace message, in the order of EVENT_SCHEMA."""
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
        # An event of a batch names all messages of the batch.
        for msg_id in ids_of(bean):
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
    """Return the list of events of each trace message, as Arrow arrays."""
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
