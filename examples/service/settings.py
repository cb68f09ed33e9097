"""Read the settings of both processes from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Settings:
    """Holds the settings of a process.

    `NAMESRV_ADDR` names the name servers, and `LEDGER` the directory of the databases. Prometheus finds
    the metrics at `METRICS_HOST` and `METRICS_PORT`; port 0 serves none. Spans go to
    `OTEL_EXPORTER_OTLP_ENDPOINT`, a variable of OpenTelemetry; without it there are no spans. A failed
    order is tried again `RETRIES` times.
    """

    namesrv: str = "127.0.0.1:9876"
    ledger: str = "."
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    otlp_endpoint: str = ""
    retries: int = 5

    @classmethod
    def of_environment(cls) -> Self:
        """Return the settings in the environment. Raises ValueError if a text is no number where one is needed."""
        found = os.environ
        return cls(
            namesrv=found.get("NAMESRV_ADDR", cls.namesrv),
            ledger=found.get("LEDGER", cls.ledger),
            metrics_host=found.get("METRICS_HOST", cls.metrics_host),
            metrics_port=int(found.get("METRICS_PORT", cls.metrics_port)),
            otlp_endpoint=found.get("OTEL_EXPORTER_OTLP_ENDPOINT", cls.otlp_endpoint),
            retries=int(found.get("RETRIES", cls.retries)),
        )
