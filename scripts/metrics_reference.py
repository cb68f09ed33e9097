"""Write docs/reference/metrics.md: every metric of the servers, out of the catalogue.

.venv/bin/python scripts/metrics_reference.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq.metrics.catalogue import (
    BASE_LABELS,
    METRICS,
    PROCESS_METRICS,
    REST,
    Metric,
    Server,
)

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"
HEAD: Final = f"""\
<!-- Written by scripts/metrics_reference.py: change cometmq/metrics/catalogue.py, then run it. -->
# Metrics

With `metricsExporterType=PROM` a broker, a name server or a proxy serves these at `/metrics`, in Prometheus' text format;
[operations](../operations.md#metrics) says how to set it up. A console serves its own at the port of its pages, without a login to its own machine and `--metrics-from`.
Metrics called `rocketmq_…` are those of Java's broker 5.3
(RIP-46), with Java's types and units; the others are CometMQ's own and have their unit in the name.

Each of them has the labels {", ".join(f"`{name}`" for name in BASE_LABELS)}, too: the cluster's name, `broker`,
`namesrv`, `proxy` or `console`, and the broker's name (the host and port of the others). Where there are more topics, groups or queues than a
limit allows, the value `{REST}` of a label stands for the sum of all that have no series of their own;
`cometmq_metrics_left_out` counts them.

Histograms of times have buckets from 64 µs to 4.2 s, that of sizes from 256 B to 16 MiB, each four times as wide as
the one before it.
"""
TITLES: Final = {
    Server.BROKER: "Broker",
    Server.NAMESRV: "Name server",
    Server.PROXY: "Proxy",
    Server.CONSOLE: "Console",
}


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_tables(), *_process(), ""])


def _tables() -> Iterator[str]:
    for server, title in TITLES.items():
        yield f"## {title}\n"
        yield "| metric | type | unit | labels | meaning | Java 5.3 |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for metric in METRICS.values():
            if server in metric.servers:
                yield _row(metric)
        yield ""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`" for name in metric.labels)
    java = f"yes; {metric.differs}" if metric.differs else "yes"
    return (
        f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.help} "
        f"| {java if metric.java else 'no'} |"
    )


def _process() -> Iterator[str]:
    yield "## Of the process\n"
    yield "prometheus-client collects these; they have no labels of CometMQ's.\n"
    yield ", ".join(f"`{name}`" for name in PROCESS_METRICS) + "."


if __name__ == "__main__":
    PAGE.write_text(page())
