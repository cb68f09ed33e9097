"""Messages and rows in one shape, to be compared column by column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cometmq import LitePullConsumer, MessageQueue, PullStatus
from cometmq.model.message import MessageExt

TRANSACTIONS = (None, "prepared", "commit", "rollback")


def row_of(message: MessageExt) -> dict[str, Any]:
    properties = message.properties
    deliver = properties.get("TIMER_DELIVER_MS", properties.get("TIMER_OUT_MS"))
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "batch_msg_id": message.batch_msg_id,
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "tags": message.tags,
        "body": message.body,
        "properties": sorted(properties.items()),
        "born_time": message.born_timestamp_ms,
        "store_time": message.store_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "body_crc": message.body_crc,
        "transaction_type": TRANSACTIONS[message.sys_flag >> 2 & 3],
        "transaction_id": properties.get("__transactionId__"),
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "delay_level": message.delay_level or None,
        "deliver_time": None if deliver is None else int(deliver),
    }


def rows_of(batch: Any) -> list[dict[str, Any]]:
    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            values = column.cast(pa.int64()).to_pylist()
            columns[name] = [None if value is None else value // 1000 for value in values]
        elif name == "properties":
            columns[name] = [sorted(value) for value in column.to_pylist()]
        else:
            columns[name] = column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def pulled_rows(namesrv: str, queue: MessageQueue) -> list[dict[str, Any]]:
    """All that a broker gives of a queue, message by message."""
    rows: list[dict[str, Any]] = []
    with LitePullConsumer("reader", namesrv=namesrv) as consumer:
        offset = 0
        while True:
            answer = consumer.pull(queue, offset, 1024)
            if answer.status is PullStatus.NO_NEW_MSG:
                return rows
            for message in answer.messages:
                del message.properties["MIN_OFFSET"], message.properties["MAX_OFFSET"]
                rows.append(row_of(message))
            offset = answer.next_begin_offset


def by_place(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))
