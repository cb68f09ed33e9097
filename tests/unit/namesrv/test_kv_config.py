from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.namesrv.kv_config import KvConfig
from cometmq.runtime.state_writer import StateWriter


def loaded(path: Path) -> KvConfig:
    config = KvConfig(path, StateWriter())
    config.load()
    return config


async def test_entries_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    config = loaded(path)
    assert config.namespace("N") is None
    await config.put("N", "k", "v")
    await config.put("N", "k", 'ü: "quoted"\n')
    await config.put("M", "gone", "x")
    await config.delete("M", "gone")
    await config.delete("M", "gone")
    await config.delete("L", "never")
    again = loaded(path)
    assert again.namespace("N") == {"k": 'ü: "quoted"\n'}
    assert again.get("N", "k") == 'ü: "quoted"\n'
    assert again.get("N", "other") is None
    assert again.namespace("M") == {}
    assert again.namespace("L") is None


async def test_the_file_has_javas_shape(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    await loaded(path).put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4")
    assert json.loads(path.read_text()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4"}}
    }
    assert path.read_text().startswith('{\n\t"configTable":{\n')


async def test_a_damaged_file_is_restored_from_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    config = loaded(path)
    await config.put("N", "k", "1")
    await config.put("N", "k", "2")
    path.write_text('{"configTable":{"N":{"k"')
    assert loaded(path).get("N", "k") == "1"


def test_a_file_that_is_damaged_for_good_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"kvConfig\.json does not decode"):
        loaded(path)


async def test_javas_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{\n\t\t"N":{\n\t\t\t"k":"v"\n\t\t}\n\t}\n}')
    assert loaded(path).get("N", "k") == "v"
