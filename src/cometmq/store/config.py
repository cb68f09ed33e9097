"""Define the settings of the store, under RocketMQ's names (Java: MessageStoreConfig).

`cometmq.runtime.configuration.config` fills the class from a properties file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError
from cometmq.model.names import group_fault

PAGE_SIZE: Final = 4096
CONSUME_QUEUE_UNIT_SIZE: Final = 20
# Room for the longest unit of the extension and the mark that ends a file.
MIN_QUEUE_EXT_FILE_SIZE: Final = 32767 + 4
_INT32_MAX: Final = 2**31 - 1

# Keys whose new values a running broker obeys, from the next use on.
LIVE_KEYS: Final = frozenset(
    {
        "deleteWhen",
        "fileReservedTime",
        "cleanResourceInterval",
        "deleteFileBatchMax",
        "deleteCommitLogFilesInterval",
        "deleteConsumeQueueFilesInterval",
        "redeleteHangedFileInterval",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "cleanFileForciblyEnable",
        "cleanFileWaitsForGroups",
        "cleanFileWaitMaxHours",
        "flushIntervalCommitLog",
        "flushCommitLogLeastPages",
        "flushCommitLogThoroughInterval",
        "flushIntervalConsumeQueue",
        "flushConsumeQueueLeastPages",
        "flushConsumeQueueThoroughInterval",
        "commitIntervalCommitLog",
        "commitCommitLogLeastPages",
        "commitCommitLogThoroughInterval",
        "warmMapedFileEnable",
        "flushLeastPagesWhenWarmMapedFile",
        "defaultQueryMaxNum",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferCountOnMessageInDisk",
        "accessMessageInMemoryMaxRatio",
        "maxFilterMessageSize",
        "maxMessageSize",
        "maxMsgsNumBatch",
        "messageIndexEnable",
        "osPageCacheBusyTimeOutMills",
        "syncFlushTimeout",
        "fastFailIfNoBufferInStorePool",
    }
)


@dataclass(kw_only=True)
class StoreConfig:
    """Holds sizes in bytes and intervals in ms, as RocketMQ documents the keys of the same name.

    Raises ConfigError when a value cannot be used. `LIVE_KEYS` names the settings that may change
    under an open store; all others are read once.
    """

    store_path_root_dir: Path = field(default_factory=lambda: Path.home() / "store")
    store_path_commit_log: Path | None = None
    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 300_000 * CONSUME_QUEUE_UNIT_SIZE
    max_message_size: int = 4 * 1024 * 1024
    max_filter_message_size: int = 16_000
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5000
    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    message_index_enable: bool = True
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 * 1024 * 1024

    # Retention: hours of the day, hours, per cent of the disk.
    delete_when: str = "04"
    file_reserved_time: int = 72
    clean_resource_interval: int = 10_000
    delete_file_batch_max: int = 10
    delete_commit_log_files_interval: int = 100
    delete_consume_queue_files_interval: int = 100
    redelete_hanged_file_interval: int = 120_000
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = True
    # CometMQ's own: consumer groups, separated by semicolons, without whose committed offsets expired
    # messages stay, and for how many hours beyond fileReservedTime at most.
    clean_file_waits_for_groups: str = ""
    clean_file_wait_max_hours: int = 168

    os_page_cache_busy_time_out_mills: int = 1000
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = 4096
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200

    def __post_init__(self) -> None:
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(
                f"flushDiskType={self.flush_disk_type}: must be ASYNC_FLUSH or SYNC_FLUSH"
            )
        for key, value, low, high in (
            ("mappedFileSizeCommitLog", self.mapped_file_size_commit_log, 1, _INT32_MAX),
            ("mappedFileSizeConsumeQueue", self.mapped_file_size_consume_queue, 1, _INT32_MAX),
            ("maxHashSlotNum", self.max_hash_slot_num, 1, _INT32_MAX),
            # Number 0 is never used.
            ("maxIndexNum", self.max_index_num, 2, _INT32_MAX),
            (
                "mappedFileSizeConsumeQueueExt",
                self.mapped_file_size_consume_queue_ext,
                MIN_QUEUE_EXT_FILE_SIZE,
                _INT32_MAX,
            ),
            ("fileReservedTime", self.file_reserved_time, 0, _INT32_MAX),
            ("cleanFileWaitMaxHours", self.clean_file_wait_max_hours, 0, _INT32_MAX),
            ("cleanResourceInterval", self.clean_resource_interval, 1, _INT32_MAX),
            ("syncFlushTimeout", self.sync_flush_timeout, 0, _INT32_MAX),
            ("osPageCacheBusyTimeOutMills", self.os_page_cache_busy_time_out_mills, 1, _INT32_MAX),
            ("deleteFileBatchMax", self.delete_file_batch_max, 1, _INT32_MAX),
            ("diskMaxUsedSpaceRatio", self.disk_max_used_space_ratio, 1, 100),
            ("transientStorePoolSize", self.transient_store_pool_size, 1, _INT32_MAX),
            (
                "flushLeastPagesWhenWarmMapedFile",
                self.flush_least_pages_when_warm_maped_file,
                1,
                _INT32_MAX // PAGE_SIZE,
            ),
            ("commitIntervalCommitLog", self.commit_interval_commit_log, 1, _INT32_MAX),
            ("flushIntervalCommitLog", self.flush_interval_commit_log, 1, _INT32_MAX),
            ("flushIntervalConsumeQueue", self.flush_interval_consume_queue, 1, _INT32_MAX),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{key}={value}: must be from {low} to {high}")
        _ = self.delete_hours
        for group in self.waited_groups:
            if fault := group_fault(group):
                raise ConfigError(f"cleanFileWaitsForGroups: {fault}")
        # Round the file up to whole units, as Java does when it reads the key.
        units = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_UNIT_SIZE)
        self.mapped_file_size_consume_queue = units * CONSUME_QUEUE_UNIT_SIZE

    @property
    def commit_log_path(self) -> Path:
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def consume_queue_path(self) -> Path:
        return self.store_path_root_dir / "consumequeue"

    @property
    def consume_queue_ext_path(self) -> Path:
        return self.store_path_root_dir / "consumequeue_ext"

    @property
    def index_path(self) -> Path:
        return self.store_path_root_dir / "index"

    @property
    def checkpoint_path(self) -> Path:
        return self.store_path_root_dir / "checkpoint"

    @property
    def abort_path(self) -> Path:
        return self.store_path_root_dir / "abort"

    @property
    def ledger_path(self) -> Path:
        return self.store_path_root_dir / "queues.json"

    @property
    def lock_path(self) -> Path:
        return self.store_path_root_dir / "lock"

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delays in ms, by level. Raises ConfigError if `messageDelayLevel` does not parse."""
        return tuple(_delay_ms(text) for text in self.message_delay_level.split())

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of `deleteWhen`. Raises ConfigError for an entry that is not an hour."""
        texts = [text.strip() for text in self.delete_when.split(";") if text.strip()]
        if not all(re.fullmatch(r"\d{1,2}", text) and int(text) < 24 for text in texts):
            raise ConfigError(
                f"deleteWhen={self.delete_when}: must be hours of the day, 00 to 23, such as 04 or 02;14"
            )
        return frozenset(map(int, texts))

    @property
    def waited_groups(self) -> tuple[str, ...]:
        """The groups of `cleanFileWaitsForGroups`."""
        texts = (text.strip() for text in self.clean_file_waits_for_groups.split(";"))
        return tuple(dict.fromkeys(text for text in texts if text))

    @property
    def uses_transient_pool(self) -> bool:
        """Whether appends go to the pool. With sync flush they do not: a message is on disk before
        it is acknowledged, so the pool would only add a copy.
        """
        return self.transient_store_pool_enable and self.flush_disk_type == "ASYNC_FLUSH"


_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _delay_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ConfigError(f"messageDelayLevel: {text!r} is no delay such as 30s, 5m, 1h or 2d")
    return int(match[1]) * _UNITS_MS[match[2]]
