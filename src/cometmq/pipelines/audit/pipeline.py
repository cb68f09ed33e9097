"""Audit that sent = stored = archived = consumed, by topic, queue and hour, and explain each
difference.

    report = audit.run(audit.Config(topics=["orders"], groups=["billing"]), context)

The mode `once` audits the present messages. The mode `stream` goes on until a signal stops the
process (SIGINT, SIGTERM), and a further run continues where the last one ended.
"""

from __future__ import annotations

import threading
from contextlib import closing

from cometmq.pipelines.audit.comparison import Comparison
from cometmq.pipelines.audit.report import Report, make_report
from cometmq.pipelines.audit.settings import Config
from cometmq.pipelines.audit.streaming.stream import Stream
from cometmq.pipelines.context import Context
from cometmq.pipelines.message_logs import open_message_log
from cometmq.pipelines.report import now

__all__ = ["Config", "Report", "run"]


def run(config: Config, context: Context, stopped: threading.Event | None = None) -> Report:
    """Audit the topics. `stopped` ends a stream, as the signals do in the main thread.

    Raise ConfigError for a configuration that does not fit, and the clients' errors when brokers do
    not answer.
    """
    if config.mode == "stream":
        return Stream(config, context).run(stopped or threading.Event())
    started = now()
    with (
        open_message_log(context, config.stores, config.work_path) as log,
        closing(Comparison(config, context, log)) as audit,
    ):
        found = audit.found()
        return make_report(started, config, audit.basis, audit.cut, audit.what(), found)
