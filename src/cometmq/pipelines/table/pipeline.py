"""Stream topics into tables: one driver of the service.

    table.run(table.Config(topics=["orders"], path="/data/archive"), context)

`cometmq pipeline table` runs this in a process of its own, which `supervisor` starts again. The stream is that
of the archive, which publishes each of its commits (docs/internals/archive.md).
"""

from __future__ import annotations

import threading
from dataclasses import replace

from cometmq.pipelines import archive
from cometmq.pipelines.context import Context
from cometmq.pipelines.report import Report
from cometmq.pipelines.table.measures import Observer, SignsOfLife
from cometmq.pipelines.table.notes import Notes, stop_with_input
from cometmq.pipelines.table.settings import Config

__all__ = ["Config", "run"]


def run(config: Config, context: Context, stopped: threading.Event | None = None) -> Report:
    """Stream until `stopped` is set, or a signal comes in the main thread; return the archive's report.

    A stop finishes the batch that is under way and publishes it. The next run proves that batch.

    Raise ConfigError for a configuration that does not fit, and DataLossError for messages that are
    gone.
    """
    stopped = stopped or threading.Event()
    notes = Notes()
    if notes.has_supervisor:
        stop_with_input(stopped)

    def named(report: Report) -> Report:
        report.pipeline = "table"
        return report

    own = replace(
        context,
        progress=SignsOfLife(context.progress, notes),
        publish=lambda report: context.publish(named(report)),
    )
    observer = Observer(notes)
    return named(
        archive.run(config.archive(), own, stopped, observe=observer.observe, prove_at_end=False)
    )
