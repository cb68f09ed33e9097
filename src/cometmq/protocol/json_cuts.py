"""Cut the large tables or lists out of a JSON body in steps, so that they can be decoded in parts.

A body of 16 MiB takes msgspec up to 60 ms, and fastjson's dialect 300 ms, in one piece. Here numpy
looks for brackets and commas in some kilobytes at a time. What it tells apart are tokens only: parts
and rest are decoded as any body, so whatever is wrong in them is found there. They are right
if, and only if, the whole body is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.errors import ProtocolError

# So many bytes are looked at in a step: a tenth of a millisecond. A table that lies within them, or
# between two of their ends, is small enough to be decoded whole.
CHUNK_BYTES: Final = 16 * 1024
# A key and what stands between it and its value are looked for in so many bytes.
_KEY_BYTES: Final = 128

# So many bytes are searched for a text in a step: a fraction of a millisecond.
_LOOK_STEP: Final = 128 * 1024

_COMMA: Final = ord(",")
_QUOTE: Final = ord('"')
_IS_SIGN: Final = np.zeros(256, np.bool_)
_IS_SIGN[list(b'"{}[],')] = True
_CHANGE: Final = np.zeros(256, np.int32)
_CHANGE[list(b"{[")] = 1
_CHANGE[list(b"}]")] = -1

_Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Cut:
    """A body whose large tables or lists were cut out: in the rest, a mark stands in each."""

    rest: bytes
    _data: bytes
    _places: dict[str, list[int]]
    # What makes a part: the brackets that its members stood in.
    _form: bytes

    def parts(self, table: Mapping[str, object]) -> Iterator[bytes] | None:
        """Return the members of a table of the decoded rest, many of them at a time, as objects.

        None for a table that was not cut out. Each can be asked for once. The iterator raises
        ProtocolError.
        """
        parts = self.parts_of(next(iter(table), ""))
        return None if parts is None else iter(parts)

    def parts_of(self, mark: str) -> Iterable[bytes] | None:
        """Return the same by the mark that was found in the rest: of a list, as lists. Each pass
        copies the parts anew, one after the other.
        """
        places = self._places.pop(mark, None)
        return None if places is None else _Parts(self._data, places, self._form)

    @property
    def is_spent(self) -> bool:
        """Whether all that was cut out was asked for."""
        return not self._places


class _Parts:
    """What was cut out at some places of a body, as often as it is asked for."""

    def __init__(self, data: bytes, places: list[int], form: bytes) -> None:
        self._data = data
        self._places = places
        self._form = form

    def __iter__(self) -> Iterator[bytes]:
        for start, stop in pairwise(self._places):
            part = self._data[start + 1 : stop]
            is_empty = part.isspace() or not part
            if is_empty and len(self._places) > 2:
                raise ProtocolError(f"a JSON object or list has no member at {start + 1}")
            yield self._form % part


def cut_tables(
    data: bytes, names: tuple[str, ...], *, level: int, chunk_bytes: int = CHUNK_BYTES
) -> Generator[None, None, Cut]:
    """Cut out the tables with these names that lie `level` brackets deep, counting their own."""
    return (yield from _cut(data, dict.fromkeys(names, b"%b:{}"), b"{%b}", level, chunk_bytes))


def cut_lists(
    data: bytes, names: Mapping[str, str], *, level: int, chunk_bytes: int = CHUNK_BYTES
) -> Generator[None, None, Cut]:
    """Cut out the lists with these names in the same way. The mark of one is an object in it, whose
    only field is the one that `names` has for the list.
    """
    marks = {name: b'{"%b":%%b}' % field.encode() for name, field in names.items()}
    return (yield from _cut(data, marks, b"[%b]", level, chunk_bytes))


def _cut(
    data: bytes, marks: Mapping[str, bytes], form: bytes, level: int, chunk_bytes: int
) -> Generator[None, None, Cut]:
    # In fastjson's dialect keys may stand without quotes.
    key = re.compile(rb'["\s,{](%b)"?\s*:\s*\Z' % "|".join(marks).encode())
    rest: list[bytes] = []
    places: dict[str, list[int]] = {}
    copied = 0
    for table in (yield from _large(data, level, chunk_bytes)):
        begin, end = table[0], table[-1]
        found = key.search(data[max(0, begin - _KEY_BYTES) : begin])
        if data[begin] == form[0] and found is not None:
            mark = f"\0cut {len(places)}"
            places[mark] = table
            marked = marks[found[1].decode()] % json.dumps(mark).encode()
            rest += [data[copied : begin + 1], marked]
            copied = end
    return Cut(b"".join([*rest, data[copied:]]), data, places, form)


def contains(data: bytes, *texts: bytes) -> Generator[None, None, bool]:
    """Say whether one of some short texts is in a body, looking in steps."""
    for start in range(0, len(data), _LOOK_STEP):
        chunk = data[start : start + _LOOK_STEP + max(map(len, texts))]
        if any(text in chunk for text in texts):
            return True
        yield
    return False


def count_commas(data: bytes, chunk_bytes: int = CHUNK_BYTES) -> Generator[None, None, int]:
    """Return how many commas stand between values, looking in steps."""
    count = 0
    for _, kinds in _signs(data, chunk_bytes):
        yield
        count += int(np.count_nonzero(kinds == _COMMA))
    return count


def _signs(data: bytes, chunk_bytes: int) -> Iterator[tuple[_Places, npt.NDArray[np.uint8]]]:
    """Yield for each chunk of a body the places and kinds of the brackets and commas outside of texts."""
    start = 0
    in_text = False
    while start < len(data):
        chunk = data[start : start + chunk_bytes]
        if b"\\" in chunk:
            # Escapes come in pairs; the first half of one belongs to the next chunk.
            if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 and len(chunk) > 1:
                chunk = chunk[:-1]
            signs = chunk.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        else:
            signs = chunk
        body = np.frombuffer(signs, np.uint8)
        places = np.flatnonzero(_IS_SIGN[body])
        kinds = body[places]
        if len(places):
            quotes = kinds == _QUOTE
            inside = np.logical_xor.accumulate(quotes) ^ in_text
            in_text = bool(inside[-1])
            plain = ~(inside | quotes)
            places, kinds = places[plain] + start, kinds[plain]
        yield places, kinds
        start += len(chunk)


def _large(data: bytes, level: int, chunk_bytes: int) -> Generator[None, None, list[list[int]]]:
    """Return for each large object or list of a level the places of its first bracket, of commas at
    which it can be cut, and of its last bracket.
    """
    found: list[list[int]] = []
    table: list[int] | None = None
    depth = 0
    for places, kinds in _signs(data, chunk_bytes):
        yield
        if not len(places):
            continue
        change = _CHANGE[kinds]
        depths = np.cumsum(change) + depth
        depth = int(depths[-1])
        here = depths == level
        ends = places[(change < 0) & (depths == level - 1)]
        commas = places[here & (change == 0)]
        if table is not None:
            table += _last(commas[commas < ends[0]] if len(ends) else commas)
            if len(ends):
                found.append([*table, int(ends[0])])
                table = None
        begins = places[here & (change > 0)]
        if len(begins) and (not len(ends) or begins[-1] > ends[-1]):
            table = [int(begins[-1]), *_last(commas[commas > begins[-1]])]
    return found


def _last(places: _Places) -> list[int]:
    return [int(places[-1])] if len(places) else []
