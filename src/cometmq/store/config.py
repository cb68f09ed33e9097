"""Settings of the store, under RocketMQ's names (Java: MessageStoreConfig)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cometmq.errors import ConfigError

PAGE_SIZE: Final = 4096
CONSUME_QUEUE_UNIT_SIZE: Final = 20
_INT32_MAX: Final = 2**31 - 1

# Java spells these so that the words cannot be told from the Python name.
_IRREGULAR_KEYS: Final = {"check_crc_on_recover": "checkCRCOnRecover"}


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes, intervals in ms, as RocketMQ documents the keys of the same name.

    Raises ConfigError when a value cannot be used.
    """

    store_path_root_dir: Path = field(default_factory=lambda: Path.home() / "store")
    store_path_commit_log: Path | None = None
    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 300_000 * CONSUME_QUEUE_UNIT_SIZE
    max_message_size: int = 4 * 1024 * 1024
    max_filter_message_size: int = 16_000
    max_topic_length: int = 127
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5000
    check_crc_on_recover: bool = True
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    def __post_init__(self) -> None:
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(
                f"flushDiskType={self.flush_disk_type}: must be ASYNC_FLUSH or SYNC_FLUSH"
            )
        for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue"):
            if not 0 < getattr(self, name) <= _INT32_MAX:
                raise ConfigError(
                    f"{_key_of(name)}={getattr(self, name)}: must be from 1 to {_INT32_MAX}"
                )
        # Java rounds the file up to whole units when it reads the key; so does every user of it.
        units = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_UNIT_SIZE)
        object.__setattr__(self, "mapped_file_size_consume_queue", units * CONSUME_QUEUE_UNIT_SIZE)

    @property
    def commit_log_path(self) -> Path:
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def consume_queue_path(self) -> Path:
        return self.store_path_root_dir / "consumequeue"

    @property
    def checkpoint_path(self) -> Path:
        return self.store_path_root_dir / "checkpoint"

    @property
    def abort_path(self) -> Path:
        return self.store_path_root_dir / "abort"

    @property
    def lock_path(self) -> Path:
        return self.store_path_root_dir / "lock"

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, … Raises ConfigError when `messageDelayLevel` does not parse."""
        return tuple(_delay_ms(text) for text in self.message_delay_level.split())

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> StoreConfig:
        """The settings among the keys of a broker.conf; keys of other objects are left alone.

        Raises ConfigError that names key and value.
        """
        values: dict[str, Any] = {}
        for setting in dataclasses.fields(cls):
            text = properties.get(_key_of(setting.name))
            if text is not None and text.strip():
                values[setting.name] = _parse(_key_of(setting.name), text.strip(), setting)
        return cls(**values)


def _key_of(name: str) -> str:
    return _IRREGULAR_KEYS.get(name) or re.sub(r"_(\w)", lambda m: m[1].upper(), name)


def _parse(key: str, text: str, setting: dataclasses.Field[Any]) -> object:
    # Annotations are text here (PEP 563).
    kind = str(setting.type)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={text}: must be true or false")
        return text.lower() == "true"
    if kind == "int":
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"{key}={text}: must be a whole number") from error
    return Path(text).expanduser() if kind.startswith("Path") else text


_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _delay_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ConfigError(f"messageDelayLevel: {text!r} is no delay such as 30s, 5m, 1h or 2d")
    return int(match[1]) * _UNITS_MS[match[2]]
