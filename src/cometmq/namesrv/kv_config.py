"""Keep texts by namespace and key in kvConfig.json (Java: KVConfigManager)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq.errors import CometMQError
from cometmq.protocol.bodies.cluster import KVConfigSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body, pretty_pieces
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter

# Holds `brokerA:4;brokerB:4` by topic: the queues of topics that are ordered across all brokers.
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

# Letters of a namespace or a key. A topic's name has 255 at most, with the topic's own namespace.
MAX_KV_NAME_LENGTH: Final = 512
# Letters of a value: enough for the queues of some thousands of brokers.
MAX_KV_VALUE_LENGTH: Final = 65_536
MAX_KV_ENTRIES: Final = 10_000
# Letters of the whole table. Every registration of a broker is answered with the order topics, and
# each change encodes the whole table.
MAX_KV_TABLE_LENGTH: Final = 1024 * 1024


class KvConfig:
    """The table of texts and its file.

    A change is in force at once, and durable when its call returns. A change that cannot be written
    is tried again until it can. A file with a table beyond the limits is read and kept, but the
    table cannot grow.
    """

    def __init__(self, path: Path, state: StateWriter) -> None:
        self._state = state
        self._file = JsonFile(path)
        self._table: dict[str, dict[str, str]] = {}
        self._entries = 0
        self._length = 0

    def load(self) -> None:
        """Read the file, or its backup. Blocks; raises ConfigError when both are damaged."""
        stored = self._file.read(lambda text: decode_body(text.encode(), KVConfigSerializeWrapper))
        self._table = stored.config_table if stored else {}
        sizes = [
            _size(namespace, key, value)
            for namespace, entries in self._table.items()
            for key, value in entries.items()
        ]
        self._entries, self._length = len(sizes), sum(sizes)

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return the entries of a namespace, or None if it never had any."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a text. Raises OSError if the file cannot be written, CometMQError beyond a limit."""
        before = self.get(namespace, key)
        entries = self._entries + (before is None)
        growth = _size(namespace, key, value)
        if before is not None:
            growth -= _size(namespace, key, before)
        self._check(namespace, key, value, entries, growth)
        if len(self._table) >= MAX_KV_ENTRIES and namespace not in self._table:
            # A namespace without entries is kept, unless there are too many namespaces.
            self._table = {name: kept for name, kept in self._table.items() if kept}
        self._table.setdefault(namespace, {})[key] = value
        self._entries = entries
        self._length += growth
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a text, if there is one. Raises OSError if the file cannot be written."""
        value = self._table.get(namespace, {}).pop(key, None)
        if value is not None:
            self._entries -= 1
            self._length -= _size(namespace, key, value)
        await self._save()

    def _check(self, namespace: str, key: str, value: str, entries: int, growth: int) -> None:
        name, name_limit = "MAX_KV_NAME_LENGTH", MAX_KV_NAME_LENGTH
        for what, size, kind, limit, remedy in (
            ("the namespace", len(namespace), name, name_limit, "shorten it"),
            ("the key", len(key), name, name_limit, "shorten it"),
            (
                f"the value of {key:.80}",
                len(value),
                "MAX_KV_VALUE_LENGTH",
                MAX_KV_VALUE_LENGTH,
                "split it over several keys",
            ),
        ):
            if size > limit:
                raise _refused(
                    f"{what} has {size} letters, the limit {kind} is {limit}; {remedy}", kind
                )
        if entries > max(MAX_KV_ENTRIES, self._entries):
            raise _refused(
                f"there are {self._entries} key-value entries, the limit MAX_KV_ENTRIES is "
                f"{MAX_KV_ENTRIES}; delete some",
                "MAX_KV_ENTRIES",
            )
        if growth > 0 and self._length + growth > MAX_KV_TABLE_LENGTH:
            raise _refused(
                f"with {key:.80} the key-value entries have {self._length + growth} letters, the limit "
                f"MAX_KV_TABLE_LENGTH is {MAX_KV_TABLE_LENGTH}; delete some or shorten them",
                "MAX_KV_TABLE_LENGTH",
            )

    async def _save(self) -> None:
        await self._state.save(self._file, self._text)

    def _text(self) -> Iterator[str]:
        table = {namespace: dict(entries) for namespace, entries in self._table.items()}
        return pretty_pieces(KVConfigSerializeWrapper(table))


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


def _refused(why: str, limit: str) -> CometMQError:
    return CometMQError(why, code=ResponseCode.INVALID_PARAMETER, limit=limit)
