from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.errors import CometMQError, ConfigError
from cometmq.namesrv import kv_config
from cometmq.namesrv.kv_config import MAX_KV_NAME_LENGTH, MAX_KV_VALUE_LENGTH, KvConfig
from cometmq.runtime.state_files.state_writer import StateWriter


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
    found = json.loads(path.read_text())
    assert found == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4"}},
        "checksum": found["checksum"],  # which Java ignores
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
    with pytest.raises(ConfigError, match=r"kvConfig\.json is damaged"):
        loaded(path)


async def test_javas_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{\n\t\t"N":{\n\t\t\t"k":"v"\n\t\t}\n\t}\n}')
    assert loaded(path).get("N", "k") == "v"


@pytest.mark.parametrize(
    ("namespace", "key", "value", "limit"),
    [
        ("n" * (MAX_KV_NAME_LENGTH + 1), "k", "v", MAX_KV_NAME_LENGTH),
        ("n", "k" * (MAX_KV_NAME_LENGTH + 1), "v", MAX_KV_NAME_LENGTH),
        ("n", "k", "v" * (MAX_KV_VALUE_LENGTH + 1), MAX_KV_VALUE_LENGTH),
    ],
)
async def test_a_long_text_is_refused_and_leaves_no_trace(
    tmp_path: Path, namespace: str, key: str, value: str, limit: int
) -> None:
    config = loaded(tmp_path / "kvConfig.json")
    with pytest.raises(CometMQError, match=f"the limit MAX_KV_[A-Z_]+ is {limit}"):
        await config.put(namespace, key, value)
    assert config.namespace(namespace) is None
    await config.put("n" * MAX_KV_NAME_LENGTH, "k" * MAX_KV_NAME_LENGTH, "v" * MAX_KV_VALUE_LENGTH)


async def test_entries_are_bounded_in_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_config, "MAX_KV_ENTRIES", 3)
    path = tmp_path / "kvConfig.json"
    config = loaded(path)
    for number in range(3):
        await config.put(f"n{number}", "k", "v")
    with pytest.raises(CometMQError, match="the limit MAX_KV_ENTRIES is 3; delete some"):
        await config.put("n0", "another", "v")
    await config.put("n0", "k", "changed")
    await config.delete("n1", "k")
    await config.put("n0", "another", "v")
    # What a file holds counts, too, and is kept even where it is too much.
    monkeypatch.setattr(kv_config, "MAX_KV_ENTRIES", 2)
    again = loaded(path)
    with pytest.raises(CometMQError, match="the limit MAX_KV_ENTRIES is 2; delete some"):
        await again.put("n5", "k", "v")
    await again.put("n0", "k", "changed again")
    assert again.namespace("n0") == {"k": "changed again", "another": "v"}


async def test_entries_are_bounded_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "MAX_KV_TABLE_LENGTH", 30)
    config = loaded(tmp_path / "kvConfig.json")
    await config.put("n", "k", "v" * 20)
    with pytest.raises(CometMQError, match="the limit MAX_KV_TABLE_LENGTH is 30"):
        await config.put("n", "l", "v" * 20)
    await config.put("n", "k", "v")
    await config.put("n", "l", "v" * 20)
    await config.delete("n", "l")
    await config.put("m", "l", "v" * 20)


async def test_namespaces_that_are_empty_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_config, "MAX_KV_ENTRIES", 3)
    config = loaded(tmp_path / "kvConfig.json")
    await config.put("kept", "k", "v")
    for number in range(10):
        await config.put(f"n{number}", "k", "v")
        await config.delete(f"n{number}", "k")
    assert config.namespace("kept") == {"k": "v"}
    assert sum(config.namespace(f"n{number}") is not None for number in range(10)) <= 3
