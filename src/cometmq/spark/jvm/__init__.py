"""Find the jar that reads stores inside of the JVM: the source `rocketmq-store` where a session has it.

`java/` holds its sources; `scripts/store-jar` compiles them, and a wheel made afterwards ships the jar.
Spark prefers it to the Python source of the same name; the jar passes reads that it cannot do on to
that source (docs/internals/spark-sources.md).
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any, Final

from cometmq.logs.loggers import get_logger
from cometmq.spark.rows.columns import COLUMNS, DEFAULT_COLUMNS

log = get_logger(__name__)

HERE: Final = Path(__file__).parent
SOURCES: Final = HERE / "java"
JAR: Final = HERE / "rocketmq-store.jar"
# The jar's entry with the checksum of its sources.
STAMP: Final = "META-INF/cometmq-sources"
# The one that holds `columns()`.
COLUMNS_ENTRY: Final = "cometmq/spark/store/columns"
# Set to "python", sessions of ours do without the jar.
_SWITCH: Final = "COMETMQ_STORE_READER"


def columns() -> str:
    """Return the columns for the jar: a line for each, marked if it is a default one."""
    return "\n".join(name + " default" * (name in DEFAULT_COLUMNS) for name in COLUMNS)


def checksum() -> str:
    """Return a checksum of all that the jar is made of."""
    digest = hashlib.sha256(columns().encode())
    for path in sorted(SOURCES.rglob("*.java")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def jar_path() -> str | None:
    """Return the path of the jar, for `spark.jars`, `--jars` or `ADD JAR`; None if this installation has
    none that was made of its own sources, or the environment variable COMETMQ_STORE_READER is `python`.
    """
    if os.environ.get(_SWITCH, "").lower() == "python":
        return None
    try:
        with zipfile.ZipFile(JAR) as jar:
            stamp = jar.read(STAMP).decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    return str(JAR) if stamp == checksum() else None


def reader_for(spark: Any) -> str:
    """Return the value of the option `reader` by which a session may read stores: `python` where the
    session has a jar that was made of other sources than this installation's, else `auto`.

    A user who names jars for a session may name one of another version, whose columns mean something else.
    """
    stamp = _stamp(spark)
    if stamp in (None, checksum()):
        return "auto"
    log.warning(
        "stores are read in Python: the session's jar of the store reader was made of other sources "
        "than this installation's; `python -m cometmq.spark.jvm` prints the path of the right one"
    )
    return "python"


def reads_in_jvm(spark: Any) -> bool:
    """Return whether a session surely has this installation's jar."""
    return _stamp(spark) == checksum()


def _stamp(spark: Any) -> str | None:
    """Return the checksum of the sources of the session's jar: "" if it has none; None without a
    jar, and if the session cannot be asked.
    """
    try:
        return str(spark._jvm.cometmq.spark.store.StoreSource.stamp())  # noqa: SLF001 - the only way there
    except (AttributeError, TypeError):
        # Spark Connect has no JVM to ask; and a package, for want of a class, no calls.
        return None
    except Exception:  # noqa: BLE001 - py4j's, which is there with PySpark only
        return ""  # a jar from before they could be asked


def with_jar(jars: str | None) -> str | None:
    """Return `spark.jars` with the jar behind what it names already; unchanged if there is none."""
    jar = jar_path()
    if jar is None:
        return jars
    named = [one for one in (jars or "").split(",") if one]
    return ",".join(named if jar in named else [*named, jar])
