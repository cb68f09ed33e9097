"""`python -m examples.pipelines.rebuild [DIR]`: a store loses queues and index, and gets them back.

DIR (`reports/rebuild-example`) keeps the store, the rebuilt files, and the report.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from examples.pipelines.orders import TOPIC, shop, show, spark_for

from cometmq.pipelines import rebuild

# So that ten thousand events fill several files of each kind.
_SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
}


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/rebuild-example").absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    store = directory / "broker-a"
    config = rebuild.Config(store=str(store), install=True)
    with shop(directory=directory, properties=_SMALL_FILES) as cluster:
        cluster.call("stop_broker", 0)
        shutil.rmtree(store / "consumequeue" / TOPIC / "3")
        sorted((store / "index").iterdir())[0].unlink()
        with spark_for(cluster) as context:
            report = rebuild.run(config, context)
        show(report, directory)
        cluster.call("start_broker", 0)
        counts = [cluster.brokers[0].store.max_offset(TOPIC, queue_id) for queue_id in range(8)]
        print(f"\nThe broker runs on it again: {sum(counts):,} events in {len(counts)} queues.")
    sys.exit(0 if report.holds else 1)


if __name__ == "__main__":
    main()
