"""`python -m examples.pipelines.redrive [DIR]`: a bank was away, and the letters that were given up
go out again.

A consumer of the order events gives up on payments and refunds, for two reasons. The redrive counts
its dead letters, and sends those again that failed because the bank was away. DIR
(`reports/redrive-example`) keeps the report.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import Final

from examples.order_events import load_events, to_message
from examples.pipelines.orders import QUEUE_COUNT, shop, show, spark_for

from cometmq import ConsumeFromWhere, ConsumeResult, MessageExt, Producer, PushConsumer
from cometmq.pipelines import redrive

_TOPIC: Final = "Payments"
_GROUP: Final = "accounting"
_WAIT_S: Final = 120


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/redrive-example").absolute()
    # The cluster is a new one with every run, and has nothing of what was sent before.
    shutil.rmtree(directory / "state", ignore_errors=True)
    with shop(event_count=1) as cluster:
        give_up(cluster.namesrv)
        with spark_for(cluster) as context:
            print("The dead letters:")
            look = redrive.Config(group=_GROUP, reason_property="error")
            show(redrive.run(look, context), directory / "look")
            print("\nThe bank is back:")
            again = redrive.Config(
                group=_GROUP,
                reason_property="error",
                reasons=["bank is away"],
                send=True,
                id="bank-is-back",
                state=str(directory / "state"),
            )
            report = redrive.run(again, context)
            show(report, directory)
            print("\nRun again, it sends nothing:")
            print(redrive.run(again, context).summary)
    sys.exit(0 if report.holds else 1)


def give_up(namesrv: str) -> None:
    """Payments and refunds of the order events, which all end among the dead letters of the group."""
    messages = []
    for event in load_events():
        if event.event not in ("paid", "refunded"):
            continue
        message = to_message(event, _TOPIC)
        # Only the application knows the reason of a failure; here it sets a property.
        away = event.payment_method == "card" or event.event == "refunded"
        message.properties["error"] = "bank is away" if away else "no such account"
        messages.append(message)
    with Producer("shop", namesrv=namesrv, default_topic_queue_nums=QUEUE_COUNT) as producer:
        for message in messages:
            producer.send(message, key=message.keys[0])
    seen: set[str] = set()
    done = threading.Event()

    def refuse(received: list[MessageExt]) -> ConsumeResult:
        seen.update(message.msg_id for message in received)
        if len(seen) == len(messages):
            done.set()
        return ConsumeResult.RECONSUME_LATER

    first = ConsumeFromWhere.FIRST_OFFSET
    consumer = PushConsumer(
        _GROUP, refuse, namesrv=namesrv, consume_from=first, max_reconsume_times=0
    )
    consumer.subscribe(_TOPIC)
    with consumer:
        assert done.wait(_WAIT_S), f"{len(seen)} of {len(messages)} messages were seen"


if __name__ == "__main__":
    main()
