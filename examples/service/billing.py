"""Charge for the orders of the topic, each once: `python -m service.billing`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from cometmq import ConsumeFromWhere, MessageExt
from cometmq.aio import PushConsumer
from cometmq.idempotent import SQLiteStore, idempotent

from .ledger import Ledger
from .orders import CODECS, GROUP, ORDERS, TOPIC
from .settings import Settings
from .telemetry import measured


def charging(ledger: Ledger) -> Callable[[list[MessageExt]], None]:
    """Return the listener. After an error of the ledger the order comes again, each time later."""

    def charge(messages: list[MessageExt]) -> None:
        for message in messages:
            ledger.charge(ORDERS.value(message))

    return charge


@contextmanager
def billing(settings: Settings) -> Generator[PushConsumer, None, None]:
    """Open the databases and make the consumer; close the databases after it.

    A message with a body that is no order is a dead letter at once. The keys of the messages are the ids
    of the orders, and `done.db` remembers the ids of charged orders.
    """
    place = Path(settings.ledger)
    with Ledger(place / "ledger.db") as ledger, SQLiteStore(place / "done.db") as done:
        consumer = PushConsumer(
            GROUP,
            idempotent(charging(ledger), done, scope=GROUP),
            namesrv=settings.namesrv,
            codecs=CODECS,
            on_undecodable="dead-letter",
            max_reconsume_times=settings.retries,
            consume_from=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC)
        with measured("billing", consumer, settings):
            yield consumer


async def main() -> None:
    with billing(Settings.of_environment()) as consumer:
        await consumer.run()  # until SIGTERM


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(main())
