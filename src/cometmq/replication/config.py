"""Define the settings of replication, under RocketMQ's names (Java: MessageStoreConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cometmq.errors import ConfigError
from cometmq.protocol.replication import MAX_BODY_SIZE
from cometmq.runtime.sockets.address_list import AddressList

MASTER_ROLES: Final = ("ASYNC_MASTER", "SYNC_MASTER")
ROLES: Final = (*MASTER_ROLES, "SLAVE")
_TLS_MODES: Final = ("", "disabled", "permissive", "enforcing")
_MAX_GAP: Final = 256 * 1024 * 1024

# Keys whose new values a running broker obeys, from the next use on.
LIVE_KEYS: Final = frozenset(
    {
        "haSendHeartbeatInterval",
        "haHousekeepingInterval",
        "haTransferBatchSize",
        "haMaxGapNotInSync",
        "haSlaveFallbehindMax",
        "haFlowControlEnable",
        "maxHaTransferByteInSecond",
        "maxHaConnections",
        "slaveTimeout",
        "inSyncReplicas",
        "minInSyncReplicas",
        "allAckInSyncStateSet",
        "syncFromLastFile",
    }
)


@dataclass(kw_only=True)
class ReplicationConfig:
    """Holds the role of a broker, and how its log is copied. Sizes are in bytes, intervals in ms.

    Raises ConfigError when a value cannot be used.
    """

    broker_role: str = "ASYNC_MASTER"
    # 0 is the port behind `listenPort`.
    ha_listen_port: int = field(default=0, metadata={"min": 0, "max": 65535})
    # CometMQ's own: the port that slaves are sent to, where it is not the one listened on.
    advertised_ha_port: int = field(default=0, metadata={"min": 0, "max": 65535})
    # Where a slave finds its master; without it name servers give the address.
    ha_master_address: str | None = None
    ha_send_heartbeat_interval: int = field(default=5_000, metadata={"min": 1})
    ha_housekeeping_interval: int = field(default=20_000, metadata={"min": 1})
    ha_transfer_batch_size: int = field(
        default=32 * 1024, metadata={"min": 1024, "max": MAX_BODY_SIZE}
    )
    # CometMQ's own: how many slaves may be connected.
    max_ha_connections: int = field(default=32, metadata={"min": 1})
    # CometMQ's own: the addresses and networks of slaves; see `replication.admission`.
    slaves_from: str = ""
    ha_max_gap_not_in_sync: int = field(default=_MAX_GAP, metadata={"min": 0})
    # Java 4.9 calls it haMaxGapNotInSync; that one counts where both are given.
    ha_slave_fallbehind_max: int | None = field(default=None, metadata={"min": 0})
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = field(default=100 * 1024 * 1024, metadata={"min": 1})
    slave_timeout: int = field(default=3_000, metadata={"min": 0})
    # Brokers, the master among them, that have a message before a SYNC_MASTER acknowledges it.
    in_sync_replicas: int = field(default=1, metadata={"min": 1})
    min_in_sync_replicas: int = field(default=1, metadata={"min": 1})
    all_ack_in_sync_state_set: bool = False
    sync_from_last_file: bool = False
    offset_check_in_slave: bool = False
    # CometMQ's own: how the port for slaves serves TLS, which Java's never does; without it as
    # tls.server.mode says. And whether a slave connects to that port with TLS; without it as
    # tls.enable says.
    ha_tls_mode: str = ""
    ha_tls_enable: bool | None = None

    def __post_init__(self) -> None:
        AddressList("slavesFrom", self.slaves_from)
        if self.broker_role not in ROLES:
            raise ConfigError(f"brokerRole={self.broker_role}: must be one of {', '.join(ROLES)}")
        if self.ha_tls_mode not in _TLS_MODES:
            raise ConfigError(
                f"haTlsMode={self.ha_tls_mode}: must be one of {', '.join(_TLS_MODES[1:])}"
            )

    @property
    def max_gap(self) -> int:
        """How many bytes a slave in step may lack."""
        if self.ha_slave_fallbehind_max is None or self.ha_max_gap_not_in_sync != _MAX_GAP:
            return self.ha_max_gap_not_in_sync
        return self.ha_slave_fallbehind_max

    @property
    def is_slave(self) -> bool:
        return self.broker_role == "SLAVE"
