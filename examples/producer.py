"""Sends orders in every way a producer can. Start a cluster first: `cometmq dev`.

python examples/producer.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from cometmq import CometMQError, Message, Producer, SendResult, split_batches

TOPIC = "orders"


def order(number: int, state: str) -> Message:
    body = f'{{"order": {number}, "state": "{state}"}}'.encode()
    return Message(TOPIC, body, tags=state, keys=[f"O-{number}"])


def report(result: SendResult | None, error: BaseException | None) -> None:
    print("callback:", error or result)


def main(namesrv: str) -> None:
    with Producer("order-service", namesrv=namesrv) as producer:
        # One message: returns when the broker has stored it, raises when it could not.
        try:
            result = producer.send(order(1001, "paid"))
        except CometMQError as error:
            sys.exit(f"not sent: {error}")
        print(f"{result.msg_id} lies at {result.queue}, offset {result.queue_offset}")

        # Without waiting: the outcome comes as a future, and to the callback if one is given.
        future = producer.send_async(order(1002, "paid"), report)
        print("future:", future.result(timeout=5).status.name)

        # In order: messages with one key go to one queue.
        for state in ("paid", "packed", "shipped"):
            producer.send(order(1003, state), key="O-1003")

        # Many at once: cut into batches that fit, each of them one request.
        for batch in split_batches(order(number, "paid") for number in range(2000, 2100)):
            producer.send_batch(batch)

        # Without acknowledgement, for what may be lost.
        producer.send_oneway(order(1004, "viewed"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
