"""Find the index keys of many records at once in the bytes of the log (Java:
IndexService.buildIndex).

The key texts of a message are `topic#id` for its unique id, then `topic#k` for each of its KEYS,
which are separated by blanks. The index keeps only the hash of a text: abs(String.hashCode), or 0
for the one value whose abs does not fit an int32. Java 5.5 adds `topic#T#tag` after them.

numpy does as much as possible for a whole batch at once, and releases the GIL meanwhile. So an
index builder in a thread of its own costs the loop's thread little.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from cometmq.model.properties import KEYS, TAGS, UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from cometmq.protocol.messages.record_columns import Ints, RecordColumns, read_columns
from cometmq.store.index.index_file import hash_of
from cometmq.store.reading.record_texts import LONGEST, RecordTexts

# By how much a text's hash is multiplied, modulo 2^32, when so many characters follow the text.
# Keys longer than LONGEST are hashed one by one, without this.
_SHIFTS: Final = np.array([pow(31, length, 1 << 32) for length in range(LONGEST + 1)], np.uint32)


class IndexKeys(NamedTuple):
    """Keys in the order in which they enter the index, as columns of equal length.

    `hashes` (int64, 0 to 2^31-1), commit-log `offsets`, and store `timestamps` in ms.
    """

    hashes: Ints
    offsets: Ints
    timestamps: Ints

    def part(self, start: int, end: int) -> IndexKeys:
        return IndexKeys(
            self.hashes[start:end], self.offsets[start:end], self.timestamps[start:end]
        )


_NO_KEYS: Final = IndexKeys(*(np.zeros(0, np.int64) for _ in range(3)))


class KeyBatch(NamedTuple):
    """The keys of a window's whole records; `consumed` is how many bytes those records take."""

    keys: IndexKeys
    consumed: int


def find_keys(window: bytearray, base: int) -> KeyBatch:
    """Find the keys of the records that stand in `window` one after the other, from its start on.

    `base` is the commit-log offset of the window. The search stops before anything that is no whole
    record, and skips records whose fields contradict each other.
    """
    columns = read_columns(window, 0, len(window), base)
    if not len(columns):
        return KeyBatch(_NO_KEYS, 0)
    return KeyBatch(keys_of(window, columns, base), int(columns.ends[-1]))


def keys_of(window: bytearray | memoryview, columns: RecordColumns, base: int) -> IndexKeys:
    """Return the keys of the records in a window, whose positions `columns` has."""
    indexed = columns.fit & (columns.sys_flags & TRANSACTION_MASK != TRANSACTION_ROLLBACK)
    if not indexed.all():
        columns = columns.select(indexed)
    if not len(columns):
        return _NO_KEYS
    texts = RecordTexts(window, columns)
    owners, starts, ends = texts.values(UNIQ_CLIENT_MESSAGE_ID)
    words = texts.words(texts.values(KEYS))
    if len(words[0]):
        owners = np.concatenate((owners, words[0]))
        # A stable sort keeps a message's unique id first, then its keys in their order.
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        starts = np.concatenate((starts, words[1]))[order]
        ends = np.concatenate((ends, words[2]))[order]
    hashes = _hash_keys(texts, owners, starts, ends)
    return IndexKeys(hashes, columns.starts[owners] + base, columns.store_timestamps[owners])


def find_tags(window: bytearray, base: int) -> IndexKeys:
    """Find the entries for tags that an index of Java 5.5 has besides those of `find_keys`."""
    columns = read_columns(window, 0, len(window), base)
    columns = columns.select(columns.fit)
    if not len(columns):
        return _NO_KEYS
    texts = RecordTexts(window, columns)
    owners, starts, ends = texts.values(TAGS)
    hashes = _hash_keys(texts, owners, starts, ends, kind="T#")
    return IndexKeys(hashes, columns.starts[owners] + base, columns.store_timestamps[owners])


def _hash_keys(texts: RecordTexts, owners: Ints, starts: Ints, ends: Ints, kind: str = "") -> Ints:
    topics, strange_topics = texts.hashes(texts.starts, texts.topic_ends)
    keys, strange_keys = texts.hashes(starts, ends)
    # h("topic#" + key) = h("topic#") * 31^len(key) + h(key), all modulo 2^32.
    heads = topics
    for character in f"#{kind}":
        heads = heads * np.uint32(31) + np.uint32(ord(character))
    shifts = _SHIFTS[np.minimum(ends - starts, LONGEST)]
    signed = (heads[owners] * shifts + keys).view(np.int32).astype(np.int64)
    hashes: Ints = np.abs(signed)
    hashes[hashes == 1 << 31] = 0
    for at in np.flatnonzero(strange_keys | strange_topics[owners]).tolist():
        owner = owners[at]
        topic = texts.decode(int(texts.starts[owner]), int(texts.topic_ends[owner]))
        hashes[at] = hash_of(topic, kind + texts.decode(int(starts[at]), int(ends[at])))
    return hashes
