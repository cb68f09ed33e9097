"""Define a name server's settings by RocketMQ's keys (Java: NamesrvConfig, NettyServerConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.access.config import AccessConfig
from cometmq.logs.levels import check_levels
from cometmq.protocol.frame import MAX_FRAME_LENGTH
from cometmq.remoting.connection import DEFAULT_KEPT_BYTES, DEFAULT_WAITING_REQUESTS
from cometmq.remoting.holdings import DEFAULT_LIMIT_BYTES
from cometmq.remoting.server import DEFAULT_CONNECTIONS, DEFAULT_CONNECTIONS_PER_ADDRESS
from cometmq.runtime.configuration.check import SERVER_PROMISES, Promise, checked_configs, is_true
from cometmq.runtime.configuration.config import keys_of
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.tls.config import TlsConfig, with_tls_file

DEFAULT_PORT = 9876

# No request changes these, whatever configBlackList says (Java: DefaultRequestProcessor).
FIXED_KEYS = frozenset(
    # adminFrom is CometMQ's own: no request may decide who may change the configuration.
    {"adminFrom", "configBlackList", "configStorePath", "kvConfigPath", *keys_of(AccessConfig)}
)

# The keys that requests may change; they are read each time they matter. None of them may name a
# file, an address, a command, code or a credential.
CHANGEABLE_KEYS: Final = frozenset(
    {
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "logLevel",
        "needWaitForService",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "supportActingMaster",
        "waitSecondsForService",
    }
)


def _home(name: str) -> Path:
    return Path.home() / "namesrv" / name


@dataclass
class NamesrvConfig(TlsConfig):
    """Holds the settings of a name server. Durations are in ms unless the key says seconds."""

    listen_port: int = field(default=DEFAULT_PORT, metadata={"min": 0, "max": 65535})
    bind_address: str = "0.0.0.0"  # noqa: S104 - as Java does; set it to listen on one address
    # CometMQ's own: the addresses and networks of administrators, besides this machine.
    admin_from: str = ""
    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"min": 1})
    server_socket_backlog: int = field(default=1024, metadata={"min": 1})
    # CometMQ's own: how many bytes of unfinished frames, waiting requests and unread answers all
    # connections together may hold.
    max_bytes_in_flight: int = field(default=DEFAULT_LIMIT_BYTES, metadata={"min": 1024 * 1024})
    max_frame_length: int = field(
        default=MAX_FRAME_LENGTH,
        metadata={"key": "com.rocketmq.remoting.frameMaxLength", "min": 1024},
    )
    # CometMQ's own: how many connections may be open, in all and from one address (0: any number).
    max_connections: int = field(default=DEFAULT_CONNECTIONS, metadata={"min": 1})
    max_connections_per_address: int = field(
        default=DEFAULT_CONNECTIONS_PER_ADDRESS, metadata={"min": 0}
    )
    # CometMQ's own: how many bytes of one connection's requests, and how many of its requests, may
    # wait for their answers.
    max_bytes_in_flight_per_connection: int = field(
        default=DEFAULT_KEPT_BYTES, metadata={"min": 64 * 1024}
    )
    max_waiting_requests_per_connection: int = field(
        default=DEFAULT_WAITING_REQUESTS, metadata={"min": 1}
    )
    # CometMQ's own: how many brokers may be registered, and how many topics, each counted at each of
    # its brokers; 0 is no limit.
    max_brokers: int = field(default=2_000, metadata={"min": 0})
    max_routes: int = field(default=5_000_000, metadata={"min": 0})
    # CometMQ's own: how long a frame may take to arrive; each 16 KiB of it add a second.
    unfinished_frame_timeout_seconds: int = field(default=30, metadata={"min": 1})
    kv_config_path: Path = field(default_factory=lambda: _home("kvConfig.json"))
    config_store_path: Path = field(default_factory=lambda: _home("namesrv.properties"))
    # The keys that UPDATE_NAMESRV_CONFIG refuses to change, separated by semicolons.
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    scan_not_active_broker_interval: int = field(default=5000, metadata={"min": 1})
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    delete_topic_with_broker_registration: bool = False
    # Answer no route for wait_seconds_for_service after a start: the brokers come back first.
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = field(default=45, metadata={"min": 0})
    # CometMQ's own: which lines the log takes.
    log_level: str = "info"

    # CometMQ's own, called as the broker's: PROM serves /metrics, /health and /ready over HTTP; without a host, where `bindAddress` says.
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_host: str = ""
    metrics_prom_exporter_port: int = field(default=5557, metadata={"min": 0, "max": 65535})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_levels("logLevel", self.log_level)
        AddressList("adminFrom", self.admin_from)

    def refused_keys(self) -> frozenset[str]:
        """Return the keys that no request may change."""
        return FIXED_KEYS | frozenset(filter(None, self.config_black_list.split(";")))


# The keys that ask Java's name server for something that ours cannot do yet.
NAMESRV_PROMISES: Final[Mapping[str, Promise]] = {
    **SERVER_PROMISES,
    "enableControllerInNamesrv": Promise(
        is_true,
        "asks for a controller that elects masters, which CometMQ does not have yet: take it out, "
        "and run Java's controller beside it",
    ),
}


# The classes that share a name server's configuration file.
CONFIG_CLASSES: Final = (NamesrvConfig, AccessConfig)


def namesrv_configs(
    properties: Mapping[str, str], *, source: str, file: Path | None = None, lenient: bool = False
) -> tuple[NamesrvConfig, AccessConfig]:
    """Return the settings of the name server and of its access control.

    Raises ConfigError with every mistake.
    """
    config, access = checked_configs(
        CONFIG_CLASSES,
        with_tls_file(properties),
        server="name server",
        source=source,
        file=file,
        promises=NAMESRV_PROMISES,
        lenient=lenient,
    )
    return config, access
