"""Producer and consumer on asyncio: sends a hundred orders and ends when all of them came back.

python examples/asyncio_clients.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt
from cometmq.aio import Producer, PushConsumer

COUNT = 100


async def main(namesrv: str) -> None:
    wanted = {f"O-{number}" for number in range(COUNT)}
    complete = asyncio.Event()

    async def handle(messages: list[MessageExt]) -> ConsumeResult:
        """Run as a task on this loop; await whatever is needed."""
        for message in messages:
            wanted.difference_update(message.keys)
        if not wanted:
            complete.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        "audit", handle, namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe("orders-async")
    async with consumer, Producer("order-service", namesrv=namesrv) as producer:
        messages = [Message("orders-async", b"{}", keys=[key]) for key in sorted(wanted)]
        await asyncio.gather(*(producer.send(message) for message in messages))
        await asyncio.wait_for(complete.wait(), 30)
    print(f"{COUNT} orders sent and consumed")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
