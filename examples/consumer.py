"""Consumes paid and shipped orders until Ctrl-C. Start several: they share the queues.

python examples/consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import threading

from cometmq import ConsumeFromWhere, ConsumeResult, MessageExt, PushConsumer


def handle(messages: list[MessageExt]) -> ConsumeResult:
    """Run in a thread of the consumer. After any result but SUCCESS the messages come again."""
    for message in messages:
        print(message.keys, message.tags, message.body.decode(), f"(try {message.reconsume_times})")
    return ConsumeResult.SUCCESS


def main(namesrv: str) -> None:
    consumer = PushConsumer(
        "billing", handle, namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe("orders", "paid || shipped")
    with consumer:
        print("consuming, Ctrl-C ends")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("finishing what runs")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
