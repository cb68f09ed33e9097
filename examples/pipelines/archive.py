"""`python -m examples.pipelines.archive [DIR]`: the order events to Parquet, in two runs, and back.

The first run archives most of the events, the second one those that came since. DIR
(`reports/archive-example`) keeps the archive and the report.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from examples.order_events import load_events
from examples.pipelines.orders import TOPIC, send_events, shop, show, spark_for

from cometmq.pipelines import archive

_FIRST: Final = 8000


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/archive-example").absolute()
    # The cluster is a new one with every run, and so are its offsets.
    shutil.rmtree(directory / "archive", ignore_errors=True)
    config = archive.Config(
        topics=[TOPIC], path=str(directory / "archive"), max_messages=3000, compact_files=4
    )
    with shop(event_count=_FIRST) as cluster, spark_for(cluster) as context:
        archive.run(config, context)
        send_events(cluster.namesrv, list(load_events())[_FIRST:])
        report = archive.run(config, context)
        show(report, directory)
        print("\nThe archive by kind of event, read as any Parquet:")
        archive.read(context.spark, config.path).groupBy("tags").count().orderBy("tags").show()
    sys.exit(0 if report.holds else 1)


if __name__ == "__main__":
    main()
