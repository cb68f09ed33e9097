from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.runtime.configuration.config import from_properties
from cometmq.store.config import StoreConfig


def test_keys_are_rocketmqs() -> None:
    config = from_properties(
        StoreConfig,
        {
            "storePathRootDir": "/data/store",
            "mappedFileSizeCommitLog": "1048576",
            "mappedFileSizeConsumeQueue": "101",
            "checkCRCOnRecover": "False",
            "flushDiskType": "SYNC_FLUSH",
            "messageDelayLevel": "1s 2m 3h 1d",
            "deleteWhen": "02; 14",
            "storePathCommitLog": "",
            "brokerName": "of another object",
        },
    )
    assert config.store_path_root_dir == Path("/data/store")
    assert config.commit_log_path == Path("/data/store/commitlog")
    assert config.mapped_file_size_commit_log == 1 << 20
    assert config.mapped_file_size_consume_queue == 120
    assert not config.check_crc_on_recover
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.delete_hours == {2, 14}
    assert config.delay_levels_ms == (1000, 120_000, 10_800_000, 86_400_000)


def test_the_defaults_are_rocketmqs() -> None:
    config = StoreConfig()
    assert config.store_path_root_dir == Path.home() / "store"
    assert config.mapped_file_size_commit_log == 1 << 30
    assert config.mapped_file_size_consume_queue == 6_000_000
    assert len(config.delay_levels_ms) == 18


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mappedFileSizeCommitLog", "1g"),
        ("mappedFileSizeCommitLog", "0"),
        ("mappedFileSizeConsumeQueue", "4294967296"),
        ("deleteWhen", "24"),
        ("deleteWhen", "4am"),
        ("fileReservedTime", "-1"),
        ("diskMaxUsedSpaceRatio", "101"),
        ("flushDiskType", "NO_FLUSH"),
    ],
)
def test_a_bad_value_is_named_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={value}"):
        from_properties(StoreConfig, {key: value})


def test_a_bad_delay_level_is_named() -> None:
    config = StoreConfig(message_delay_level="1s soon")
    with pytest.raises(ConfigError, match="'soon'"):
        _ = config.delay_levels_ms
