"""Provide a broker for FastStream, with the extra `faststream`.

A handler receives the messages of a topic as a member of a group. A decorator publishes the results of the handler.

from faststream import FastStream

from cometmq.faststream import RocketMQBroker, RocketMQMessage

broker = RocketMQBroker("127.0.0.1:9876")
app = FastStream(broker)

@broker.subscriber("orders", group="billing", tags="paid")
@broker.publisher("invoices")
async def bill(order: Order, message: RocketMQMessage) -> Invoice: ...

FastStream has no public base classes for brokers yet, so a new version of it may break this package. Each module here derives from the same part of FastStream as one module of FastStream's own brokers.
"""

from __future__ import annotations

from cometmq.extras import needs

with needs("faststream", "cometmq.faststream"):
    from cometmq.faststream.annotations import RocketMQMessage
    from cometmq.faststream.broker import RocketMQBroker
    from cometmq.faststream.commands import RocketMQResponse
    from cometmq.faststream.registrator import RocketMQRouter
    from cometmq.faststream.testing import TestRocketMQBroker

__all__ = (
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQResponse",
    "RocketMQRouter",
    "TestRocketMQBroker",
)
