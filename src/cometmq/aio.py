"""The asyncio clients; `cometmq` has the blocking ones under the same names."""

from cometmq.client.encoding import split_batches
from cometmq.client.lite_pull_consumer import LitePullConsumer
from cometmq.client.producer import Producer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.transaction_producer import TransactionProducer

__all__ = ["LitePullConsumer", "Producer", "PushConsumer", "TransactionProducer", "split_batches"]
