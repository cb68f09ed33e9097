"""`python -m examples.pipelines.trace [DIR]`: how long the order events took, from sending to billing.

A shop sends order events and two groups consume them, one of which is slow and fails now and then;
all of them trace. DIR (`reports/trace-example`) keeps the report.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from examples.order_events import load_events, to_message
from examples.pipelines.orders import QUEUE_COUNT, TOPIC, show, spark_for

from cometmq import ConsumeFromWhere, ConsumeResult, MessageExt, Producer, PushConsumer
from cometmq.logs.setup import configure_logging
from cometmq.pipelines import trace
from cometmq.testing import Cluster

_EVENTS: Final = 1500
_DEADLINE_S: Final = 120.0


class Counter:
    """Set when a group has consumed every event."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def add(self, messages: list[MessageExt]) -> None:
        with self._lock:
            self._seen.update(message.properties["eventId"] for message in messages)
            if len(self._seen) == _EVENTS:
                self.done.set()


def consumer(
    group: str, namesrv: str, counter: Counter, work: Callable[[], ConsumeResult]
) -> PushConsumer:
    def listen(messages: list[MessageExt]) -> ConsumeResult:
        result = work()
        if result is ConsumeResult.SUCCESS:
            counter.add(messages)
        return result

    member = PushConsumer(
        group,
        listen,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        enable_trace=True,
    )
    member.subscribe(TOPIC)
    return member


def billing() -> ConsumeResult:
    """A few milliseconds of work, seldom much more, and one failure in a hundred."""
    time.sleep(random.lognormvariate(-6, 1))
    return ConsumeResult.RECONSUME_LATER if random.random() < 0.01 else ConsumeResult.SUCCESS


def search() -> ConsumeResult:
    return ConsumeResult.SUCCESS


def run_clients(namesrv: str) -> None:
    counters = Counter(), Counter()
    events = islice(load_events(), _EVENTS)
    shop = Producer(
        "order-shop", namesrv=namesrv, enable_trace=True, default_topic_queue_nums=QUEUE_COUNT
    )
    with shop:
        # The first one makes the topic, which consumers are to find when they start.
        for event in islice(events, 1):
            shop.send(to_message(event, TOPIC), key=event.order_id)
        with (
            consumer("billing", namesrv, counters[0], billing),
            consumer("search", namesrv, counters[1], search),
        ):
            for event in events:
                shop.send(to_message(event, TOPIC), key=event.order_id)
            if not all(counter.done.wait(_DEADLINE_S) for counter in counters):
                raise TimeoutError("the groups do not get on")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/trace-example").absolute()
    # A failed message comes again after a second.
    properties = {"messageDelayLevel": " ".join(["1s"] * 18)}
    configure_logging("warning", json=False)
    with Cluster(properties=properties) as cluster:
        run_clients(cluster.namesrv)
        with spark_for(cluster) as context:
            report = trace.run(trace.Config(topics=[TOPIC]), context)
            show(report, directory)
    sys.exit(0 if report.holds else 1)


if __name__ == "__main__":
    main()
