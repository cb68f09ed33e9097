"""What a name server can be told, under RocketMQ's keys (Java: NamesrvConfig, NettyServerConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.remoting.holdings import DEFAULT_LIMIT_BYTES
from cometmq.runtime.config_check import SERVER_PROMISES, Promise, checked_configs, is_true
from cometmq.runtime.networks import Networks

DEFAULT_PORT = 9876

# Never changed by a request, whatever configBlackList says (Java: DefaultRequestProcessor).
FIXED_KEYS = frozenset(
    # Who may change the configuration is none of it.
    {"adminFrom", "configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)


def _home(name: str) -> Path:
    return Path.home() / "namesrv" / name


@dataclass
class NamesrvConfig:
    """Durations are milliseconds unless the key says seconds."""

    listen_port: int = field(default=DEFAULT_PORT, metadata={"min": 0, "max": 65535})
    bind_address: str = "0.0.0.0"  # noqa: S104 - as Java does; set it to listen on one address
    # CometMQ's own: addresses and networks, besides this machine, that administrators use.
    admin_from: str = ""
    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"min": 1})
    server_socket_backlog: int = field(default=1024, metadata={"min": 1})
    # CometMQ's own: what all connections together may hold of unfinished frames, requests that wait
    # and answers that nobody reads.
    max_bytes_in_flight: int = field(default=DEFAULT_LIMIT_BYTES, metadata={"min": 1024 * 1024})
    # CometMQ's own: a frame may take so long, and a second more for each 16 KiB of it.
    unfinished_frame_timeout_seconds: int = field(default=30, metadata={"min": 1})
    kv_config_path: Path = field(default_factory=lambda: _home("kvConfig.json"))
    config_store_path: Path = field(default_factory=lambda: _home("namesrv.properties"))
    # Semicolons part the keys that UPDATE_NAMESRV_CONFIG refuses to change.
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    scan_not_active_broker_interval: int = field(default=5000, metadata={"min": 1})
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    delete_topic_with_broker_registration: bool = False
    # Refuse to answer routes for that long after a start, until the brokers have come back.
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = field(default=45, metadata={"min": 0})

    def __post_init__(self) -> None:
        Networks("adminFrom", self.admin_from)

    def refused_keys(self) -> frozenset[str]:
        """The keys that no request may change."""
        return FIXED_KEYS | frozenset(filter(None, self.config_black_list.split(";")))


# What a name server of Java's would keep, and ours cannot yet.
NAMESRV_PROMISES: Final[Mapping[str, Promise]] = {
    **SERVER_PROMISES,
    "enableControllerInNamesrv": Promise(
        is_true,
        "asks for a controller that elects masters, which CometMQ does not have yet: take it out, "
        "and run Java's controller beside it",
    ),
}


def namesrv_config(
    properties: Mapping[str, str], *, source: str, file: Path | None = None, lenient: bool = False
) -> NamesrvConfig:
    """The name server's settings. Raises ConfigError with every mistake."""
    config: NamesrvConfig
    (config,) = checked_configs(
        (NamesrvConfig,),
        properties,
        server="name server",
        source=source,
        file=file,
        promises=NAMESRV_PROMISES,
        lenient=lenient,
    )
    return config
