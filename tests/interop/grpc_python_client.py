"""A program with RocketMQ's Python client for gRPC:
`python grpc_python_client.py DIRECTORY ENDPOINT GROUP [TOPIC ACCESS_KEY SECRET_KEY]`.

Sends and receives over the topics n (NORMAL), f (FIFO), d (DELAY) and t (TRANSACTION), and prints a JSON line for
each thing that happened. It ends when all has come. With a topic and credentials it talks TLS, and sends and
receives one message of that topic.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

sys.path.insert(0, sys.argv[1])

client: Any = importlib.import_module("rocketmq")  # of DIRECTORY, which was put into the path

CONFIGURATION = client.ClientConfiguration(sys.argv[2], client.Credentials(*sys.argv[5:]))
GROUP = sys.argv[3]
DEADLINE_S = 60


def say(what: str, **fields: Any) -> None:
    # In one call: listeners run in several threads.
    sys.stdout.write(json.dumps({"what": what, **fields}) + "\n")
    sys.stdout.flush()


def message(topic: str, body: str, **fields: Any) -> Any:
    made = client.Message()
    made.topic, made.body = topic, body.encode()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Checker(client.TransactionChecker):  # type: ignore[misc]  # it is known at run time only
    def check(self, message: Any) -> Any:
        say("checked", body=message.body.decode())
        return client.TransactionResolution.COMMIT


class Listener(client.MessageListener):  # type: ignore[misc]  # as above
    def __init__(self) -> None:
        self.done: set[str] = set()

    def consume(self, message: Any) -> Any:
        body = message.body.decode()
        say("pushed", topic=message.topic, body=body, attempt=message.delivery_attempt)
        if body == "fails once" and message.delivery_attempt < 2:
            return client.ConsumeResult.FAILURE
        self.done.add(body)
        return client.ConsumeResult.SUCCESS


def send() -> None:
    producer = client.Producer(CONFIGURATION, ["n", "f", "d", "t"], Checker())
    producer.startup()
    producer.send(message("n", "fails once", tag="a"))
    for number in range(3):
        producer.send(message("f", f"in order {number}", message_group="G"))
    producer.send(message("d", "delayed", delivery_timestamp=int(time.time()) + 2))
    recalled = producer.send(message("d", "recalled", delivery_timestamp=int(time.time()) + 4))
    say(
        "recalled", same=producer.recall_message("d", recalled.recall_handle) == recalled.message_id
    )
    transaction = producer.begin_transaction()
    producer.send(message("t", "committed"), transaction)
    transaction.commit()
    transaction = producer.begin_transaction()
    producer.send(message("t", "rolled back"), transaction)
    transaction.rollback()
    producer.send(message("t", "nobody ended"), producer.begin_transaction())
    receive()
    push()
    producer.shutdown()


def receive() -> None:
    topics = {"n": client.FilterExpression("*")}
    consumer = client.SimpleConsumer(CONFIGURATION, f"{GROUP}-simple", topics, await_duration=5)
    consumer.startup()
    until = time.monotonic() + DEADLINE_S
    is_done = False
    while not is_done and time.monotonic() < until:
        for each in consumer.receive(4, 15):
            say("received", body=each.body.decode(), attempt=each.delivery_attempt)
            if each.delivery_attempt == 1:
                consumer.change_invisible_duration(each, 1)
            else:
                consumer.ack(each)
                is_done = True
    say("left", count=len(consumer.receive(4, 15)))
    consumer.shutdown()


def push() -> None:
    listener = Listener()
    topics = {topic: client.FilterExpression("*") for topic in "nfdt"}
    consumer = client.PushConsumer(CONFIGURATION, f"{GROUP}-push", listener, topics)
    consumer.startup()
    until = time.monotonic() + DEADLINE_S
    while len(listener.done) < 7 and time.monotonic() < until:
        time.sleep(0.2)
    consumer.shutdown()


def guarded(topic: str) -> None:
    producer = client.Producer(CONFIGURATION, [topic], tls_enable=True)
    producer.startup()
    producer.send(message(topic, "signed"))
    topics = {topic: client.FilterExpression("*")}
    consumer = client.SimpleConsumer(CONFIGURATION, GROUP, topics, 5, tls_enable=True)
    consumer.startup()
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if received := consumer.receive(4, 15):
            for each in received:
                consumer.ack(each)
                say("received", body=each.body.decode(), attempt=each.delivery_attempt)
            break
    consumer.shutdown()
    producer.shutdown()


if sys.argv[4:]:
    guarded(sys.argv[4])
else:
    send()
