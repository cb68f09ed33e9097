"""Read the settings of a proxy from rmq-proxy.json (Java: ProxyConfig, ConfigurationManager)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.access.config import AccessConfig
from cometmq.errors import ConfigError
from cometmq.proxy.configuration.front_config import FrontConfig, check_control
from cometmq.proxy.configuration.java_keys import JAVA_PROXY_KEYS
from cometmq.runtime.configuration.check import (
    SERVER_PROMISES,
    Promise,
    checked_configs,
    is_true,
)
from cometmq.tls.config import with_tls_file

CLUSTER: Final = "CLUSTER"
LOCAL: Final = "LOCAL"
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_MIB: Final = 1024 * 1024
# Java's brokers and ours hand out no more messages to a pop.
MAX_BATCH: Final = 32


@dataclass
class ProxySettings:
    """Holds the settings that a file may give, by Java's keys. Durations are in ms unless a key says seconds."""

    namesrv_addr: str | None = None
    proxy_mode: str = CLUSTER
    grpc_server_port: int = field(default=8081, metadata={"min": 0, "max": 65535})
    # Supervisors wait for 100 s.
    grpc_shutdown_time_seconds: int = field(default=30, metadata={"min": 0, "max": 90})
    grpc_max_concurrent_calls_per_connection: int = field(
        default=1_000, metadata={"min": 1, "max": 2**31 - 1}
    )
    # Java's default is 130 MiB: 32 messages of the greatest size. Clients send one message in a request.
    grpc_max_inbound_message_size: int = field(
        default=16 * _MIB, metadata={"min": 64 * 1024, "max": 1024 * _MIB}
    )
    # C++ clients ping every 60 s, even without calls; a server that does not allow that ends their connections.
    grpc_server_permit_keep_alive_time_millis: int = field(
        default=20_000, metadata={"min": 1, "max": _HOUR_MS}
    )

    max_message_size: int = field(default=4 * _MIB, metadata={"min": 1, "max": 1024 * _MIB})
    enable_message_body_empty_check: bool = True
    max_user_property_size: int = field(default=16_384, metadata={"min": 1, "max": 32_767})
    user_property_max_num: int = field(default=128, metadata={"min": 0, "max": 1_024})
    max_message_group_size: int = field(default=64, metadata={"min": 1, "max": 1_024})
    max_delay_time_mills: int = field(default=_DAY_MS, metadata={"min": 0, "max": 366 * _DAY_MS})
    max_transaction_recovery_second: int = field(default=3_600, metadata={"min": 0, "max": 86_400})
    enable_topic_message_type_check: bool = True

    default_invisible_time_mills: int = field(
        default=60_000, metadata={"min": 11_000, "max": 12 * _HOUR_MS}
    )
    min_invisible_time_mills_for_recv: int = field(
        default=10_000, metadata={"min": 1, "max": 12 * _HOUR_MS}
    )
    max_invisible_time_mills: int = field(
        default=12 * _HOUR_MS, metadata={"min": 1, "max": 7 * _DAY_MS}
    )
    grpc_client_consumer_min_long_polling_timeout_millis: int = field(
        default=5_000, metadata={"min": 0, "max": 300_000}
    )
    grpc_client_consumer_max_long_polling_timeout_millis: int = field(
        default=20_000, metadata={"min": 0, "max": 300_000}
    )
    grpc_client_consumer_long_polling_batch_size: int = field(
        default=MAX_BATCH, metadata={"min": 1, "max": MAX_BATCH}
    )

    grpc_client_producer_max_attempts: int = field(default=3, metadata={"min": 1, "max": 100})
    grpc_client_producer_backoff_initial_millis: int = field(
        default=10, metadata={"min": 0, "max": _HOUR_MS}
    )
    grpc_client_producer_backoff_max_millis: int = field(
        default=1_000, metadata={"min": 0, "max": _HOUR_MS}
    )
    grpc_client_producer_backoff_multiplier: int = field(default=2, metadata={"min": 1, "max": 100})

    channel_expired_timeout: int = field(default=120_000, metadata={"min": 1_000, "max": _DAY_MS})
    enable_proxy_auto_renew: bool = True
    renew_ahead_time_millis: int = field(default=10_000, metadata={"min": 1_000, "max": _HOUR_MS})
    renew_max_time_millis: int = field(
        default=3 * _HOUR_MS, metadata={"min": 1, "max": 7 * _DAY_MS}
    )
    renew_schedule_period_millis: int = field(default=5_000, metadata={"min": 100, "max": _HOUR_MS})
    max_renew_retry_times: int = field(default=3, metadata={"min": 1, "max": 1_000})
    invisible_time_millis_when_clear: int = field(
        default=1_000, metadata={"min": 1, "max": _HOUR_MS}
    )

    def __post_init__(self) -> None:
        self.proxy_mode = self.proxy_mode.upper()
        if self.proxy_mode not in (CLUSTER, LOCAL):
            raise ConfigError(
                f"proxyMode={self.proxy_mode} does not fit, it must be {CLUSTER} or {LOCAL}"
            )
        _check_order(
            "minInvisibleTimeMillsForRecv",
            self.min_invisible_time_mills_for_recv,
            "maxInvisibleTimeMills",
            self.max_invisible_time_mills,
        )
        _check_order(
            "grpcClientConsumerMinLongPollingTimeoutMillis",
            self.grpc_client_consumer_min_long_polling_timeout_millis,
            "grpcClientConsumerMaxLongPollingTimeoutMillis",
            self.grpc_client_consumer_max_long_polling_timeout_millis,
        )
        _check_order(
            "renewAheadTimeMillis",
            self.renew_ahead_time_millis,
            "defaultInvisibleTimeMills",
            self.default_invisible_time_mills,
        )

    @property
    def min_poll_s(self) -> float:
        return self.grpc_client_consumer_min_long_polling_timeout_millis / 1000

    @property
    def max_poll_s(self) -> float:
        return self.grpc_client_consumer_max_long_polling_timeout_millis / 1000


