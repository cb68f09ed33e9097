"""Where PySpark finds the source `rocketmq-store`; see `pyspark_cometmq`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from cometmq.spark.store_source import RocketMQStoreSource
    except ImportError as error:
        raise AttributeError(
            f"the Spark source rocketmq-store needs {error.name}: pip install 'cometmq[spark]'"
        ) from error
    return RocketMQStoreSource
