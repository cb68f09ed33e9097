"""Test the settings of a proxy: what rmq-proxy.json may say, and what is wrong in it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import cometmq.proxy
from cometmq.errors import ConfigError
from cometmq.proxy.configuration.java_keys import JAVA_PROXY_KEYS
from cometmq.proxy.configuration.keys import ProxySettings, load_json, proxy_configs
from cometmq.runtime.configuration.config import keys_of

SOURCE = Path(cometmq.proxy.__path__[0])


def _settings(path: Path, **entries: object) -> ProxySettings:
    path.write_text(json.dumps(entries))
    return proxy_configs(load_json(path), source=str(path)).settings


def test_a_file_of_java_is_read_with_its_keys_without_effect(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path / "rmq-proxy.json",
        rocketMQClusterName="DefaultCluster",
        namesrvAddr="ns:9876",
        proxyMode="cluster",
        grpcServerPort="18081",
        grpcThreadPoolNums=64,
        enableProxyAutoRenew=False,
        maxMessageSize=1024,
        tlsTestModeEnable=True,
        metricsExporterType="DISABLE",
        regionId=None,
    )
    assert settings == ProxySettings(
        namesrv_addr="ns:9876",
        grpc_server_port=18081,
        enable_proxy_auto_renew=False,
        max_message_size=1024,
    )


def test_all_mistakes_are_named_with_key_value_and_range(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        _settings(
            tmp_path / "f.json",
            grpcServerPort=70_000,
            grpcServrPort=1,
            maxMessageSize="large",
            grpcSignatureMaxAgeSeconds=-1,
        )
    text = str(raised.value)
    for part in (
        "grpcServerPort=70000 does not fit, it must be between 0 and 65535",
        "knows no grpcServrPort, nor does any of Java's; did you mean grpcServerPort?",
        "maxMessageSize=large does not fit",
        "grpcSignatureMaxAgeSeconds=-1 does not fit",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"proxyMode": "both"}, "proxyMode=BOTH does not fit, it must be CLUSTER or LOCAL"),
        ({"maxMessageSize": 0}, "between 1 and"),
        (
            {"minInvisibleTimeMillsForRecv": 10_000, "maxInvisibleTimeMills": 9_999},
            "minInvisibleTimeMillsForRecv=10000 is more than maxInvisibleTimeMills=9999",
        ),
        ({"grpcClientConsumerMinLongPollingTimeoutMillis": 20_001}, "is more than"),
        ({"renewAheadTimeMillis": 60_001}, "is more than defaultInvisibleTimeMills=60000"),
        ({"tlsTestModeEnable": False}, "set tlsCertPath and tlsKeyPath"),
        ({"tlsKeyPath": "k.pem"}, "tls.server.keyPath=k.pem has no certificate"),
        ({"authorizationEnabled": True}, "needs authenticationEnabled=true"),
        ({"aclEnable": True}, "ACL 1.0"),
        ({"enableAclRpcHookForClusterMode": True}, "innerClientAuthenticationCredentials"),
        ({"metricsExporterType": "LOG"}, "asks for an exporter"),
        ({"namesrvAddr": ["ns:9876"]}, "namesrvAddr holds a list"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    entries: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        _settings(tmp_path / "f.json", **entries)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\ufeff{}"])
def test_a_file_that_is_no_json_object_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_json(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_json(tmp_path / "missing.json")


def test_each_setting_is_a_key_of_java_and_has_an_effect() -> None:
    assert set(keys_of(ProxySettings)) <= JAVA_PROXY_KEYS
    users = [SOURCE / "configuration" / "keys.py", SOURCE.parent / "cli" / "servers" / "proxy.py"]
    users += [path for path in SOURCE.rglob("*.py") if path.name != "keys.py"]
    texts = "\n".join(path.read_text() for path in users)
    read = set(re.findall(r"(?:self|own|settings)\.([a-z]\w+)", texts))
    assert {each.name for each in dataclasses.fields(ProxySettings)} <= read
