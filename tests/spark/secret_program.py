"""A program of its own that reads, plans, streams and fails with secrets at hand; it prints all that
Spark shows of it, as JSON on the last line.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from tests.spark.sink_query import run_to_end


def reported(work: Any) -> str:
    """Return Spark's error when `work` fails."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is searched
        return f"{type(error).__name__}: {error} {error.__cause__}"
    raise AssertionError("it was to fail")


def main(given: dict[str, Any]) -> None:
    from cometmq.spark.session import spark_session

    spark = spark_session(given["master"], config=given["config"])

    def read(**options: str) -> Any:
        options = {**given["access"], "subscribe": given["from"], **options}
        return spark.read.format("rocketmq").options(**options).load()

    rows = read().where("queue_offset >= 0")
    plans = StringIO()
    with redirect_stdout(plans):
        for mode in ("extended", "formatted", "cost"):
            rows.explain(mode)
    count = rows.count()

    source = spark.readStream.format("rocketmq").options(**given["access"])
    stream = source.options(subscribe=given["from"], startingOffsets="earliest").load()
    sink = stream.select("body").writeStream.format("rocketmq").options(**given["access"])
    sink = sink.options(topic=given["to"], checkpointLocation=given["checkpoint"])
    query = run_to_end(sink.trigger(availableNow=True).start)
    progress = [str(query.lastProgress), str(query.recentProgress), str(query.status)]

    faults = {
        name: reported(lambda options=options: read(**options).count())
        for name, options in given["failing"].items()
    }
    spark.stop()
    shown = {"count": count, "plans": plans.getvalue(), "progress": progress, "faults": faults}
    print(json.dumps(shown))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
