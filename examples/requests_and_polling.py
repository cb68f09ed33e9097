"""A question that a consumer answers, and messages that are fetched when there is time for them.

python examples/requests_and_polling.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    create_reply_message,
)

QUESTIONS = "prices"
EVENTS = "price-events"


def main(namesrv: str) -> None:
    with Producer("price-service", namesrv=namesrv) as replies:

        def answer(messages: list[MessageExt]) -> ConsumeResult:
            for message in messages:
                replies.send(create_reply_message(message, b"2.40 for " + message.body))
            return ConsumeResult.SUCCESS

        service = PushConsumer(
            "price-service", answer, namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET
        )
        service.subscribe(QUESTIONS)
        with service, Producer("till", namesrv=namesrv) as till:
            reply = till.request(Message(QUESTIONS, b"espresso"), timeout_ms=30_000)
            print("asked for espresso:", reply.body.decode())
            for number in range(10):
                till.send(Message(EVENTS, b"%d" % number))

    polled: list[bytes] = []
    consumer = LitePullConsumer(
        "price-report", namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(EVENTS)
    with consumer:
        while len(polled) < 10:
            polled += [message.body for message in consumer.poll(timeout_ms=5_000)]
        consumer.commit()
    print("fetched:", b" ".join(sorted(polled)).decode())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
