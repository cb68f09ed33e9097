"""The demo's screen: progress while it runs, tables afterwards; plain text when piped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from examples.demo.tally import Tally, percentile
from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from cometmq.admin.groups.offsets import QueueOffsets, stored


class _TallyProgress(Progress):
    """Bars that read the tally whenever they are drawn, so counting costs the counters nothing."""

    def __init__(self, console: Console, tally: Tally) -> None:
        self._tally = tally
        super().__init__(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=36),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shares]}"),
            console=console,
        )
        self._sent: TaskID = self.add_task("sent", total=tally.event_count, shares="")
        self._received: TaskID = self.add_task("received", total=tally.event_count, shares="")

    def get_renderables(self) -> Iterable[RenderableType]:
        tally = self._tally
        if self.task_ids:
            shares = " + ".join(f"{n:,}" for _, n in sorted(tally.by_consumer.items()))
            self._tasks[self._sent].completed = tally.acknowledged
            self._tasks[self._received].completed = tally.received
            self._tasks[self._received].fields["shares"] = shares and f"= {shares}"
        return super().get_renderables()


@contextmanager
def progress(console: Console, tally: Tally) -> Iterator[None]:
    """Bars of what was sent and received, on a terminal alone."""
    if console.is_terminal:
        with _TallyProgress(console, tally):
            yield
    else:
        yield


def show_totals(console: Console, tally: Tally, offsets: Sequence[QueueOffsets]) -> None:
    table = Table(box=box.ROUNDED)
    table.add_column("messages")
    for name in ("count", "per second", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    table.add_column("counted by", style="dim")
    table.add_row(
        "sent",
        f"{tally.acknowledged:,}",
        _rate(tally.acknowledged, tally.last_acknowledged_at - tally.first_sent_at),
        *_latencies(tally.send_latencies_s),
        "acknowledgements",
    )
    table.add_row("stored", f"{stored(offsets):,}", "", "", "", "max offsets at broker")
    table.add_row(
        "received",
        f"{tally.received:,}",
        _rate(tally.received, tally.last_received_at - tally.first_sent_at),
        *_latencies(tally.delivery_latencies_s),
        "event ids",
    )
    table.add_row("duplicates", f"{len(tally.duplicates):,}", "", "", "", "event ids")
    table.add_row(
        "out of order",
        f"{len(tally.out_of_order):,}",
        "",
        "",
        "",
        f"{tally.order_count:,} orders",
    )
    console.print(table)


def show_queues(console: Console, tally: Tally, offsets: Sequence[QueueOffsets]) -> None:
    table = Table(box=box.ROUNDED, show_footer=True)
    table.add_column("queue", footer="all")
    table.add_column("consumer")
    table.add_column("min", justify="right")
    table.add_column("max", justify="right", footer=f"{stored(offsets):,}")
    committed = sum(queue.committed_offset or 0 for queue in offsets)
    table.add_column("committed", justify="right", footer=f"{committed:,}")
    lag = sum(queue.lag or 0 for queue in offsets)
    table.add_column("lag", justify="right", footer=f"{lag:,}")
    table.add_column("received", justify="right", footer=f"{tally.received:,}")
    for queue in offsets:
        table.add_row(
            f"{queue.queue.broker_name}:{queue.queue.queue_id}",
            tally.consumer_of.get(queue.queue, "-"),
            f"{queue.min_offset:,}",
            f"{queue.max_offset:,}",
            "-" if queue.committed_offset is None else f"{queue.committed_offset:,}",
            "-" if queue.lag is None else f"{queue.lag:,}",
            f"{tally.by_queue[queue.queue]:,}",
        )
    console.print(table)


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}" if seconds > 0 else "-"


def _latencies(latencies_s: Sequence[float]) -> tuple[str, str]:
    return (
        f"{percentile(latencies_s, 50) * 1000:.1f}",
        f"{percentile(latencies_s, 99) * 1000:.1f}",
    )
