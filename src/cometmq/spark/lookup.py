"""Give PySpark the class of a source, or a class that raises why there is none.

PySpark asks with `hasattr`. Were the answer False, users would read `ClassNotFoundException:
rocketmq.DefaultSource` instead of the missing package. Nothing here needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cometmq.extras import command, missing


def default_source(name: str, load: Callable[[], Any]) -> Any:
    """Return the class of the source `name`, which `load` imports.

    If it cannot be imported, return one that raises ConfigError with the reason when it is used.
    Raise AttributeError if PySpark is missing or older than 4.0, which knows no sources in Python.
    """
    try:
        return load()
    except ImportError as error:
        reason = _reason(name, error)
        try:
            return _refused(name, reason)
        except ImportError:
            raise AttributeError(reason) from error


def _reason(name: str, error: ImportError) -> str:
    if error.name in ("pyspark", "pyarrow"):
        return str(missing("spark", f"the Spark source {name}", error.name))
    return (
        f"the Spark source {name} cannot be imported: {error}; it needs PySpark 4.0 or newer and "
        f"pyarrow: {command('spark')}"
    )


def _refused(name: str, reason: str) -> Any:
    from pyspark.sql.datasource import DataSource

    from cometmq.errors import ConfigError

    class RefusedSource(DataSource):
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            raise ConfigError(reason)

        @classmethod
        def name(cls) -> str:
            return name

    return RefusedSource
