"""Provide a broker for FastStream: handlers are members of groups, decorated functions publish (the extra `faststream`).

from faststream import FastStream

from cometmq.faststream import RocketMQBroker, RocketMQMessage

broker = RocketMQBroker("127.0.0.1:9876")
app = FastStream(broker)

@broker.subscriber("orders", group="billing", tags="paid")
@broker.publisher("invoices")
async def bill(order: Order, message: RocketMQMessage) -> Invoice: ...

FastStream has no public base classes for brokers yet, so the extra names the versions for which this package was
tested. Each module here holds what FastStream derives from the same part of its own brokers.
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
