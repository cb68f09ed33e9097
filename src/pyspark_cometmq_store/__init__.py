"""Where PySpark finds the source `rocketmq-store`; see `pyspark_cometmq`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cometmq.spark.lookup import default_source

    def load() -> Any:
        from cometmq.spark.stores.source import RocketMQStoreSource

        return RocketMQStoreSource

    return default_source("rocketmq-store", load)
