"""Read the figures of a Parquet file that tables list: rows, nulls, and bounds of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Longer texts are no bounds: every engine reads them with each query's plan.
_MOST_LETTERS: Final = 64


class ColumnFigures(NamedTuple):
    """bounds: the lowest and the highest value, None if they are not known. Times are microseconds
    since 1970.
    """

    nulls: int | None
    bytes: int
    bounds: tuple[int | str, int | str] | None


class Footer(NamedTuple):
    """splits: where row groups begin."""

    rows: int
    bytes: int
    columns: dict[str, ColumnFigures]
    splits: list[int]


def read_footer(path: str, files: FileSystem | None = None) -> Footer:
    """Return the row count, size and column figures of a file on this machine, or in an Arrow file system.

    Raise OSError, or Arrow's error for a file that is damaged.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with pa.OSFile(path) if files is None else files.open_input_file(path) as file:
        metadata = parquet.read_metadata(file)
        size = file.size()
    chunks: dict[str, list[Any]] = {}
    splits = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for index in range(group.num_columns):
            chunk = group.column(index)
            if "." not in chunk.path_in_schema:
                chunks.setdefault(chunk.path_in_schema, []).append(chunk)
        splits.append(_begin(group.column(0)))
    columns = {name: _figures(parts) for name, parts in chunks.items()}
    return Footer(metadata.num_rows, size, columns, splits)


def _begin(chunk: Any) -> int:
    begins: tuple[int | None, int] = (chunk.dictionary_page_offset, chunk.data_page_offset)
    return min(one for one in begins if one is not None)


def _figures(chunks: list[Any]) -> ColumnFigures:
    size = sum(chunk.total_compressed_size for chunk in chunks)
    found = [chunk.statistics for chunk in chunks]
    if any(one is None or not one.has_null_count for one in found):
        return ColumnFigures(None, size, None)
    nulls = sum(one.null_count for one in found)
    ranges = [_range(one) for one in found if one.num_values]
    known = [one for one in ranges if one is not None]
    if not known or len(known) < len(ranges):
        return ColumnFigures(nulls, size, None)
    lows, highs = zip(*known, strict=True)
    return ColumnFigures(nulls, size, (min(lows), max(highs)))


def _range(statistics: Any) -> tuple[Any, Any] | None:
    if not statistics.has_min_max:
        return None
    if statistics.physical_type in ("INT32", "INT64"):
        return statistics.min_raw, statistics.max_raw
    low, high = statistics.min, statistics.max
    if isinstance(low, str) and isinstance(high, str) and len(high) <= _MOST_LETTERS >= len(low):
        return low, high
    return None
