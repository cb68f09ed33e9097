"""Define the broker's own settings; those of its store are in `cometmq.store.config.StoreConfig`,
those of its copies in `cometmq.replication.config.ReplicationConfig`.

Java: BrokerConfig, NettyServerConfig, BrokerStartup. Keys are RocketMQ's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.access.config import AccessConfig
from cometmq.broker.replication.known_master import KnownMaster
from cometmq.errors import ConfigError, ConnectError
from cometmq.logs.levels import check_levels
from cometmq.model.results import MessageRequestMode
from cometmq.model.route import MASTER_ID
from cometmq.model.sysflag import PERM_RW
from cometmq.protocol.frame import MAX_FRAME_LENGTH
from cometmq.remoting.client import split_address
from cometmq.remoting.connection import DEFAULT_KEPT_BYTES, DEFAULT_WAITING_REQUESTS
from cometmq.remoting.holdings import DEFAULT_LIMIT_BYTES
from cometmq.remoting.server import DEFAULT_CONNECTIONS, DEFAULT_CONNECTIONS_PER_ADDRESS
from cometmq.replication.config import ReplicationConfig
from cometmq.runtime.configuration.check import SERVER_PROMISES, Promise, checked_configs, is_true
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.runtime.sockets.addresses import bare_host, host_name, own_address
from cometmq.store.config import StoreConfig
from cometmq.tls.config import TlsConfig, with_tls_file


def _own_name() -> str:
    return host_name() or "DEFAULT_BROKER"


@dataclass
class BrokerConfig(TlsConfig):
    broker_name: str = field(default_factory=_own_name)
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = field(default=0, metadata={"min": 0})
    broker_ip1: str = field(default_factory=own_address, metadata={"key": "brokerIP1"})
    broker_ip2: str | None = field(default=None, metadata={"key": "brokerIP2"})
    # CometMQ's own: the port that clients are sent to, where it is not the one listened on.
    advertised_port: int = field(default=0, metadata={"min": 0, "max": 65535})
    bind_address: str = "0.0.0.0"  # noqa: S104 - as Netty binds; loopback is a choice
    listen_port: int = field(default=10911, metadata={"min": 0, "max": 65535})
    # CometMQ's own: whether to serve listenPort - 2 too, as Java always does.
    vip_channel_enable: bool = True
    namesrv_addr: str | None = None
    region_id: str = "DefaultRegion"
    # CometMQ's own: addresses and networks, besides this machine, that administrators use.
    admin_from: str = ""

    broker_permission: int = PERM_RW
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = field(default=8, metadata={"min": 1})
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True

    register_name_server_period: int = field(default=30_000, metadata={"min": 1})
    register_broker_timeout_mills: int = field(default=24_000, metadata={"min": 1})
    compressed_register: bool = False
    enable_single_topic_register: bool = False
    flush_consumer_offset_interval: int = field(default=5_000, metadata={"min": 1})
    channel_expired_timeout: int = field(default=120_000, metadata={"min": 1})

    long_polling_enable: bool = True
    short_polling_time_mills: int = field(default=1_000, metadata={"min": 1})
    lite_pull_message_enable: bool = True
    slave_read_enable: bool = False
    use_server_side_reset_offset: bool = True
    notify_consumer_ids_changed_enable: bool = True
    enable_property_filter: bool = False
    filter_support_retry: bool = False
    enable_calc_filter_bit_map: bool = False
    filter_data_clean_time_span: int = field(default=86_400_000, metadata={"min": 0})
    expect_consumer_num_use_filter: int = field(default=32, metadata={"min": 1})
    max_error_rate_of_bloom_filter: int = field(default=20, metadata={"min": 1, "max": 99})
    # CometMQ's own: functions that select messages, and the ms that one may take for a message.
    filter_predicate_modules: str = ""
    filter_predicate_time_limit: int = field(default=50, metadata={"min": 1})
    reject_transaction_message: bool = False
    transaction_time_out: int = field(default=6_000, metadata={"min": 0})
    transaction_check_max: int = field(default=15, metadata={"min": 0})
    transaction_check_interval: int = field(default=30_000, metadata={"min": 1})
    transaction_op_msg_max_size: int = field(default=4_096, metadata={"min": 1})
    transaction_op_batch_interval: int = field(default=3_000, metadata={"min": 1})
    store_reply_message_enable: bool = True

    flush_delay_offset_interval: int = field(default=10_000, metadata={"min": 1})
    timer_wheel_enable: bool = True
    timer_precision_ms: int = field(default=1_000, metadata={"min": 1})
    timer_max_delay_sec: int = field(default=259_200, metadata={"min": 1})
    recall_message_enable: bool = True
    append_topic_for_timer_delete_key: bool = False

    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"min": 1})
    server_socket_backlog: int = field(default=1024, metadata={"min": 1})
    max_frame_length: int = field(
        default=MAX_FRAME_LENGTH,
        metadata={"key": "com.rocketmq.remoting.frameMaxLength", "min": 1024},
    )
    # CometMQ's own: the limit, in bytes, of all connections' unfinished frames, waiting requests
    # and unread answers together.
    max_bytes_in_flight: int = field(default=DEFAULT_LIMIT_BYTES, metadata={"min": 1024 * 1024})
    # CometMQ's own: how long a frame may take to arrive; each 16 KiB of it may take a second more.
    unfinished_frame_timeout_seconds: int = field(default=30, metadata={"min": 1})
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
    # CometMQ's own: how many pulls may wait for messages at once, in all and of one connection.
    max_held_pulls: int = field(default=100_000, metadata={"min": 0})
    max_held_pulls_per_connection: int = field(default=20_000, metadata={"min": 0})
    # How pops read queues: see `broker.pop`. Of a hundred pops so many read the retry topics first; the others
    # read them last.
    pop_from_retry_probability: int = field(default=20, metadata={"min": 0, "max": 100})
    pop_from_retry_probability_for_priority: int = field(default=0, metadata={"min": 0, "max": 100})
    priority_order_asc: bool = True
    use_separate_retry_queue: bool = False
    enable_retry_topic_v2: bool = False
    pop_response_return_actual_retry_topic: bool = False
    init_pop_offset_by_check_msg_in_mem: bool = True
    # How many pops of a group may wait for one queue, or for all.
    pop_polling_size: int = field(default=1_024, metadata={"min": 0})
    # How members get messages that let the broker divide the queues, as long as `setConsumeMode`
    # has not chosen for their group and topic; and how many members share a queue if they pop.
    default_message_request_mode: MessageRequestMode = MessageRequestMode.PULL
    default_pop_share_queue_num: int = -1
    # CometMQ's own: how many offsets are kept, one for each group and queue; about 100 bytes each.
    max_consumer_offsets: int = field(default=1_000_000, metadata={"min": 0})
    # CometMQ's own: how many topics and groups clients may make by using them; 0 is no limit.
    # Clients may make at once what the rate allows in ten seconds.
    max_topics: int = field(default=200_000, metadata={"min": 0})
    max_topics_made_per_second: int = field(default=2_000, metadata={"min": 0})
    # CometMQ's own: how many queues all topics may have before clients may make no more topics; 0 is
    # no limit.
    max_queues: int = field(default=4_000_000, metadata={"min": 0})
    max_groups: int = field(default=100_000, metadata={"min": 0})
    max_groups_made_per_second: int = field(default=2_000, metadata={"min": 0})
    # CometMQ's own: how many half messages may wait for a verdict; 100 to 400 bytes of memory each.
    max_unresolved_transactions: int = field(default=1_000_000, metadata={"min": 0})
    # CometMQ's own: which lines the log takes.
    log_level: str = "info"

    # PROM serves /metrics, /health and /ready over HTTP; without a host, where `bindAddress` says.
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_host: str = ""
    metrics_prom_exporter_port: int = field(default=5557, metadata={"min": 0, "max": 65535})
    # CometMQ's own: how many topics, pairs of a group and a topic, and queues of groups have series
    # of their own in /metrics, and how many topics and pairs histograms. The others are summed.
    metrics_max_topics: int = field(default=1_000, metadata={"min": 0, "max": 100_000})
    metrics_max_pairs: int = field(default=2_000, metadata={"min": 0, "max": 100_000})
    metrics_max_queues: int = field(default=2_000, metadata={"min": 0, "max": 100_000})
    metrics_max_histograms: int = field(default=200, metadata={"min": 0, "max": 10_000})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_levels("logLevel", self.log_level)
        AddressList("adminFrom", self.admin_from)
        check_host("brokerIP1", self.broker_ip1, "advertisedPort")
        if self.broker_ip2 is not None:
            check_host("brokerIP2", self.broker_ip2, "advertisedHaPort")

    def registration_period_s(self) -> float:
        """Return the registration period: the configured one, but 10 seconds at least and 60 at
        most (Java: BrokerController.start).
        """
        return max(10_000, min(self.register_name_server_period, 60_000)) / 1000

    def name_servers(self) -> list[str]:
        """Return the addresses in `namesrvAddr`, a list separated by semicolons."""
        return [part.strip() for part in (self.namesrv_addr or "").split(";") if part.strip()]


def check_host(key: str, host: str, port_key: str) -> None:
    """Raise ConfigError unless `host` is a name or an IP address that others can use."""
    bare = bare_host(host)
    if not bare.strip() or any(char in bare for char in " ;,/[]"):
        raise ConfigError(f"{key}={host} is no address: give one name or IP address")
    if "%" in bare:
        raise ConfigError(
            f"{key}={host} names an interface of this machine, which means nothing to others: give "
            "an address that reaches beyond its network link"
        )
    name, colon, port = bare.partition(":")
    if colon and ":" not in port:
        raise ConfigError(
            f"{key}={host} has a port: set {key}={name} and {port_key}={port or 'PORT'}"
        )


# A slave takes this much less of the machine's memory, in percent, to hold the end of the log.
_SLAVE_MEMORY_RATIO: Final = 10

# The classes that share a broker's configuration file.
CONFIG_CLASSES: Final = (BrokerConfig, StoreConfig, ReplicationConfig, AccessConfig)

_NO_COPIES: Final = (
    "asks for brokers that elect their master, which CometMQ's do not yet: take it out and set brokerRole "
    "and brokerId of each broker, or run this broker on Java"
)
_COPIES: Final = Promise(is_true, _NO_COPIES)

# Settings of Java's broker that this broker cannot honour yet.
BROKER_PROMISES: Final[Mapping[str, Promise]] = {
    **SERVER_PROMISES,
    "enableDLegerCommitLog": _COPIES,
    "enableControllerMode": _COPIES,
    "enabledAppendPropCRC": Promise(
        is_true,
        "asks for checksums of properties, which CometMQ does not write: remove it; bodies have "
        "checksums of their own",
    ),
    "forceVerifyPropCRC": Promise(
        is_true,
        "asks to check the properties' checksums, which only stores written with "
        "enabledAppendPropCRC=true have; CometMQ reads such stores, and checks the checksums of "
        "bodies: take it out",
    ),
}


def broker_configs(
    properties: Mapping[str, str], *, source: str, file: Path | None = None, lenient: bool = False
) -> tuple[BrokerConfig, StoreConfig, ReplicationConfig, AccessConfig]:
    """Return the settings of the broker, of its store, of its copies, as its role has them, and of
    its access control.

    Raises ConfigError with every mistake.
    """
    config, store_config, replication, access = checked_configs(
        CONFIG_CLASSES,
        with_tls_file(properties),
        server="broker",
        source=source,
        file=file,
        promises=BROKER_PROMISES,
        lenient=lenient,
    )
    _obey_role(config, store_config, replication, source)
    return config, store_config, replication, access


def _obey_role(
    config: BrokerConfig, store_config: StoreConfig, replication: ReplicationConfig, source: str
) -> None:
    """Change what depends on the role (Java: BrokerStartup). Raises ConfigError for a wrong id, and
    for a haMasterAddress that is no address.
    """
    if not replication.is_slave:
        config.broker_id = MASTER_ID
        return
    if config.broker_id == MASTER_ID:
        raise ConfigError(
            f"{source}: brokerRole=SLAVE needs a brokerId of 1 or more that no other slave of "
            f"brokerName={config.broker_name} has: brokerId={MASTER_ID} is the master's"
        )
    KnownMaster(replication.ha_master_address)
    # Java switches it off for a slave, too: what a master sends goes straight to the log's files.
    store_config.transient_store_pool_enable = False
    # A slave calls less of the log recent than its master does, which sends it the slow readers.
    store_config.access_message_in_memory_max_ratio = max(
        store_config.access_message_in_memory_max_ratio - _SLAVE_MEMORY_RATIO, 0
    )


def check_name_servers(config: BrokerConfig, source: str | None = None) -> None:
    """Raise ConfigError, which names the source, unless `namesrvAddr` is a list of addresses."""
    for address in config.name_servers():
        try:
            split_address(address)
        except ConnectError as error:
            raise ConfigError(
                (f"{source}: " if source else "")
                + f"namesrvAddr={config.namesrv_addr} does not fit, it must be of the form "
                "127.0.0.1:9876;192.168.0.1:9876"
            ) from error
