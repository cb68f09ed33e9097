"""Where PySpark finds the source `rocketmq`: it imports every installed package named `pyspark_*` and
registers the `DefaultSource` in it.

The source is imported when it is asked for; `cometmq.spark.lookup` says what happens if it cannot be.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cometmq.spark.lookup import default_source

    def load() -> Any:
        from cometmq.spark.live.source import RocketMQSource

        return RocketMQSource

    return default_source("rocketmq", load)
