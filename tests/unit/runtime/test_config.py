from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ConfigError
from cometmq.logs.secret_names import names_secret
from cometmq.runtime.configuration.config import (
    HIDDEN,
    Configuration,
    change_properties,
    effective_properties,
    format_properties,
    from_properties,
    load_properties,
    parse_properties,
    to_properties,
    unknown_keys,
)
from cometmq.runtime.configuration.java_keys import JAVA_KEYS


class Flush(Enum):
    SYNC_FLUSH = 1
    ASYNC_FLUSH = 2


@dataclass
class Sample:
    broker_name: str = "a"
    broker_ip1: str | None = field(default=None, metadata={"key": "brokerIP1"})
    broker_id: int = 0
    listen_port: int = field(default=10911, metadata={"min": 0, "max": 65535})
    slave_read_enable: bool = False
    flush_disk_type: Flush = Flush.ASYNC_FLUSH
    disk_ratio: float = 0.75
    store_path_root_dir: Path = Path("/tmp/store")
    store_path_commit_log: Path | None = None
    max_size: int | None = None


def test_rocketmqs_keys_fill_the_typed_fields() -> None:
    config = from_properties(
        Sample,
        {
            "brokerName": " broker-b ",
            "brokerIP1": "10.0.0.1",
            "brokerId": "-7",
            "listenPort": "0",
            "slaveReadEnable": "TRUE",
            "flushDiskType": "SYNC_FLUSH",
            "diskRatio": "0.5",
            "storePathRootDir": "/data",
            "storePathCommitLog": "/log",
            "maxSize": "5",
            "somebodyElses": "x",
        },
    )
    assert config == Sample(
        "broker-b", "10.0.0.1", -7, 0, True, Flush.SYNC_FLUSH, 0.5, Path("/data"), Path("/log"), 5
    )


def test_what_java_takes_for_false_is_false() -> None:
    assert not from_properties(Sample, {"slaveReadEnable": "yes"}).slave_read_enable


def test_an_empty_value_of_an_optional_field_is_none() -> None:
    config = from_properties(Sample, {"maxSize": " ", "storePathCommitLog": "", "brokerName": ""})
    assert (config.max_size, config.store_path_commit_log, config.broker_name) == (None, None, "")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("brokerId", "one", "a whole number in decimal digits"),
        ("brokerId", "1_000", "a whole number in decimal digits"),
        ("brokerId", "", "a whole number in decimal digits"),
        ("brokerId", "9223372036854775808", "between -9223372036854775808 and 9223372036854775807"),
        ("listenPort", "65536", "between 0 and 65535"),
        ("diskRatio", "much", "a number"),
        ("flushDiskType", "FAST", "one of SYNC_FLUSH, ASYNC_FLUSH"),
    ],
)
def test_an_error_names_file_key_value_and_rule(key: str, value: str, rule: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_properties(Sample, {key: value}, "broker.conf")
    assert str(raised.value) == f"broker.conf: {key}={value} does not fit, it must be {rule}"


def test_to_properties_is_the_inverse() -> None:
    config = Sample(broker_ip1="10.0.0.1", slave_read_enable=True)
    texts = to_properties(config)
    assert texts["brokerIP1"] == "10.0.0.1"
    assert texts["flushDiskType"] == "ASYNC_FLUSH"
    assert texts["slaveReadEnable"] == "true"
    assert "maxSize" not in texts
    assert from_properties(Sample, texts) == config


def test_unknown_keys_are_kept_and_shown() -> None:
    given_keys = {"brokerId": "3", "useTLS": "maybe"}
    config = from_properties(Sample, given_keys)
    assert unknown_keys(given_keys, Sample) == ["useTLS"]
    shown = effective_properties([config], given_keys)
    assert shown["useTLS"] == "maybe"
    assert shown["brokerId"] == "3"
    assert shown["listenPort"] == "10911"


@pytest.mark.parametrize(
    "key",
    ["innerClientAuthenticationCredential", "tls.server.keyPasword", "KEY_PASWORD", "aclSecretKye"],
)
def test_a_misspelt_secret_is_hidden_where_a_configuration_is_shown(key: str) -> None:
    """`-p` under --lenient and getBrokerConfig showed the password behind a misspelt key."""
    config = from_properties(Sample, {})
    assert effective_properties([config], {key: "s3cret"})[key] == HIDDEN
    assert b"s3cret" not in Configuration([config], {key: "s3cret"}).shown_text()


def test_no_key_of_javas_is_taken_for_a_secret_but_those_that_are() -> None:
    assert {key for key in JAVA_KEYS if names_secret(key)} == {
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
        "objectStoreSecretKey",
        "tls.client.keyPassword",
        "tls.server.keyPassword",
    }


def test_an_update_changes_known_keys_at_once_and_leaves_strangers_out() -> None:
    config = Sample()
    configuration = Configuration([config], {"other": "1"})
    changed = configuration.update({"brokerId": "4", "other": "2", "strange": "x", "maxSize": "1"})
    assert changed == {"brokerId": "4", "other": "2", "maxSize": "1"}
    assert (config.broker_id, config.max_size) == (4, 1)
    assert "strange" not in configuration.properties()


def test_an_update_that_does_not_fit_changes_nothing() -> None:
    config = Sample()
    configuration = Configuration([config])
    with pytest.raises(ConfigError, match="listenPort=-1"):
        configuration.update({"brokerId": "4", "listenPort": "-1"})
    assert config == Sample()


def test_the_text_for_answers_is_kept_until_a_value_changes() -> None:
    config = Sample()
    configuration = Configuration([config], {"other": "1"})
    first = configuration.shown_text({"more": "m"})
    assert parse_properties(first.decode(), "text") == {**configuration.shown(), "more": "m"}
    assert configuration.shown_text({"more": "m"}) is first
    assert b"more" not in configuration.shown_text()
    # By an update, of a key that no class knows, and by whoever has the object.
    for change in (
        lambda: configuration.update({"brokerId": "4"}),
        lambda: configuration.update({"other": "2"}),
        lambda: setattr(config, "broker_id", 5),
    ):
        before = configuration.shown_text()
        change()
        assert configuration.shown_text() != before
        assert (
            parse_properties(configuration.shown_text().decode(), "text") == configuration.shown()
        )


def test_lines_are_sorted() -> None:
    lines = Configuration([Sample()]).text().splitlines()
    assert lines == sorted(lines)
    assert lines[0] == "brokerId=0"


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"# comment\nbrokerName : caf\\u00e9\nlong=a\\\n   b\n!x\nplain=caf\xe9\n")
    assert load_properties(path) == {"brokerName": "café", "long": "ab", "plain": "café"}
    path.write_bytes("brokerName=café".encode())
    assert load_properties(path) == {"brokerName": "café"}


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    with pytest.raises(ConfigError, match=r"broker\.conf cannot be read: No such file"):
        load_properties(path)
    path.write_text("a=\\u12")
    with pytest.raises(ConfigError, match=r"broker\.conf is no properties text"):
        load_properties(path)


