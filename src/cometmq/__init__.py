"""CometMQ: Apache RocketMQ in Python.

Here are the messages, their results and the blocking clients; `cometmq.aio` has the asyncio clients
under the same names.
"""

from cometmq import _compiled

_compiled.install()  # before any of the modules that it may serve

from cometmq import errors
from cometmq._version import __version__
from cometmq.client.allocation import (
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from cometmq.client.encoding import split_batches
from cometmq.client.hooks import (
    CheckForbiddenHook,
    ConsumeMessageHook,
    EndTransactionHook,
    FilterMessageHook,
    SendMessageHook,
)
from cometmq.client.latency_faults import LatencyTables
from cometmq.client.requests import create_reply_message
from cometmq.client.selectors import select_by_hash
from cometmq.client.sync import LitePullConsumer, Producer, PushConsumer, TransactionProducer
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
    PullResult,
    PullStatus,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from cometmq.protocol.compression import CompressionType
from cometmq.remoting.hooks import RpcHook

__all__ = [
    "AllocateByConfig",
    "AllocateByMachineRoom",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "CheckForbiddenHook",
    "CometMQError",
    "CompressionType",
    "ConsumeFromWhere",
    "ConsumeMessageHook",
    "ConsumeReport",
    "ConsumeResult",
    "EndTransactionHook",
    "FilterMessageHook",
    "LatencyTables",
    "LitePullConsumer",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "RpcHook",
    "SendMessageHook",
    "SendResult",
    "SendStatus",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "__version__",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "create_reply_message",
    "errors",
    "select_by_hash",
    "split_batches",
]
