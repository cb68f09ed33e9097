"""Say what the installed PySpark offers to Python data sources.

version  batch, store, sink      filters pushed down   streams of both sources
4.0      yes                     no                    no
4.1      yes                     yes                   no
4.2      yes                     yes                   yes

A stream needs `latestOffset(start, limit)`, which came with 4.2: before that a source gets neither
the offset of a restarted query nor the limit of a batch.
"""

from __future__ import annotations

from typing import Final

from pyspark import __version__
from pyspark.sql import datasource

# The class of the filters, whose module is older than they are.
HAS_FILTERS: Final = hasattr(datasource, "Filter")
# PySpark names the limits of a batch beside the classes of sources.
HAS_ADMISSION: Final = hasattr(datasource, "ReadLimit")

STREAMS_SINCE: Final = "4.2"


def streams_refused(source: str = "rocketmq") -> str:
    """Say why this PySpark cannot read a source as a stream, and what can be done."""
    batches = " with startingOffsets and endingOffsets" if source == "rocketmq" else ""
    return (
        f"streams of the source {source} need PySpark {STREAMS_SINCE} or newer, and this is "
        f"{__version__}: install a newer one, or read batches (spark.read){batches}"
    )
