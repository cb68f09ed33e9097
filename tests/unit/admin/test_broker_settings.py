"""The list of brokers' settings, held to the broker's own classes."""

from __future__ import annotations

import json
from pathlib import Path

from cometmq.admin import brokers
from cometmq.admin.brokers.settings import Setting, settings_of
from cometmq.broker.config import CONFIG_CLASSES, BrokerConfig
from cometmq.broker.operation.config_handlers import CHANGEABLE_KEYS
from cometmq.runtime.configuration.config import HIDDEN, to_properties

TABLE = Path(brokers.__file__).with_name("broker_settings.json")
# These depend on the machine or on another key, so nobody can say whether they differ.
OF_THE_MACHINE = {"brokerIP1", "brokerIP2", "brokerName", "haListenPort", "storePathRootDir"}


def ours() -> dict[str, str]:
    found: dict[str, str] = {}
    for config in CONFIG_CLASSES:
        found.update(to_properties(config()))
    return {key: value for key, value in sorted(found.items()) if key not in OF_THE_MACHINE}


def test_the_defaults_are_those_of_the_classes() -> None:
    table = json.loads(TABLE.read_text("utf-8"))
    assert table["cometmq"] == ours(), "write what the classes say into broker_settings.json"
    assert table["changeable"] == sorted(CHANGEABLE_KEYS)


def test_a_setting_differs_from_its_default() -> None:
    config = {**to_properties(BrokerConfig()), "listenPort": "10999", "traceOn": "false"}
    found = {setting.key: setting for setting in settings_of(config)}
    assert found["listenPort"] == Setting("listenPort", "10999", "10911", False)
    assert found["traceOn"] == Setting("traceOn", "false", "true", True)
    assert found["brokerName"].default is None
    assert {key for key, setting in found.items() if setting.is_changed} == {
        "listenPort",
        "traceOn",
    }


def test_numbers_are_compared_as_numbers() -> None:
    config = {"maxHeldPullsPerConnection": "20000", "maxTopics": "200000.0"}
    assert not any(setting.is_changed for setting in settings_of(config))


def test_a_java_broker_is_compared_with_javas_defaults() -> None:
    found = {each.key: each for each in settings_of({"defaultTopicQueueNums": "8", "other": "1"})}
    assert found["defaultTopicQueueNums"].default == "8"
    assert found["other"] == Setting("other", "1", None, False)


def test_secrets_are_hidden() -> None:
    secrets = {
        "initAuthenticationUser": '{"username":"a","password":"b"}',
        "innerClientAuthenticationCredentials": "c",
        "tls.server.keyPassword": "d",
    }
    assert {setting.value for setting in settings_of(secrets)} == {HIDDEN}
