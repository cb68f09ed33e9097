"""Read the committed offsets of groups as a broker last wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cometmq.errors import CometMQError, StoreCorruptError
from cometmq.protocol.fastjson.dialect import decode_body

if TYPE_CHECKING:
    from cometmq.store.offline.store import OfflineStore


class _OffsetTables(msgspec.Struct, rename="camel"):
    """config/consumerOffset.json: offsets by `topic@group` and queue id."""

    offset_table: dict[str, dict[int, int]] = {}


def committed_offsets(store: OfflineStore) -> dict[str, dict[int, int]]:
    """Return the offsets of a store's config/consumerOffset.json, by `topic@group` and queue id.

    Raise StoreCorruptError if the file cannot be read.
    """
    path = store.config.store_path_root_dir / "config" / "consumerOffset.json"
    if store.disk.size(path) is None:
        return {}
    try:
        return decode_body(store.disk.read(path), _OffsetTables).offset_table
    except CometMQError as error:
        raise StoreCorruptError(f"the consumer offsets {path} cannot be read: {error}") from error
