"""`python -m examples.pipelines.audit [DIR]`: are the order events all there, and if not, why not?

Order events are sent, archived and consumed by a group that stops early and leaves one dead letter
behind. The first audit explains each difference. For the second one a file of the archive is taken
away, and it fails. DIR (`reports/audit-example`) keeps the archive and the report of the first.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import Final

from examples.pipelines.orders import TOPIC, shop, show, spark_for

from cometmq import ConsumeFromWhere, ConsumeResult, MessageExt, PushConsumer
from cometmq.pipelines import archive, audit

GROUP: Final = "billing"
_EVENTS: Final = 4000
_ENOUGH: Final = 3000
_DEADLINE_S: Final = 120.0


def consume_most(namesrv: str) -> None:
    """Consume enough messages, and refuse one for ever."""
    seen = 0
    refused: str | None = None
    enough = threading.Event()
    lock = threading.Lock()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        nonlocal seen, refused
        with lock:
            seen += len(messages)
            refused = refused or messages[0].msg_id
            if seen >= _ENOUGH:
                enough.set()
        later = any(message.msg_id == refused for message in messages)
        return ConsumeResult.RECONSUME_LATER if later else ConsumeResult.SUCCESS

    consumer = PushConsumer(
        GROUP,
        listen,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        # No second chance: a refused message is a dead letter at once.
        max_reconsume_times=0,
    )
    consumer.subscribe(TOPIC)
    with consumer:
        if not enough.wait(_DEADLINE_S):
            raise TimeoutError("the group does not get on")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/audit-example").absolute()
    # The cluster is a new one with every run, and so are its offsets.
    path = directory / "archive"
    shutil.rmtree(path, ignore_errors=True)
    with shop(event_count=_EVENTS) as cluster, spark_for(cluster) as context:
        archive.run(
            archive.Config(topics=[TOPIC], path=str(path), max_messages=1000, compact_files=0),
            context,
        )
        consume_most(cluster.namesrv)
        # Two events of an order have the same key, but no two events the same id, a property.
        config = audit.Config(
            topics=[TOPIC], groups=[GROUP], archive=str(path), business_key="eventId"
        )
        report = audit.run(config, context)
        show(report, directory)

        lost = sorted((path / "data").rglob("*.parquet"))[1]
        lost.rename(directory / lost.name)
        print(f"\nThe same without {lost.name}:")
        damaged = audit.run(config, context)
        show(damaged, directory / "damaged")
        (directory / lost.name).rename(lost)
    sys.exit(0 if report.holds and not damaged.holds else 1)


if __name__ == "__main__":
    main()
