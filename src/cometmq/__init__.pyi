from . import errors
from ._version import __version__
from .admin.sync import AdminClient
from .client.blocking.consumers import (
    LitePullConsumer,
    PulledMessage,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from .client.blocking.producers import Producer
from .client.blocking.transactions import TransactionProducer
from .client.cluster.latency_faults import LatencyTables
from .client.hooks import (
    CheckForbiddenHook,
    ConsumeMessageHook,
    EndTransactionHook,
    FilterMessageHook,
    SendMessageHook,
)
from .client.membership.allocation import (
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from .client.metrics import ClientMetrics
from .client.producing.encoding import split_batches
from .client.producing.requests import create_reply_message
from .client.producing.selectors import select_by_hash
from .client.producing.transaction_producer import TransactionListener
from .errors import CometMQError
from .model.message import Message, MessageExt
from .model.queue import MessageQueue
from .model.results import (
    ConsumeFromWhere,
    ConsumeReport,
    ConsumeResult,
    DamageCounts,
    DamagedMessage,
    LocalTransactionState,
    MessageModel,
    PullResult,
    PullStatus,
    QueueLag,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from .protocol.messages.compression import CompressionType
from .remoting.credentials import Credentials
from .remoting.hooks import RpcHook
from .tls.contexts import Tls

__all__ = [
    "AdminClient",
    "AllocateByConfig",
    "AllocateByMachineRoom",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "CheckForbiddenHook",
    "ClientMetrics",
    "CometMQError",
    "CompressionType",
    "ConsumeFromWhere",
    "ConsumeMessageHook",
    "ConsumeReport",
    "ConsumeResult",
    "Credentials",
    "DamageCounts",
    "DamagedMessage",
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
    "PulledMessage",
    "PushConsumer",
    "QueueLag",
    "ReceivedMessage",
    "RpcHook",
    "SendMessageHook",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Tls",
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
