"""`python -m examples.demo [DIR]`: runs the parts of the demo on one cluster; exit status 0 says that
every part holds. DIR (`reports/demo`) keeps the reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from examples.demo import screen
from examples.demo.messages import CONSUMERS, GROUP, QUEUE_COUNT, TOPIC, run_messages
from examples.demo.pipelines import pipelines_part, write_ledgers
from examples.demo.tally import Tally
from examples.order_events import load_events
from rich.console import Console
from rich.markup import escape

from cometmq.admin.groups.offsets import QueueOffsets, stored
from cometmq.errors import CometMQError
from cometmq.logs.setup import configure_logging
from cometmq.model.topic import TopicConfig
from cometmq.runtime.loop import run
from cometmq.testing import Cluster

# Shows what it does and returns whether it holds.
Part = Callable[[Cluster, Console, Path], Awaitable[bool]]


async def messages_part(cluster: Cluster, console: Console, directory: Path) -> bool:
    """Sent = stored = received, nothing twice, the events of each order in order."""
    events = list(load_events())
    tally = Tally(events)
    cluster.brokers[0].topics.put(
        TopicConfig(TOPIC, read_queue_nums=QUEUE_COUNT, write_queue_nums=QUEUE_COUNT)
    )
    console.print(
        f"{tally.event_count:,} events of {tally.order_count:,} orders to topic {TOPIC}, "
        f"group {GROUP} of {len(CONSUMERS)}"
    )
    offsets: list[QueueOffsets] = []
    failure = ""
    with screen.progress(console, tally):
        # Here, so that a warning is printed above the bars instead of through them.
        configure_logging("warning", json=False, stream=sys.stderr)
        try:
            offsets = await run_messages(cluster.namesrv, events, tally)
        except TimeoutError:
            failure = "not every event came in time"
        except CometMQError as error:
            failure = str(error)
    configure_logging("warning", json=False)
    if failure:
        console.print("[bold red]FAILED[/]", escape(failure))
        console.print(f"{tally.acknowledged:,} sent, {tally.received:,} received")
        return False
    console.print()
    screen.show_totals(console, tally, offsets)
    screen.show_queues(console, tally, offsets)
    write_ledgers(tally, directory)
    return verdict(console, tally, stored(offsets))


def verdict(console: Console, tally: Tally, stored_count: int) -> bool:
    holds = tally.acknowledged == stored_count == tally.received == tally.event_count
    word = "[bold green]OK[/]" if holds else "[bold red]FAILED[/]"
    sign = "=" if holds else "/"
    console.print(
        f"{word} sent {sign} stored {sign} received: {tally.acknowledged:,} {sign} "
        f"{stored_count:,} {sign} {tally.received:,}"
    )
    duplicates = tally.duplicates
    if duplicates:
        console.print(f"delivered more than once: {_some(list(duplicates))}")
    if tally.out_of_order:
        console.print(f"[bold red]FAILED[/] out of order: {_some(tally.out_of_order)}")
    return holds and not tally.out_of_order


def _some(names: list[str], limit: int = 10) -> str:
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


PARTS: Final[tuple[Part, ...]] = (messages_part, pipelines_part)


async def demo(console: Console, directory: Path) -> bool:
    started = time.perf_counter()
    async with Cluster() as cluster:
        broker = cluster.brokers[0]
        console.print("[bold]CometMQ[/] - name server, broker and clients over real sockets")
        console.print(
            f"name server {cluster.namesrv}, broker {broker.address}, store {cluster.directory}",
            soft_wrap=True,
        )
        holds = [await part(cluster, console, directory) for part in PARTS]
    console.print(
        f"took {time.perf_counter() - started:.1f} s, start and stop of the cluster included"
    )
    return all(holds)


def main() -> None:
    configure_logging("warning", json=False)
    console = Console(highlight=False)
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/demo")
    sys.exit(0 if run(demo(console, directory)) else 1)


if __name__ == "__main__":
    main()
