"""A driver of its own: queries that are started again when they fail, until the work is to end.

python -m tests.spark.kill_driver plan.json. The plan names the master and the pipelines; each has a
source's options and a sink with its own. The file `turn` says which of them runs. When it names the reads
of stores, the newest copy of a store is read by the JVM's reader again and again, each time into a
directory of its own. As soon as the file `finish` is there, all pipelines move what is available, the
newest copy is read once more, and the program ends with 0.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from cometmq.spark.session import spark_session

# Of a row on its way through a task, so that kills find tasks at work.
_ROW_MS = 1
_SLOWLY = f"length(coalesce(reflect('java.lang.Thread', 'sleep', {_ROW_MS}L), '')) >= 0"
# Behind a failure.
_PAUSE_S = 0.5


class Pipeline:
    def __init__(self, spark: Any, name: str, plan: dict[str, Any]) -> None:
        self._spark = spark
        self.name = name
        self._plan = plan
        self._query: Any = None
        self._not_before_s = 0.0

    def keep_running(self, trigger: dict[str, Any]) -> bool:
        """Start the query if it does not run; whether it ended by itself, without a failure."""
        if self._query is None:
            if time.monotonic() > self._not_before_s:
                self._query = self._start(trigger)
            return False
        if self._query.isActive:
            return False
        failure = self._query.exception()
        self._query = None
        if failure is None:
            return True
        self._not_before_s = time.monotonic() + _PAUSE_S
        report(self.name, str(failure)[-1500:])
        return False

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _start(self, trigger: dict[str, Any]) -> Any:
        plan = self._plan
        source = dict(plan["source"])
        if "availableNow" in trigger:
            del source["maxMessagesPerTrigger"]
        rows = self._spark.readStream.format("rocketmq").options(**source).load()
        rows = rows.where(_SLOWLY).selectExpr(*plan["columns"])
        writer = rows.writeStream.queryName(self.name).format(plan["format"])
        writer = writer.options(**plan["sink"])
        return writer.trigger(**trigger).start()


class StoreReads:
    """Reads of the newest store in `stores`, into `output`/number-of-STORE."""

    def __init__(self, spark: Any, plan: dict[str, Any]) -> None:
        self._spark = spark
        self.name = plan["name"]
        self._stores = Path(plan["stores"])
        self._output = Path(plan["output"])
        self._options = plan["source"]
        # Of a store with many messages, reading each one slowly would take minutes.
        self._slowly = f"NOT ({plan['slow_rows']}) OR {_SLOWLY}"

    def read(self) -> bool:
        """Read the store once; whether that came to its end."""
        store = max(self._stores.glob("[0-9]*"), key=lambda path: int(path.name))
        number = len(list(self._output.glob("*/_SUCCESS")))
        rows = self._spark.read.format("rocketmq-store").options(**self._options, path=str(store))
        try:
            rows.load().where(self._slowly).write.mode("overwrite").parquet(
                str(self._output / f"{number}-of-{store.name}")
            )
        except Exception as failure:  # noqa: BLE001 - of executors that were killed
            report(self.name, str(failure)[-1500:])
            time.sleep(_PAUSE_S)
            return False
        return True


def report(name: str, text: str) -> None:
    sys.stderr.write(f"== {name}: {text}\n")
    sys.stderr.flush()


def main(path: str) -> None:
    plan = json.loads(Path(path).read_text())
    spark = spark_session(plan["master"], app_name="kills", config=plan["config"])
    spark.sparkContext.setLogLevel("FATAL")
    pipelines = [Pipeline(spark, name, one) for name, one in plan["pipelines"].items()]
    reads = StoreReads(spark, plan["reads"])
    finish, turn = Path(plan["finish"]), Path(plan["turn"])
    while not finish.exists():
        now = turn.read_text()
        for pipeline in pipelines:
            if pipeline.name == now:
                pipeline.keep_running({"processingTime": "0 seconds"})
            else:
                pipeline.stop()
        if now == reads.name:
            reads.read()
        time.sleep(0.1)
    for pipeline in pipelines:
        pipeline.stop()
        while not pipeline.keep_running({"availableNow": True}):
            time.sleep(0.1)
    while not reads.read():
        pass
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
