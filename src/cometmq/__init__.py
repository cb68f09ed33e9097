"""CometMQ: Apache RocketMQ in Python.

Here are the messages, their results and the blocking clients; `cometmq.aio` has the asyncio clients
under the same names.
"""

from cometmq import errors
from cometmq._version import __version__
from cometmq.client.allocation import allocate_averagely
from cometmq.client.encoding import split_batches
from cometmq.client.selectors import select_by_hash
from cometmq.client.sync import Producer, PushConsumer, TransactionProducer
from cometmq.client.transaction_producer import TransactionListener
from cometmq.errors import CometMQError
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import (
    ConsumeFromWhere,
    ConsumeReport,
    ConsumeResult,
    LocalTransactionState,
    MessageModel,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from cometmq.protocol.compression import CompressionType

__all__ = [
    "CometMQError",
    "CompressionType",
    "ConsumeFromWhere",
    "ConsumeReport",
    "ConsumeResult",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "__version__",
    "allocate_averagely",
    "errors",
    "select_by_hash",
    "split_batches",
]