@given(st.dictionaries(st.text("abcXYZ1", min_size=1), st.text(st.characters(codec="utf-8"))))
def test_printed_properties_read_back_equal(properties: dict[str, str]) -> None:
    # Leading blanks of a value are the one thing that the form cannot tell from its layout.
    trimmed = {key: value.lstrip(" \t\f") for key, value in properties.items()}
    assert parse_properties(format_properties(trimmed), "text") == trimmed


@dataclass(frozen=True)
class Fixed:
    size: int = 1
    even: int = 2

    def __post_init__(self) -> None:
        if self.even % 2:
            raise ConfigError(f"even={self.even}: must be even")


def test_a_rule_of_the_class_itself_is_reported_with_the_source() -> None:
    with pytest.raises(ConfigError, match=r"^broker\.conf: even=3: must be even$"):
        from_properties(Fixed, {"even": "3"}, "broker.conf")


def test_a_frozen_config_refuses_new_values_only() -> None:
    sample = Sample()
    configuration = Configuration([sample, Fixed()])
    assert configuration.update({"size": "1", "brokerId": "2"}) == {"brokerId": "2"}
    with pytest.raises(ConfigError, match="size cannot be changed without a restart"):
        configuration.update({"size": "2", "brokerId": "3"})
    assert sample.broker_id == 2


def test_a_path_is_never_empty() -> None:
    # Path would take it for the present directory.
    with pytest.raises(ConfigError, match="storePathRootDir= does not fit, it must be a path"):
        from_properties(Sample, {"storePathRootDir": " "})


def test_changed_lines_of_a_file_change_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes("# größe\nmaxSize : 7\n\n! again\nbrokerName=b\\u00e4".encode())
    text = change_properties(path, {"maxSize": "8", "enabled": "true"})
    assert text == "# größe\nmaxSize=8\n\n! again\nbrokerName=b\\u00e4\nenabled=true\n"
    path.write_text(text)
    assert load_properties(path) == {"maxSize": "8", "brokerName": "bä", "enabled": "true"}
    with pytest.raises(FileNotFoundError):
        change_properties(tmp_path / "gone", {})


def test_what_is_formatted_is_read_again() -> None:
    """Fuzzing found that a blank at the start of a value was lost between `mqadmin` and the broker."""
    properties = {"a": " x", "b c": "\ty\\", "#d": "e=f", "g:h=i": "", "j": "k\nl\r", "!m": " "}
    assert parse_properties(format_properties(properties), "test") == properties
