"""Define the settings of a proxy's port: TLS, connections, signatures, metrics (Java: ProxyConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cometmq.access.config import AccessConfig
from cometmq.errors import ConfigError
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.tls.config import TlsConfig

# A connection that has sent nothing at all is closed after this time.
SILENT_TIMEOUT_S: Final = 60.0
# A connection whose peer reads nothing of the bytes that wait for it is closed after this time.
UNREAD_TIMEOUT_S: Final = 60.0
# How much all connections together may hold for peers that read slowly.
MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
# The bytes that requests that have not arrived whole may hold, of all connections together. Requests that are
# being served may hold as many again.
MAX_REQUEST_BYTES: Final = 256 * 1024 * 1024
# How many calls the clients of one address may cancel a second, and twice as many at once.
MAX_CANCELS_PER_SECOND: Final = 200
# How many frames of HTTP/2 without a part of a request they may send a second (PING, WINDOW_UPDATE, …), and twice as
# many at once. Each costs about 2 µs, and clients send some for each call.
MAX_EMPTY_FRAMES_PER_SECOND: Final = 20_000
# Half of the connections that the usual limit on open files allows: each has three descriptors.
_CONNECTIONS: Final = 20_000
_CONNECTIONS_PER_ADDRESS: Final = 10_000
_DAY_S: Final = 86_400


@dataclass(kw_only=True)
class FrontConfig(TlsConfig):
    """Holds the settings of the port, under the keys of brokers where these have them."""

    # Whether a certificate that the proxy makes itself is served while none is named.
    tls_test_mode_enable: bool = field(default=False, metadata={"key": "tlsTestModeEnable"})
    max_connections: int = field(default=_CONNECTIONS, metadata={"min": 1})
    max_connections_per_address: int = field(default=_CONNECTIONS_PER_ADDRESS, metadata={"min": 0})
    # The addresses and networks of balancers that name their clients by an HAProxy header; empty for none.
    haproxy_from: str = field(default="", metadata={"key": "haproxyFrom"})
    # The cluster whose brokers know the users.
    rocketmq_cluster_name: str = field(
        default="DefaultCluster", metadata={"key": "rocketMQClusterName"}
    )
    # How old a signature may be by its x-mq-date-time; 0 takes any.
    grpc_signature_max_age_seconds: int = field(default=0, metadata={"min": 0, "max": _DAY_S})
    # PROM serves /metrics, /health and /ready over HTTP; without a host, at the proxy's address.
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_host: str = ""
    metrics_prom_exporter_port: int = field(default=5557, metadata={"min": 0, "max": 65535})

    def __post_init__(self) -> None:
        super().__post_init__()
        AddressList("haproxyFrom", self.haproxy_from)

    @property
    def makes_certificate(self) -> bool:
        """Whether clients get a certificate that nobody has signed (Java: test mode)."""
        return (
            self.tls_test_mode_enable
            and self.tls_server_cert_path is None
            and not self.tls_server_mode
        )


def check_control(control: AccessConfig) -> None:
    """Raise ConfigError for access control that a proxy cannot do."""
    if control.acl_enable:
        raise ConfigError(
            "aclEnable=true asks for the accounts of ACL 1.0, which no client of gRPC has; set "
            "authenticationEnabled=true and authorizationEnabled=true, and make users (mqadmin createUser)"
        )
    if control.authorization_enabled and not control.authentication_enabled:
        raise ConfigError(
            "authorizationEnabled=true needs authenticationEnabled=true: without it everybody could "
            "say to be any user"
        )
