"""Hold the address of a proxy, and the limits that no setting changes; `keys.py` has Java's
keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cometmq.access.config import AccessConfig
from cometmq.client.access import PLAIN, Access
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.proxy.configuration.keys import ProxySettings

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
# A request without the bodies of its messages. An acknowledgement of 1,024 messages has 200 KB.
MAX_DETAIL_BYTES: Final = 512 * 1024
# Entries of an acknowledgement, and messages of a send.
MAX_ENTRIES: Final = 1_024

# Calls of the service Admin under way, and the time of each: it may ask all brokers and members of a group.
MAX_ADMIN_CALLS: Final = 32
ADMIN_CALL_TIMEOUT_S: Final = 30.0
# Groups, topics and members about which such a call asks servers, taken together.
MAX_ADMIN_QUESTIONS: Final = 256
# Members, subscriptions or queues in an answer.
MAX_ADMIN_ITEMS: Final = 4_096
# The size of a broker's report, so that decoding it blocks the loop for a few ms only.
MAX_REPORT_BYTES: Final = 1024 * 1024
# The size of an answer of the service Admin: the most that gRPC clients accept by default.
MAX_ADMIN_ANSWER_BYTES: Final = 4 * 1024 * 1024
# Messages in an answer to QueryMessage; a broker's search finds no more.
MAX_QUERIED_MESSAGES: Final = 64

REMEMBER_S: Final = 20.0


@dataclass
class ProxyConfig:
    """Holds what a proxy serves and where: `bind_address` and `port`, for the clusters of `namesrv`."""

    namesrv: list[str]
    bind_address: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    # How long a proxy that stops waits for receives to end by themselves; None takes it from the settings.
    drain_s: float | None = None
    # Whether other processes may listen at the port, too.
    shares_port: bool = False
    access: Access = field(default=PLAIN)
    settings: ProxySettings = field(default_factory=ProxySettings)
    front: FrontConfig = field(default_factory=FrontConfig)
    control: AccessConfig = field(default_factory=AccessConfig)
