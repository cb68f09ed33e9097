"""Stand in for a stream whose options do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from cometmq.errors import CometMQError
from cometmq.spark.versions import HAS_ADMISSION

if TYPE_CHECKING or HAS_ADMISSION:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:

    class SupportsTriggerAvailableNow:
        """Stands for a class that this PySpark does not have, nor asks for."""


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the reason when a query first asks its planner for anything.

    If the reason were raised while the reader is created, an UnboundLocalError of Spark
    (python_streaming_source_runner.main) would follow, and users would see that error first.
    """

    def __init__(self, reason: CometMQError) -> None:
        self._reason = reason

    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's names, here and below
        raise self._reason

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise self._reason

    def latestOffset(  # noqa: N802 - Spark's name
        self,
        start: Any = None,  # noqa: ARG002 - Spark's signature; before 4.2 it has no parameters
        limit: Any = None,  # noqa: ARG002 - Spark's signature
    ) -> NoReturn:
        raise self._reason

    def partitions(self, start: Any, end: Any) -> NoReturn:  # noqa: ARG002 - Spark's signature
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - Spark's signature
        raise self._reason
