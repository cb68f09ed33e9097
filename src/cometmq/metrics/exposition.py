"""Write samples in Prometheus' text format, one metric after the other.

prometheus-client renders a whole registry in one go, which holds the loop for as long as that takes.
Here a sample is a line that is written at once, so that a collector can pause between two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from cometmq.metrics.catalogue import BASE_LABELS, Metric

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Collects the lines of one scrape. `base` has the values of BASE_LABELS."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = ",".join(f'{name}="{_escaped(base[name])}"' for name in BASE_LABELS)
        self._lines: list[str] = []
        self._packed = bytearray()
        self._metric: Metric | None = None
        # Up to the values of a histogram's bounds, by them: each is written for many series.
        self._bounds: list[str] = []
        self.written: set[str] = set()

    def begin(self, metric: Metric, bounds: Iterable[float] = ()) -> None:
        """Begin with the samples of a metric; a histogram's buckets have these upper `bounds`."""
        assert metric.name not in self.written, f"metric {metric.name} is written twice"
        self.written.add(metric.name)
        self._metric = metric
        self._bounds = [repr(float(bound)) for bound in bounds] + ["+Inf"]
        self._lines.append(f"# HELP {metric.name} {metric.help}\n")
        self._lines.append(f"# TYPE {metric.name} {metric.kind.value}\n")

    def sample(self, value: float, *labels: str) -> None:
        """Write one sample of the metric that was begun, with the values of its labels."""
        assert self._metric is not None
        self._lines.append(f"{self._metric.name}{{{self._labels(labels)}}} {value!r}\n")

    def histogram(self, counts: Iterable[int], total: float, *labels: str) -> None:
        """Write the samples of one histogram, whose last count is that beyond all bounds."""
        assert self._metric is not None
        name, written = self._metric.name, self._labels(labels)
        running = 0
        for bound, running in zip(self._bounds, accumulate(counts), strict=True):
            self._lines.append(f'{name}_bucket{{{written},le="{bound}"}} {running}\n')
        self._lines.append(f"{name}_sum{{{written}}} {total!r}\n")
        self._lines.append(f"{name}_count{{{written}}} {running}\n")

    def one(self, metric: Metric, value: float) -> None:
        """Write a metric that has a single sample."""
        self.begin(metric)
        self.sample(value)

    def families(self, families: Iterable[Family]) -> None:
        """Write what a collector of prometheus-client has collected. There are few of these."""
        from prometheus_client.exposition import generate_latest

        self._lines.append(generate_latest(_Collected(families)).decode())

    def pack(self) -> None:
        """Encode what was written since the last call, so that `text` has less to do at once."""
        self._packed += "".join(self._lines).encode()
        self._lines.clear()

    def text(self) -> bytearray:
        """Return all that was written. It is not copied, because it may have megabytes."""
        self.pack()
        return self._packed

    def _labels(self, values: tuple[str, ...]) -> str:
        assert self._metric is not None
        names = self._metric.labels
        assert len(names) == len(values), f"{self._metric.name} has the labels {names}"
        own = "".join(
            f',{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)
        )
        return self._base + own


class _Collected:
    """Hands out what was collected already."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
