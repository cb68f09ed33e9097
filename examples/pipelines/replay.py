"""`python -m examples.pipelines.replay [DIR]`: paid and refunded orders of the west once more, at a rate.

Archives the order events, looks at what a replay would send, and sends it to another topic. DIR
(`reports/replay-example`) keeps the archive and the report.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

from examples.pipelines.orders import QUEUE_COUNT, TOPIC, shop, show, spark_for

from cometmq import Message, Producer
from cometmq.pipelines import archive, replay

_AGAIN: Final = "WestAgain"


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/replay-example").absolute()
    # The cluster is a new one with every run, and has nothing of what was sent before.
    for name in ("archive", "state"):
        shutil.rmtree(directory / name, ignore_errors=True)
    with shop() as cluster, spark_for(cluster) as context:
        path = str(directory / "archive")
        archive.run(archive.Config(topics=[TOPIC], path=path), context)
        with Producer(
            "operator", namesrv=cluster.namesrv, default_topic_queue_nums=QUEUE_COUNT
        ) as producer:
            producer.send(Message(_AGAIN, b"makes the topic"))
        choice: dict[str, Any] = {
            "archive": path,
            "topics": [TOPIC],
            "to": _AGAIN,
            "tags": ["paid", "refunded"],
            "where": "properties['region'] = 'eu-west'",
        }
        print("A dry run:")
        show(replay.run(replay.Config(**choice, dry_run=True), context), directory / "dry-run")
        settings: dict[str, Any] = {"id": "west", "state": str(directory / "state"), "rate": 500.0}
        print("\nAnd sends, 500 a second:")
        report = replay.run(replay.Config(**choice, **settings), context)
        show(report, directory)
        print("\nRun again, it sends nothing:")
        print(replay.run(replay.Config(**choice, **settings), context).summary)
    sys.exit(0 if report.holds else 1)


if __name__ == "__main__":
    main()
