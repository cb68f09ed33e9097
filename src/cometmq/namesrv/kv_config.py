"""Texts by namespace and key, kept in kvConfig.json (Java: KVConfigManager)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq.protocol.bodies import KVConfigSerializeWrapper
from cometmq.protocol.json_dialect import decode_body, pretty_pieces
from cometmq.runtime.json_file import JsonFile
from cometmq.runtime.state_writer import StateWriter

# Holds `brokerA:4;brokerB:4` by topic: the queues of topics that are ordered across all brokers.
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """The table and its file. A change is in force at once and durable when its call returns; one
    that could not be written is tried again until it can.
    """

    def __init__(self, path: Path, state: StateWriter) -> None:
        self._state = state
        self._file = JsonFile(path)
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file, or its backup. Blocks; raises ConfigError when both are damaged."""
        stored = self._file.read(lambda text: decode_body(text.encode(), KVConfigSerializeWrapper))
        self._table = stored.config_table if stored else {}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """The entries of a namespace; None when nothing was ever put there."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Raises OSError when the file cannot be written."""
        self._table.setdefault(namespace, {})[key] = value
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Raises OSError when the file cannot be written. A missing entry is no fault."""
        self._table.get(namespace, {}).pop(key, None)
        await self._save()

    async def _save(self) -> None:
        await self._state.save(self._file, self._text)

    def _text(self) -> Iterator[str]:
        table = {namespace: dict(entries) for namespace, entries in self._table.items()}
        return pretty_pieces(KVConfigSerializeWrapper(table))
