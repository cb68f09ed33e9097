"""Where PySpark finds the source `rocketmq`: it imports every installed package named `pyspark_*` and
registers the `DefaultSource` in it.

The source is imported when it is asked for. Without PySpark or pyarrow that raises an AttributeError
that names the extra to install, so that `hasattr`, with which PySpark looks, is just False.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from cometmq.spark.live_source import RocketMQSource
    except ImportError as error:
        raise AttributeError(
            f"the Spark source rocketmq needs {error.name}: pip install 'cometmq[spark]'"
        ) from error
    return RocketMQSource
