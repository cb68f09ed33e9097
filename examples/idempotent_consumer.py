"""Books every order once, however often its message comes: keys that are done lie in an SQLite file.

python examples/idempotent_consumer.py 127.0.0.1:9876 done.db

Send orders with `Message("orders", b"...", keys=["O-1001"])`; the first key identifies an order.
"""

import signal
import sys

from cometmq import ConsumeFromWhere, ConsumeResult, MessageExt, PushConsumer
from cometmq.idempotent import SQLiteStore, idempotent


def book(messages: list[MessageExt]) -> ConsumeResult:
    for message in messages:
        print("booked", message.keys, message.body)
    return ConsumeResult.SUCCESS


def main(namesrv: str, path: str) -> None:
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # before the consumer starts threads
    with SQLiteStore(path) as store:
        listener = idempotent(book, store, scope="billing")
        consumer = PushConsumer(
            "billing", listener, namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET
        )
        consumer.subscribe("orders")
        with consumer:
            signal.sigwait(stops)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "127.0.0.1:9876", given[1] if len(given) > 1 else "done.db")
