"""Messages that come later, and messages that come only when a local transaction succeeds.

python examples/delays_and_transactions.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionProducer,
)

TOPIC = "orders-later"


class Orders:
    """Does the local part: a table of what was paid, where a real one would ask its database."""

    def __init__(self) -> None:
        self.paid: set[str] = set()

    def execute(self, message: Message, arg: Any, /) -> LocalTransactionState:
        """Run when the broker has the message: nobody gets it before this says COMMIT."""
        if arg < 0:
            return LocalTransactionState.ROLLBACK
        self.paid.update(message.keys)
        return LocalTransactionState.COMMIT

    def check(self, message: MessageExt, /) -> LocalTransactionState:
        """Run when the broker has heard nothing: the process was killed, or a link was cut."""
        known = self.paid.intersection(message.keys)
        return LocalTransactionState.COMMIT if known else LocalTransactionState.ROLLBACK


def main(namesrv: str) -> None:
    wanted = {b"delayed", b"paid"}
    complete = threading.Event()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            print("received", message.body.decode(), *message.keys)
            wanted.discard(message.body)
        if not wanted:
            complete.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        "reminders", listen, namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(TOPIC)
    with (
        consumer,
        Producer("order-reminders", namesrv=namesrv) as producer,
        TransactionProducer("order-payments", Orders(), namesrv=namesrv) as payments,
    ):
        # Any moment up to three days ahead, to the second; `delay_level` takes one of the 18 levels.
        producer.send(Message(TOPIC, b"delayed", keys=["O-1"], delay_ms=2_000))
        # A message that is recalled never comes.
        result = producer.send(Message(TOPIC, b"recalled", keys=["O-2"], delay_ms=3_600_000))
        assert result.recall_handle is not None
        producer.recall(TOPIC, result.recall_handle)
        # The third argument reaches `execute`: an amount, here.
        payments.send_in_transaction(Message(TOPIC, b"paid", keys=["O-3"]), 100)
        payments.send_in_transaction(Message(TOPIC, b"never seen", keys=["O-4"]), -1)
        if not complete.wait(30):
            sys.exit(f"not received: {wanted}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
