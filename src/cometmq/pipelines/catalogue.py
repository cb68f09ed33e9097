"""List the pipelines without importing any."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    from cometmq.pipelines.context import Context
    from cometmq.pipelines.report import Report

# The work of each pipeline, in one line.
PIPELINES: Final = {
    "archive": "Topics to Parquet, proved against the log",
    "table": "Topics into Iceberg and Delta tables, as a service with a target freshness",
    "publish": "The commits of an archive as snapshots of Iceberg and Delta tables",
    "replay": "Archived or stored messages back into a topic",
    "redrive": "Dead letters of a group, counted and sent back",
    "audit": "Sent = stored = archived = consumed, every difference explained",
    "trace": "How long messages took, from the trace topic",
    "rebuild": "Consume queues and index of a store, rebuilt from its commit log",
}


# Pipelines that a supervisor runs and restarts, each in a process of its own.
SERVICES: Final = frozenset({"table"})


class Pipeline(Protocol):
    """A package beside this module.

    Config: the class of its table in the file. run: do the work and return the report.
    """

    Config: type[Any]

    def run(self, config: Any, context: Context) -> Report: ...


def pipeline(name: str) -> Pipeline:
    """Return the package of a pipeline."""
    assert name in PIPELINES, name
    return cast(Pipeline, import_module(f"cometmq.pipelines.{name}"))
