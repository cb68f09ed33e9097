"""The settings and limits of a proxy (Java: ProxyConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cometmq.access.config import AccessConfig
from cometmq.client.access import PLAIN, Access
from cometmq.proxy.front_config import FrontConfig

DEFAULT_PORT: Final = 8081

# How many clients may be known: each has the settings that it sent, and may have streams.
MAX_CLIENTS: Final = 20_000
# How many Telemetry streams one client may have open: it opens one for each endpoint of its routes.
MAX_STREAMS_PER_CLIENT: Final = 16
# How many receives may wait for messages at a time.
MAX_WAITING_RECEIVES: Final = 10_000
# How many handles may be renewed: messages that are being consumed with auto_renew.
MAX_RENEWED_HANDLES: Final = 100_000
# How many calls may be under way at a time, streams among them.
MAX_CALLS: Final = 50_000
# How many topics, and how many groups, a subscription may name, and how many are remembered.
MAX_TOPICS_OF_CLIENT: Final = 1_024
MAX_REMEMBERED: Final = 20_000
# Entries of an acknowledgement, and messages of a send.
MAX_ENTRIES: Final = 1_024

MAX_USER_PROPERTIES: Final = 128
MAX_PROPERTIES_BYTES: Final = 16_384
MAX_MESSAGE_GROUP_LENGTH: Final = 64
MIN_INVISIBLE_MS: Final = 10_000
MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000
RENEWED_INVISIBLE_MS: Final = 60_000
MAX_DELAY_MS: Final = 24 * 3600 * 1000
MAX_RECOVERY_S: Final = 3600
MIN_POLL_S: Final = 5.0
MAX_POLL_S: Final = 20.0
MAX_BATCH: Final = 32
CLIENT_EXPIRES_S: Final = 120.0
REMEMBER_S: Final = 20.0


@dataclass
class ProxyConfig:
    """Holds what a proxy serves and where: `bind_address` and `port`, for the clusters of `namesrv`."""

    namesrv: list[str]
    bind_address: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    max_message_size_bytes: int = 4 * 1024 * 1024
    # A request may have several messages.
    max_inbound_bytes: int = 16 * 1024 * 1024
    # How long a proxy that stops waits for receives to end by themselves.
    drain_s: float = MAX_POLL_S + 5
    access: Access = field(default=PLAIN)
    front: FrontConfig = field(default_factory=FrontConfig)
    control: AccessConfig = field(default_factory=AccessConfig)
    # Whether other processes may listen at the port, too.
    shares_port: bool = False
