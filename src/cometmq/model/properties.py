"""Name the message properties that brokers and clients read (Java: MessageConst)."""

from __future__ import annotations

from typing import Final

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT_STORE_MSG_OK: Final = "WAIT"
DELAY_TIME_LEVEL: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIMESTAMP: Final = "CONSUME_START_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_SWITCH: Final = "TRACE_ON"
UNIQ_CLIENT_MESSAGE_ID: Final = "UNIQ_KEY"
CLUSTER: Final = "CLUSTER"
INSTANCE_ID: Final = "INSTANCE_ID"
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
CORRELATION_ID: Final = "CORRELATION_ID"
MESSAGE_TYPE: Final = "MSG_TYPE"
MESSAGE_TTL: Final = "TTL"
REPLY_ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
# CometMQ's own; see `cometmq.model.failure`.
FAILURE_TYPE: Final = "FAILURE_TYPE"
FAILURE_TEXT: Final = "FAILURE_TEXT"
FAILURE_MEMBER: Final = "FAILURE_MEMBER"
# The id of the body's schema in its registry; see `cometmq.payloads`.
SCHEMA_ID: Final = "SCHEMA_ID"
# Java: the topic that a dead letter was first sent to, as brokers from 5.0 on note it.
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"

KEY_SEPARATOR: Final = " "

# A client may read these from a received message but never set them on one it sends, because a
# broker would take them for its own. They are the Java client's MessageConst.STRING_HASH_SET, cut
# to those that change how a broker treats a message.
RESERVED: Final = frozenset(
    {
        REAL_TOPIC,
        REAL_QUEUE_ID,
        TRANSACTION_PREPARED,
        PRODUCER_GROUP,
        MIN_OFFSET,
        MAX_OFFSET,
        ORIGIN_MESSAGE_ID,
        RETRY_TOPIC,
        UNIQ_CLIENT_MESSAGE_ID,
        CONSUME_START_TIMESTAMP,
        MSG_REGION,
        TRACE_SWITCH,
        CLUSTER,
    }
)

# Producers, brokers and consumers note these of one sending: its delay, retries, transaction,
# request. A new message that is made from a received one starts without them.
OF_ONE_SENDING: Final = frozenset(
    {
        WAIT_STORE_MSG_OK,
        DELAY_TIME_LEVEL,
        RECONSUME_TIME,
        MAX_RECONSUME_TIMES,
        INSTANCE_ID,
        POP_CK,
        TIMER_DELAY_SEC,
        TIMER_DELAY_MS,
        TIMER_DELIVER_MS,
        TIMER_OUT_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_DEL_UNIQKEY,
        TIMER_ROLL_TIMES,
        TRANSACTION_ID,
        TRANSACTION_CHECK_TIMES,
        TRANSACTION_PREPARED_QUEUE_OFFSET,
        CHECK_IMMUNITY_TIME_IN_SECONDS,
        REPLY_TO_CLIENT,
        CORRELATION_ID,
        MESSAGE_TYPE,
        MESSAGE_TTL,
        REPLY_ARRIVE_TIME,
        PUSH_REPLY_TIME,
        FAILURE_TYPE,
        FAILURE_TEXT,
        FAILURE_MEMBER,
    }
)
