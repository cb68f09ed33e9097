"""Export the asyncio clients; `cometmq` has the blocking clients under the same names."""

from cometmq.admin.client import AdminClient
from cometmq.client.consuming.lite_pull_consumer import LitePullConsumer
from cometmq.client.consuming.pulled_message import PulledMessage
from cometmq.client.consuming.push_consumer import PushConsumer
from cometmq.client.popping.message import ReceivedMessage
from cometmq.client.popping.simple_consumer import SimpleConsumer
from cometmq.client.producing.encoding import split_batches
from cometmq.client.producing.producer import Producer
from cometmq.client.producing.transaction_producer import TransactionProducer

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "Producer",
    "PulledMessage",
    "PushConsumer",
    "ReceivedMessage",
    "SimpleConsumer",
    "TransactionProducer",
    "split_batches",
]