# Java's names for keys of TLS; in Java they count only with tlsTestModeEnable=false.
_TLS_KEYS: Final[Mapping[str, str]] = {
    "tlsCertPath": "tls.server.certPath",
    "tlsKeyPath": "tls.server.keyPath",
    "tlsKeyPassword": "tls.server.keyPassword",
}
# Keys that ask for something which this proxy does not do; to pass over them in silence would be dangerous.
_PROMISES: Final[Mapping[str, Promise]] = {
    **SERVER_PROMISES,
    "enableAclRpcHookForClusterMode": Promise(
        is_true,
        "asks for requests to brokers that the account of Java's tools.yml signs; set "
        "innerClientAuthenticationCredentials",
    ),
}
CONFIG_CLASSES: Final = (ProxySettings, FrontConfig, AccessConfig)


class ProxyConfigs(NamedTuple):
    """Holds what one file says of a proxy, of its port, and of who may call."""

    settings: ProxySettings
    front: FrontConfig
    control: AccessConfig


def default_configs() -> ProxyConfigs:
    return ProxyConfigs(ProxySettings(), FrontConfig(), AccessConfig())


def load_json(path: Path) -> dict[str, str]:
    """Return the entries of a file like rmq-proxy.json as texts. Raises ConfigError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the configuration file {path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f'the configuration file {path} holds no JSON object; write {{"namesrvAddr": "HOST:9876"}}'
        )
    return {key: _text_of(key, value, path) for key, value in found.items() if value is not None}


def proxy_configs(
    properties: Mapping[str, str], *, source: str, lenient: bool = False
) -> ProxyConfigs:
    """Return the settings of a file. Raises one ConfigError that names each key that does not fit, and why."""
    given = dict(properties)
    for java, key in _TLS_KEYS.items():
        if java in given:
            given.setdefault(key, given[java])
    if (
        given.get("tlsTestModeEnable", "").lower() == "false"
        and "tls.server.certPath" not in given
        and given.get("tls.server.mode", "").lower() != "disabled"
    ):
        raise ConfigError(
            f"{source}: tlsTestModeEnable=false asks for TLS with the certificate of tlsCertPath, which is "
            "missing; set tlsCertPath and tlsKeyPath, or remove the key"
        )
    configs = checked_configs(
        CONFIG_CLASSES,
        with_tls_file(given),
        server="proxy",
        source=source,
        promises=_PROMISES,
        also=JAVA_PROXY_KEYS,
        lenient=lenient,
    )
    made = ProxyConfigs(*configs)
    check_control(made.control)
    return made


def _text_of(key: str, value: Any, path: Path) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(
        f"{path}: {key} holds {'an object' if isinstance(value, dict) else 'a list'}, it must be a text, a number "
        "or true or false"
    )


def _check_order(low_key: str, low: int, high_key: str, high: int) -> None:
    if low > high:
        raise ConfigError(
            f"{low_key}={low} is more than {high_key}={high}; it must be at most that"
        )
