"""Shared by the examples: a cluster with the order events in a topic, and a run of a pipeline over
it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from examples.order_events import OrderEvent, load_events, to_message

from cometmq.aio import Producer
from cometmq.cli.pipeline import screen
from cometmq.logs.setup import configure_logging
from cometmq.pipelines.configuration import ClusterConfig, SparkConfig
from cometmq.pipelines.context import Context, open_context
from cometmq.pipelines.page import write_page
from cometmq.pipelines.report import Report
from cometmq.testing import Cluster

TOPIC: Final = "OrderEvents"
QUEUE_COUNT: Final = 8
_IN_FLIGHT: Final = 64
# Without Java's own chatter.
_SPARK: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


@contextmanager
def shop(
    *,
    directory: Path | None = None,
    brokers: int = 1,
    properties: Mapping[str, str] | None = None,
    event_count: int | None = None,
) -> Iterator[Cluster]:
    """A cluster whose topic TOPIC has the first `event_count` order events (all by default).

    The events of an order lie in one queue, in order. `directory` keeps the stores there.
    """
    configure_logging("warning", json=False)
    of_brokers = {"defaultTopicQueueNums": str(QUEUE_COUNT), **(properties or {})}
    with Cluster(brokers=brokers, directory=directory, properties=of_brokers) as cluster:
        send_events(cluster.namesrv, list(islice(load_events(), event_count)))
        yield cluster


def send_events(namesrv: str, events: Sequence[OrderEvent], topic: str = TOPIC) -> None:
    """Send `events` to `topic`, which gets QUEUE_COUNT queues if it is new."""
    asyncio.run(_send(namesrv, events, topic))


async def _send(namesrv: str, events: Sequence[OrderEvent], topic: str) -> None:
    feed = iter(events)

    async def sender(producer: Producer) -> None:
        for event in feed:
            await producer.send(to_message(event, topic), key=event.order_id)

    async with Producer(
        "order-shop", namesrv=namesrv, default_topic_queue_nums=QUEUE_COUNT
    ) as producer:
        # The first one makes the topic, so that the others find its own queues.
        for event in islice(feed, 1):
            await producer.send(to_message(event, topic), key=event.order_id)
        await asyncio.gather(*(sender(producer) for _ in range(_IN_FLIGHT)))


@contextmanager
def spark_for(cluster: Cluster) -> Iterator[Context]:
    """A context for pipelines on this cluster, on Spark in this process, with progress shown."""
    with (
        screen.progress() as progress,
        open_context(
            ClusterConfig(namesrv=cluster.namesrv),
            SparkConfig(master="local[*]", config=_SPARK),
            progress,
            "cometmq-example",
        ) as context,
    ):
        context.spark.sparkContext.setLogLevel("ERROR")
        yield context


def show(report: Report, directory: Path) -> None:
    """Show the report's tables, and leave it as JSON and as a page in `directory`."""
    files = directory / f"{report.pipeline}.json", directory / f"{report.pipeline}.html"
    report.write_json(files[0])
    write_page(report, files[1])
    screen.print_report(report, files)
